"use strict";
// Draws the pictures of a report from the JSON in the page; everything shown is set as text, never as markup.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const hidden = new Set(); // labels that are not shown, in any picture
  const tip = document.getElementById("tip");

  // ---- light and dark

  const root = document.documentElement,
    theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const remembered = {
    get: () => {
      try {
        return localStorage.getItem("advreg-theme");
      } catch {
        return null;
      }
    },
    set: (value) => {
      try {
        localStorage.setItem("advreg-theme", value);
      } catch {
        /* a file's page may not keep it */
      }
    },
  };

  function wear(value) {
    if (value) root.dataset.theme = value;
    theme.textContent = isDark() ? "Light" : "Dark";
    dressLegends();
    paintAll();
  }

  // ---- small things

  function element(name, attributes = {}, text) {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  function html(name, className, text) {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  }

  const pen = document.createElement("canvas").getContext("2d");
  function widthOf(text, size = 12) {
    pen.font = `${size}px ${FONT}`;
    return pen.measureText(text).width;
  }

  function colours() {
    const probe = html("span");
    document.body.append(probe);
    const read = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    const found = Object.fromEntries(["text", "muted", "line", "surface"].map((name) => [name, read(name)]));
    probe.remove();
    return found;
  }

  // A method's colour; on a dark page a fifth of white in it, so that the deep ones stand out.
  function ink(look) {
    if (!isDark()) return look.colour;
    const parts = [1, 3, 5].map((place) => parseInt(look.colour.slice(place, place + 2), 16));
    return `rgb(${parts.map((part) => Math.round(part + (255 - part) * 0.2)).join(" ")})`;
  }

  function number(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e").replace("-", "−");
    const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 1 ? 3 : 4;
    return String(Number(value.toFixed(digits))).replace("-", "−");
  }

  const short = (value) => (Math.abs(value) >= 0.01 && Math.abs(value) < 1000 ? value.toPrecision(3) : number(value));

  // Round values in an interval, about as many as asked for: steps of 1, 2 or 5 times a power of ten.
  function ticks(low, high, count) {
    if (!(high > low)) return [low];
    const raw = (high - low) / Math.max(count, 1);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw * 0.8);
    const found = [];
    for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place++) {
      found.push(Number((place * step).toPrecision(12)));
    }
    return found;
  }

  function powers(low, high) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const factor of [1, 2, 5]) {
        const value = Number((factor * 10 ** power).toPrecision(6));
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    }
    return found.length > 7 ? found.filter((value) => /^1/.test(value.toExponential())) : found;
  }

  function interval(values, zero) {
    let low = Math.min(...values),
      high = Math.max(...values);
    if (zero) low = Math.min(0, low);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [zero && low >= 0 ? 0 : low - room, high + room];
  }

  const scale = (low, high, from, to, map = (value) => value) => {
    const [first, last] = [map(low), map(high)];
    return (value) => from + ((map(value) - first) / (last - first || 1)) * (to - from);
  };

  // ---- what pictures share

  const looksOf = (figure) => {
    const parts = figure.kind === "rows" ? figure.rows : [...figure.series, ...figure.levels];
    return [...new Map(parts.map((part) => [part.look.label, part.look])).values()];
  };
  const shown = (parts) => parts.filter((part) => !hidden.has(part.look.label));

  function swatch(look, isLine) {
    const node = element("svg", { width: 18, height: 10, "aria-hidden": "true" });
    node.append(
      isLine
        ? element("line", {
            x1: 0,
            y1: 5,
            x2: 18,
            y2: 5,
            stroke: ink(look),
            "stroke-width": 3,
            "stroke-dasharray": look.dash,
          })
        : element("rect", { x: 3, y: 0, width: 12, height: 10, rx: 3, fill: ink(look) }),
    );
    return node;
  }

  function frame(figure, width, height) {
    const node = element("svg", {
      xmlns: SVG,
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": spoken(figure),
      "font-family": FONT,
      "font-size": 12,
      tabindex: 0,
    });
    return node;
  }

  function spoken(figure) {
    const values =
      figure.kind === "rows"
        ? shown(figure.rows).map((row) => `${row.look.label} ${number(row.value)}`)
        : shown(figure.series).map((each) => `${each.look.label} ends at ${number(each.y[each.y.length - 1])}`);
    return `${figure.title}. ${figure.x}. ${values.join(", ")}. Arrow keys read single values.`;
  }

  function nothing(svg, paint, width, height) {
    svg.append(
      element("text", { x: width / 2, y: height / 2, "text-anchor": "middle", fill: paint.muted }, "all hidden"),
    );
  }

  // ---- lines

  function drawLines(figure, width, paint) {
    const height = Math.round(Math.max(220, Math.min(300, width * 0.55)));
    const svg = frame(figure, width, height);
    const series = shown(figure.series),
      levels = shown(figure.levels);
    if (!series.length) return (nothing(svg, paint, width, height), { svg, stops: [] });
    // a word has its place on the axis even where no run has a result
    const xs = figure.ticks.length ? [0, figure.ticks.length - 1] : series.flatMap((each) => each.x);
    const ys = [...series.flatMap((each) => [...each.y, ...each.low, ...each.high]), ...levels.map((level) => level.y)];
    const [bottom, top] = interval(ys, figure.zero);
    const marks = ticks(bottom, top, 5);
    const left = Math.max(...marks.map((mark) => widthOf(number(mark)))) + 30;
    const [right, under, over] = [14, 44, 10];
    const log = figure.logarithmic ? Math.log : undefined;
    const few = figure.reach === "bars";
    const inset = few ? 16 : 0;
    const x = scale(Math.min(...xs), Math.max(...xs), left + inset, width - right - inset, log);
    const y = scale(bottom, top, height - under, over);

    for (const mark of marks) {
      svg.append(element("line", { x1: left, x2: width - right, y1: y(mark), y2: y(mark), stroke: paint.line }));
      svg.append(
        element("text", { x: left - 7, y: y(mark) + 4, "text-anchor": "end", fill: paint.muted }, number(mark)),
      );
    }
    const places = figure.ticks.length
      ? figure.ticks.map((text, place) => [place, text])
      : (log ? powers(Math.min(...xs), Math.max(...xs)) : ticks(Math.min(...xs), Math.max(...xs), width / 90)).map(
          (value) => [value, number(value)],
        );
    for (const [place, text] of places) {
      svg.append(
        element("line", {
          x1: x(place),
          x2: x(place),
          y1: height - under,
          y2: height - under + 5,
          stroke: paint.muted,
        }),
      );
      svg.append(
        element("text", { x: x(place), y: height - under + 18, "text-anchor": "middle", fill: paint.muted }, text),
      );
    }
    svg.append(
      element("line", { x1: left, x2: width - right, y1: height - under, y2: height - under, stroke: paint.muted }),
    );
    svg.append(
      element(
        "text",
        { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle", fill: paint.muted },
        figure.x,
      ),
    );
    svg.append(
      element(
        "text",
        {
          transform: `translate(12 ${(over + height - under) / 2}) rotate(-90)`,
          "text-anchor": "middle",
          fill: paint.muted,
        },
        figure.y,
      ),
    );

    for (const level of levels) {
      svg.append(
        element("line", {
          x1: left,
          x2: width - right,
          y1: y(level.y),
          y2: y(level.y),
          stroke: ink(level.look),
          "stroke-width": 2,
          "stroke-dasharray": level.look.dash,
          "stroke-linecap": "round",
          "data-label": level.look.label,
        }),
      );
    }
    for (const each of series) {
      const group = element("g", { "data-label": each.look.label });
      const points = each.x.map((place, index) => [x(place), y(each.y[index])]);
      if (each.low.length && !few) {
        const edge = [
          ...each.x.map((place, i) => [x(place), y(each.high[i])]),
          ...each.x.map((place, i) => [x(place), y(each.low[i])]).reverse(),
        ];
        group.append(element("path", { d: `M${edge.join("L")}Z`, fill: ink(each.look), opacity: 0.16 }));
      }
      if (few) {
        each.x.forEach((place, i) => {
          const [a, b, at] = [y(each.low[i]), y(each.high[i]), x(place)];
          group.append(
            element("path", {
              d: `M${at},${a}L${at},${b}M${at - 4},${a}L${at + 4},${a}M${at - 4},${b}L${at + 4},${b}`,
              stroke: ink(each.look),
              "stroke-width": 1.4,
              fill: "none",
            }),
          );
        });
      }
      const path = figure.steps
        ? points.map(([px, py], i) => (i ? `H${px}V${py}` : `M${px},${py}`)).join("")
        : `M${points.join("L")}`;
      if (figure.steps) {
        const floor = y(Math.max(0, bottom));
        group.append(
          element("path", {
            d: `${path}V${floor}H${points[0][0]}Z`,
            fill: ink(each.look),
            opacity: 0.18,
          }),
        );
      }
      group.append(
        element("path", {
          d: path,
          fill: "none",
          stroke: ink(each.look),
          "stroke-width": 2.2,
          "stroke-dasharray": each.look.dash,
          "stroke-linejoin": "round",
          "stroke-linecap": "round",
        }),
      );
      if (points.length <= 12 && !figure.steps) {
        for (const [px, py] of points) {
          group.append(
            element("circle", {
              cx: px,
              cy: py,
              r: 3.6,
              fill: ink(each.look),
              stroke: paint.surface,
              "stroke-width": 1.2,
            }),
          );
        }
      }
      svg.append(group);
    }

    const all = [...new Set(xs)].sort((a, b) => a - b);
    if (figure.steps) all.pop(); // the last place only closes the last bin
    const stops = all.map((place) => {
      const entries = series.flatMap((each) => {
        const index = each.x.indexOf(place);
        if (index < 0) return [];
        const reach =
          each.low.length && each.low[index] !== each.high[index]
            ? ` (${number(each.low[index])} to ${number(each.high[index])})`
            : "";
        return [[each.look, number(each.y[index]) + reach, x(place), y(each.y[index])]];
      });
      const name = figure.ticks.length ? figure.ticks[place] : number(place);
      return {
        at: x(place),
        title: `${figure.x} ${name}`,
        entries: [...entries, ...levels.map((level) => [level.look, number(level.y)])],
      };
    });
    const cursor = element("g", { opacity: 0, "pointer-events": "none" });
    svg.append(cursor);
    const point = (stop) => {
      cursor.replaceChildren();
      cursor.setAttribute("opacity", stop ? 1 : 0);
      if (!stop) return;
      cursor.append(
        element("line", {
          x1: stop.at,
          x2: stop.at,
          y1: over,
          y2: height - under,
          stroke: paint.muted,
          "stroke-dasharray": "2 3",
        }),
      );
      for (const [look, , px, py] of stop.entries) {
        if (px !== undefined)
          cursor.append(
            element("circle", { cx: px, cy: py, r: 4.5, fill: ink(look), stroke: paint.surface, "stroke-width": 1.5 }),
          );
      }
    };
    return { svg, stops, point, along: "x" };
  }

  // ---- rows: bars, dots with intervals, violins

  function drawRows(figure, width, paint) {
    const rows = shown(figure.rows);
    const gutter = Math.max(0, ...rows.map((row) => widthOf(row.look.label))) + 18;
    const aside = gutter <= width * 0.34; // else labels stand above their rows
    const violins = rows.some((row) => row.violin.length);
    const tall = (violins ? 50 : 34) + (aside ? 0 : 18);
    const under = 44;
    const height = Math.max(rows.length * tall, 60) + under + 8;
    const svg = frame(figure, width, height);
    if (!rows.length) return (nothing(svg, paint, width, height), { svg, stops: [] });
    const values = rows.flatMap((row) => [
      row.value,
      row.mark ?? row.value,
      ...row.dots,
      ...row.violin.map(([at]) => at),
    ]);
    if (figure.base !== null) values.push(figure.base);
    // An interval of two seeds may be ten times as wide as all there is to see: it is cut where it would hide the rest.
    const room = (Math.max(...values) - Math.min(...values)) * 1.2 || Infinity;
    const [least, most] = [Math.min(...values) - room, Math.max(...values) + room];
    const within = (value) => Math.max(least, Math.min(most, value));
    const ends = rows.flatMap((row) => (row.low === null ? [] : [within(row.low), within(row.high)]));
    const [low, high] = interval([...values, ...ends], figure.bars);
    const [left, right] = [aside ? gutter : 14, 58];
    const x = scale(low, high, left, width - right);
    const floor = height - under;
    for (const mark of ticks(low, high, (width - left - right) / 80)) {
      svg.append(element("line", { x1: x(mark), x2: x(mark), y1: 4, y2: floor, stroke: paint.line }));
      svg.append(
        element("text", { x: x(mark), y: floor + 18, "text-anchor": "middle", fill: paint.muted }, number(mark)),
      );
    }
    svg.append(
      element(
        "text",
        { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle", fill: paint.muted },
        figure.x,
      ),
    );
    const stops = rows.map((row, index) => {
      const middle = index * tall + (tall + (aside ? 0 : 18)) / 2 + 4;
      const group = element("g", { "data-label": row.look.label });
      group.append(
        aside
          ? element("text", { x: gutter - 10, y: middle + 4, "text-anchor": "end", fill: paint.text }, row.look.label)
          : element("text", { x: left, y: index * tall + 16, fill: paint.text }, row.look.label),
      );
      if (figure.bars) {
        group.append(
          element("rect", {
            x: Math.min(x(0), x(row.value)),
            y: middle - 9,
            width: Math.abs(x(row.value) - x(0)),
            height: 18,
            rx: 4,
            fill: ink(row.look),
            opacity: 0.88,
          }),
        );
      }
      if (row.violin.length) {
        const edge = [
          ...row.violin.map(([at, dense]) => [x(at), middle - 19 * dense]),
          ...row.violin.map(([at, dense]) => [x(at), middle + 19 * dense]).reverse(),
        ];
        group.append(
          element("path", { d: `M${edge.join("L")}Z`, fill: ink(row.look), opacity: 0.35, stroke: ink(row.look) }),
        );
      }
      if (row.low !== null) {
        const stroke = figure.bars ? paint.text : ink(row.look);
        const [from, to] = [within(row.low), within(row.high)];
        group.append(
          element("line", {
            x1: x(from),
            x2: x(to),
            y1: middle,
            y2: middle,
            stroke,
            "stroke-width": violins ? 5 : 2.4,
            "stroke-linecap": "round",
          }),
        );
        for (const [end, cut, way] of [
          [from, from !== row.low, 1],
          [to, to !== row.high, -1],
        ]) {
          if (cut)
            group.append(
              element("path", {
                d: `M${x(end) + 6 * way},${middle - 5}L${x(end)},${middle}L${x(end) + 6 * way},${middle + 5}`,
                fill: "none",
                stroke,
                "stroke-width": 2,
              }),
            );
        }
      }
      if (row.mark !== null) {
        group.append(
          element("line", {
            x1: x(row.mark),
            x2: x(row.mark),
            y1: middle - 14,
            y2: middle + 14,
            stroke: paint.text,
            "stroke-width": 2.5,
          }),
        );
      }
      row.dots.forEach((dot, place) => {
        const off = violins ? (((place * 7) % 11) - 5) * 1.3 : 0;
        group.append(element("circle", { cx: x(dot), cy: middle + off, r: 2.6, fill: paint.text, opacity: 0.55 }));
      });
      if (!figure.bars) {
        group.append(
          element("circle", {
            cx: x(row.value),
            cy: middle,
            r: 5.5,
            fill: ink(row.look),
            stroke: paint.surface,
            "stroke-width": 1.8,
          }),
        );
      }
      const end = Math.max(
        ...[
          row.value,
          within(row.high ?? row.value),
          row.mark ?? row.value,
          ...row.dots,
          ...row.violin.map(([at]) => at),
        ].map(x),
      );
      group.append(element("text", { x: end + 9, y: middle + 4, fill: paint.muted }, short(row.value)));
      svg.append(group);
      const told = figure.told;
      const entries = [[row.look, `${told.value ?? "value"} ${number(row.value)}`]];
      if (row.low !== null)
        entries.push([null, `${told.interval ?? "interval"} ${number(row.low)} to ${number(row.high)}`]);
      if (row.mark !== null) entries.push([null, `${told.mark ?? "mark"} ${number(row.mark)}`]);
      if (row.dots.length && row.dots.length <= 12)
        entries.push([null, `${told.dots ?? "values"} ${row.dots.map(number).join(", ")}`]);
      return { at: middle, title: row.look.label, entries, from: middle - tall / 2 };
    });
    if (figure.base !== null) {
      svg.append(
        element("line", {
          x1: x(figure.base),
          x2: x(figure.base),
          y1: 4,
          y2: floor,
          stroke: paint.text,
          "stroke-dasharray": "3 3",
        }),
      );
    }
    const band = element("rect", { x: 0, width, height: tall, fill: paint.text, opacity: 0, "pointer-events": "none" });
    svg.append(band);
    const point = (stop) => {
      band.setAttribute("opacity", stop ? 0.06 : 0);
      if (stop) band.setAttribute("y", stop.from);
    };
    return { svg, stops, point, along: "y" };
  }

  const draw = (figure, width, paint) => (figure.kind === "rows" ? drawRows : drawLines)(figure, width, paint);

  // ---- values under the pointer

  function tell(title, entries, left, top) {
    tip.replaceChildren(html("b", "", title));
    for (const [look, text] of entries) {
      const line = html("div");
      if (look) {
        const mark = html("i");
        mark.style.background = ink(look);
        line.append(mark, html("span", "", look.label));
      }
      line.append(html("span", "", text));
      tip.append(line);
    }
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(left + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${top + 18 + height > innerHeight ? Math.max(8, top - height - 12) : top + 18}px`;
  }

  const quiet = () => {
    tip.hidden = true;
  };

  function listen(drawn) {
    const { svg, stops, point, along } = drawn;
    if (!stops.length) return;
    let current = -1;
    const go = (index, left, top) => {
      current = index;
      point(stops[index]);
      tell(stops[index].title, stops[index].entries, left, top);
    };
    const leave = () => {
      current = -1;
      point(null);
      quiet();
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const ratio = svg.viewBox.baseVal.width / box.width;
      const at = (along === "x" ? event.clientX - box.left : event.clientY - box.top) * ratio;
      const far = (stop) => Math.abs(stop.at - at);
      go(
        stops.reduce((best, stop, index) => (far(stop) < far(stops[best]) ? index : best), 0),
        event.clientX,
        event.clientY,
      );
    });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") leave();
      if (!move) return;
      event.preventDefault();
      const next = Math.max(0, Math.min(stops.length - 1, current < 0 ? 0 : current + move));
      const box = svg.getBoundingClientRect();
      const ratio = box.width / svg.viewBox.baseVal.width;
      const [left, top] =
        along === "x"
          ? [box.left + stops[next].at * ratio, box.top + 20]
          : [box.left + box.width / 2, box.top + stops[next].at * ratio];
      go(next, left, top);
    });
  }

  // ---- pictures in the page

  const pictures = [...document.querySelectorAll("figure[data-figure]")].map((node) => ({
    node,
    figure: figures[Number(node.dataset.figure)],
    canvas: node.querySelector(".canvas"),
    width: 0,
  }));

  function paintPicture(picture, paint) {
    const padding = parseFloat(getComputedStyle(picture.canvas).paddingLeft) * 2;
    picture.width = Math.max(240, Math.floor(picture.canvas.clientWidth - padding));
    const drawn = draw(picture.figure, picture.width, paint);
    listen(drawn);
    picture.canvas.replaceChildren(drawn.svg);
  }

  function paintAll() {
    const paint = colours();
    pictures.forEach((picture) => paintPicture(picture, paint));
  }

  function dressLegends() {
    for (const { node, figure } of pictures) {
      node.querySelector(".legend").replaceChildren();
      for (const look of looksOf(figure)) {
        const button = html("button");
        button.type = "button";
        button.dataset.label = look.label;
        button.append(swatch(look, figure.kind === "lines"), html("span", "", look.label));
        button.addEventListener("click", () => toggle(look.label));
        node.querySelector(".legend").append(button);
      }
    }
    press();
  }

  function press() {
    for (const button of document.querySelectorAll(".legend button")) {
      button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.label)));
    }
  }

  function toggle(label) {
    if (!hidden.delete(label)) hidden.add(label);
    press();
    quiet();
    paintAll();
  }

  // ---- saving and copying

  function standalone(figure) {
    const width = 720,
      paint = colours();
    const { svg } = draw(figure, width, paint);
    const inner = Number(svg.getAttribute("height"));
    svg.setAttribute("y", 34);
    svg.removeAttribute("tabindex");
    const whole = element("svg", { xmlns: SVG, "font-family": FONT, "font-size": 12 });
    whole.append(element("title", {}, figure.title));
    const back = element("rect", { width, fill: paint.surface });
    whole.append(
      back,
      element("text", { x: 14, y: 23, "font-size": 15, "font-weight": 600, fill: paint.text }, figure.title),
      svg,
    );
    let [left, top] = [14, inner + 54];
    if (figure.kind !== "rows") {
      for (const look of looksOf(figure).filter((each) => !hidden.has(each.label))) {
        const room = widthOf(look.label) + 42;
        if (left + room > width) [left, top] = [14, top + 20];
        const mark = swatch(look, true);
        mark.setAttribute("x", left);
        mark.setAttribute("y", top - 9);
        whole.append(mark, element("text", { x: left + 24, y: top, fill: paint.text }, look.label));
        left += room;
      }
    }
    const height = figure.kind === "rows" ? inner + 40 : top + 14;
    back.setAttribute("height", height);
    for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` }))
      whole.setAttribute(name, value);
    return new XMLSerializer().serializeToString(whole);
  }

  function save(figure) {
    const link = html("a");
    link.href = URL.createObjectURL(new Blob([standalone(figure)], { type: "image/svg+xml" }));
    link.download = `${
      figure.title
        .toLowerCase()
        .replace(/[^a-z0-9]+/g, "-")
        .replace(/^-|-$/g, "") || "picture"
    }.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  const cellsOf = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()));

  function markdown(table) {
    const line = (cells) => `| ${cells.map((cell) => cell.replaceAll("|", "\\|")).join(" | ")} |`;
    const [head, ...body] = cellsOf(table);
    return [line(head), `|${head.map((_, i) => (i ? "---:" : "---")).join("|")}|`, ...body.map(line)].join("\n") + "\n";
  }

  function csv(table) {
    const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
    return (
      cellsOf(table)
        .map((cells) => cells.map(quoted).join(","))
        .join("\n") + "\n"
    );
  }

  function copyBySelection(text) {
    const area = html("textarea");
    area.value = text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }

  async function copy(button, text) {
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      done = copyBySelection(text);
    }
    const before = (button.dataset.text ??= button.textContent);
    button.textContent = done ? "Copied" : "Not allowed";
    setTimeout(() => {
      button.textContent = before;
    }, 1400);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-does]");
    if (!button) return;
    const node = button.closest("figure");
    if (button.dataset.does === "save") save(figures[Number(node.dataset.figure)]);
    if (button.dataset.does === "markdown") copy(button, markdown(node.querySelector("table")));
    if (button.dataset.does === "csv") copy(button, csv(node.querySelector("table")));
  });

  // ---- tokens

  document.addEventListener("pointerover", (event) => {
    const token = event.target.closest?.(".token");
    if (token) tell(token.textContent, [[null, token.dataset.tip]], event.clientX, event.clientY);
    else if (!event.target.closest?.(".canvas")) quiet();
  });

  // ---- begin

  theme.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    remembered.set(next);
    wear(next);
  });
  system.addEventListener("change", () => wear());
  wear(remembered.get());
  new ResizeObserver(() => {
    const paint = colours();
    for (const picture of pictures) {
      const padding = parseFloat(getComputedStyle(picture.canvas).paddingLeft) * 2;
      const width = Math.floor(picture.canvas.clientWidth - padding);
      if (Math.abs(width - picture.width) > 2 && width > 0) paintPicture(picture, paint);
    }
  }).observe(document.querySelector("main"));
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const reader = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        links.forEach((link) => link.removeAttribute("aria-current"));
        links.get(entry.target.id)?.setAttribute("aria-current", "true");
      }
    },
    { rootMargin: "-15% 0px -75% 0px" },
  );
  document.querySelectorAll("section[id]").forEach((section) => reader.observe(section));
  root.dataset.ready = "true";
})();
