"""One self-contained page: style, script and figures are in the file, and it fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from string import Template

from advreg.lab.report.page.parts import Bullets, Folded, Heading, Part, Section, Tiles
from advreg.lab.report.pictures import svg
from advreg.lab.report.pictures.figures import Lines, Rows
from advreg.lab.report.tables import Table, to_html

_FEW_COLUMNS = 3
_COLOURS = {name: f"var(--{name})" for name in ("text", "muted", "line", "surface")}


def render(title: str, lead: str, foot: str, sections: Sequence[Section]) -> str:
    """The page as one text.

    Everything from records is escaped, and the page's policy runs no script but its own.
    """
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        lead=escape(lead),
        foot=escape(foot),
        contents="".join(
            f'<a href="#{escape(each.key)}">{escape(each.title)}</a>' for each in sections
        ),
        body="\n".join(map(_section, sections)),
        style=_asset("page.css") + svg.STYLE.substitute(_COLOURS),
        script=script,
        script_hash=f"sha256-{digest}",
    )


def _asset(name: str) -> str:
    return resources.files("advreg.lab.report.page").joinpath(name).read_text(encoding="utf-8")


def _section(section: Section) -> str:
    intro = f"<p>{escape(section.intro)}</p>" if section.intro else ""
    head = f"<header><h2>{escape(section.title)}</h2>{intro}</header>"
    return f'<section id="{escape(section.key)}">{head}{_parts(section.parts)}</section>'


def _parts(parts: Sequence[Part]) -> str:
    return "".join(_grouped(parts))


def _grouped(parts: Sequence[Part]) -> Iterator[str]:
    """Small parts that follow each other are side by side."""
    for small, group in groupby(parts, _is_small):
        drawn = "".join(map(_part, group))
        yield f'<div class="pictures">{drawn}</div>' if small else drawn


def _is_small(part: Part) -> bool:
    if isinstance(part, Table):
        return len(part.header) <= _FEW_COLUMNS
    return isinstance(part, Lines | Rows)


def _part(part: Part) -> str:
    match part:
        case Heading(text):
            return f"<h3>{escape(text)}</h3>"
        case Bullets(title, lines):
            items = "".join(f"<li>{escape(line)}</li>" for line in lines)
            return f'<div class="card remarks"><h4>{escape(title)}</h4><ul>{items}</ul></div>'
        case Tiles(tiles):
            return f'<dl class="tiles">{"".join(map(_tile, tiles))}</dl>'
        case Folded(title, inside):
            return f"<details><summary>{escape(title)}</summary>{_parts(inside)}</details>"
        case Table():
            return _table(part)
    return (
        f'<figure class="card picture"><figcaption><h4>{escape(part.title)}</h4></figcaption>'
        f"{svg.drawing(part)}</figure>"
    )


def _tile(tile: tuple[str, str, str]) -> str:
    name, number, remark = map(escape, tile)
    return (
        f'<div class="tile"><dt>{name}</dt><dd class="number">{number}</dd>'
        f'<dd class="remark">{remark}</dd></div>'
    )


def _table(table: Table) -> str:
    """A table with its caption, and buttons to copy it."""
    caption = escape(table.caption)
    return (
        f'<figure class="card"><figcaption><span class="caption">{caption}</span>'
        '<span class="tools">'
        '<button type="button" data-does="markdown">Copy Markdown</button>'
        '<button type="button" data-does="csv">Copy CSV</button></span></figcaption>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
        f"{to_html(table)}</div></figure>"
    )
