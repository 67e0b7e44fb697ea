from __future__ import annotations

import inspect
import io
from collections.abc import Callable

import pytest
from rich.console import Console

from advreg.cli.methods import print_method, print_methods
from advreg.methods import describe, registry


def printed(show: Callable[[Console], None]) -> str:
    out = io.StringIO()
    show(Console(file=out, width=800))
    return out.getvalue()


def rows(text: str) -> dict[str, list[str]]:
    lines = [line.strip("│ ").split("│") for line in text.splitlines() if line.startswith("│")]
    return {line[0].strip(): [cell.strip() for cell in line[1:]] for line in lines}


def test_all_methods_are_listed_with_title_paper_and_cost() -> None:
    table = rows(printed(print_methods))
    assert list(table) == list(registry)
    for name, told in table.items():
        info = registry[name].info
        assert told == [info.title, info.paper, info.cost]
    assert table["arch"][:2] == ["ARCH", "Zuo et al. 2021"]


@pytest.mark.parametrize("name", registry)
def test_a_method_is_shown_with_its_text_and_every_option(name: str) -> None:
    text = printed(lambda console: print_method(name, console))
    info, docstring = registry[name].info, inspect.cleandoc(registry[name].__doc__ or "")
    assert text.startswith(f"{info.title}\n\n{info.paper}\n\n")
    prose = docstring.partition("Example:")[0].replace("``", "")
    assert " ".join(prose.split()) in " ".join(text.split())
    assert "``" not in text
    assert ">>>" not in text
    table = rows(text)
    assert list(table) == [option.name for option in describe(name)]
    for option in describe(name):
        default = "none" if option.default is None else str(option.default)
        assert table[option.name][1:] == [default, option.help]
    assert ("It has no options." in text) == (not table)


def test_a_method_reads_well_at_80_columns() -> None:
    """Paragraphs are wrapped once, at the width of the terminal, and formulas keep their lines."""
    out = io.StringIO()
    print_method("arch", Console(file=out, width=80))
    prose = out.getvalue().partition("Options of arch")[0].splitlines()
    paragraph = prose[prose.index(next(line for line in prose if line.startswith("and, with"))) :]
    assert len(paragraph[0]) > 70
    assert "    δ_i^t = δ_i^{t−1}                     if t % T_c ≠ 0," in prose
    assert all(len(line) <= 80 for line in out.getvalue().splitlines() if line[:1] != " ")


def test_a_sum_is_shown_with_the_texts_and_options_of_its_parts() -> None:
    text = printed(lambda console: print_method("smart+temporal", console))
    assert text.startswith("SMART + Cached prediction\n")
    assert list(rows(text)) == [option.name for option in describe("smart+temporal")]


def test_an_options_column_tells_what_it_takes() -> None:
    table = rows(printed(lambda console: print_method("arch", console)))
    assert [table[name][0] for name in ("refresh_every", "norm", "fuse", "ema")] == [
        "int or none", "l2 | linf", "bool", "float",
    ]  # fmt: skip


def test_an_unknown_method_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"unknown method 'smrt' \(did you mean 'smart'\?\)"):
        print_method("smrt", Console(file=io.StringIO()))
