from __future__ import annotations

import statistics

import pytest

from advreg.lab.bench.figures import averaged, finished, whole_runs, within_rounds
from advreg.records.bench import Row, Spread


def row(
    name: str,
    rounds: list[float],
    method: str = "arch",
    phase: str = "always",
    every: int | None = None,
) -> Row:
    return Row(
        name=name, method=method, phase=phase, rounds=rounds, settings={"refresh_every": every}
    )  # type: ignore[arg-type]


def test_a_ratio_is_the_median_of_ratios_not_the_ratio_of_medians() -> None:
    standard, other = [1.0, 10.0, 2.0], [3.0, 20.0, 8.0]
    done = {one.name: one for one in finished([row("standard", standard), row("smart", other)])}
    ratio = done["smart"].ratio
    assert ratio is not None
    assert (
        ratio.median
        == statistics.median([3.0, 2.0, 4.0])
        != statistics.median(other) / statistics.median(standard)
    )
    assert (ratio.least, ratio.most) == (2.0, 4.0)


def test_a_round_that_was_cut_short_counts_only_where_both_were_measured() -> None:
    assert within_rounds([2.0, 6.0], [1.0, 3.0, 5.0]) == [2.0, 2.0]
    assert Spread.of(within_rounds([2.0], [])) is None


def test_one_measurement_has_no_width() -> None:
    spread = Spread.of([4.0])
    assert spread == Spread(median=4.0, quartile_1=4.0, quartile_3=4.0, least=4.0, most=4.0)


@pytest.mark.parametrize(("every", "refreshes"), [(15, 10), (None, 1), (100, 2), (149, 2)])
def test_a_whole_run_of_arch_counts_its_refreshes_as_the_schedule_does(
    every: int | None, refreshes: int
) -> None:
    rows = [
        row("standard", [2.0, 2.0], "standard"),
        row("arch, reuse", [3.0, 4.0], phase="reuse", every=every),
        row("arch, refresh", [9.0, 10.0], phase="refresh", every=every),
        row("smart", [8.0, 16.0], "smart"),
    ]
    runs = {run.name: run for run in whole_runs(rows, 150)}
    spent = [
        (refreshes * dear + (150 - refreshes) * calm) / 150
        for calm, dear in [(3.0, 9.0), (4.0, 10.0)]
    ]
    assert list(runs) == ["standard", "arch", "smart"]
    assert runs["arch"].refreshes == refreshes
    assert runs["arch"].to_standard is not None
    assert runs["arch"].to_smart is not None
    assert runs["arch"].to_standard.median == pytest.approx(
        statistics.median(t / 2.0 for t in spent)
    )
    assert runs["arch"].to_smart.median == pytest.approx(
        statistics.median([spent[0] / 8.0, spent[1] / 16.0])
    )


def test_a_sweep_is_paid_on_top_of_the_reuse_steps_of_its_epoch() -> None:
    assert averaged([1.0, 2.0], [], [10.0, 10.0], share=0.1) == [2.0, 3.0]


def test_without_a_measured_refresh_there_is_no_figure_for_the_whole_run() -> None:
    rows = [
        row("standard", [1.0], "standard"),
        row("arch, two passes, reuse", [2.0], phase="reuse", every=15),
    ]
    assert [run.name for run in whole_runs(rows, 150)] == ["standard"]
