"""The experiment that compares steps of the Trainer at two commits."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trainer_steps as experiment
from scipy import stats
from trainer_steps import NEW, OLD, STOCK, Heat, Laps, Ratio, StepsRecord, Tree, Workload

ROOT = Path(__file__).parents[1]

# A worker without torch: it writes down what it is asked for, and is as slow as its tree says.
STAND_IN = """
import json, os, pathlib, sys
source = pathlib.Path(os.environ["PYTHONPATH"])
slow, log = float((source / "slow").read_text()), source.parent.parent / "log"
def reply(**answer): print(json.dumps(answer), flush=True)
def note(what):
    with log.open("a") as file: file.write(what + "\\n")
reply(package=str(source / "advreg"), gpu=None)
who = ""
for line in sys.stdin:
    command = json.loads(line)
    if command["do"] == "start":
        who = command["method"] if command["method"] == "stock" else source.parent.name
    note(f"{who} {command['do']}")
    if command["do"] == "round" and (source / "fails").exists():
        reply(error="out of memory")
    elif command["do"] == "round":
        reply(wall_ms=9.0, cpu_ms=slow, page_faults=0.0)
    elif command["do"] == "end":
        reply(peak_bytes=None)
    else:
        reply(ready=True)
"""


def trees(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two trees for stand-ins of the worker, the new one a quarter slower."""
    (folder / "worker.py").write_text(STAND_IN)
    monkeypatch.setattr(experiment, "WORKER", folder / "worker.py")
    for name, slow in ((OLD, 4.0), (NEW, 5.0)):
        source = folder / name / "src"
        source.mkdir(parents=True)
        (source / "slow").write_text(str(slow))
    return {OLD: folder / OLD, NEW: folder / NEW}


def heat(method: str = "r3f", error: str | None = None, **times: list[float]) -> Heat:
    laps = [
        Laps(trainer=name, cpu_ms=values, wall_ms=[2 * value for value in values])
        for name, values in times.items()
    ]
    return Heat(workload="w", mode="eager", method=method, repeat=0, laps=laps, error=error)


def record(heats: list[Heat], device: str = "cpu") -> StepsRecord:
    workload = Workload(
        preset="small", kind="classification", device=device, batch=2, tokens=4, steps=1
    )
    return StepsRecord(
        trees=[
            Tree(name=OLD, commit="a" * 40, clean=True),
            Tree(name=NEW, commit="b" * 40, clean=True),
        ],
        workloads={"w": experiment.asdict(workload)},
        environment={"arguments": ["measure", "a", "b"]},
        workers={NEW: {"torch": "2.0"}},
        hardware={"device": device},
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:00:01+00:00",
        heats=heats,
    )


# ---- figures


@pytest.mark.parametrize("count", [1, 3, 5, 6, 7, 12, 32, 101])
def test_the_interval_of_a_median_is_the_narrowest_that_covers_95_percent(count: int) -> None:
    values = [float(value) for value in range(1, count + 1)]
    found = Ratio.of(values, [1.0] * count)
    below = int(found.low) - 1  # values left out on either side
    assert found.high == count - below
    assert found.median == np.median(values)
    assert below == 0 or 2 * stats.binom.cdf(below, count, 0.5) <= 0.05
    assert 2 * stats.binom.cdf(below + 1, count, 0.5) > 0.05


def test_a_ratio_is_taken_within_a_round_so_that_slow_rounds_do_not_show() -> None:
    found = Ratio.of([1.1, 110.0, 11.0], [1.0, 100.0, 10.0])
    assert (found.low, found.high) == pytest.approx((1.1, 1.1))


def test_standard_is_compared_with_the_old_commit_and_with_the_stock_trainer() -> None:
    found = list(
        experiment.comparisons(record([heat("standard", stock=[2.0], old=[4.0], new=[3.0])]))
    )
    assert [(one.against, one.time.median) for one in found] == [(OLD, 0.75), (STOCK, 1.5)]
    assert next(experiment.comparisons(record([heat("r3f", old=[4.0], new=[3.0])]))).ms == (
        3.0,
        4.0,
    )


def test_repeats_count_together_and_failed_ones_not_at_all() -> None:
    heats = [
        heat(old=[1.0, 1.0], new=[1.0, 2.0]),
        heat(old=[1.0], new=[3.0]),
        heat("x", old=[], new=[], error="none"),
    ]
    (found,) = experiment.comparisons(record(heats))
    assert (found.time.low, found.time.median, found.time.high) == (1.0, 2.0, 3.0)


def test_time_is_that_of_the_process_on_a_cpu_and_of_the_clock_on_a_gpu() -> None:
    heats = [heat(old=[1.0], new=[3.0])]
    assert [
        next(experiment.comparisons(record(heats, device))).ms for device in ("cpu", "cuda")
    ] == [
        (3.0, 1.0),
        (6.0, 2.0),
    ]


