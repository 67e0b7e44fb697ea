from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from advreg.lab.kinds.classification.tasks import TASKS, main_score
from advreg.records.compare import COMPARE_FILE, load, score_of
from advreg.records.sealed import RecordError, save_as
from comparisons import candidate, comparison


def test_a_comparison_reads_as_it_was_written_and_refuses_an_edit(tmp_path: Path) -> None:
    tuning = {("rte", "arch"): [candidate(3.5, 61.5), candidate(None, None, "the loss is nan")]}
    record = comparison(
        {"rte": ["accuracy"]},
        ["standard", "arch"],
        [0, 1],
        {("rte", "arch", 1): "no memory"},
        tuning,
    )
    record.save(tmp_path)
    assert load(tmp_path) == record
    path = tmp_path / "compare.json"
    path.write_text(path.read_text().replace("61.5", "71.5"))
    with pytest.raises(RecordError, match="checksum does not match the content"):
        load(tmp_path)


def test_a_folder_without_a_comparison_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        RecordError,
        match=r"compare.json: is not there; give the --output folder of an `advreg compare`",
    ):
        load(tmp_path)


@pytest.mark.parametrize("task", TASKS)
def test_the_score_is_the_main_score_of_every_task(task: str) -> None:
    metrics = {name: 0.1 * number for number, name in enumerate(TASKS[task].main_metrics, start=3)}
    assert score_of({**metrics, "loss": 2.0}, TASKS[task].main_metrics) == pytest.approx(
        main_score(task, metrics)
    )


def test_a_score_with_a_part_that_is_not_finite_is_none() -> None:
    assert score_of({"accuracy": 0.5, "f1": None}, ["accuracy", "f1"]) is None
    assert score_of({"accuracy": float("nan")}, ["accuracy"]) is None
    assert score_of({"loss": 0.5}, ["accuracy"]) is None


@pytest.mark.parametrize("place", ["/etc", "../other", "a/../../b", "C:\\x"])
@pytest.mark.parametrize("part", ["runs", "candidates"])
def test_a_comparison_whose_runs_lie_elsewhere_is_refused(
    part: str, place: str, tmp_path: Path
) -> None:
    tuning = {("rte", "arch"): [candidate(3.5, 61.5)]}
    record = comparison({"rte": ["accuracy"]}, ["arch"], [0], {}, tuning)
    if part == "runs":
        record = dataclasses.replace(
            record, runs=[dataclasses.replace(record.runs[0], folder=place)]
        )
    else:
        candidates = [dataclasses.replace(record.choices[0].candidates[0], folder=place)]
        record = dataclasses.replace(
            record, choices=[dataclasses.replace(record.choices[0], candidates=candidates)]
        )
    save_as(tmp_path / COMPARE_FILE, record, keep_paths=True)
    with pytest.raises(RecordError, match=r"folder must be in the folder of the comparison, got"):
        load(tmp_path)
