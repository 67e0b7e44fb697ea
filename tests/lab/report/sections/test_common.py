from __future__ import annotations

from pathlib import Path

from advreg.lab.report.compare import results
from advreg.lab.report.pictures.figures import Lines, Rows
from advreg.lab.report.sections.common import looks_of
from advreg.lab.report.tables import Table
from comparisons import comparison
from report_runs import made_up, parts_of, reported


def test_runs_of_different_length_are_never_on_one_axis_unmarked(tmp_path: Path) -> None:
    records = [made_up("standard", seed, epochs=epochs) for seed in (0, 1) for epochs in (1, 3)]
    records += [made_up("arch", seed, epochs=3) for seed in (0, 1)]
    records += [made_up("smart", seed, epochs=1) for seed in (0, 1)]
    found = reported(tmp_path, records)
    expected = {"Standard, epochs 1", "Standard, epochs 3", "ARCH, epochs 3", "SMART, epochs 1"}
    for key in ("scores", "cost", "gradients"):
        for figure in parts_of(found[key], Rows):
            assert {row.look.label for row in figure.marks} <= expected
    for figure in parts_of(found["gradients"], Lines):
        assert {each.look.label for each in figure.marks} == expected
    assert {row[0] for row in parts_of(found["scores"], Table)[0].texts} == expected


def test_times_are_relative_to_the_run_of_standard_with_the_same_length(tmp_path: Path) -> None:
    records = [made_up("standard", 0, epochs=1, seconds=1.0)]
    records += [made_up("standard", 0, epochs=3, seconds=3.0)]
    records += [made_up("arch", 0, epochs=3, seconds=6.0)]
    (table,) = parts_of(reported(tmp_path, records)["cost"], Table)
    assert {row[0]: row[4] for row in table.texts}["ARCH, epochs 3"] == "2.00"


def test_a_comparison_whose_methods_were_tuned_to_different_lengths_is_marked() -> None:
    record = comparison({"rte": ["accuracy"]}, ["standard", "arch"], [0])
    runs = {
        ("rte", "standard", 0): made_up("standard", 0, epochs=2),
        ("rte", "arch", 0): made_up("arch", 0, epochs=5),
    }
    shown = looks_of(results(record, runs), "rte")
    assert [look.label for look in shown.values()] == ["Standard, epochs 2", "ARCH, epochs 5"]
