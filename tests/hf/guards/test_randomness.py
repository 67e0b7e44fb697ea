from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from advreg.hf.guards.randomness import kept_randomness, random_states, set_random_states


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def seeded(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def test_what_is_drawn_inside_does_not_show_outside() -> None:
    seeded(3)
    expected = drawn()
    seeded(3)
    with kept_randomness():
        assert drawn() == expected  # inside it goes on from where it was
        drawn()
    assert drawn() == expected


def test_a_seed_makes_the_inside_the_same_each_time_and_the_outside_is_kept() -> None:
    seeded(3)
    expected = drawn()
    insides = set()
    for outside in (3, 4):
        seeded(outside)
        with kept_randomness(seed=0):
            insides.add(drawn())
        if outside == 3:
            assert drawn() == expected
    assert len(insides) == 1


def test_an_error_inside_gives_the_generators_back_too() -> None:
    seeded(5)
    expected = drawn()
    seeded(5)
    with pytest.raises(KeyError), kept_randomness(seed=1):
        {}[drawn()]  # a draw, and then the error
    assert drawn() == expected


def test_dropout_repeats_from_a_state_that_was_kept() -> None:
    states = random_states()
    first = torch.nn.functional.dropout(torch.ones(50))
    set_random_states(states)
    assert torch.equal(torch.nn.functional.dropout(torch.ones(50)), first)
