from __future__ import annotations

from pathlib import Path

import pytest

from report_runs import FOUR, lines_titled, reported


def test_the_health_of_the_perturbation_is_drawn_from_logs_and_the_file_beside_the_record(
    tmp_path: Path,
) -> None:
    found = reported(tmp_path, FOUR)["perturbation"]
    size = lines_titled(found, "Size of the perturbation")
    assert size.marks[0].y[-1] == pytest.approx(0.3)
    share = lines_titled(found, "Share of the penalty in the loss")
    assert list(share.marks[0].y) == pytest.approx(
        [20.0] * 20
    )  # the penalty is a quarter of the task loss
    age = lines_titled(found, "Age of the cached perturbations")
    assert set(age.marks[0].y) == {0.0, 1.0}
    similarity = lines_titled(found, "Similarity to the neighbours borrowed from")
    bins = dict(zip(similarity.marks[0].x, similarity.marks[0].y, strict=True))
    filled = {place: share for place, share in bins.items() if share}
    assert list(filled.values()) == [15.0, 45.0, 30.0, 10.0]
    assert list(filled) == pytest.approx([0.275, 0.325, 0.375, 0.425])  # the middles of the bins
    assert len(bins) == 40
    assert [each.look.label for each in similarity.marks] == ["ARCH"]
