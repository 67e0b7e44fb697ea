"""Runs on texts of the contests: what a seed stands for, and a queue that is killed and goes on."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import builtin_data
import pytest
from text_runs import NOISE, TEST, relabelled, samples

from advreg.lab.kinds.classification.textdata import Example
from advreg.records.log import RecordLog

WORK = Path(__file__).resolve().parents[1] / "experiments" / "consistency" / "work.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    builtin_data.write(folder / builtin_data.FOLDER)
    for split, count in (("train", 2490), ("dev", 277)):
        rows = [{"text_a": f"a {n} {split}", "text_b": "b", "label": n % 2} for n in range(count)]
        path = folder / "nlu" / "rte" / f"{split}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return folder


def test_a_seed_is_a_subset_and_validation_rows_are_never_trained_on(data: Path) -> None:
    one, again, other = (samples("rte", {"train_size": 1000}, seed, data) for seed in (1, 1, 2))
    assert one.train == again.train != other.train
    assert (len(one.train), len(one.dev), len(one.evaluations[TEST])) == (1000, 1490, 277)
    assert not set(one.train) & set(one.dev)
    assert one.evaluations[TEST] == other.evaluations[TEST]


def test_halves_of_the_built_in_task_share_no_sentence_and_noise_changes_a_fifth_of_the_labels(
    data: Path,
) -> None:
    plain = samples("docstrings", {"train_size": 500}, 1, data)
    noisy = samples("docstrings-noisy", {"train_size": 500}, 1, data)
    clear = samples("docstrings-clear", {"train_size": 500}, 1, data)
    texts = [
        {each.text for each in part} for part in (plain.train, plain.dev, plain.evaluations[TEST])
    ]
    assert not texts[0] & texts[1] and not texts[1] & texts[2] and not texts[0] & texts[2]  # noqa: PT018
    changed = [a.label != b.label for a, b in zip(plain.train, noisy.train, strict=True)]
    assert sum(changed) == round(NOISE * 500)
    assert noisy.dev == plain.dev
    assert len(clear.evaluations[TEST]) < len(plain.evaluations[TEST])


def test_labels_are_replaced_by_others() -> None:
    before = [Example(str(n), None, n % 3) for n in range(10)]
    after = relabelled(before, 3, 0)
    assert [a.text for a in after] == [b.text for b in before]
    assert sum(a.label != b.label for a, b in zip(after, before, strict=True)) == 2


@pytest.mark.slow
def test_a_queue_that_is_killed_while_it_writes_goes_on_and_repeats_nothing(
    data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "runs.jsonl.gz"
    few = json.dumps({"epochs": 1, "train_size": 64, "evaluate_on": 32})
    command = [
        sys.executable,
        str(WORK),
        "--contests",
        "builtin",
        "--data",
        str(data),
        "--out",
        str(out),
    ]
    command += ["--only", "builtin/*/tune/standard/*", "--changes", few, "--jobs", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    queue = subprocess.Popen(command, env=environment)
    until = time.monotonic() + 240
    while time.monotonic() < until and (not out.is_file() or len(RecordLog(out).records()) < 2):
        time.sleep(0.1)
    queue.send_signal(signal.SIGKILL)
    queue.wait()
    done = RecordLog(out).records()
    assert len(done) >= 2
    out.write_bytes(out.read_bytes()[:-40])  # half a record
    subprocess.run(command, env=environment, check=True, timeout=240)
    names = [record.name for record in RecordLog(out).records()]
    assert len(names) == len(set(names)) == 6
    assert names[: len(done) - 1] == [record.name for record in done[:-1]]
    assert all(record.outcome.metrics["nll"] for record in RecordLog(out).records())
