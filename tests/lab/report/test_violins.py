from __future__ import annotations

from pathlib import Path

import pytest

from advreg.lab.drawing import PictureError
from advreg.lab.report.violins import draw_violins

SCORES = {
    "rte": {"standard": [60.0, 62.0, 61.0], "arch": [64.0, 66.0, 65.0]},
    "mrpc": {"standard": [80.0, 80.0]},
}


def words(path: Path) -> list[str]:
    """The texts of an svg, whose letters matplotlib keeps as comments."""
    return [
        line.strip(" <!->")
        for line in path.read_text().splitlines()
        if line.strip().startswith("<!--")
    ]


def test_every_task_and_method_is_named(tmp_path: Path) -> None:
    draw_violins(SCORES, tmp_path / "violins.svg", "frozen after training on sst2")
    shown = words(tmp_path / "violins.svg")
    for text in ("rte", "mrpc", "standard", "arch", "frozen after training on sst2"):
        assert text in shown


def test_equal_scores_and_a_single_one_can_be_drawn(tmp_path: Path) -> None:
    draw_violins({"rte": {"standard": [50.0, 50.0], "r3f": [51.0]}}, tmp_path / "violins.png")
    assert (tmp_path / "violins.png").stat().st_size > 1000


def test_the_same_scores_give_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw_violins(SCORES, tmp_path / name)
    assert (tmp_path / "one.svg").read_text() == (tmp_path / "two.svg").read_text()


@pytest.mark.parametrize("scores", [{}, {"rte": {}}])
def test_nothing_is_not_drawn(scores: dict[str, dict[str, list[float]]], tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="nothing to show"):
        draw_violins(scores, tmp_path / "violins.svg")


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"picture must end in \.svg, \.png, \.pdf"):
        draw_violins(SCORES, tmp_path / "violins.gif")
