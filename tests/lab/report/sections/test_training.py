from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from advreg.lab.report.pictures.figures import Lines
from report_runs import FOUR, lines_titled, parts_of, reported


def test_curves_of_scores_are_named_for_the_metric_whatever_the_set(tmp_path: Path) -> None:
    records = []
    for record in FOUR:
        line = {"step": 10, "epoch": 2.0, "eval_accuracy": 0.7}
        outcome = replace(record.outcome, history=[*record.outcome.history, line])
        records.append(replace(record, outcome=outcome))
    figure = lines_titled(reported(tmp_path, records)["training"], "Accuracy while training")
    assert figure.y == "accuracy"
    assert list(figure.marks[0].x) == [10.0, 20.0]


def test_a_single_evaluation_is_no_curve(tmp_path: Path) -> None:
    found = reported(tmp_path, FOUR)["training"]
    titles = {figure.title for figure in parts_of(found, Lines)}
    assert titles == {"Task loss"}
