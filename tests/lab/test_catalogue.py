"""The catalogue, which is read from the source, against the methods themselves."""

import subprocess
import sys

import pytest

from advreg.lab.catalogue import catalogue, title_of
from advreg.methods import describe, registry


def test_the_methods_come_in_the_order_of_the_registry() -> None:
    assert list(catalogue()) == list(registry)


@pytest.mark.parametrize("name", registry)
def test_options_and_arguments_are_those_of_the_class(name: str) -> None:
    entry, info = catalogue()[name], registry[name].info
    assert list(entry.options) == describe(name)
    assert entry.title == info.title
    for argument, value in entry.about.items():
        own = getattr(info, argument)
        assert own == (frozenset(value) if argument in ("needs", "traits") else value), argument


def test_torch_is_not_imported() -> None:
    code = "import sys; from advreg.lab.catalogue import catalogue; catalogue(); print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


def test_a_sum_has_the_titles_of_its_parts() -> None:
    assert title_of("rdrop+temporal") == "R-Drop + Cached prediction"
    assert title_of("rdrop+other") is None
