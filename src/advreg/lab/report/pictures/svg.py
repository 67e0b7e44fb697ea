"""Figures as SVG: in a page, which sets the colours of light and dark, and as files.

A drawing is 380 units wide and so stays readable on a phone. Its parts have classes; :data:`STYLE`
gives them their colours. The colour of a method is the ``color`` of a group of class ``ink``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from string import Template

from advreg.lab.drawing import PictureError, check_drawable
from advreg.lab.report.pictures.figures import Figure, Lines, Look, Row, Rows, Series

WIDTH = 380
STYLE = Template("""
.chart text { font: 12px system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; fill: $text; }
.chart .head { font-size: 13px; font-weight: 600; }
.chart .muted { fill: $muted; }
.chart .grid { stroke: $line; }
.chart .mark { stroke: $text; stroke-width: 2; }
.chart .dot { fill: $text; opacity: 0.55; }
.chart .line { stroke: currentColor; stroke-width: 2; fill: none; }
.chart .area { fill: currentColor; opacity: 0.16; }
.chart .fill { fill: currentColor; stroke: $surface; }
""")
_LIGHT = {"text": "#16191d", "muted": "#59626d", "line": "#dfe3e8", "surface": "#ffffff"}

_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 358.0, 22.0, 200.0  # of the plot of lines
_BELOW = 46  # of an axis: its texts and its title
_FEW_POINTS, _LETTER = 12, 6.4  # points that get a dot, typical width of a letter
_LEGEND_LINE, _ROW = 17, 38
_COLUMNS = 3  # of figures in a file

Point = tuple[float, float]


def drawing(figure: Figure) -> str:
    """A figure without its title, as an element for a page."""
    parts, height = _drawn(figure)
    values = [f"{mark.look.label} {short(mark.value)}" for mark in figure.marks]
    spoken = f"{figure.title}. {figure.x}. {', '.join(values)}."
    return element("svg", *parts, class_="chart", role="img", aria_label=spoken, **_size(1, height))


def save(figures: Sequence[Figure], path: Path, title: str = "", columns: int = _COLUMNS) -> None:
    """Write figures side by side to a file, under a title."""
    check_drawable(path)
    if not figures:
        raise PictureError("picture has nothing to show: no finished run has values for it")
    columns = min(len(figures), columns)
    parts, top = [words(title, 8, 18, "head")], 28.0 if title else 0.0
    for start in range(0, len(figures), columns):
        row, height = _side_by_side(figures[start : start + columns], top)
        parts += row
        top += height
    style = element("style", STYLE.substitute(_LIGHT))
    back = element("rect", width="100%", height="100%", fill=_LIGHT["surface"])
    space, size = "http://www.w3.org/2000/svg", _size(columns, top)
    whole = element("svg", style, back, *parts, xmlns=space, class_="chart", **size)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{whole}\n", encoding="utf-8")


def _side_by_side(figures: Sequence[Figure], top: float) -> tuple[list[str], float]:
    """Figures under their titles, and their height."""
    parts, heights = [], []
    for place, figure in enumerate(figures):
        drawn, height = _drawn(figure)
        head = words(figure.title, 8, 16, "head")
        body = element("g", *drawn, transform="translate(0 24)")
        where = f"translate({place * WIDTH} {top:.0f})"
        parts.append(element("g", head, body, transform=where))
        heights.append(height)
    return parts, max(heights) + 40


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
    def of(cls, values: Sequence[float], start: float, end: float, zero: bool = False) -> Axis:
        """An axis that holds the values with some room; from 0 if asked for."""
        low, high = min(values), max(values)
        low = min(0.0, low) if zero else low
        span = high - low if high - low > 1e-9 * abs(high) else abs(high) or 1.0
        return cls(low if zero else low - 0.06 * span, high + 0.06 * span, start, end)

    def __call__(self, value: float) -> float:
        """The place of a value; beyond the ends of the axis, its end."""
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self) -> dict[float, str]:
        """About five round values, in steps of 1, 2 or 5 times a power of ten.

        Example:
            >>> list(Axis(0.0, 1.0, 0.0, 1.0).ticks().values())
            ['0', '0.2', '0.4', '0.6', '0.8', '1']
        """
        least = 0.16 * (self.high - self.low)
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = [place * step for place in range(first, last + 1)]
        return {value: f"{value:.6g}".replace("-", "−") for value in values}


def _upright(
    x: Axis, texts: Mapping[float, str], top: float, bottom: float, title: str
) -> Iterator[str]:
    """Upright grid lines, with the texts and the title of the axis below; crowded texts are on
    two lines.
    """
    crowded = _LETTER * sum(map(len, texts.values())) > 0.8 * (x.end - x.start)
    for number, (value, text) in enumerate(texts.items()):
        line = 29 if crowded and number % 2 else 16
        yield path_of("grid", [(x(value), top), (x(value), bottom)])
        yield words(text, x(value), bottom + line, "muted", "middle")
    yield words(title, WIDTH / 2, bottom + _BELOW, "muted", "middle")


# ---- lines


def _lines(figure: Lines) -> tuple[list[str], float]:
    x, y = _places(figure), _values(figure)
    ticks = {float(place): text for place, text in enumerate(figure.ticks)} or x.ticks()
    parts = [words(figure.y, 8, 12, "muted"), *_upright(x, ticks, _TOP, _BOTTOM, figure.x)]
    for value, text in y.ticks().items():
        parts.append(path_of("grid", [(_LEFT, y(value)), (_RIGHT, y(value))]))
        parts.append(words(text, _LEFT - 7, y(value) + 4, "muted", "end"))
    parts += [_series(each, x, y) for each in figure.marks]
    top = _BOTTOM + _BELOW + 24
    for number, each in enumerate(figure.marks):
        parts += _legend(each, top + number * _LEGEND_LINE)
    return parts, top + len(figure.marks) * _LEGEND_LINE


def _places(figure: Lines) -> Axis:
    """The axis of places; a word has its place even where no run has a result."""
    words_at = list(map(float, range(len(figure.ticks))))
    return Axis.of(words_at or list(chain(*(each.x for each in figure.marks))), _LEFT, _RIGHT)


def _values(figure: Lines) -> Axis:
    values = chain(*((*each.y, *each.low, *each.high) for each in figure.marks))
    return Axis.of(list(values), _BOTTOM, _TOP, figure.zero)


def _series(each: Series, x: Axis, y: Axis) -> str:
    """A line with its band, and dots if it is short; dashed ones are only to compare with."""
    line = _points(x, y, each.x, each.y)
    parts = [path_of("line", line, stroke_dasharray=each.look.dash)]
    if each.low:
        below, above = (_points(x, y, each.x, values) for values in (each.low, each.high))
        parts.append(path_of("area", [*below, *reversed(above)]))
    if len(line) <= _FEW_POINTS and not each.look.dash:
        dots = zip(line, each.y, strict=True)
        parts += [circle(*at, 4.0, "fill", short(value)) for at, value in dots]
    return ink(each.look, *parts)


def _points(x: Axis, y: Axis, places: Sequence[float], values: Sequence[float]) -> list[Point]:
    return [(x(place), y(value)) for place, value in zip(places, values, strict=True)]


def _legend(each: Series, top: float) -> Iterator[str]:
    """A label with its last value."""
    key = [(8.0, top - 4), (26.0, top - 4)]
    yield ink(each.look, path_of("line", key, stroke_dasharray=each.look.dash))
    yield words(f"{each.look.label} {short(each.value)}", 32, top)


# ---- rows


def _rows(figure: Rows) -> tuple[list[str], float]:
    bottom = _ROW * len(figure.marks) + 6.0
    x = _row_axis(figure)
    parts = [*_upright(x, x.ticks(), 4.0, bottom, figure.x)]
    for number, row in enumerate(figure.marks):
        parts += _row(row, x, number * _ROW + 14.0, figure.zero)
    return parts, bottom + _BELOW + 8


def _row_axis(figure: Rows) -> Axis:
    """An axis for all values; it cuts intervals that are far wider."""
    values = list(chain(*(row.values for row in figure.marks)))
    low, high = min(values), max(values)
    room = 1.2 * (high - low) or math.inf
    ends = chain(*(row.interval or () for row in figure.marks))
    values += [min(max(end, low - room), high + room) for end in ends]
    return Axis.of(values, 14, WIDTH - 14, figure.zero)


def _row(row: Row, x: Axis, top: float, bar: bool) -> Iterator[str]:
    """A label with its value, and below them the dots."""
    middle, told, shapes = top + 11, "", list[str]()
    if bar:
        width = x(row.value) - x.start
        shapes.append(
            element("rect", x=x.start, y=middle - 5, width=width, height=10, class_="area")
        )
    if row.interval is not None:
        told = f" [{', '.join(map(short, row.interval))}]"
        shapes.append(path_of("line", [(x(end), middle) for end in row.interval]))
    if row.expected is not None:
        at = x(row.expected)
        shapes.append(path_of("mark", [(at, middle - 9), (at, middle + 9)]))
    shapes.append(circle(x(row.value), middle, 5.5, "fill", short(row.value)))
    yield words(row.look.label, 8, top - 1)
    yield words(f"{short(row.value)}{told}", WIDTH - 8, top - 1, "muted", "end")
    yield ink(row.look, *shapes)
    yield from (circle(x(dot), middle, 2.5, "dot", short(dot)) for dot in row.dots)
