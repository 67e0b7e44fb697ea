from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from advreg.lab.bench.figures import finished
from advreg.lab.drawing import PictureError
from advreg.lab.report.sections.bench import draw_benches
from advreg.records.bench import BenchRecord, Panel, Row


def record(*shapes: tuple[int, int], device: str = "cpu") -> BenchRecord:
    rows = finished(
        [
            Row(name="standard", method="standard", rounds=[1.0, 1.0], arithmetic=1.0),
            Row(
                name="arch, reuse",
                method="arch",
                phase="reuse",
                rounds=[1.25, 1.25],
                arithmetic=2.0,
            ),
            Row(name="smart", method="smart", rounds=[], error="out of memory"),
            Row(name="Trainer", method="standard", against="Trainer", rounds=[5.0, 5.0]),
        ]
    )
    panels = [Panel(batch=batch, tokens=tokens, rows=rows, whole=[]) for batch, tokens in shapes]
    return BenchRecord(
        status="finished", settings={"model": "bert-base", "precision": "bf16"}, model={}, commit=None, environment={},
        hardware={"device": device}, started="", finished="", notes=[], panels=panels,
    )  # fmt: skip


def test_a_picture_names_shapes_methods_ratios_and_what_the_marks_mean(tmp_path: Path) -> None:
    draw_benches([record((32, 64), (64, 128), device="H200")], tmp_path / "bench.svg")
    shown = (tmp_path / "bench.svg").read_text(encoding="utf-8")
    for text in (
        "32 × 64",
        "64 × 128",
        "bf16, H200",
        "arch, reuse",
        "1.25",
    ):
        assert text in shown
    assert "upright marks: cost of the passes by arithmetic" in shown
    assert "smart" not in shown  # it has no ratio to show
    assert "Trainer" not in shown  # its ratio is not to Standard


def test_several_records_are_drawn_side_by_side(tmp_path: Path) -> None:
    draw_benches(
        [record((32, 64), device="cpu"), record((32, 64), device="H200")], tmp_path / "bench.svg"
    )
    shown = (tmp_path / "bench.svg").read_text(encoding="utf-8")
    assert "32 × 64, bf16, cpu" in shown
    assert "32 × 64, bf16, H200" in shown


def test_the_same_record_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw_benches([record((32, 64))], tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"picture must end in \.svg, got '.*bench.png'"):
        draw_benches([record((32, 64))], tmp_path / "bench.png")


def test_a_record_without_figures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="nothing to show"):
        draw_benches([replace(record(), panels=[])], tmp_path / "bench.svg")
