"""The parts of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advreg.lab.report.pictures.figures import Figure
from advreg.lab.report.tables import Table


@dataclass(frozen=True)
class Heading:
    """A title within a section."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of remarks."""

    title: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Tiles:
    """Single numbers, each with its name and a remark."""

    tiles: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Folded:
    """Parts that the reader opens."""

    title: str
    parts: Sequence[Part]


Part = Heading | Bullets | Tiles | Table | Figure | Folded


@dataclass(frozen=True)
class Section:
    """A part of the page with an entry in its contents."""

    key: str
    title: str
    intro: str
    parts: Sequence[Part]
