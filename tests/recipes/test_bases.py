from __future__ import annotations

import doctest

from advreg.recipes import bases
from advreg.recipes.bases import read_seeds


def test_a_single_seed_can_be_named() -> None:
    assert read_seeds("7,") == [7]


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(bases).failed == 0
