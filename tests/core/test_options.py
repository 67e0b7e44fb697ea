from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from advreg.core.checks import check_count
from advreg.core.coerce import coerce, type_text
from advreg.core.options import Checked, option, options_of
from advreg.methods import Arch, Smart


@dataclass(frozen=True)
class Options(Checked):
    """Some options."""

    rate: float | None = option(None, "a rate", unit="s")
    times: int = option(3, "a count", check=check_count)
    names: tuple[str, ...] = option(("a",), "names")
    norm: Literal["l2", "linf"] = option("l2", "a norm")


def test_values_become_those_of_their_types() -> None:
    made = Options(rate="0.5", times="4", names="b", norm="linf")  # type: ignore[arg-type]
    assert made == Options(0.5, 4, ("b",), "linf")
    assert Options(rate="none").rate is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rate": "x"}, "rate must be a number, got 'x'"),
        ({"times": 1.5}, "times must be a whole number, got 1.5"),
        ({"times": "0"}, "times must be a whole number of 1 or more, got 0"),
        ({"times": True}, "times must be a whole number, got True"),
        ({"names": [3]}, "names must be a text, not empty, got 3"),
        ({"norm": "l3"}, "norm must be one of l2, linf, got 'l3'"),
    ],
)
def test_a_bad_value_is_refused_by_name_and_value(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Options(**given)


def test_an_option_says_what_else_its_field_says() -> None:
    rate, times, *_ = options_of(Options)
    assert (rate.name, rate.type, rate.default, rate.help) == ("rate", float | None, None, "a rate")
    assert (rate.about, times.about) == ({"unit": "s"}, {})


def test_methods_take_in_python_what_they_take_in_a_file() -> None:
    assert Arch(refresh_every="none") == Arch(refresh_every=None)  # type: ignore[arg-type]
    assert Arch(radius="0.5", fuse="no") == Arch(radius=0.5, fuse=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^radius must be a number, got 'x'$"):
        Arch(radius="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^divergence must be one of kl, symmetric_kl, got 'l2'$"):
        Smart(divergence="l2")  # type: ignore[arg-type]


def test_large_whole_numbers_keep_their_digits() -> None:
    assert coerce("seed", 2**63 + 1, int) == 2**63 + 1


def test_types_are_shown_as_users_read_them() -> None:
    assert type_text(tuple[str, ...]) == "str"
