from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from advreg.cli.runs import list_runs
from report_runs import made_up, save


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "standard-seed0", made_up("standard", 0, 0.7))
    save(tmp_path / "arch-seed0", made_up("arch", 0, 0.9))
    save(tmp_path / "smart-seed0", made_up("smart", 0).fail("[bold]no memory"))
    return tmp_path


def printed(
    folder: Path, wanted: dict[str, Any] | None = None, sort: str = "run", width: int = 120
) -> str:
    console = Console(file=io.StringIO(), width=width)
    list_runs(folder, wanted or {}, sort, False, "table", console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_table_is_sorted_and_reasons_stand_below_it(folder: Path) -> None:
    out = printed(folder, sort="-score", width=200)
    assert out.index("arch-seed0") < out.index("standard-seed0") < out.index("smart-seed0")
    assert "smart-seed0: [bold]no memory" in out
    assert out.rstrip().endswith(f"3 of 3 runs in {folder}")
    assert "started" in out


def unlike(folder: Path, models: int = 1) -> list[str]:
    """A dozen runs that differ in many ways, in a folder; returns their names."""
    for number in range(12):
        options = {
            f"option_{prime}": number * number % prime
            for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
        }
        record = made_up(
            seed=number,
            settings={"radius": number / 10, "neighbours": number % 2 + 1, **options},
            task=f"task-{number % models}",
            model=f"somebody/a-model-of-some-size-{number % models}",
            more={"weight_decay": number / 10},
        )
        save(
            folder / "study" / "arch" / f"radius={number / 10},neighbours=5" / f"seed-{number}",
            record,
        )
    return [f"radius={number / 10},neighbours=5/seed-{number}" for number in range(12)]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize("models", [1, 6])
def test_at_any_width_every_row_says_which_run_it_is_in_a_few_lines(
    tmp_path: Path, width: int, models: int
) -> None:
    names = unlike(tmp_path, models)
    table = re.split("no room|12 of 12 runs", printed(tmp_path, width=width))[0].splitlines()
    assert max(map(len, table)) <= width
    assert len(table) <= 12 * (10 if width < 80 else 6)
    for name in names:  # a long one is folded
        assert any(line.lstrip().startswith(name[:24]) for line in table)


def test_columns_are_left_out_from_the_least_important_on_and_told(tmp_path: Path) -> None:
    unlike(tmp_path, models=6)
    shown = printed(tmp_path, width=80)
    told = "no room for settings, started, training: widen the terminal, or use --json or --csv\n"
    assert told in shown
    header = next(line for line in shown.splitlines() if line.split()[:1] == ["run"])
    assert header.split() == ["run", "task", "model", "seed", "score"]
    assert "no room" not in printed(tmp_path, width=400)


def test_filters_leave_out_what_is_not_wanted(folder: Path) -> None:
    out = printed(folder, {"status": ["failed"]})
    assert "arch-seed0" not in out
    assert "1 of 3 runs" in out
    with pytest.raises(
        ValueError, match="status must be one of finished, failed, unfinished, got 'done'"
    ):
        printed(folder, {"status": ["done"]})


@pytest.mark.parametrize(("field", "given", "there"), [
    ("method", "archh", r"\(did you mean 'arch'\?\); there are arch, smart, standard$"),
    ("task", "review", r"\(did you mean 'reviews'\?\); there are reviews$"),
])  # fmt: skip
def test_a_name_that_nothing_has_is_refused(
    field: str, given: str, there: str, folder: Path
) -> None:
    with pytest.raises(
        ValueError, match=f"^{field} must be one that a run has, got '{given}' {there}"
    ):
        printed(folder, {field: [given]})


def test_a_method_or_task_that_was_not_run_yet_has_no_runs(folder: Path) -> None:
    assert "0 of 3 runs" in printed(folder, {"method": ["freelb"]})
    assert "0 of 3 runs" in printed(folder, {"task": ["rte"]})


def test_programs_can_find_runs_of_two_studies_by_name_and_by_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for study in ("st", "sttr"):
        save(tmp_path / "runs" / study / "arch" / "default" / "seed-0", made_up())
    list_runs(Path("runs"), {}, "run", False, "json", Console())
    found = json.loads(capsys.readouterr().out)
    assert [line["run"] for line in found] == ["st/arch/default/seed-0", "sttr/arch/default/seed-0"]
    paths = ["runs/st/arch/default/seed-0", "runs/sttr/arch/default/seed-0"]
    assert [line["path"] for line in found] == paths
    list_runs(Path("runs"), {}, "run", False, "csv", Console())
    assert [row["path"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == paths


def test_json_and_csv_can_be_read_by_programs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    list_runs(folder, {"method": ["arch"]}, "run", False, "json", Console())
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["method"], line["score"]) == ("arch", pytest.approx(90.0))
    list_runs(folder, {}, "run", False, "csv", Console())
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["method"] for row in rows] == ["arch", "smart", "standard"]
