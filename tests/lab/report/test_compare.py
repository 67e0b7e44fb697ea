from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from advreg.lab.kinds.classification.tasks import average_score, main_score
from advreg.lab.report.compare import read, results
from comparisons import Runs, candidate, comparison, run_record

scores = st.floats(0, 1, width=32)
METHODS = ["standard", "smart", "arch"]


@given(st.data(), st.integers(2, 5))
def test_means_deviations_averages_and_paired_intervals_are_those_of_numpy_and_scipy(
    data: st.DataObject, n: int
) -> None:
    values = {
        (task, method): [(data.draw(scores), data.draw(scores)) for _ in range(n)]
        for task in ("mrpc", "cola")
        for method in METHODS
    }
    runs: Runs = {}
    for (task, method), pairs in values.items():
        for seed, (first, second) in enumerate(pairs):
            metrics = (
                {"accuracy": first, "f1": second}
                if task == "mrpc"
                else {"matthews": first, "accuracy": second}
            )
            runs[task, method, seed] = run_record(method, seed, metrics | {"loss": 3.0})
    found = results(
        comparison({"mrpc": ["accuracy", "f1"], "cola": ["matthews"]}, METHODS, list(range(n))),
        runs,
    )
    main = {
        ("mrpc", method): 100 * np.mean(values["mrpc", method], axis=1) for method in METHODS
    } | {("cola", method): 100 * np.array(values["cola", method])[:, 0] for method in METHODS}  # fmt: skip
    for key, expected in main.items():
        cell = found.cells[key].main
        assert cell is not None
        assert cell.mean == pytest.approx(expected.mean())
        assert cell.deviation == pytest.approx(expected.std(ddof=1), abs=1e-9)
        second = found.cells[key].metrics["f1" if key[0] == "mrpc" else "accuracy"]
        assert second.mean == pytest.approx(100 * np.mean([pair[1] for pair in values[key]]))
        assert "loss" not in found.cells[key].metrics
    both = {method: (main["mrpc", method] + main["cola", method]) / 2 for method in METHODS}
    for method in METHODS:
        average = found.score(None, method)
        assert average is not None
        assert (average.mean, average.count) == (pytest.approx(both[method].mean()), n)
        assert average.deviation == pytest.approx(both[method].std(ddof=1), abs=1e-9)
    assert found.baselines == ["standard", "smart"]
    for task in (*found.tasks, None):
        scored = both if task is None else {method: main[task, method] for method in METHODS}
        for baseline in found.baselines:
            gaps = scored["arch"] - scored[baseline]
            spread = found.difference(task, "arch", baseline)
            assert spread is not None
            assert spread.mean == pytest.approx(gaps.mean(), abs=1e-9)
            if gaps.std() > 1e-9:
                test = stats.ttest_rel(scored["arch"], scored[baseline]).confidence_interval(0.95)
                assert spread.interval() == pytest.approx((test.low, test.high), rel=1e-6, abs=1e-6)


def test_main_score_and_average_agree_with_those_of_the_tasks() -> None:
    metrics = {
        "mrpc": {"accuracy": 0.84, "f1": 0.89},
        "mnli": {"accuracy": 0.845, "mm_accuracy": 0.844},
        "rte": {"accuracy": 0.635},
    }
    record = comparison(
        {"mrpc": ["accuracy", "f1"], "mnli": ["accuracy", "mm_accuracy"], "rte": ["accuracy"]},
        ["arch"],
        [0],
    )
    found = results(
        record,
        {(task, "arch", 0): run_record("arch", 0, values) for task, values in metrics.items()},
    )
    expected = {task: main_score(task, values) for task, values in metrics.items()}
    for task, score in expected.items():
        cell = found.cells[task, "arch"].main
        assert cell is not None
        assert cell.mean == pytest.approx(score)
    average = found.score(None, "arch")
    assert average is not None
    assert average.mean == pytest.approx(average_score(expected))
    assert set(found.cells["mnli", "arch"].metrics) == {"accuracy", "mm_accuracy"}


