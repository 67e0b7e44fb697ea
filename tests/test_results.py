"""Pages and tables that quote measurements say what the records say."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


def experiment(name: str) -> ModuleType:
    place = importlib.util.spec_from_file_location(name, ROOT / "experiments" / f"{name}.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    sys.modules[name] = module  # dataclasses look their module up
    place.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cost_page() -> ModuleType:
    return experiment("cost_page")


def test_the_figures_of_the_scale_plan_are_those_of_the_record() -> None:
    scale = experiment("scale")
    record = json.loads((ROOT / "results" / "scale.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert len(record["commit"]) == 40
    assert scale.table(record) in page
    assert scale.scope_table(record) in page


def test_the_cost_page_is_made_of_the_records(cost_page: ModuleType) -> None:
    assert cost_page.PAGE.read_text(encoding="utf-8") == cost_page.page(cost_page.RECORDS)


def test_the_cost_table_of_the_readme_is_made_of_the_records(cost_page: ModuleType) -> None:
    assert cost_page.summary(cost_page.RECORDS) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_picture_shows_the_figures_of_the_table(cost_page: ModuleType) -> None:
    picture = (ROOT / "docs" / "results" / "cost.svg").read_text(encoding="utf-8")
    for name in cost_page.STEPS:
        for _, panel in cost_page.Records(cost_page.RECORDS).panels(name):
            for row in panel.rows:
                assert f"<!-- {row.ratio.median:.2f} -->" in picture


def test_records_are_whole_unedited_and_name_their_commit(cost_page: ModuleType) -> None:
    found = cost_page.Records(cost_page.RECORDS)  # a checksum that does not hold would have raised
    assert set(found.benches) >= {"bert-base.json", "bert-base-large.json", "peers.json", "tiers.json"}
    for record in found.benches.values():
        assert record.status == "finished"
        assert len(record.commit) == 40


def test_a_page_made_of_other_records_says_other_things(cost_page: ModuleType, tmp_path: Path) -> None:
    for name in ("bert-base.json", "bert-base-large.json", "peers.json"):
        (tmp_path / name).write_bytes((cost_page.RECORDS / name).read_bytes())
    fewer = cost_page.page(tmp_path)
    assert "## A whole run" not in fewer
    assert "## What was aimed at" in fewer


def test_the_page_on_understanding_is_made_of_the_records() -> None:
    understanding = experiment("understanding_page")
    assert understanding.PAGE.read_text(encoding="utf-8") == understanding.page(understanding.RECORDS)


def test_a_gain_in_the_search_is_over_standard_with_the_same_seed(tmp_path: Path) -> None:
    understanding = experiment("understanding_page")
    plain, tried = understanding.PLAIN, {"method": "r3f", "weight": 5.0}
    scores = [(plain, 0, 80.0), (plain, 1, 70.0), (tried, 1, 71.5)]
    same = {
        "task": "rte",
        "model": "m",
        "epochs": 1,
        "learning_rate": 1e-4,
        "error": None,
        "commit": "c",
        "device": "d",
    }
    lines = [{**same, "point": point, "seed": seed, "score": score, "command": "x"} for point, seed, score in scores]
    (tmp_path / "search-m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    page = understanding.page(tmp_path)
    assert "| standard, dropout 0.1 | 75.0 |" in page
    assert "| r3f, λ 5 | +1.5 (1) |" in page
