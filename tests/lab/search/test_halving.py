from __future__ import annotations

import math
import random
from itertools import pairwise
from statistics import fmean

from hypothesis import given
from hypothesis import strategies as st

from advreg.lab.search.halving import ranking, rungs


@given(st.integers(2, 64))
def test_each_rung_halves_the_candidates_and_doubles_their_seeds(candidates: int) -> None:
    found = list(rungs(candidates))
    assert [rung.candidates for rung in found] == [
        math.ceil(candidates / 2**step) for step in range(len(found))
    ]
    assert math.ceil(found[-1].candidates / 2) == 1
    seeds = [seed for rung in found for seed in rung.seeds]
    assert seeds == list(range(len(seeds)))  # each seed once
    assert [rung.seeds.stop for rung in found] == [2**step for step in range(len(found))]


def test_one_candidate_needs_no_rung() -> None:
    assert list(rungs(1)) == []


@given(
    st.dictionaries(
        st.integers(0, 9), st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1), min_size=1
    )
)
def test_candidates_rank_by_their_mean_and_equals_by_their_order(
    scores: dict[int, list[float]],
) -> None:
    order = ranking(scores)
    assert sorted(order) == sorted(scores)
    listed = list(scores)
    for before, after in pairwise(order):
        ahead, behind = fmean(scores[before]), fmean(scores[after])
        assert ahead > behind or (ahead == behind and listed.index(before) < listed.index(after))


def test_a_candidate_that_diverged_once_ranks_last() -> None:
    assert ranking({0: [99.0, None], 1: [1.0, 2.0], 2: [None]}) == [1, 0, 2]


def test_halving_chooses_better_candidates_than_one_run_each() -> None:
    """Eight candidates around 80, runs with a deviation of 1: the mean true score of the choice."""
    draw = random.Random(0)
    halved, single = [], []
    for _ in range(400):
        truth = [draw.gauss(80, 1) for _ in range(8)]
        scores = {number: list[float | None]() for number in range(8)}
        left = list(scores)
        for rung in rungs(8):
            left = left[: rung.candidates]
            for number in left:
                scores[number] += [draw.gauss(truth[number], 1) for _ in rung.seeds]
            left = ranking({number: scores[number] for number in left})
        halved.append(truth[left[0]])
        single.append(truth[ranking({number: seen[:1] for number, seen in scores.items()})[0]])
    assert fmean(halved) > fmean(single) + 0.15