def test_a_failed_seed_is_left_out_of_pairs_and_listed_with_its_reason() -> None:
    runs = {
        ("a", method, seed): run_record(method, seed, {"accuracy": value})
        for method, values in {
            "standard": {0: 0.5, 1: 0.6, 2: 0.7},
            "arch": {0: 0.6, 2: 0.9},
        }.items()
        for seed, value in values.items()
    }
    record = comparison(
        {"a": ["accuracy"]},
        ["standard", "arch"],
        [0, 1, 2],
        errors={("a", "arch", 1): "out of memory"},
    )
    found = results(record, runs)
    difference = found.difference("a", "arch", "standard")
    assert difference is not None
    assert (difference.count, difference.mean) == (2, pytest.approx(15.0))
    cell = found.cells["a", "arch"]
    assert cell.main is not None
    assert (cell.main.count, cell.asked) == (2, 3)
    assert found.missing == {"a/arch/seed-1": "out of memory"}


def test_a_score_that_is_not_a_number_counts_as_none() -> None:
    runs = {
        ("a", "arch", seed): run_record("arch", seed, {"accuracy": value})
        for seed, value in enumerate([0.5, None])
    }
    cell = results(comparison({"a": ["accuracy"]}, ["arch"], [0, 1]), runs).cells["a", "arch"]
    assert cell.main is not None
    assert (cell.main.count, cell.main.mean) == (1, 50.0)


def test_times_are_relative_to_standards_run_of_the_same_seed_with_and_without_tuning() -> None:
    runs = {
        ("a", "standard", 0): run_record("standard", 0, {"accuracy": 0.5}, seconds=10),
        ("a", "standard", 1): run_record("standard", 1, {"accuracy": 0.5}, seconds=20),
        ("a", "arch", 0): run_record("arch", 0, {"accuracy": 0.5}, seconds=15),
        ("a", "arch", 1): run_record("arch", 1, {"accuracy": 0.5}, seconds=50),
    }
    tuning = {
        ("a", "standard"): [candidate(30)],
        ("a", "arch"): [candidate(40), candidate(None, None, "nan"), candidate(15)],
    }
    plain, arch = results(
        comparison({"a": ["accuracy"]}, ["standard", "arch"], [0, 1], tuning=tuning), runs
    ).costs
    assert (plain.seconds, plain.relative, plain.relative_with_tuning) == (15, 1, 1)
    assert (arch.seconds, arch.tuning_seconds, arch.candidates) == (32.5, 55, 3)
    assert arch.relative == pytest.approx((1.5 + 2.5) / 2)
    assert arch.relative_with_tuning == pytest.approx((65 + 55) / (30 + 30))


def test_without_standard_no_time_is_relative() -> None:
    runs = {("a", "arch", 0): run_record("arch", 0, {"accuracy": 0.5})}
    (cost,) = results(comparison({"a": ["accuracy"]}, ["arch"], [0]), runs).costs
    assert (cost.relative, cost.relative_with_tuning) == (None, None)


def test_only_finished_records_are_read(tmp_path: Path) -> None:
    comparison({"a": ["accuracy"]}, ["arch"], [0, 1, 2]).save(tmp_path)
    whole = run_record("arch", 0, {"accuracy": 0.5})
    whole.save(tmp_path / "a/arch/seed-0/record.json")
    failed = dataclasses.replace(whole).fail("the loss is nan")
    failed.save(tmp_path / "a/arch/seed-1/record.json")
    record, runs = read(tmp_path)
    assert list(runs) == [("a", "arch", 0)]
    assert math.isclose(runs["a", "arch", 0].outcome.metrics["accuracy"] or 0, 0.5)
    assert list(results(record, runs).missing) == ["a/arch/seed-1", "a/arch/seed-2"]


def test_scores_of_translation_are_out_of_100_as_they_are() -> None:
    runs: Runs = {
        ("t", "arch", 0): run_record(
            "arch", 0, {"bleu": 31.5, "valid_bleu": 30.0, "chrf": 55.0, "loss": 2.0}
        )
    }
    found = results(comparison({"t": ["bleu"]}, ["arch"], [0]), runs)
    cell = found.cells["t", "arch"]
    assert cell.main is not None
    assert cell.main.mean == 31.5
    assert {name: spread.mean for name, spread in cell.metrics.items()} == {
        "bleu": 31.5, "valid_bleu": 30.0, "chrf": 55.0,
    }  # fmt: skip
