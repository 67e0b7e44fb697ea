"""What a page is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advreg.lab.report.figures import Figure
from advreg.lab.report.render import Sheet
from advreg.records.diagnostics import TokenNorms


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
    """Numbers that stand by themselves, each with what it is and a remark."""

    tiles: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Folded:
    """A table that opens when it is asked for."""

    title: str
    sheet: Sheet


@dataclass(frozen=True)
class Heat:
    """Sentences whose tokens are shaded by the norm of their perturbation."""

    title: str
    sentences: Sequence[TokenNorms]


Part = Heading | Bullets | Tiles | Sheet | Folded | Figure | Heat


@dataclass(frozen=True)
class Section:
    """A part of the page with a name in its list of contents; pictures that follow each other stand
    side by side.
    """

    key: str
    title: str
    intro: str
    parts: Sequence[Part]
