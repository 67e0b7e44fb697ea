"""``advreg methods``: the methods and what they cost, or one method and its options."""

from __future__ import annotations

import inspect

from rich.console import Console
from rich.table import Table

from advreg.methods import create, describe, registry
from advreg.methods.coerce import type_text


def print_methods(console: Console) -> None:
    table = Table("method", "paper", "passes per step", "forward", "backward", title="Methods")
    by_cost = sorted(registry, key=lambda name: create(name).passes().forward)
    for name in by_cost:
        info, passes = registry[name].info, create(name).passes()
        table.add_row(
            name, info.paper, info.cost, f"{passes.forward:.2f}", f"{passes.backward:.2f}"
        )
    console.print(table)
    console.print(
        "forward, backward: with each method's default options. `advreg methods NAME` explains the "
        "options."
    )


def print_method(name: str, console: Console) -> None:
    method = type(create(name))
    console.print(f"[bold]{name}[/bold]  {method.info.paper}\n", highlight=False)
    console.print(inspect.cleandoc(method.__doc__ or ""), highlight=False, markup=False)
    table = Table("option", "takes", "default", "meaning", title=f"Options of {name}")
    for option in describe(name):
        default = "none" if option.default is None else str(option.default)
        table.add_row(option.name, type_text(option.type), default, option.help)
    console.print(table if describe(name) else "It has no options.")
