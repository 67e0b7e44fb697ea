from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from advreg.records import run as records
from advreg.records.compare import load
from command_server import CommandServer, start
from little_tables import sentiment, write_table
from number_words import SOURCE, TARGET, write_numbers
from runner_jobs import is_alive, wait_for

GRID = "[grid]\nlearning_rate = [1e-3, 3e-3, 1e-2]\nbatch_size = [8]\n"


def arguments(model: Path, table: Path, folder: Path, *more: object) -> list[object]:
    grid = folder / "grid.toml"
    grid.write_text(GRID)
    dev = write_table(folder / "dev.csv", sentiment(30, seed=4))
    return [
        "compare", "--train", table, "--dev", dev, "--model", model, "--methods", "standard,arch", "--seeds", 2,
        "--candidates", 2, "--no-controls", "--jobs", 2, "--config", grid, "--output", "out", *more,
    ]  # fmt: skip


def run_files(folder: Path) -> dict[str, int]:
    """When each record was written."""
    return {
        str(path.parent.relative_to(folder)): path.stat().st_mtime_ns
        for path in folder.rglob("record.json")
    }


@pytest.fixture(scope="module")
def done(
    advreg: CommandServer, model: Path, table: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a comparison in ``out``, and what it printed in ``printed.txt``."""
    folder = tmp_path_factory.mktemp("compare")
    ended = advreg(
        *arguments(model, table, folder, "--epochs", 1, "--picture", "norms.svg"), cwd=folder
    )
    assert ended.code == 0, ended.err
    (folder / "printed.txt").write_text(ended.out)
    return folder


def test_all_runs_are_made_and_shown_as_they_end(done: Path) -> None:
    runs = [
        f"files/{method}/{run}"
        for method in ("standard", "arch")
        for run in ("candidate-0-seed-1000", "candidate-1-seed-1000", "seed-0", "seed-1")
    ]
    assert sorted(run_files(done / "out")) == sorted([*runs, "best"])
    printed = (done / "printed.txt").read_text()
    for run in runs:
        assert re.search(rf"{run}: finished in \d+ s \(\d of 8 runs, ", printed)
    assert "(8 of 8 runs, about 0 s left)" in printed
    assert load(done / "out").status == "finished"


def test_the_last_line_says_what_to_use_and_the_model_is_there(done: Path) -> None:
    *table, model, conclusion = (done / "printed.txt").read_text().splitlines()
    (arch,) = (line for line in table[-4:] if "ARCH" in line)
    assert re.search(r"ARCH .* [+−]?\d+\.\d( \[.*\])? +(pays|does not pay|undecided)", arch)
    assert model == "the winner's model: out/best/model"
    assert (done / "out/best/model/config.json").is_file()
    assert conclusion.startswith(("use ARCH", "nothing beats tuned Standard"))


def test_the_table_is_that_of_the_records_and_can_be_printed_again(
    done: Path, advreg: CommandServer
) -> None:
    before = run_files(done / "out")
    again = advreg("compare", "--table", "out", cwd=done)
    assert again.code == 0, again.err
    printed = (done / "printed.txt").read_text()
    assert (
        again.out.splitlines()
        == printed[printed.index("Score on dev") :]
        .replace(", out/norms.svg", "")
        .replace(", norms.svg", "")
        .splitlines()
    )
    assert run_files(done / "out") == before
    text = (done / "out" / "compare.md").read_text()
    for method, name in (("standard", "Standard"), ("arch", "ARCH")):
        values = [
            100
            * (
                records.load(done / f"out/files/{method}/seed-{seed}/record.json").outcome.metrics[
                    "accuracy"
                ]
                or 0
            )
            for seed in (0, 1)
        ]
        assert re.search(rf"\| {name} \| (.* \| )?(\*\*)?{sum(values) / 2:.1f} ± ", text)
    assert "gradient norm" in (done / "norms.svg").read_text()


def test_the_same_command_again_repeats_nothing(
    done: Path, advreg: CommandServer, model: Path, table: Path
) -> None:
    before = run_files(done / "out")
    dry = advreg(*arguments(model, table, done, "--epochs", 1, "--dry-run"), cwd=done)
    assert dry.out.splitlines()[-1].endswith("0 runs to make, 2 at a time")
    again = advreg(*arguments(model, table, done, "--epochs", 1), cwd=done)
    assert again.code == 0, again.err
    assert "0 runs to make" in again.out
    assert run_files(done / "out") == before


def test_a_dry_run_says_what_is_left_of_each_method_and_leaves_nothing(
    advreg: CommandServer, model: Path, table: Path, tmp_path: Path
) -> None:
    ended = advreg(*arguments(model, table, tmp_path, "--epochs", 1, "--dry-run"), cwd=tmp_path)
    assert ended.code == 0, ended.err
    announced, *lines = ended.out.splitlines()[-3:]
    assert "8 runs to make" in announced
    # 44 samples in a run, 22 in a candidate's; ARCH makes two passes, and a third in a third of its
    # epochs
    assert lines == [
        "  files/standard: 4 runs, forward passes over 132 samples (30%)",
        "  files/arch: 4 runs, forward passes over 308 samples (70%)",
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--jobs", 0], "error: jobs must be 1 or more, got 0"),
        (
            ["--picture", "norms.gif"],
            "error: picture must end in .svg, got 'norms.gif'",
        ),
        (["--radius", "wide"], "error: radius must be a number, got 'wide'"),
        (
            ["--table", "nowhere"],
            "error: nowhere/compare.json: is not there; give the --output folder",
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


# ---- Ctrl-C and kill, in processes of their own


def workers_of(pid: int) -> list[int]:
    """Processes started by the command, less Python's own tracker."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"spawn_main" in (stat.parent / "cmdline").read_bytes():
                found.append(int(stat.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def sealed(folder: Path) -> list[Path]:
    return list(folder.glob("out/*/*/*/checkpoint-*/trainer_state.json"))


@pytest.mark.slow
def test_ctrl_c_stops_all_and_the_same_command_goes_on_from_the_checkpoints(
    model: Path, table: Path, tmp_path: Path
) -> None:
    command = arguments(model, table, tmp_path, "--epochs", 60)
    running = start(tmp_path, command)
    wait_for(lambda: len(sealed(tmp_path)) >= 3, seconds=120)
    workers = workers_of(running.pid)
    assert len(workers) == 2
    os.killpg(running.pid, signal.SIGINT)
    printed, _ = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "repeat the command to resume" in printed
    assert not any(map(is_alive, workers))
    assert load(tmp_path / "out").status == "interrupted"
    before = run_files(tmp_path / "out")
    again = start(tmp_path, command)
    printed, _ = again.communicate(timeout=240)
    assert again.returncode == 0, printed
    assert "resumed from step" in printed
    after = run_files(tmp_path / "out")
    assert len(after) == 9  # with the best one's
    assert before.items() <= after.items()
    assert not list((tmp_path / "out").rglob("checkpoint-*"))


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_because_its_run_is_repeated(
    model: Path, table: Path, tmp_path: Path
) -> None:
    command = arguments(model, table, tmp_path, "--epochs", 30, "--candidates", 0)
    running = start(tmp_path, command)
    wait_for(lambda: sealed(tmp_path), seconds=120)
    os.kill(workers_of(running.pid)[0], signal.SIGKILL)
    printed, _ = running.communicate(timeout=240)
    assert running.returncode == 0, printed
    assert "its process was ended by SIGKILL" in printed
    assert "it is repeated alone" in printed
    record = load(tmp_path / "out")
    assert [run.error for run in record.runs] == [None] * 4
    assert len(run_files(tmp_path / "out")) == 5


@pytest.mark.slow
def test_translations_that_are_killed_go_on_from_their_checkpoints_and_end_as_if_they_had_not_been(
    tmp_path: Path,
) -> None:
    text = write_numbers(tmp_path / "text", train=60, valid=4, test=4)
    command = [
        "compare", "--task", "translation", "--data", text, "--source", SOURCE, "--target", TARGET, "--vocabulary", 55,
        "--model", "transformer-small", "--max-ratio", 3, "--epochs", 4, "--max-tokens", 256, "--update-tokens", 500,
        "--validate-every", 2, "--beam", 1, "--refresh-every", 2, "--cache-fraction", 0.5, "--methods", "standard,arch",
        "--seeds", 1, "--candidates", 0, "--jobs", 2, "--set", "save_steps=1",
    ]  # fmt: skip
    whole = start(tmp_path, [*command, "--output", "whole"])
    printed, _ = whole.communicate(timeout=400)
    assert whole.returncode == 0, printed
    running = start(tmp_path, [*command, "--output", "out"])
    wait_for(
        lambda: len({path.parent.parent for path in sealed(tmp_path)}) == 2, seconds=200
    )  # of both runs
    workers = workers_of(running.pid)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate(timeout=30)
    wait_for(lambda: not any(map(is_alive, workers)), seconds=30)
    again = start(tmp_path, [*command, "--output", "out"])
    printed, _ = again.communicate(timeout=400)
    assert again.returncode == 0, printed
    assert (
        len(re.findall(r"translation/(?:standard|arch)/seed-0: resumed from step \d+", printed))
        == 2
    )
    for path in (tmp_path / "whole").rglob("record.json"):
        one, other = (
            records.load(file).outcome
            for file in (path, tmp_path / "out" / path.relative_to(tmp_path / "whole"))
        )
        assert (one.metrics, one.passes) == (other.metrics, other.passes)
        assert curves(one.history) == curves(other.history)
        assert len(other.epoch_seconds or []) == 4


def curves(history: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All that was logged, but for the time it took."""
    return [line for line in history if "train_runtime" not in line]
