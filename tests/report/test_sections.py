from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from advreg.recipes.probe_record import ProbeRecord, ProbeResult
from advreg.record import RunRecord, save_as
from advreg.report.figures import DASHED, DOTTED, Lines, Rows
from advreg.report.gather import gather
from advreg.report.parts import Bullets, Folded, Heading, Heat, Part, Section, Tiles
from advreg.report.render import Sheet
from advreg.report.sections import sections
from comparisons import comparison
from report_runs import health, made_up, save

P = TypeVar("P", bound=Part)


def main_metrics(task: str, metrics: object) -> Sequence[str]:
    return ["accuracy"]


def made(folder: Path) -> dict[str, Section]:
    return {section.key: section for section in sections(gather([folder]), main_metrics)}


def of(folder: Path, records: Sequence[RunRecord]) -> dict[str, Section]:
    for number, record in enumerate(records):
        save(folder / f"run-{number:02}", record, health() if record.method.name == "arch" else None)
    return made(folder)


def parts(section: Section, kind: type[P]) -> list[P]:
    return [part for part in section.parts if isinstance(part, kind)]


FOUR = [made_up(method, seed, 0.7 + seed / 10) for method in ("standard", "arch") for seed in (0, 1)]


def test_a_section_that_has_nothing_to_say_is_left_out(tmp_path: Path) -> None:
    found = of(tmp_path, FOUR)
    keys = ["overview", "scores", "cost", "training", "gradients", "perturbation", "tokens", "runs"]
    assert list(found) == keys


def test_the_overview_counts_runs_and_says_where_they_were_made(tmp_path: Path) -> None:
    (tmp_path / "waiting").mkdir()
    (tmp_path / "waiting" / "plan.json").write_text(json.dumps({"method": "arch", "seed": 1}))
    found = of(tmp_path, [*FOUR, made_up("arch", 7).fail("it broke"), made_up(details={"held_out": {}})])["overview"]
    (tiles,) = parts(found, Tiles)
    assert tiles.tiles[0] == ("runs finished", "4", "1 failed, 1 unfinished, 1 for tuning")
    assert ("methods", "2", "Standard, ARCH") in tiles.tiles
    assert ("seeds", "2", "0, 1") in tiles.tiles
    (conditions,) = parts(found, Sheet)
    assert conditions.rows == [
        ["c0ffeec0ff", "0.1.0", "cpu", "Linux x86_64", "3.11.7", "2.13.0", "5.22.2", "fp32", "6"]
    ]
    (settings,) = parts(found, Folded)
    assert ["radius", "–", "0.3"] in settings.sheet.rows
    assert ["epochs", "4", "4"] in settings.sheet.rows


def test_scores_are_a_table_and_a_picture_with_intervals_and_seeds(tmp_path: Path) -> None:
    found = of(tmp_path, FOUR)["scores"]
    assert parts(found, Sheet)[0].rows == [["Standard", "75.0 ± 7.1"], ["ARCH", "75.0 ± 7.1"]]
    (picture,) = parts(found, Rows)
    assert [row.look.label for row in picture.rows] == ["Standard", "ARCH"]
    assert list(picture.rows[1].dots) == pytest.approx([70.0, 80.0])
    assert picture.rows[1].low is not None
    assert "ARCH minus each method" in parts(found, Sheet)[1].caption


def test_differences_are_left_out_where_a_method_has_several_settings(tmp_path: Path) -> None:
    variants = [made_up("arch", 0, settings={"radius": radius}) for radius in (0.1, 1.0)]
    found = of(tmp_path, [*FOUR[:2], *variants])["scores"]
    assert [sheet for sheet in parts(found, Sheet) if "minus" in sheet.caption] == []


def test_cost_is_passes_time_and_memory(tmp_path: Path) -> None:
    records = [made_up("standard", 0, seconds=2.0), made_up("arch", 0, seconds=5.0)]
    found = of(tmp_path, records)["cost"]
    (sheet,) = parts(found, Sheet)
    assert sheet.rows[1] == ["ARCH", "2.00", "1.00", "250.0", "2.50", "5 s", "10 s", "4.1 kB", "–"]
    (picture,) = parts(found, Rows)
    assert [row.value for row in picture.rows] == pytest.approx([1.0, 2.5])
    assert picture.base == 1.0


def test_the_variance_of_the_gradient_norm_is_that_of_each_seed(tmp_path: Path) -> None:
    found = of(tmp_path, FOUR)["gradients"]
    (bars,) = parts(found, Rows)
    for row, method in zip(bars.rows, ("standard", "arch"), strict=True):
        mine = [record for record in FOUR if record.method.name == method]
        variances = [
            statistics.variance(line["grad_norm"] for line in record.outcome.history if "grad_norm" in line)
            for record in mine
        ]
        assert list(row.dots) == pytest.approx(variances, rel=1e-4)
        assert row.value == pytest.approx(statistics.fmean(variances))


def lines_titled(section: Section, title: str) -> Lines:
    (found,) = (part for part in parts(section, Lines) if part.title == title)
    return found


