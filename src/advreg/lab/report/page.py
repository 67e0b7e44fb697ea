"""One self-contained page: its style, its script and all it shows are in the file, and nothing is
fetched.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from html import escape
from importlib import resources
from itertools import groupby
from string import Template

from advreg.lab.report.figures import Figure, Lines, Rows
from advreg.lab.report.parts import Bullets, Folded, Heading, Heat, Part, Section, Tiles
from advreg.lab.report.render import Sheet
from advreg.records.diagnostics import TokenNorms

_FEW_COLUMNS = 3
_LONG = 40  # characters from which a cell is text to be read, and may be broken


def render(title: str, lead: str, foot: str, sections: Sequence[Section]) -> str:
    """The page as one text. Whatever the records hold is escaped, and the page's policy runs no
    script but its own.
    """
    figures: list[Figure] = []
    body = "\n".join(_section(section, figures) for section in sections)
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        lead=escape(lead),
        foot=escape(foot),
        contents="".join(
            f'<a href="#{escape(each.key)}">{escape(each.title)}</a>' for each in sections
        ),
        body=body,
        style=_asset("page.css"),
        script=script,
        script_hash=f"sha256-{digest}",
        figures=_embedded([dataclasses.asdict(figure) for figure in figures]),
    )


def _asset(name: str) -> str:
    return resources.files("advreg.lab.report").joinpath("assets", name).read_text(encoding="utf-8")


def _embedded(value: object) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _section(section: Section, figures: list[Figure]) -> str:
    intro = f"<p>{escape(section.intro)}</p>" if section.intro else ""
    head = f"<header><h2>{escape(section.title)}</h2>{intro}</header>"
    parts = "".join(_parts(section.parts, figures))
    return f'<section id="{escape(section.key)}">{head}{parts}</section>'


def _parts(parts: Sequence[Part], figures: list[Figure]) -> Iterator[str]:
    for small, group in groupby(parts, _is_small):
        drawn = [_part(part, figures) for part in group]
        yield f'<div class="pictures">{"".join(drawn)}</div>' if small else "".join(drawn)


def _is_small(part: Part) -> bool:
    """May it stand beside others? Pictures may, and tables of few columns."""
    return isinstance(part, Lines | Rows) or (
        isinstance(part, Sheet) and len(part.header) <= _FEW_COLUMNS
    )


def _part(part: Part, figures: list[Figure]) -> str:
    match part:
        case Heading(text):
            return f"<h3>{escape(text)}</h3>"
        case Bullets(title, lines):
            items = "".join(f"<li>{escape(line)}</li>" for line in lines)
            return f'<div class="card remarks"><h4>{escape(title)}</h4><ul>{items}</ul></div>'
        case Tiles(tiles):
            return f'<dl class="tiles">{"".join(map(_tile, tiles))}</dl>'
        case Folded(title, sheet):
            return f"<details><summary>{escape(title)}</summary>{_table(sheet)}</details>"
        case Heat(title, sentences):
            return _heat(title, sentences)
        case Sheet():
            return _table(part)
    figures.append(part)
    return (
        f'<figure class="card" data-figure="{len(figures) - 1}">'
        f"<figcaption><h4>{escape(part.title)}</h4>"
        '<span class="tools"><button type="button" data-does="save">Save SVG</button></span>'
        "</figcaption>"
        f'<div class="legend" role="group" aria-label="Show or hide in all pictures"></div>'
        '<div class="canvas"></div></figure>'
    )


def _tile(tile: tuple[str, str, str]) -> str:
    name, number, remark = map(escape, tile)
    return (
        f'<div class="tile"><dt>{name}</dt><dd class="number">{number}</dd>'
        f'<dd class="remark">{remark}</dd></div>'
    )


def _table(sheet: Sheet) -> str:
    """A real table with its caption, and buttons to copy it."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in sheet.header)
    rows = "".join(_table_row(sheet, number) for number in range(len(sheet.rows)))
    caption = escape(sheet.caption)
    return (
        f'<figure class="card"><figcaption><span class="caption">{caption}</span>'
        '<span class="tools">'
        '<button type="button" data-does="markdown">Copy Markdown</button>'
        '<button type="button" data-does="csv">Copy CSV</button></span></figcaption>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></figure>"
    )


def _table_row(sheet: Sheet, number: int) -> str:
    first, *others = sheet.rows[number]
    cells = [f'<th scope="row">{escape(first)}</th>']
    for column, cell in enumerate(others, start=1):
        text = escape(cell)
        shown = f"<strong>{text}</strong>" if (number, column) in sheet.bold else text
        names = [
            name
            for name, holds in (("words", len(cell) > _LONG), ("failed", cell == "failed"))
            if holds
        ]
        cells.append(
            f'<td class="{" ".join(names)}">{shown}</td>' if names else f"<td>{shown}</td>"
        )
    return f"<tr>{''.join(cells)}</tr>"


def _heat(title: str, sentences: Sequence[TokenNorms]) -> str:
    several = len({sentence.stream for sentence in sentences}) > 1
    lines = "".join(_sentence(sentence, several) for sentence in sentences)
    scale = '<p class="scale"><span>none</span><i></i><span>the sentence\'s largest</span></p>'
    return (
        f'<figure class="card"><figcaption><h4>{escape(title)}</h4>{scale}</figcaption>'
        f'<div class="sentences">{lines}</div></figure>'
    )


def _sentence(sentence: TokenNorms, several: bool) -> str:
    most = max(sentence.norms, default=0.0) or 1.0
    tokens = "".join(
        f'<span class="token" style="--share:{norm / most:.3f}" data-tip="‖δ‖ {norm:.3g}">'
        f"{escape(token)}</span>"
        for token, norm in zip(sentence.tokens, sentence.norms, strict=False)
    )
    stream = f'<span class="stream">{escape(sentence.stream)}</span>' if several else ""
    return f'<p class="tokens">{stream}{tokens}</p>'