def test_memory_is_the_largest_peak_of_all_repeats() -> None:
    peaks = [(100, 110), (120, 90)]
    heats = [
        replace(heat(old=[1.0], new=[1.0]), laps=[
            Laps(trainer=OLD, wall_ms=[1.0], peak_bytes=old), Laps(trainer=NEW, wall_ms=[1.0], peak_bytes=new)
        ])
        for old, new in peaks
    ]  # fmt: skip
    (found,) = experiment.comparisons(record(heats, "cuda"))
    assert found.memory == pytest.approx(110 / 120)
    assert next(experiment.comparisons(record([heat(old=[1.0], new=[1.0])]))).memory is None


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = record([heat(old=[1.0], new=[2.0])])
    written.save(tmp_path / "steps.json")
    assert experiment.load(tmp_path / "steps.json").heats == written.heats


# ---- what is measured


def test_jobs_are_those_asked_for_or_all_of_the_device() -> None:
    everything = experiment.jobs("cpu", [])
    assert ("bert-tiny", "whole", "arch, reuse") in everything
    assert ("minilm", "layers", "r3f") not in everything  # not one of its modes
    assert {experiment.WORKLOADS[name].device for name, _, _ in everything} == {"cpu"}
    assert experiment.jobs("cuda", ["llama/eager/r3f"]) == [("llama", "eager", "r3f")]
    assert {mode for _, mode, _ in experiment.jobs("cpu", ["minilm"])} == set(experiment.MODES)
    with pytest.raises(
        SystemExit, match="there is no bert-tiny/fast on cpu; there are bert-tiny/eager/standard, "
    ):
        experiment.jobs("cpu", ["bert-tiny/fast"])


def test_a_commit_is_packed_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-c", "user.name=n", "-c", "user.email=e"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "code.py").write_text("first")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *command], check=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    (tmp_path / "src" / "code.py").write_text("changed")
    with experiment.unpacked({OLD: "HEAD", NEW: str(tmp_path)}) as found:
        assert (found[OLD] / "src" / "code.py").read_text() == "first"
        assert experiment.tree_of(OLD, found[OLD]) == Tree(name=OLD, commit=commit, clean=True)
        assert found[NEW] == tmp_path
        assert experiment.tree_of(NEW, tmp_path) == Tree(name=NEW, commit=commit, clean=False)


# ---- workers


def test_trainers_take_turns_in_an_order_that_is_reversed_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with experiment.workers(trees(tmp_path, monkeypatch), "cpu") as team:
        found = experiment.run_heat(team, "bert-tiny", "eager", "standard", rounds=2, repeat=0)
    log = (tmp_path / "log").read_text().split("\n")
    assert [line.split()[0] for line in log if line.endswith("round")] == [
        STOCK,
        OLD,
        NEW,
        NEW,
        OLD,
        STOCK,
    ]
    assert {one.trainer: one.cpu_ms for one in found.laps} == {
        STOCK: [5.0] * 2,
        OLD: [4.0] * 2,
        NEW: [5.0] * 2,
    }
    assert sorted(log)[1:4] == ["new end", "new round", "new round"]


def test_a_trainer_that_fails_ends_its_comparison_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = trees(tmp_path, monkeypatch)
    fails = folders[NEW] / "src" / "fails"
    fails.touch()
    with experiment.workers(folders, "cpu") as team:
        first = experiment.run_heat(team, "bert-tiny", "eager", "r3f", rounds=2, repeat=0)
        fails.unlink()
        second = experiment.run_heat(team, "bert-tiny", "eager", "r3f", rounds=2, repeat=0)
    assert first.error == "out of memory"
    assert second.error is None
    assert second.of(NEW).cpu_ms == [5.0, 5.0]


def test_a_worker_that_would_run_other_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = trees(tmp_path, monkeypatch)
    (tmp_path / "worker.py").write_text(
        "import json; print(json.dumps({'package': '/elsewhere/advreg'}))"
    )
    with pytest.raises(
        experiment.WorkerError, match="imported advreg from /elsewhere/advreg; give a folder with"
    ):
        experiment.Worker(folders[OLD], "cpu")


@pytest.mark.slow
def test_a_checkout_compared_with_itself_is_measured_to_the_end(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "experiments/trainer_steps.py",
        "measure",
        str(ROOT),
        str(ROOT),
        "--rounds",
        "1",
    ]
    only = ["--repeats", "1", "--only", "bert-tiny/eager", "--out", str(tmp_path / "steps.json")]
    subprocess.run(
        [*command, *only], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
    )
    found = experiment.load(tmp_path / "steps.json")
    assert [one.error for one in found.heats] == [None] * 4
    compared = [(one.method, one.against) for one in experiment.comparisons(found)]
    assert compared == [
        ("standard", OLD),
        ("standard", STOCK),
        *((name, OLD) for name in experiment.METHODS[1:]),
    ]
    assert all(lap > 0 for one in found.heats for laps in one.laps for lap in laps.cpu_ms)


@pytest.mark.slow
def test_a_profile_names_what_one_tree_calls_more_often(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "experiments/trainer_steps.py",
        "profile",
        str(ROOT),
        str(ROOT),
        "--rounds",
        "1",
    ]
    only = ["--against", STOCK, "--only", "bert-tiny/eager/r3f"]
    done = subprocess.run(
        [*command, *only], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True,
    )  # fmt: skip
    assert any(
        line.split()[0] == "+1.0" and "advreg/methods/r3f.py objective" in line
        for line in done.stdout.splitlines()
    )
