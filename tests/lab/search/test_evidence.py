from __future__ import annotations

import math
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy import stats

from advreg.lab.search import evidence
from advreg.lab.search.evidence import RunOutcome

MINE = {"rte": {0: 62.0, 1: 65.0, 2: 60.0}, "mrpc": {0: 88.0, 1: 87.0, 2: 91.0}}
THEIRS = {"rte": {0: 60.0, 1: 61.0, 2: 61.0}, "mrpc": {0: 87.0, 1: 88.0, 2: 86.0}}


def outcomes(scores: dict[str, dict[int, float]], seconds: float = 1.0) -> evidence.ByTask:
    return {
        task: {seed: RunOutcome(score, seconds * (seed + 1)) for seed, score in each.items()}
        for task, each in scores.items()
    }


def test_a_look_is_the_paired_test_on_means_over_tasks() -> None:
    look = evidence.look(outcomes(MINE), outcomes(THEIRS))
    assert look is not None
    means = [
        [fmean(each[task][seed] for task in each) for seed in range(3)] for each in (MINE, THEIRS)
    ]
    found = stats.ttest_rel(*means)
    assert (look.mean, look.seeds) == (pytest.approx(np.subtract(*means).mean()), 3)
    assert look.mean / look.error == pytest.approx(found.statistic)
    assert look.freedom == pytest.approx(2)


def test_a_seed_counts_only_with_all_scores_of_both_sides() -> None:
    mine = {**outcomes(MINE)}
    mine["rte"] = {**mine["rte"], 1: RunOutcome(error="diverged"), 7: RunOutcome(50.0)}
    assert evidence.pairs(mine, outcomes(THEIRS)) == [0, 2]
    assert evidence.pairs({}, outcomes(THEIRS)) == []
    assert evidence.look({"rte": {}, "mrpc": {}}, outcomes(THEIRS)) is None


def test_the_margin_is_a_third_of_the_deviation_of_the_mean_over_tasks() -> None:
    means = [fmean(THEIRS[task][seed] for task in THEIRS) for seed in range(3)]
    assert evidence.margin(outcomes(THEIRS)) == pytest.approx(stdev(means) / 3)
    assert evidence.margin({"rte": {0: RunOutcome(60.0)}}) == 0.0


def test_the_relative_time_is_the_median_over_pairs() -> None:
    assert evidence.relative_time(outcomes(MINE, 3.0), outcomes(THEIRS, 2.0)) == 1.5
    assert evidence.relative_time({"rte": {}}, {"rte": {}}) is None


def test_sampling_errors_of_tasks_combine_as_those_of_independent_test_sets() -> None:
    random = np.random.default_rng(0)
    sides = [
        {
            task: {seed: RunOutcome(50.0, draws=random.normal(50, 1, 400)) for seed in range(3)}
            for task in ("rte", "mrpc")
        }
        for _ in range(2)
    ]
    each = [
        evidence.sampling({task: sides[0][task]}, {task: sides[1][task]}) or math.nan
        for task in ("rte", "mrpc")
    ]
    assert each == pytest.approx([math.sqrt(2 / 3)] * 2, rel=0.15)
    assert evidence.sampling(*sides) == pytest.approx(math.hypot(*each) / 2)
    sides[0]["rte"][0] = RunOutcome(50.0)  # one run has no outcomes
    assert evidence.sampling(*sides) is None


def test_a_failed_run_is_a_flaw_with_its_reason() -> None:
    assert evidence.flaw(outcomes(MINE)) is None
    failed = {"rte": {0: RunOutcome(60.0), 3: RunOutcome(error="no memory", lost=True)}}
    assert evidence.flaw(failed) == "seed 3 of rte is missing: no memory"
