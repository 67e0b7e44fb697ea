"""``advreg methods``: the methods and what they cost, or one method and its options."""

from __future__ import annotations

import re
from textwrap import dedent

from rich.console import Console
from rich.table import Table

from advreg.core.coerce import type_text
from advreg.lab.catalogue import catalogue, entry_of, options_of_method, title_of

_SECTION = re.compile(r"^(Args|Example):", re.MULTILINE)
_ITEM = re.compile(r"\s*([*•-]|\d+\.) ")


def print_methods(console: Console) -> None:
    table = Table("method", "title", "paper", "passes per step", title="Methods")
    for name, entry in catalogue().items():
        table.add_row(name, entry.title, entry.about["paper"], entry.about["cost"])
    console.print(table)
    console.print("`advreg methods NAME` explains a method and its options.", highlight=False)


def print_method(name: str, console: Console) -> None:
    """Explain a method, or a sum of methods."""
    options, parts = options_of_method(name), name.split("+")
    console.print(f"[bold]{title_of(name)}[/bold]\n", highlight=False)
    for part in parts:
        entry = entry_of(part)
        console.print(f"{entry.about['paper']}\n", highlight=False, markup=False)
        for paragraph in paragraphs(entry.text):
            wraps = not paragraph.startswith(" ")
            console.print(f"{paragraph}\n", highlight=False, markup=False, soft_wrap=not wraps)
    table = Table("option", "takes", "default", "meaning", title=f"Options of {name}")
    table.columns[0].no_wrap = True
    for option in options:
        default = "none" if option.default is None else str(option.default)
        table.add_row(option.name, type_text(option.type), default, option.help)
    console.print(table if options else "It has no options.")


def paragraphs(docstring: str) -> list[str]:
    """The paragraphs of a docstring before its sections, each on one line so that a terminal can
    wrap it; formulas and lists keep their lines.

    Example:
        >>> paragraphs("A ``word``\\nand more.\\n\\n    f(x)\\n\\nExample:\\n    >>> 1")
        ['A word and more.', '    f(x)']
    """
    prose = _SECTION.split(dedent(docstring))[0].replace("``", "")
    blocks = [block.rstrip() for block in re.split(r"\n\s*\n", prose) if block.strip()]
    return [_joined(block) for block in blocks]


def _joined(block: str) -> str:
    keeps = block.startswith(" ") or _ITEM.match(block)
    return block if keeps else " ".join(block.split())
