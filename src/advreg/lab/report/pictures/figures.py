"""Figures as values: lines over an axis, and rows of bars, intervals or violins.

Each figure is described once. :mod:`advreg.lab.report.pictures.svg` draws it, in the page of a
report and as a file.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from advreg.lab.drawing import COLOURS, OTHERS
from advreg.lab.report.curves import Curve
from advreg.lab.report.statistics import Spread

_MOST_POINTS = 300  # of a line: more than a screen can show
_DARKEST, _LIGHTEST = -0.4, 0.45
_DASHES = ("", "7 3", "2 3", "10 3 2 3", "5 2 1 2 1 2")
DASHED, DOTTED = "7 4", "1.5 4"
_VIOLIN_POINTS = 48


@dataclass(frozen=True)
class Look:
    """The text, colour and dash of a label in a figure."""

    label: str
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
    """A horizontal line to compare with, and the width of the band on each side of it."""

    look: Look
    y: float
    reach: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines over an axis.

    Args:
        title: of the figure.
        x, y: titles of the axes.
        series, levels: the lines.
        reach: the form of ``low`` and ``high``.
        steps: whether values are constant between places, as in a histogram.
        ticks: texts at the places 0, 1, 2 …, for an axis of words.
        zero: whether the axis of values begins at 0.
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


@dataclass(frozen=True)
class Row:
    """A row of a figure.

    Args:
        look: its label.
        value: the end of the bar, or the dot.
        interval: its ends.
        dots: single values, such as the scores of seeds.
        mark: an expectation to compare with.
        violin: the density of the dots: pairs of value and density, the highest 1.
    """

    look: Look
    value: float
    interval: tuple[float, float] | None = None
    dots: Sequence[float] = ()
    mark: float | None = None
    violin: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows over one axis.

    Args:
        title: of the figure.
        x: title of the axis.
        rows: from the top.
        bars: whether the value is the end of a bar from 0; else it is a dot.
        base: a line to compare with, such as 1 × Standard.
    """

    title: str
    x: str
    rows: Sequence[Row]
    bars: bool = False
    base: float | None = None


Figure = Lines | Rows


def looks(texts: Mapping[str, str], methods: Mapping[str, str] | None = None) -> dict[str, Look]:
    """A look for each label.

    Labels of one method have shades of its colour, from dark to light, and different dashes.

    Args:
        texts: shown, by label.
        methods: by label; without them, labels are methods.
    """
    owners = list((methods or {label: label for label in texts}).values())
    found: dict[str, Look] = {}
    for place, ((label, text), method) in enumerate(zip(texts.items(), owners, strict=True)):
        many, before = owners.count(method), owners[:place].count(method)
        amount = 0.0 if many == 1 else _DARKEST + (_LIGHTEST - _DARKEST) * before / (many - 1)
        colour = shaded(COLOURS.get(method, OTHERS), amount)
        found[label] = Look(text, colour, _DASHES[before % len(_DASHES)])
    return found


def shaded(colour: str, amount: float) -> str:
    """A colour mixed with white, or with black if the amount is below 0.

    Example:
        >>> shaded("#0072B2", 0.0), shaded("#0072B2", 0.5), shaded("#0072B2", -1.0)
        ('#0072b2', '#80b8d8', '#000000')
    """
    target = 255 if amount > 0 else 0
    parts = bytes.fromhex(colour[1:])
    return "#" + bytes(round(part + (target - part) * abs(amount)) for part in parts).hex()


def series_of(look: Look, curve: Curve) -> Series:
    """A curve as a line with its band; every n-th place of a long one."""
    stride = max(1, -(-len(curve.places) // _MOST_POINTS))
    columns = (curve.places, curve.mean, curve.low, curve.high)
    return Series(look, *(column[::stride] for column in columns))


def row_of(look: Look, values: Sequence[float], spread: Spread) -> Row:
    """Mean, 95 % interval of the mean, and each value."""
    return Row(look, spread.mean, spread.shown_interval(), values)


def violin_of(look: Look, values: Sequence[float]) -> Row:
    """Median, quartiles, each value, and their density by Gaussian kernels of Scott's width,
    n^(−1/5) · s.
    """
    middle = statistics.median(values)
    if len(values) < 2 or max(values) == min(values):
        return Row(look, middle, dots=values)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    width = statistics.stdev(values) * len(values) ** -0.2
    first = min(values) - 2 * width
    step = (max(values) + 2 * width - first) / (_VIOLIN_POINTS - 1)
    places = [first + step * number for number in range(_VIOLIN_POINTS)]
    dense = [
        sum(math.exp(-(((place - value) / width) ** 2) / 2) for value in values) for place in places
    ]
    outline = [(place, each / max(dense)) for place, each in zip(places, dense, strict=True)]
    return Row(look, middle, (low, high), values, violin=outline)
