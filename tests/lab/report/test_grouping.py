from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from advreg.lab.report.compare import summary
from advreg.lab.report.gather import Gathered, gather
from advreg.lab.report.grouping import contests
from advreg.lab.report.groups import Contest
from advreg.records.run import RunRecord
from comparisons import comparison
from report_runs import made_up, save
from studies import study_record


def of_records(folder: Path, records: Sequence[RunRecord]) -> list[Contest]:
    for number, record in enumerate(records):
        save(folder / f"run-{number:03}", record)
    return contests(gather([folder]))


def test_runs_of_one_model_are_one_contest_and_their_scores_are_means_over_seeds(
    tmp_path: Path,
) -> None:
    accuracies = {("standard", 0): 0.7, ("standard", 1): 0.8, ("arch", 0): 0.85, ("arch", 1): 0.95}
    records = [made_up(*key, value) for key, value in accuracies.items()]
    contest, other = of_records(tmp_path, [*records, made_up("arch", 0, model="large")])
    assert contest.methods == {"standard": "standard", "arch": "arch"}
    assert summary(contest).cells["reviews", "arch"].main.mean == pytest.approx(90.0)  # type: ignore[union-attr]
    assert contest.reference == "standard"
    difference = summary(contest).difference("reviews", "arch", "standard")
    assert difference is not None
    assert difference.mean == pytest.approx(100 * statistics.fmean([0.85 - 0.7, 0.95 - 0.8]))
    assert [(g.task, g.label, list(g.runs)) for g in other.groups] == [("reviews", "arch", [0])]


def test_settings_of_one_method_are_told_apart_by_the_options_that_differ(tmp_path: Path) -> None:
    records = [
        made_up("arch", 0, settings={"radius": value, "step_size": value}) for value in (0.1, 0.3)
    ]
    (contest,) = of_records(tmp_path, [*records, made_up("standard", 0)])
    assert list(contest.methods) == ["standard", "ARCH, radius 0.1", "ARCH, radius 0.3"]
    assert contest.has_variants


def test_data_of_one_name_that_differ_are_two_tasks(tmp_path: Path) -> None:
    (contest,) = of_records(
        tmp_path, [made_up("arch", 0, fingerprint=name) for name in ("aaaaaaaa", "bbbbbbbb")]
    )
    assert summary(contest).tasks == ["reviews (aaaaaa)", "reviews (bbbbbb)"]


def test_of_runs_that_repeat_each_other_the_finished_one_counts(tmp_path: Path) -> None:
    failed = made_up("arch", 0).fail("no memory")
    (contest,) = of_records(tmp_path, [made_up("arch", 0, 0.6), failed])
    assert summary(contest).scores["reviews", "arch"] == {0: pytest.approx(60.0)}
    assert contest.notes == [
        "1 runs repeat others with the same settings and seed: the latest that finished is shown"
    ]


def test_runs_for_tuning_and_runs_of_a_comparison_are_not_mixed_with_others(tmp_path: Path) -> None:
    comparison({"reviews": ["accuracy"]}, ["arch"], [0]).save(tmp_path)
    save(tmp_path / "reviews" / "arch" / "seed-0", made_up())
    save(
        tmp_path / "reviews" / "arch" / "candidate-0", made_up(details={"held_out": {"share": 0.1}})
    )
    found: Gathered = gather([tmp_path])
    (contest,) = contests(found)
    assert [run.path.name for run in contest.runs] == ["seed-0"]


def test_a_run_for_tuning_alone_is_no_contest(tmp_path: Path) -> None:
    assert of_records(tmp_path, [made_up(details={"held_out": {"share": 0.1}})]) == []


def test_a_failed_run_leaves_its_place_empty(tmp_path: Path) -> None:
    (contest,) = of_records(tmp_path, [made_up("standard", 0), made_up("arch", 0).fail("it broke")])
    assert [group.label for group in contest.on("reviews")] == ["standard"]
    assert summary(contest).cells["reviews", "arch"].main is None
    assert summary(contest).cells["reviews", "arch"].asked == 1


def test_a_failed_run_with_settings_of_its_own_does_not_tell_finished_ones_apart(
    tmp_path: Path,
) -> None:
    broken = made_up("arch", 2, learning_rate=1e30).fail("not finite")
    (contest,) = of_records(
        tmp_path, [made_up("arch", 0), made_up("arch", 1).fail("no memory"), broken]
    )
    assert list(contest.methods) == ["arch"]
    assert summary(contest).cells["reviews", "arch"].asked == 2


def test_what_was_scored_on_the_test_set_is_said_to_be(tmp_path: Path) -> None:
    translated = made_up(
        task="translation",
        metrics={"bleu": 30.0},
        details={"scored": "test", "languages": ["de", "en"]},
    )
    (contest,) = of_records(tmp_path, [translated, made_up()])
    assert {task.name: task.scored_on for task in contest.tasks} == {
        "translation": "test",
        "reviews": "dev",
    }


def test_runs_of_a_study_are_not_mixed_with_others_and_an_unfinished_one_says_so(
    tmp_path: Path,
) -> None:
    record = study_record([70.0], [71.0], [80.0])
    replace(record, status="interrupted", variants=record.variants[::-1]).save(tmp_path / "study")
    save(tmp_path / "study" / "arch" / "default" / "seed-0", made_up())
    save(tmp_path / "loose", made_up(seed=5))
    study, loose = contests(gather([tmp_path]))
    assert (study.title, loose.title) == ("Study of ARCH on RTE with tiny", "Runs of small")
    assert [[run.path.name for run in each.runs] for each in (study, loose)] == [
        ["seed-0"],
        ["loose"],
    ]
    assert list(study.methods.items()) == [
        ("smart", "smart"),
        ("ARCH, refresh_every none", "arch"),
        ("arch", "arch"),
    ]
    told = "the study is interrupted: numbers cover the runs that finished"
    assert study.notes == ["a note", told]


def test_bleu_is_out_of_a_hundred_already(tmp_path: Path) -> None:
    record = made_up(metrics={"bleu": 31.5, "valid_chrf": 52.0, "loss": 1.5}, task="translation")
    (contest,) = of_records(tmp_path, [record])
    assert summary(contest).cells["translation", "arch"].main.mean == pytest.approx(31.5)  # type: ignore[union-attr]
