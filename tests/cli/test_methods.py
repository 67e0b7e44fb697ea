from __future__ import annotations

import inspect
import io
from collections.abc import Callable

import pytest
from rich.console import Console

from advreg.cli.methods import print_method, print_methods
from advreg.methods import create, describe, registry


def printed(show: Callable[[Console], None]) -> str:
    out = io.StringIO()
    show(Console(file=out, width=800))
    return out.getvalue()


def rows(text: str) -> dict[str, list[str]]:
    lines = [line.strip("│ ").split("│") for line in text.splitlines() if line.startswith("│")]
    return {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}


def test_all_methods_are_listed_with_paper_cost_and_passes() -> None:
    table = rows(printed(print_methods))
    assert set(table) == set(registry)
    for name, (paper, cost, forward, backward) in table.items():
        method = create(name)
        assert (paper, cost) == (registry[name].info.paper, registry[name].info.cost)
        assert (float(forward), float(backward)) == pytest.approx(
            (method.passes().forward, method.passes().backward)
        )
    assert table["arch"][0] == "Zuo et al. 2021"
    assert table["standard"][2:4] == ["1.00", "1.00"]


@pytest.mark.parametrize("name", registry)
def test_a_method_is_shown_with_its_text_and_every_option(name: str) -> None:
    text = printed(lambda console: print_method(name, console))
    assert text.startswith(f"{name}  {registry[name].info.paper}\n")
    assert inspect.cleandoc(registry[name].__doc__ or "") in text
    table = rows(text)
    assert list(table) == [option.name for option in describe(name)]
    for option in describe(name):
        default = "none" if option.default is None else str(option.default)
        assert table[option.name][1:] == [default, option.help]
    assert ("It has no options." in text) == (not table)


def test_an_options_column_tells_what_it_takes() -> None:
    table = rows(printed(lambda console: print_method("arch", console)))
    assert [table[name][0] for name in ("refresh_every", "norm", "fuse", "ema")] == [
        "int or none", "l2 | linf", "bool", "float",
    ]  # fmt: skip


def test_an_unknown_method_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"unknown method 'smrt' \(did you mean 'smart'\?\)"):
        print_method("smrt", Console(file=io.StringIO()))
