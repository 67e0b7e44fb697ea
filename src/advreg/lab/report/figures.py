"""Pictures as values, which the page's script draws: lines over an axis, and rows of bars,
intervals or violins.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from advreg.lab.drawing import COLOURS, OTHERS
from advreg.lab.report.curves import Curve
from advreg.lab.report.statistics import Spread

_MOST_POINTS = 300  # of a line: more than a screen can tell apart
_DARKEST, _LIGHTEST = -0.4, 0.45
_DASHES = ("", "7 3", "2 3", "10 3 2 3", "5 2 1 2 1 2")
DASHED, DOTTED = "7 4", "1.5 4"
_VIOLIN_POINTS = 48


@dataclass(frozen=True)
class Look:
    """How a label appears in every picture: its text, colour and dash; what shares a method shares
    its colour.
    """

    label: str
    method: str
    colour: str
    dash: str = ""


@dataclass(frozen=True)
class Series:
    """A line: values over places, and how far they reach (over seeds)."""

    look: Look
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


@dataclass(frozen=True)
class Level:
    """A horizontal line to compare with."""

    look: Look
    y: float


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines over an axis.

    Args:
        title: of the picture.
        x, y: what the axes show.
        series, levels: what is drawn.
        reach: how ``low`` and ``high`` are shown.
        steps: are the values constant between places, as a histogram's are?
        ticks: texts at the places 0, 1, 2 …, for an axis of words.
        zero: does the axis of values begin at 0?
        logarithmic: is the axis of places?
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    levels: Sequence[Level] = ()
    reach: Literal["band", "bars"] = "band"
    steps: bool = False
    ticks: Sequence[str] = ()
    zero: bool = False
    logarithmic: bool = False
    kind: Literal["lines"] = "lines"


@dataclass(frozen=True)
class Row:
    """A row of a picture.

    Args:
        look: its label.
        value: the bar's end or the dot.
        low, high: of an interval.
        dots: single values, such as those of seeds.
        mark: an expectation to compare with.
        violin: how dense the dots are: pairs of value and density, the highest 1.
    """

    look: Look
    value: float
    low: float | None = None
    high: float | None = None
    dots: Sequence[float] = ()
    mark: float | None = None
    violin: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows over one axis.

    Args:
        title: of the picture.
        x: what the axis shows.
        rows: from the top.
        bars: is the value the end of a bar from 0, or a dot?
        base: a line to compare with, such as 1 × Standard.
        told: what value, interval, dots and mark are, for the reader who asks.
    """

    title: str
    x: str
    rows: Sequence[Row]
    bars: bool = False
    base: float | None = None
    told: dict[str, str] = field(default_factory=dict)
    kind: Literal["rows"] = "rows"


Figure = Lines | Rows


def looks(labels: Sequence[str], methods: Sequence[str], texts: Sequence[str]) -> dict[str, Look]:
    """A look for each label; labels of one method have shades of its colour, from dark to light,
    and dashes.
    """
    found: dict[str, Look] = {}
    for label, method, text in zip(labels, methods, texts, strict=True):
        many, before = methods.count(method), sum(look.method == method for look in found.values())
        amount = 0.0 if many == 1 else _DARKEST + (_LIGHTEST - _DARKEST) * before / (many - 1)
        colour = shaded(COLOURS.get(method, OTHERS), amount)
        found[label] = Look(text, method, colour, _DASHES[before % len(_DASHES)])
    return found


def shaded(colour: str, amount: float) -> str:
    """A colour with some white in it, or with black if the amount is below 0.

    Example:
        >>> shaded("#0072B2", 0.0), shaded("#0072B2", 0.5), shaded("#0072B2", -1.0)
        ('#0072b2', '#80b8d8', '#000000')
    """
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    target = 255 if amount > 0 else 0
    return "#" + "".join(f"{round(part + (target - part) * abs(amount)):02x}" for part in parts)


def series_of(look: Look, curve: Curve) -> Series:
    """A curve as a line with its band; of a long one every n-th place."""
    stride = max(1, -(-len(curve.places) // _MOST_POINTS))
    values = (curve.places, curve.mean, curve.low, curve.high)
    return Series(look, *([rounded(value) for value in line[::stride]] for line in values))


def row_of(look: Look, values: Sequence[float], spread: Spread, mark: float | None = None) -> Row:
    """Mean, 95 % interval of the mean, and each value."""
    low, high = spread.interval() or (None, None)
    return Row(look, spread.mean, low, high, list(values), mark)


def violin_of(look: Look, values: Sequence[float]) -> Row:
    """Median, quartiles, each value, and their density by Gaussian kernels of Scott's width,
    n^(−1/5) · s.
    """
    middle = statistics.median(values)
    if len(values) < 2 or max(values) == min(values):
        return Row(look, middle, dots=list(values))
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    width = statistics.stdev(values) * len(values) ** -0.2
    first, last = min(values) - 2 * width, max(values) + 2 * width
    places = [
        first + (last - first) * step / (_VIOLIN_POINTS - 1) for step in range(_VIOLIN_POINTS)
    ]
    dense = [
        sum(math.exp(-(((place - value) / width) ** 2) / 2) for value in values) for place in places
    ]
    outline = [
        (rounded(place), rounded(each / max(dense)))
        for place, each in zip(places, dense, strict=True)
    ]
    return Row(look, middle, low, high, list(values), violin=outline)


def rounded(value: float) -> float:
    """To six digits: enough for a picture, and a fraction of the text.

    Example:
        >>> rounded(1234567.0), rounded(0.12345678), rounded(0.0)
        (1234570.0, 0.123457, 0.0)
    """
    return float(f"{value:.6g}")