def test_the_health_of_the_perturbation_is_drawn_from_logs_and_the_file_beside_the_record(tmp_path: Path) -> None:
    found = of(tmp_path, FOUR)["perturbation"]
    size = lines_titled(found, "Size of the perturbation")
    assert [(level.look.label, level.y, level.look.dash) for level in size.levels] == [("ε = 0.3", 0.3, DASHED)]
    assert size.series[0].y[-1] == pytest.approx(0.3)
    share = lines_titled(found, "Share of the penalty in the loss")
    assert set(share.series[0].y) == {20.0}  # the penalty is a quarter of the task loss
    age = lines_titled(found, "Age of the cached perturbations")
    assert set(age.series[0].y) == {0.0, 1.0}
    similarity = lines_titled(found, "Similarity to the neighbours borrowed from")
    assert similarity.steps
    assert list(similarity.series[0].y) == [0.0, 15.0, 45.0, 30.0, 10.0, 0.0, 0.0]
    assert list(similarity.series[0].x) == pytest.approx([0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5])
    assert [each.look.label for each in similarity.series] == ["ARCH"]


def test_a_ball_that_the_norm_cannot_be_compared_with_is_not_drawn(tmp_path: Path) -> None:
    found = of(tmp_path, [made_up("arch", 0, settings={"norm": "linf", "scope": "token"})])["perturbation"]
    assert lines_titled(found, "Size of the perturbation").levels == []


def test_tokens_are_shown_with_their_norms(tmp_path: Path) -> None:
    (heat,) = parts(of(tmp_path, FOUR)["tokens"], Heat)
    assert heat.title == "reviews, ARCH, seed 0"
    assert heat.sentences[0].tokens == ["[CLS]", "a", "fine", "film", "[SEP]"]


def test_a_study_has_error_bars_over_seeds_smart_dashed_and_standard_dotted(tmp_path: Path) -> None:
    records = [made_up("arch", seed, 0.5 + radius + seed / 10, settings={"radius": radius})
               for radius in (0.01, 0.3) for seed in (0, 1)]  # fmt: skip
    records += [made_up("smart", 0, 0.9), made_up("standard", 0, 0.4)]
    (figure,) = parts(of(tmp_path, records)["studies"], Lines)
    assert figure.title == "reviews: radius of ARCH"
    assert figure.reach == "bars"
    assert figure.logarithmic
    (series,) = figure.series
    assert list(series.x) == [0.01, 0.3]
    assert list(series.y) == pytest.approx([56.0, 85.0])
    spread = statistics.stdev([80.0, 90.0])
    assert series.high[1] - series.y[1] == pytest.approx(spread, rel=1e-4)
    assert [(level.look.label, level.y, level.look.dash) for level in figure.levels] == [
        ("SMART", pytest.approx(90.0), DASHED),
        ("Standard", pytest.approx(40.0), DOTTED),
    ]


def test_an_option_of_words_has_them_as_ticks(tmp_path: Path) -> None:
    records = [made_up("arch", 0, settings={"neighbour_choice": choice}) for choice in ("random", "nearest")]
    (figure,) = parts(of(tmp_path, records)["studies"], Lines)
    assert (list(figure.ticks), list(figure.series[0].x)) == (["nearest", "random"], [0.0, 1.0])
    assert not figure.logarithmic


def test_probing_is_violins_by_task(tmp_path: Path) -> None:
    results = [
        ProbeResult(encoder=f"x/{label}", label=label, trained_on="sst2", task="rte", scores=scores, metrics=[])
        for label, scores in (("arch", [60.0, 62.0, 61.0]), ("standard", [50.0, 50.0]))
    ]
    record = ProbeRecord(settings={}, commit=None, environment={}, started="", finished="", results=results)
    save_as(tmp_path / "probe.json", record)
    found = made(tmp_path)["probing"]
    (sheet,) = parts(found, Sheet)
    assert sheet.rows == [["ARCH", "61.0 ± 1.0"], ["Standard", "50.0 ± 0.0"]]
    assert "after training on sst2" in sheet.caption
    (picture,) = parts(found, Rows)
    assert [(row.value, bool(row.violin)) for row in picture.rows] == [(61.0, True), (50.0, False)]


def test_whatever_has_no_result_is_listed_with_its_reason(tmp_path: Path) -> None:
    record = comparison({"rte": ["accuracy"]}, ["arch", "smart"], [0], errors={("rte", "smart", 0): "killed"})
    record.save(tmp_path / "c")
    save(tmp_path / "c" / "rte" / "arch" / "seed-0", made_up().fail(ValueError("no luck")))
    (tmp_path / "c" / "bad").mkdir()
    (tmp_path / "c" / "bad" / "record.json").write_text("{")
    (sheet,) = parts(made(tmp_path)["failed"], Sheet)
    reasons: dict[str, Any] = {row[0]: row[2:] for row in sheet.rows}
    assert reasons["rte/arch/seed-0"] == ["failed", "ValueError: no luck"]
    assert reasons["rte/smart/seed-0"] == ["failed", "killed"]
    assert reasons["c/bad/record.json"][0] == "unreadable"
    assert len(sheet.rows) == 3


def test_several_contests_have_headings_and_one_has_none(tmp_path: Path) -> None:
    save(tmp_path / "x", made_up())
    assert parts(made(tmp_path)["scores"], Heading) == []
    save(tmp_path / "y", made_up(model="org/large"))
    assert [part.text for part in parts(made(tmp_path)["scores"], Heading)] == ["Runs of small", "Runs of large"]


def test_what_a_reader_must_know_of_a_comparison_is_told(tmp_path: Path) -> None:
    comparison({"reviews": ["accuracy"]}, ["arch"], [0], notes=["smart had fewer candidates"]).save(tmp_path)
    save(tmp_path / "reviews" / "arch" / "seed-0", made_up())
    (remarks,) = parts(made(tmp_path)["scores"], Bullets)
    assert remarks.lines == ["smart had fewer candidates"]
