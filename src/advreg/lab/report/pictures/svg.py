"""Figures as SVG: in a page, which sets the colours of light and dark, and as files.

A drawing is 380 units wide and so stays readable on a phone. Its parts have classes; :data:`STYLE`
gives them their colours. The colour of a method is the ``color`` of a group of class ``ink``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

from advreg.lab.drawing import PictureError, check_drawable
from advreg.lab.report.pictures.figures import Figure, Level, Lines, Look, Row, Rows, Series

WIDTH = 380
STYLE = Template("""
.chart text { font: 12px system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; fill: $text; }
.chart .head { font-size: 13px; font-weight: 600; }
.chart .muted { fill: $muted; }
.chart .grid { stroke: $line; }
.chart .axis { stroke: $muted; }
.chart .mark { stroke: $text; stroke-width: 2; }
.chart .dot { fill: $text; opacity: 0.55; }
.chart .line { stroke: currentColor; stroke-width: 2; fill: none; }
.chart .area { fill: currentColor; opacity: 0.16; }
.chart .fill { fill: currentColor; stroke: $surface; }
""")
_LIGHT = {"text": "#16191d", "muted": "#59626d", "line": "#dfe3e8", "surface": "#ffffff"}

_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 370.0, 22.0, 200.0  # of the plot of lines
_LEGEND_LINE, _SHORT_LABEL = 17, 24
_FEW_POINTS, _LETTER = 12, 6.4  # points that get a dot, typical width of a letter
_ROW, _VIOLIN_ROW = 38, 58
_COLUMNS = 3  # of figures in a file

Point = tuple[float, float]


def drawing(figure: Figure) -> str:
    """A figure without its title, as an element for a page."""
    parts, height = _drawn(figure)
    values = (
        [f"{row.look.label} {short(row.value)}" for row in figure.rows]
        if isinstance(figure, Rows)
        else [f"{each.look.label} ends at {short(each.y[-1])}" for each in figure.series]
    )
    spoken = f"{figure.title}. {figure.x}. {', '.join(values)}."
    return element("svg", *parts, class_="chart", role="img", aria_label=spoken, **_size(1, height))


def save(figures: Sequence[Figure], path: Path, title: str = "", columns: int = _COLUMNS) -> None:
    """Write figures side by side to a file, under a title."""
    check_drawable(path)
    if not figures:
        raise PictureError("picture has nothing to show: no finished run has values for it")
    columns = min(len(figures), columns)
    parts, top = [words(title, 12, 18, "head")], 28.0 if title else 0.0
    for start in range(0, len(figures), columns):
        row = [(figure, *_drawn(figure)) for figure in figures[start : start + columns]]
        for place, (figure, drawn, _) in enumerate(row):
            head = words(figure.title, 12, 16, "head")
            body = element("g", *drawn, transform="translate(0 24)")
            where = f"translate({place * WIDTH} {top:.0f})"
            parts.append(element("g", head, body, transform=where))
        top += max(height for *_, height in row) + 40
    style = element("style", STYLE.substitute(_LIGHT))
    back = element("rect", width="100%", height="100%", fill=_LIGHT["surface"])
    space, size = "http://www.w3.org/2000/svg", _size(columns, top)
    whole = element("svg", style, back, *parts, xmlns=space, class_="chart", **size)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{whole}\n", encoding="utf-8")


def _size(columns: int, height: float) -> dict[str, str | float]:
    width = columns * WIDTH
    return {"width": width, "height": round(height), "viewBox": f"0 0 {width} {height:.0f}"}


def _drawn(figure: Figure) -> tuple[list[str], float]:
    """The parts of a figure and its height."""
    return _rows(figure) if isinstance(figure, Rows) else _lines(figure)


# ---- elements


def element(name: str, *children: str, **attributes: str | float) -> str:
    """An SVG element; ``class_`` and ``aria_label`` name the attributes class and aria-label.

    Example:
        >>> element("line", x1=0, x2=1.25, class_="grid")
        '<line x1="0" x2="1.2" class="grid"/>'
    """
    parts = [name]
    for key, value in attributes.items():
        text = f"{value:.1f}" if isinstance(value, float) else escape(str(value))
        parts.append(f'{key.rstrip("_").replace("_", "-")}="{text}"')
    start = " ".join(parts)
    return f"<{start}>{''.join(children)}</{name}>" if children else f"<{start}/>"


def words(text: str, x: float, y: float, kind: str = "", anchor: str = "start") -> str:
    return element(
        "text", escape(text, quote=False), x=float(x), y=float(y), class_=kind, text_anchor=anchor
    )


def path_of(kind: str, points: Iterable[Point], **more: str | float) -> str:
    """A line through points."""
    places = "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("path", d=f"M{places}", class_=kind, **more)


def circle(x: float, y: float, radius: float, kind: str, told: str) -> str:
    """A dot, with a text for the pointer."""
    return element("circle", element("title", escape(told)), cx=x, cy=y, r=radius, class_=kind)


def ink(look: Look, *parts: str) -> str:
    """Parts in the colour of a label."""
    title = element("title", escape(look.label))
    return element("g", title, *parts, color=look.colour, class_="ink")


def short(value: float) -> str:
    """A number with three digits.

    Example:
        >>> short(0.0), short(1.0), short(71.249), short(-0.00012), short(12345.0)
        ('0', '1.00', '71.2', '−0.00012', '12345')
    """
    size = abs(value)
    form = ".0f" if size == 0 or 100 <= size < 1e6 else "#.3g" if 1e-3 <= size < 100 else ".3g"
    return f"{value:{form}}".replace("-", "−")


# ---- axes


@dataclass(frozen=True)
class Axis:
    """A range of values on a range of places."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, values: Sequence[float], zero: bool, start: float, end: float) -> Axis:
        """An axis that holds the values with some room; from 0 if asked for."""
        low, high = min(values, default=0.0), max(values, default=0.0)
        low = min(0.0, low) if zero else low
        span = high - low if high - low > 1e-9 * abs(high) else abs(high) or 1.0
        return cls(0.0 if zero and low == 0 else low - 0.06 * span, high + 0.06 * span, start, end)

    def __call__(self, value: float) -> float:
        """The place of a value."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> dict[float, str]:
        """About five round values, in steps of 1, 2 or 5 times a power of ten.

        Example:
            >>> list(Axis(0.0, 1.0, 0.0, 1.0).ticks().values())
            ['0', '0.2', '0.4', '0.6', '0.8', '1']
        """
        if self.high <= self.low:
            return {self.low: short(self.low)}
        least = 0.16 * (self.high - self.low)
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [place * step for place in range(first, last + 1)]
        return {value: f"{value:.6g}".replace("-", "−") for value in values}


# ---- lines


def _lines(figure: Lines) -> tuple[list[str], float]:
    x, y = _axes(figure)
    parts = [words(figure.y, 0, 12, "muted")]
    for mark, text in y.ticks().items():
        parts.append(path_of("grid", [(_LEFT, y(mark)), (_RIGHT, y(mark))]))
        parts.append(words(text, _LEFT - 7, y(mark) + 4, "muted", "end"))
    parts += _below(figure, x)
    parts += [_level(level, y) for level in figure.levels]
    parts += [_series(each, figure, x, y) for each in figure.series]
    legend, height = _legend(figure)
    return [*parts, *legend], height


def _axes(figure: Lines) -> tuple[Axis, Axis]:
    """Both axes; a word has its place even where no run has a result."""
    places = [place for each in figure.series for place in each.x]
    places = [0.0, len(figure.ticks) - 1.0] if figure.ticks else places
    values = [value for each in figure.series for value in (*each.y, *each.low, *each.high)]
    for level in figure.levels:
        values += [level.y - level.reach, level.y + level.reach]
    inset = 18 if figure.ticks else 0
    x = Axis(min(places), max(places), _LEFT + inset, _RIGHT - inset)
    return x, Axis.of(values, figure.zero, _BOTTOM, _TOP)


def _below(figure: Lines, x: Axis) -> Iterator[str]:
    """The axis of places, its texts and its title; crowded texts are on two lines."""
    shown: Mapping[float, str] = dict(enumerate(figure.ticks)) or x.ticks()
    room = (_RIGHT - _LEFT) / len(shown)
    down = 13 if any(_LETTER * len(text) > room for text in shown.values()) else 0
    yield path_of("axis", [(_LEFT, _BOTTOM), (_RIGHT, _BOTTOM)])
    for number, (place, text) in enumerate(shown.items()):
        yield path_of("axis", [(x(place), _BOTTOM), (x(place), _BOTTOM + 4)])
        yield words(text, x(place), _BOTTOM + 17 + down * (number % 2), "muted", "middle")
    yield words(figure.x, (_LEFT + _RIGHT) / 2, _BOTTOM + 34 + down, "muted", "middle")


def _level(level: Level, y: Axis) -> str:
    below, middle, above = y(level.y - level.reach), y(level.y), y(level.y + level.reach)
    edge = [(_LEFT, below), (_LEFT, above), (_RIGHT, above), (_RIGHT, below)]
    line = [(_LEFT, middle), (_RIGHT, middle)]
    return ink(
        level.look,
        path_of("area", edge),
        path_of("line", line, stroke_dasharray=level.look.dash),
    )


def _series(each: Series, figure: Lines, x: Axis, y: Axis) -> str:
    def points(values: Sequence[float]) -> list[Point]:
        return [(x(place), y(value)) for place, value in zip(each.x, values, strict=True)]

    line, parts = points(each.y), list[str]()
    if each.low and figure.reach == "band":
        parts.append(path_of("area", [*points(each.low), *reversed(points(each.high))]))
    elif each.low:
        ends = zip(points(each.low), points(each.high), strict=True)
        parts += [path_of("line", whisker(*pair)) for pair in ends]
    if figure.steps:
        line = [(at, top) for (_, top), (at, _) in zip([line[0], *line], line, strict=False)]
        corners = zip(line, points(each.y), strict=True)
        line = [corner for pair in corners for corner in pair]
        parts.append(path_of("area", [*line, (line[-1][0], _BOTTOM), (line[0][0], _BOTTOM)]))
    parts.append(path_of("line", line, stroke_dasharray=each.look.dash))
    if len(line) <= _FEW_POINTS:
        dots = zip(line, each.y, strict=False)
        parts += [circle(*at, 4.0, "fill", f"{each.look.label}: {short(v)}") for at, v in dots]
    return ink(each.look, *parts)


def whisker(low: Point, high: Point) -> list[Point]:
    """An upright line with short ends."""
    (at, bottom), (_, top) = low, high
    ends = [(at - 4, bottom), (at + 4, bottom), (at, bottom)]
    return [*ends, (at, top), (at - 4, top), (at + 4, top)]


def _legend(figure: Lines) -> tuple[list[str], float]:
    """Each label with its last value, and where the legend ends."""
    entries = [(each.look, each.y[-1]) for each in figure.series]
    entries += [(level.look, level.y) for level in figure.levels]
    columns = 2 if all(len(look.label) <= _SHORT_LABEL for look, _ in entries) else 1
    top, parts = _BOTTOM + 66, []
    for number, (look, last) in enumerate(entries):
        left = 6.0 + number % columns * WIDTH / columns
        top = _BOTTOM + 66 + number // columns * _LEGEND_LINE
        key = path_of("line", [(left, top - 4), (left + 20, top - 4)], stroke_dasharray=look.dash)
        value = "" if figure.steps else f" {short(last)}"
        parts += [ink(look, key), words(f"{look.label}{value}", left + 26, top)]
    return parts, top + 8


# ---- rows


def _rows(figure: Rows) -> tuple[list[str], float]:
    tall = _VIOLIN_ROW if any(row.violin for row in figure.rows) else _ROW
    floor = tall * len(figure.rows) + 6.0
    x = _row_axis(figure)
    parts = [words(figure.x, WIDTH / 2, floor + 34, "muted", "middle")]
    for mark, text in x.ticks().items():
        parts.append(path_of("grid", [(x(mark), 4.0), (x(mark), floor)]))
        parts.append(words(text, x(mark), floor + 16, "muted", "middle"))
    for number, row in enumerate(figure.rows):
        parts += _row(row, figure.bars, x, number * tall + 14.0, tall / 2 - 8)
    if figure.base is not None:
        line = [(x(figure.base), 4.0), (x(figure.base), floor)]
        parts.append(path_of("axis", line, stroke_dasharray="3 3"))
    return parts, floor + 42


def _row_axis(figure: Rows) -> Axis:
    """An axis for all values; intervals that are far wider are cut."""
    values = [] if figure.base is None else [figure.base]
    for row in figure.rows:
        values += [row.value, *row.dots, *(at for at, _ in row.violin)]
        values += [] if row.mark is None else [row.mark]
    low, high = min(values), max(values)
    room = 1.2 * (high - low) or math.inf
    intervals = [row.interval for row in figure.rows if row.interval is not None]
    values += [max(low - room, end) for end, _ in intervals]
    values += [min(high + room, end) for _, end in intervals]
    return Axis.of(values, figure.bars, 14, WIDTH - 14)


def _row(row: Row, bars: bool, x: Axis, top: float, half: float) -> Iterator[str]:
    """A label with its value, and below them the bar or dot."""
    middle = top + half
    told = "" if row.interval is None else f" [{', '.join(map(short, row.interval))}]"
    yield words(row.look.label, 8, top - 1)
    yield words(f"{short(row.value)}{told}", WIDTH - 8, top - 1, "muted", "end")
    if bars:
        yield ink(row.look, path_of("fill", mirrored(middle, [(x(0.0), 5), (x(row.value), 5)])))
    if row.violin:
        heights = [(x(at), half * 0.9 * dense) for at, dense in row.violin]
        yield ink(row.look, path_of("area", mirrored(middle, heights)))
    if row.interval is not None:
        line = path_of("mark" if bars else "line", cut(x, middle, *row.interval), fill="none")
        yield line if bars else ink(row.look, line)
    yield from (circle(x(dot), middle, 2.5, "dot", short(dot)) for dot in row.dots)
    if row.mark is not None:
        yield path_of("mark", [(x(row.mark), middle - 9), (x(row.mark), middle + 9)])
    if not bars:
        yield ink(row.look, circle(x(row.value), middle, 5.5, "fill", short(row.value)))


def mirrored(middle: float, heights: Sequence[Point]) -> list[Point]:
    """The outline of a shape that reaches as far above the middle as below."""
    upper = [(at, middle - height) for at, height in heights]
    return [*upper, *((at, 2 * middle - top) for at, top in reversed(upper))]


def cut(x: Axis, middle: float, low: float, high: float) -> list[Point]:
    """A line from end to end; with an arrow where the axis cuts it."""
    start, end = (x(max(low, x.low)), middle), (x(min(high, x.high)), middle)
    before = [(start[0] + 6, middle + side) for side in (-5, 5)] if low < x.low else []
    after = [(end[0] - 6, middle + side) for side in (-5, 5)] if high > x.high else []
    return [
        *([before[0], start, before[1]] if before else []), start, end,
        *([after[0], end, after[1]] if after else []),
    ]  # fmt: skip
