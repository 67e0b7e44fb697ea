from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from advreg.lab.bench.figures import finished
from advreg.lab.bench.picture import PictureError, draw
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


def words(path: Path) -> str:
    """The text of an svg, whose letters matplotlib keeps as comments."""
    return "\n".join(
        line.strip(" <!->")
        for line in path.read_text().splitlines()
        if line.strip().startswith("<!--")
    )


def test_a_picture_names_shapes_methods_ratios_and_what_the_marks_mean(tmp_path: Path) -> None:
    draw(record((32, 64), (64, 128), device="H200"), tmp_path / "bench.svg")
    shown = words(tmp_path / "bench.svg")
    for text in (
        "32 × 64 tokens",
        "64 × 128 tokens",
        "bert-base, bf16, H200",
        "arch, reuse",
        "1.25",
    ):
        assert text in shown
    assert "the paper's expectation: its passes by arithmetic" in shown
    assert "smart" not in shown.splitlines()  # it has no ratio to show
    assert "Trainer" not in shown.splitlines()  # nor has it one to Standard


def test_several_records_are_drawn_side_by_side(tmp_path: Path) -> None:
    draw([record((32, 64), device="cpu"), record((32, 64), device="H200")], tmp_path / "bench.svg")
    shown = words(tmp_path / "bench.svg")
    assert "bert-base, bf16, cpu" in shown
    assert "bert-base, bf16, H200" in shown


def test_the_same_record_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        draw(record((32, 64)), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_png_is_a_png(tmp_path: Path) -> None:
    draw(record((32, 64)), tmp_path / "deep" / "bench.png")
    assert (tmp_path / "deep" / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        PictureError, match=r"picture must end in .svg, .png, .pdf, got '.*bench.gif'"
    ):
        draw(record((32, 64)), tmp_path / "bench.gif")


def test_a_record_without_figures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="the record holds no row with a ratio to Standard"):
        draw(replace(record(), panels=[]), tmp_path / "bench.svg")


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = importlib.util.find_spec

    def find(name: str, *args: Any) -> Any:
        return None if name == "matplotlib" else whole(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    with pytest.raises(
        PictureError,
        match=r"picture needs matplotlib, which is not installed; pip install 'advreg\[plot\]'",
    ):
        draw(record((32, 64)), tmp_path / "bench.svg")
