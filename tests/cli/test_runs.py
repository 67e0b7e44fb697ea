from __future__ import annotations

import csv
import io
import json
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


def printed(folder: Path, wanted: dict[str, Any] | None = None, sort: str = "run", width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    list_runs(folder, wanted or {}, sort, False, "table", console)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_the_table_is_sorted_and_reasons_stand_below_it(folder: Path) -> None:
    out = printed(folder, sort="-score", width=200)
    assert out.index("arch-seed0") < out.index("standard-seed0") < out.index("smart-seed0")
    assert "smart-seed0: [bold]no memory" in out
    assert out.rstrip().endswith(f"3 of 3 runs in {folder}")
    assert "started" in out
    assert "started" not in printed(folder, width=80)


def test_filters_leave_out_what_is_not_wanted(folder: Path) -> None:
    out = printed(folder, {"status": ["failed"]})
    assert "arch-seed0" not in out
    assert "1 of 3 runs" in out
    with pytest.raises(ValueError, match="status must be one of finished, failed, unfinished, got 'done'"):
        printed(folder, {"status": ["done"]})


@pytest.mark.parametrize(("field", "given", "there"), [
    ("method", "archh", r"\(did you mean 'arch'\?\); there are arch, smart, standard$"),
    ("task", "review", r"\(did you mean 'reviews'\?\); there are reviews$"),
])  # fmt: skip
def test_a_name_that_nothing_has_is_refused(field: str, given: str, there: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be one that a run has, got '{given}' {there}"):
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


def test_json_and_csv_can_be_read_by_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    list_runs(folder, {"method": ["arch"]}, "run", False, "json", Console())
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["method"], line["score"]) == ("arch", pytest.approx(90.0))
    list_runs(folder, {}, "run", False, "csv", Console())
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["method"] for row in rows] == ["arch", "smart", "standard"]
