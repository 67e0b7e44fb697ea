from __future__ import annotations

from pathlib import Path

import pytest

from advreg.lab.report.page.parts import Heat
from advreg.lab.report.pictures.figures import DASHED
from report_runs import FOUR, lines_titled, made_up, parts_of, reported


def test_the_health_of_the_perturbation_is_drawn_from_logs_and_the_file_beside_the_record(
    tmp_path: Path,
) -> None:
    found = reported(tmp_path, FOUR)["perturbation"]
    size = lines_titled(found, "Size of the perturbation")
    assert [(level.look.label, level.y, level.look.dash) for level in size.levels] == [
        ("ε = 0.3", 0.3, DASHED)
    ]
    assert size.series[0].y[-1] == pytest.approx(0.3)
    share = lines_titled(found, "Share of the penalty in the loss")
    assert list(share.series[0].y) == pytest.approx(
        [20.0] * 20
    )  # the penalty is a quarter of the task loss
    age = lines_titled(found, "Age of the cached perturbations")
    assert set(age.series[0].y) == {0.0, 1.0}
    similarity = lines_titled(found, "Similarity to the neighbours borrowed from")
    assert similarity.steps
    assert list(similarity.series[0].y) == [0.0, 15.0, 45.0, 30.0, 10.0, 0.0, 0.0]
    assert list(similarity.series[0].x) == pytest.approx([0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5])
    assert [each.look.label for each in similarity.series] == ["ARCH"]


@pytest.mark.parametrize(("norm", "scope"), [("linf", "sample"), ("l2", "token")])
def test_a_ball_that_the_norm_cannot_be_compared_with_is_not_drawn(
    norm: str, scope: str, tmp_path: Path
) -> None:
    found = reported(tmp_path, [made_up("arch", 0, settings={"norm": norm, "scope": scope})])[
        "perturbation"
    ]
    assert lines_titled(found, "Size of the perturbation").levels == []


def test_tokens_are_shown_with_their_norms(tmp_path: Path) -> None:
    (heat,) = parts_of(reported(tmp_path, FOUR)["tokens"], Heat)
    assert heat.title == "reviews, ARCH, seed 0"
    assert heat.sentences[0].tokens == ["[CLS]", "a", "fine", "film", "[SEP]"]
