from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from advreg.lab.report.statistics import Spread
from advreg.lab.report.study import findings, notes, tables, to_markdown
from studies import study_record

scores = st.lists(st.floats(0, 100, width=32), min_size=3, max_size=3)


@given(scores, scores, scores)
def test_means_and_deviations_are_those_of_numpy(
    usual: list[float | None], other: list[float | None], smart: list[float | None]
) -> None:
    found = findings(study_record(usual, other, smart))
    ((_, marks),) = found.panels
    for mark, expected in zip([*marks, *found.baselines], (usual, other, smart), strict=True):
        assert mark.spread is not None
        assert mark.spread.mean == pytest.approx(np.mean(expected), abs=1e-9)
        assert mark.spread.deviation == pytest.approx(np.std(expected, ddof=1), abs=1e-6)
        assert (mark.spread.count, mark.asked) == (3, 3)
    assert [mark.usual for mark in marks] == [True, False]


def test_the_table_has_a_row_for_each_point_and_baseline_and_the_best_point_in_bold() -> None:
    text = to_markdown(
        findings(study_record([70.0, 71.0, 72.0], [70.0, 70.0, 70.0], [80.0, 80.0, 80.0]))
    )
    assert (
        "refresh: T_c, epochs. ARCH on RTE, accuracy on dev in percent, mean ± sd over 3 seeds."
        in text
    )
    assert "| 15 (default) | **71.0 ± 1.0** | 2.0 |" in text
    assert "| once | 70.0 ± 0.0 | 2.0 |" in text
    assert "| SMART | 80.0 ± 0.0 | 2.0 |" in text


def test_the_difference_from_the_default_is_paired_by_seed_and_has_the_interval_of_scipy() -> None:
    usual, other, smart = [70.0, 71.0, 75.0], [70.5, 70.0, 76.5], [None, 71.0, 75.0]
    found = findings(study_record(list(usual), list(other), list(smart)))
    ((_, (default, once)),), (line,) = found.panels, found.baselines
    assert default.difference is None
    expected = stats.ttest_rel(other, usual).confidence_interval(0.95)
    assert once.difference is not None
    assert once.difference.interval() == pytest.approx((expected.low, expected.high))
    assert line.difference == Spread(0.0, 0.0, 2)  # as good as the default, and not the default
    (sheet,) = tables(found)
    assert sheet.header[-1] == "minus default"
    assert [row[-1] for row in sheet.texts] == ["–", "+0.3 [−2.8, +3.5]", "0.0 (all equal)"]
    assert "Minus default: paired by seed, with the 95 % confidence interval" in sheet.caption


def test_a_study_without_the_default_has_no_such_column() -> None:
    record = study_record([70.0], [71.0], [72.0])
    (panel,) = record.panels
    others = [each for each in record.variants if each.name != "arch/default"]
    (sheet,) = tables(
        findings(replace(record, panels=[replace(panel, points=panel.points[1:])], variants=others))
    )
    assert sheet.header == ["", "score", "s per run"]
    assert "Minus default" not in sheet.caption


def test_runs_that_are_to_come_have_not_failed() -> None:
    record = study_record([70.0], [None], [72.0])
    waiting = [
        replace(each, runs=[replace(run, error=None) for run in each.runs])
        for each in record.variants
    ]
    for variants, shown in ((record.variants, "failed"), (waiting, "–")):
        (sheet,) = tables(findings(replace(record, variants=variants)))
        assert [row[1] for row in sheet.texts] == ["70.0", shown, "72.0"]


def test_missing_runs_are_left_out_of_the_mean_counted_and_named() -> None:
    record = study_record([70.0, None, 72.0], [None, None, None], [80.0, 80.0, 80.0])
    (sheet,) = tables(findings(record))
    assert [row[1] for row in sheet.texts] == ["71.0 ± 1.4 (2 of 3)", "failed", "80.0 ± 0.0"]
    assert notes(record) == [
        "a note",
        "no result: arch/default/seed-1: NonFiniteLossError: nan",
        *(
            f"no result: arch/refresh_every=none/seed-{seed}: NonFiniteLossError: nan"
            for seed in range(3)
        ),
    ]
