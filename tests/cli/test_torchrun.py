"""``torchrun -m advreg.cli train``: many processes, one voice, one set of records."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from safetensors import safe_open

from advreg.records import run as record
from processes import common_environment

pytestmark = pytest.mark.slow


def torchrun(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [*torchrun_command(), *flags, "--set", "use_cpu=true"]
    environment = common_environment() | {"COLUMNS": "120"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def torchrun_command() -> list[str]:
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    return [*launcher, "-m", "advreg.cli", "train"]


def alone(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "advreg.cli", "train", *flags, "--set", "use_cpu=true"]
    environment = common_environment() | {"COLUMNS": "120"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def test_two_processes_print_once_write_one_record_each_run_and_resume(
    model: Path, table: Path, tmp_path: Path
) -> None:
    flags = [
        "--train",
        str(table),
        "--model",
        str(model),
        "--method",
        "standard",
        "--method",
        "arch",
        "--seed",
        "1",
    ]
    flags += ["--batch-size", "4", "--output", "runs/out", "--cache-fraction", "0.3"]
    first = torchrun(tmp_path, *flags, "--epochs", "2")
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("2 runs of 2 epochs") == 1
    assert first.stdout.count("dev accuracy, mean ± sd over seeds") == 1
    folder = tmp_path / "runs" / "out"
    for method in ("standard", "arch"):
        found = record.load(folder / f"{method}-seed1" / "record.json")
        assert found.outcome.status == "finished"
        assert found.training.more["processes"] == 2
        assert found.outcome.timing["steps"] == 10  # 40 samples, 2 epochs, 2 × 4 at a step
        assert (folder / f"{method}-seed1" / "model" / "model.safetensors").is_file()
    checkpoint = folder / "arch-seed1" / "checkpoint-10"
    owned = []
    for rank in range(2):
        with safe_open(
            str(checkpoint / f"advreg_method-{rank}-of-2.safetensors"), framework="pt"
        ) as file:
            ids = file.get_tensor("cache.ids").tolist()
        assert {index % 2 for index in ids} <= {rank}
        owned += ids
    assert len(owned) == 12

    again = torchrun(tmp_path, *flags, "--epochs", "2", "--resume")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("finished before, not repeated") == 2
    refused = torchrun(tmp_path, *flags, "--epochs", "2")
    assert refused.returncode != 0
    assert "output 'runs/out' holds runs already; add --resume" in refused.stderr
    os.unlink(folder / "arch-seed1" / "record.json")
    one = alone(tmp_path, *flags, "--epochs", "2", "--resume")
    assert one.returncode == 0, one.stderr
    assert "arch-seed1: resumed from step 10" in one.stdout


USER_SCRIPT = """
from pathlib import Path
from tiny_runs import tiny_trainer

trainer = tiny_trainer(Path("out"), per_device_train_batch_size=2)
trainer.train()
print(f"process {trainer.args.process_index} of {trainer.args.world_size}, step {trainer.state.global_step}")
"""


def test_a_script_under_accelerate_launch_trains_in_two_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(USER_SCRIPT)
    launcher = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu"]
    launcher += [
        "--num_processes",
        "2",
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
    ]
    found = subprocess.run(
        [*launcher, "script.py"],
        cwd=tmp_path,
        env=common_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
    told = re.findall(
        r"process \d of \d, step \d", found.stdout
    )  # both write to one pipe: lines may run together
    assert sorted(told) == ["process 0 of 2, step 4", "process 1 of 2, step 4"]
    assert (
        len(list((tmp_path / "out" / "checkpoint-4").glob("advreg_method-*-of-2.safetensors"))) == 2
    )


@pytest.mark.parametrize("victim", [0, 1])
def test_torchrun_ends_when_a_process_is_killed_and_the_same_command_resumes(
    model: Path, table: Path, tmp_path: Path, victim: int
) -> None:
    flags = [
        "--train",
        str(table),
        "--model",
        str(model),
        "--method",
        "arch",
        "--seed",
        "1",
        "--batch-size",
        "4",
    ]
    flags += ["--epochs", "40", "--cache-fraction", "0.3", "--output", "out"]
    command = [*torchrun_command(), *flags, "--set", "use_cpu=true"]
    environment = common_environment() | {"COLUMNS": "120"}
    folder = tmp_path / "out" / "arch-seed1"
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    ) as launched:
        until = time.monotonic() + 120
        while not (folder / "checkpoint-10").is_dir() and time.monotonic() < until:
            time.sleep(0.02)
        workers = {
            process.environ()["RANK"]: process
            for process in psutil.Process(launched.pid).children()
        }
        workers[str(victim)].kill()
        launched.wait(timeout=60)
    assert launched.returncode != 0
    again = torchrun(tmp_path, *flags, "--resume")
    assert again.returncode == 0, again.stderr
    assert "arch-seed1: resumed from step" in again.stdout
    assert record.load(folder / "record.json").outcome.timing["steps"] == 200
