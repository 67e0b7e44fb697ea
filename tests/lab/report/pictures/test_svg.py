from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advreg.lab.drawing import PictureError
from advreg.lab.report.pictures.figures import Lines, Look, Row, Rows, Series
from advreg.lab.report.pictures.svg import WIDTH, Axis, drawing, save

EVIL = "</text><script>alert(1)</script>\"'&"
SVG = "{http://www.w3.org/2000/svg}"
BLUE, RED = Look("ARCH", "#0072b2"), Look("SMART", "#d55e00", "7 4")


def lines(**changes: object) -> Lines:
    series = [
        Series(BLUE, [1.0, 2.0, 3.0], [10.0, 30.0, 20.0], [9.0, 29.0, 19.0], [11.0, 31.0, 21.0])
    ]
    fields = {"title": "Loss", "x": "step", "y": "loss", "marks": series} | changes
    return Lines(**fields)  # type: ignore[arg-type]


def parsed(figure: Lines | Rows) -> ElementTree.Element:
    return ElementTree.fromstring(drawing(figure))


def numbers(path: str) -> list[tuple[float, float]]:
    return [tuple(map(float, point.split(","))) for point in path.lstrip("M").split("L")]  # type: ignore[misc]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_round_and_on_the_axis(low: float, span: float) -> None:
    axis = Axis(low, low + span, 0.0, 1.0)
    found = list(axis.ticks())
    assert 1 <= len(found) <= 8
    assert all(axis.low - 1e-6 * span <= tick <= axis.high + 1e-6 * span for tick in found)
    steps = {round(after - before, 9) for before, after in pairwise(found)}
    assert all(f"{step:.0e}"[0] in "125" for step in steps)


def test_a_line_is_where_its_values_are() -> None:
    line = next(
        node for node in parsed(lines()).iter("path") if node.get("stroke-dasharray") is not None
    )
    (left, top), (middle, highest), (right, between) = numbers(line.get("d", ""))
    assert middle - left == pytest.approx(right - middle, abs=0.2)
    assert highest < between < top  # 30, 20 and 10: upwards is smaller
    assert between - highest == pytest.approx(top - between, abs=0.2)
    assert left >= 0
    assert right <= WIDTH


def test_a_band_holds_the_line() -> None:
    areas = [node for node in parsed(lines()).iter("path") if node.get("class") == "area"]
    assert len(numbers(areas[0].get("d", ""))) == 6


def test_a_line_to_compare_with_crosses_the_plot_and_has_no_dots() -> None:
    across = Series(RED, [-1.0, 9.0], [15.0, 15.0], [14.0, 14.0], [16.0, 16.0])
    figure = parsed(lines(marks=[across], ticks=["a", "b"]))
    line = next(node for node in figure.iter("path") if node.get("stroke-dasharray") == "7 4")
    (left, _), (right, _) = numbers(line.get("d", ""))
    assert 0 < left < WIDTH / 4 < 3 * WIDTH / 4 < right <= WIDTH
    assert list(figure.iter("circle")) == []


def test_equal_values_and_a_single_place_can_be_drawn() -> None:
    parsed(lines(marks=[Series(BLUE, [1.0], [0.8])]))
    parsed(lines(marks=[Series(BLUE, [1.0, 2.0], [0.8, 0.8000000000000001])]))
    parsed(Rows(title="t", x="x", marks=[Row(BLUE, 3.0, dots=[3.0, 3.0])]))


def test_the_legend_names_every_line_with_its_last_value() -> None:
    level = Series(RED, [1.0, 3.0], [15.0, 15.0])
    texts = [node.text for node in parsed(lines(marks=[*lines().marks, level])).iter("text")]
    assert {"ARCH 20.0", "SMART 15.0", "step", "loss"} <= set(texts)


def test_a_row_shows_value_interval_dots_and_what_was_expected() -> None:
    row = Row(BLUE, 2.0, (1.5, 2.5), [1.5, 2.5], expected=3.0)
    figure = parsed(Rows(title="t", x="× Standard", marks=[row], zero=True))
    texts = [node.text for node in figure.iter("text")]
    assert {"ARCH", "2.00 [1.50, 2.50]", "× Standard"} <= set(texts)
    assert [node.get("class") for node in figure.iter("circle")] == ["fill", "dot", "dot"]
    assert sum(node.get("class") == "mark" for node in figure.iter("path")) == 1
    assert [node.get("class") for node in figure.iter("rect")] == ["area"]


def test_a_far_wider_interval_does_not_hide_the_rest() -> None:
    wide = Row(BLUE, 70.5, (0.0, 141.0), [70.0, 71.0])
    narrow = Row(RED, 71.5, (71.2, 71.8), [71.0, 72.0])
    figure = parsed(Rows(title="t", x="x", marks=[wide, narrow]))
    places = [
        float(node.get("cx", "")) for node in figure.iter("circle") if node.get("class") == "dot"
    ]
    assert max(places) - min(places) > WIDTH / 5


def test_nothing_that_a_record_holds_becomes_markup() -> None:
    evil = Look(EVIL, "#000000")
    for figure in (
        lines(
            title=EVIL,
            x=EVIL,
            y=EVIL,
            marks=[Series(evil, [0.0, 1.0], [1.0, 2.0])],
            ticks=[EVIL, EVIL],
        ),
        Rows(title=EVIL, x=EVIL, marks=[Row(evil, 1.0)]),
    ):
        assert "<script" not in drawing(figure)
        assert EVIL in [node.text for node in parsed(figure).iter("text")]


def test_a_file_is_whole_and_has_concrete_colours(tmp_path: Path) -> None:
    figures = [lines(), lines(title="Other"), lines(title="Third"), lines(title="Fourth")]
    save(figures, tmp_path / "deep" / "a.svg", "All of them")
    text = (tmp_path / "deep" / "a.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert "var(" not in text
    assert {"Loss", "Other", "Fourth", "All of them"} <= {
        node.text for node in root.iter(f"{SVG}text")
    }
    assert float(root.get("width", "")) == 3 * WIDTH
    save(figures, tmp_path / "b.svg", "All of them")
    assert (tmp_path / "b.svg").read_text(encoding="utf-8") == text


def test_a_file_that_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PictureError, match="nothing to show"):
        save([], tmp_path / "a.svg")
    with pytest.raises(PictureError, match=r"picture must end in \.svg, got 'a\.png'; a browser"):
        save([lines()], Path("a.png"))
