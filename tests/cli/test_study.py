from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from advreg.records import run as records
from advreg.records.study import load
from command_server import CommandServer, start
from little_tables import sentiment, write_table
from runner_jobs import wait_for

GRID = """
[refresh]
refresh_every = [1, 2]
[neighbours]
neighbours = [1]
"""


def arguments(model: Path, table: Path, folder: Path, *more: object) -> list[object]:
    grid = folder / "grid.toml"
    grid.write_text(GRID)
    dev = write_table(folder / "dev.csv", sentiment(30, seed=4))
    return [
        "study", "--train", table, "--dev", dev, "--model", model, "--seeds", 1, "--baselines", "standard",
        "--jobs", 1, "--grid", grid, "--epochs", 3, "--batch-size", 20, "--refresh-every", 2, "--cache-fraction", 0.5,
        "--output", "out", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def done(
    advreg: CommandServer, model: Path, table: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a study in ``out``, and what it printed in ``printed.txt``."""
    folder = tmp_path_factory.mktemp("study")
    ended = advreg(*arguments(model, table, folder), cwd=folder)
    assert ended.code == 0, ended.err
    (folder / "printed.txt").write_text(ended.out)
    return folder


def run_files(folder: Path) -> dict[str, int]:
    """When each record was written."""
    return {
        str(path.parent.relative_to(folder)): path.stat().st_mtime_ns
        for path in folder.rglob("record.json")
    }


def test_every_different_setting_is_run_once_with_every_seed(done: Path) -> None:
    names = ("arch/default", "arch/refresh_every=1", "standard/default")
    assert sorted(run_files(done / "out")) == [f"{name}/seed-0" for name in names]
    printed = (done / "printed.txt").read_text()
    assert (
        "3 different settings, 1 seed; model tiny-bert, preset fine-tuning; 3 runs to make, 1 at a "
        "time" in printed
    )
    steps = [
        records.load(done / "out" / name / "seed-0" / "record.json").outcome.timing["steps"]
        for name in names
    ]
    assert f"3 runs to make, 1 at a time: {sum(filter(None, steps)):.0f} steps\n" in printed
    assert "(3 of 3 runs, about 0 s left)" in printed
    assert load(done / "out").status == "finished"


def test_tables_and_picture_are_those_of_the_runs_records(done: Path) -> None:
    text = (done / "out" / "table.md").read_text(encoding="utf-8").replace("**", "").lower()
    study = load(done / "out")
    for variant in study.variants:
        (run,) = variant.runs
        record = records.load(done / "out" / run.folder / "record.json")
        score = 100 * (record.outcome.metrics["accuracy"] or 0)
        assert run.score == pytest.approx(score)
        assert f" | {score:.1f} | " in text
    assert "| 2 (default) | " in text
    assert "*: default settings" in (done / "out" / "study.svg").read_text()


def test_the_same_command_again_repeats_nothing_and_the_record_alone_prints_the_same(
    done: Path, advreg: CommandServer, model: Path, table: Path
) -> None:
    before = run_files(done / "out")
    again = advreg(*arguments(model, table, done), cwd=done)
    assert again.code == 0, again.err
    assert "0 runs to make" in again.out
    shown = advreg("study", "--table", "out", "--picture", "mine.svg", cwd=done)
    assert shown.code == 0, shown.err
    printed = (done / "printed.txt").read_text()
    assert (
        shown.out.splitlines()[:-1]
        == printed[printed.index("refresh: refresh.") :].splitlines()[:-1]
    )
    assert (done / "mine.svg").read_text() == (done / "out" / "study.svg").read_text()
    assert run_files(done / "out") == before


def test_a_dry_run_says_what_is_left_and_leaves_nothing(
    done: Path, advreg: CommandServer, model: Path, table: Path, tmp_path: Path
) -> None:
    ended = advreg(*arguments(model, table, tmp_path, "--dry-run", "--seeds", 2), cwd=tmp_path)
    assert ended.code == 0, ended.err
    *_, told, first, second, third = ended.out.splitlines()
    assert "6 runs to make, 1 at a time: 54 steps" in told  # 60 samples, 20 in a batch, 3 epochs
    names = ("standard/default", "arch/refresh_every=1", "arch/default")
    assert [first, second, third] == [f"  {name}: 2 runs of 9 steps" for name in names]
    assert not (tmp_path / "out").exists()
    again = advreg(*arguments(model, table, done, "--dry-run"), cwd=done)
    assert again.out.splitlines()[-1].endswith("0 runs to make, 1 at a time: 0 steps")


def test_the_grid_is_written_to_be_edited(advreg: CommandServer, tmp_path: Path) -> None:
    ended = advreg("study", "--write-grid", "mine.toml", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "[fraction]" in (tmp_path / "mine.toml").read_text(encoding="utf-8")
    again = advreg("study", "--write-grid", "mine.toml", cwd=tmp_path)
    assert (again.code, again.err) == (
        2,
        "error: write-grid must be a new file, got 'mine.toml', which exists; choose another "
        "name\n",
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["emma"], "error: grid "),
        (["--jobs", 0], "error: jobs must be 1 or more, got 0"),
        (
            ["--picture", "study.gif"],
            "error: picture must end in .svg, got 'study.gif'",
        ),
        (
            ["--site", "nowhere"],
            "error: standard/default cannot be run: site 'nowhere' is no module of",
        ),
        (
            ["--table", "nowhere"],
            "error: nowhere/study.json: is not there; give the --output folder",
        ),
    ],
)
def test_a_users_mistake_is_one_line_and_leaves_nothing(
    advreg: CommandServer,
    model: Path,
    table: Path,
    tmp_path: Path,
    more: Sequence[object],
    message: str,
) -> None:
    ended = advreg(*arguments(model, table, tmp_path, *more), cwd=tmp_path)
    assert ended.code == 2
    assert ended.err.startswith(message)
    assert ended.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def is_halfway(folder: Path, after: int) -> bool:
    """Are so many runs done, and has another one a whole checkpoint? It has, if there is a second
    one.
    """
    done = {record.parent for record in folder.glob("*/*/*/record.json")}
    begun = {plan.parent for plan in folder.glob("*/*/*/plan.json")} - done
    return len(done) >= after and any(len(list(run.glob("checkpoint-*"))) > 1 for run in begun)


@pytest.mark.slow
def test_a_study_that_is_killed_goes_on_where_it_was_and_ends_alike(
    model: Path, table: Path, tmp_path: Path
) -> None:
    command = arguments(model, table, tmp_path, "--epochs", 15)
    whole = start(tmp_path, [*command, "--output", "whole"])
    assert whole.wait(timeout=240) == 0
    out = tmp_path / "out"
    for made in (0, 1):  # in the first run; in the second
        killed = start(tmp_path, command)
        wait_for(lambda: is_halfway(out, after=made), 120)  # noqa: B023
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        assert load(out).status == "running"
    before = run_files(out)
    last = start(tmp_path, command)
    printed, _ = last.communicate(timeout=240)
    assert last.returncode == 0, printed
    assert "resumed from step" in printed
    assert before.items() <= run_files(out).items()
    assert load(out).status == "finished"
    scores = [
        {
            (each.name, run.seed): run.score
            for each in load(tmp_path / name).variants
            for run in each.runs
        }
        for name in ("whole", "out")
    ]
    assert scores[0] == scores[1]
