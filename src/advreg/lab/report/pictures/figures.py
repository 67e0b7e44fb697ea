"""Figures as values: lines over an axis, and rows of values.

Each figure is described once. :mod:`advreg.lab.report.pictures.svg` draws it, in the page of a
report and as a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advreg.lab.drawing import COLOURS, OTHERS
from advreg.lab.report.curves import Curve
from advreg.lab.report.statistics import Spread
from advreg.records.bench import Spread as Quartiles

_MOST_POINTS = 300  # of a line: more than a screen can show
_DARKEST, _LIGHTEST = -0.4, 0.45
_DASHES = ("", "7 3", "2 3", "10 3 2 3", "5 2 1 2 1 2")
DASHED, DOTTED = "7 4", "1.5 4"


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

    @property
    def value(self) -> float:
        """The last value."""
        return self.y[-1]


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines over an axis.

    Args:
        title: of the figure.
        x, y: titles of the axes.
        marks: the lines.
        ticks: texts at the places 0, 1, 2 …, for an axis of words.
        zero: whether the axis of values begins at 0.
    """

    title: str
    x: str
    y: str
    marks: Sequence[Series]
    ticks: Sequence[str] = ()
    zero: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a figure.

    Args:
        look: its label.
        value: the large dot.
        interval: its ends.
        dots: single values, such as the scores of seeds.
        expected: a value to compare with.
    """

    look: Look
    value: float
    interval: tuple[float, float] | None = None
    dots: Sequence[float] = ()
    expected: float | None = None

    @property
    def values(self) -> list[float]:
        """All that the axis must hold."""
        return [self.value, *self.dots, *([] if self.expected is None else [self.expected])]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows over one axis.

    Args:
        title: of the figure.
        x: title of the axis.
        marks: the rows, from the top.
        zero: whether the axis begins at 0, with a bar to each value.
    """

    title: str
    x: str
    marks: Sequence[Row]
    zero: bool = False


Figure = Lines | Rows


def looks(texts: Mapping[str, str], methods: Mapping[str, str] | None = None) -> dict[str, Look]:
    """A look for each label.

    Labels of one method have shades of its colour, from dark to light, and different dashes.

    Args:
        texts: shown, by label.
        methods: by label; without them, labels are methods.
    """
    owners = {label: (methods or {}).get(label, label) for label in texts}
    found: dict[str, Look] = {}
    for label, method in owners.items():
        alike = [each for each, owner in owners.items() if owner == method]
        place, last = alike.index(label), len(alike) - 1
        amount = _DARKEST + (_LIGHTEST - _DARKEST) * place / last if last else 0.0
        colour = shaded(COLOURS.get(method, OTHERS), amount)
        found[label] = Look(texts[label], colour, _DASHES[place % len(_DASHES)])
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


def quartiles_of(look: Look, spread: Quartiles, expected: float | None = None) -> Row:
    """Median and quartiles."""
    return Row(look, spread.median, (spread.quartile_1, spread.quartile_3), expected=expected)
