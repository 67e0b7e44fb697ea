from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from chaos import kill_runs
from command_server import CommandServer, Done
from ends import differences

# 40 samples in batches of 8 are 5 steps to an epoch, 20 in all; saves at 3, 6, … fall inside
# epochs. With a refresh
# every 2 epochs, ARCH refreshes in steps 1-5 and 11-15 and reuses in steps 6-10 and 16-20.
STEPS = 20
OPTIONS: dict[str, list[object]] = {
    "arch": ["--refresh-every", 2, "--cache-fraction", 0.5, "--ema", 0.3, "--neighbours", 2],
    "smart": ["--proximal-weight", 1, "--proximal-momentum", 0.5],
    "freeat": ["--replays", 2],
    "freelb": [],
    "r3f": ["--noise-scale", 0.1],
    "standard": [],
}


class Comparison:
    """``advreg train`` with some methods on one table, as often as it takes; each try has its
    output folder.
    """

    def __init__(
        self, advreg: CommandServer, model: Path, table: Path, home: Path, *methods: str
    ) -> None:
        self.advreg, self.home, self.methods = advreg, home, methods
        self.arguments: list[object] = [
            "train", "--train", table, "--model", model, "--seed", 7, "--epochs", 4, "--batch-size", 8,
            "--learning-rate", 3e-3, "--encoder-dropout", 0.2, "--set", "save_strategy=steps", "--set", "save_steps=3",
        ]  # fmt: skip
        for method in methods:
            self.arguments += ["--method", method, *OPTIONS[method]]

    def __call__(self, output: str, *more: str, fault: dict[str, Any] | None = None) -> Done:
        return self.advreg(*self.arguments, "--output", output, *more, cwd=self.home, fault=fault)

    def whole(self, output: str) -> None:
        done = self(output)
        assert done.code == 0, done.err

    def killed(self, output: str, *more: str, kind: str, count: int, method: str) -> None:
        done = self(output, *more, fault={"kind": kind, "count": count, "method": method})
        assert done.code == -signal.SIGKILL
        assert not (self.folder(output, method) / "record.json").exists()

    def folder(self, output: str, method: str) -> Path:
        return self.home / output / f"{method}-seed7"

    def sealed_steps(self, output: str, method: str) -> list[int]:
        """Steps of the checkpoints whose last file was written."""
        sealed = self.folder(output, method).glob("checkpoint-*/trainer_state.json")
        return sorted(int(path.parent.name.removeprefix("checkpoint-")) for path in sealed)

    def assert_same_end(self, one: str, other: str) -> None:
        for method in self.methods:
            assert differences(self.folder(one, method), self.folder(other, method), STEPS) == []


@pytest.fixture
def arch(advreg: CommandServer, model: Path, table: Path, tmp_path: Path) -> Comparison:
    return Comparison(advreg, model, table, tmp_path, "arch")


def test_arch_killed_in_refresh_and_reuse_epochs_and_in_a_save_ends_as_if_it_had_never_stopped(
    arch: Comparison,
) -> None:
    arch.whole("whole")
    arch.killed("broken", kind="step", count=5, method="arch")  # in step 5, which refreshes
    for kind, count, left in (
        (
            "step",
            5,
            [3, 6],
        ),  # resumed at 3, in step 8: reuses what was refreshed before and after the first kill
        (
            "save",
            2,
            [6, 9],
        ),  # resumed at 6, while step 12 is saved: half of the cache is from epoch 2
        ("step", 5, [9, 12]),  # resumed at 9, in step 14: refreshes
        ("step", 7, [15, 18]),  # resumed at 12, in step 19: reuses
    ):
        arch.killed("broken", "--resume", kind=kind, count=count, method="arch")
        assert arch.sealed_steps("broken", "arch") == left
    done = arch("broken", "--resume")
    assert done.code == 0, done.err
    assert "arch-seed7: resumed from step 18" in done.out
    arch.assert_same_end("whole", "broken")


def test_methods_killed_one_after_the_other_end_as_if_they_had_never_stopped(
    advreg: CommandServer, model: Path, table: Path, tmp_path: Path
) -> None:
    comparison = Comparison(advreg, model, table, tmp_path, "smart", "freeat", "r3f")
    comparison.whole("whole")
    comparison.killed("broken", kind="step", count=8, method="smart")
    comparison.killed("broken", "--resume", kind="step", count=11, method="freeat")
    comparison.killed("broken", "--resume", kind="step", count=14, method="r3f")
    done = comparison("broken", "--resume")
    assert done.code == 0, done.err
    for text in (
        "smart-seed7: finished before",
        "freeat-seed7: finished before",
        "r3f-seed7: resumed from step 12",
    ):
        assert text in done.out
    comparison.assert_same_end("whole", "broken")


def test_a_run_killed_before_its_first_checkpoint_starts_again(arch: Comparison) -> None:
    arch.killed("broken", kind="step", count=2, method="arch")
    done = arch("broken", "--resume")
    assert done.code == 0, done.err
    assert "resumed from" not in done.out
    arch.whole("whole")
    arch.assert_same_end("whole", "broken")


def test_runs_killed_at_random_moments_end_as_if_they_had_never_stopped(
    advreg: CommandServer, tmp_path: Path
) -> None:
    kills = kill_runs(advreg, tmp_path, 2, seed=3)
    assert [kill for kill in kills if not kill.survived] == []


@pytest.mark.slow
def test_many_runs_killed_at_random_moments_end_as_if_they_had_never_stopped(
    advreg: CommandServer, tmp_path: Path
) -> None:
    kills = kill_runs(advreg, tmp_path, 15, seed=4)
    assert [kill for kill in kills if not kill.survived] == []
    assert {kill.aimed_at for kill in kills} >= {"save", "refresh", "reuse"}


def test_a_killed_run_is_not_taken_up_with_other_options(arch: Comparison) -> None:
    arch.killed("broken", kind="step", count=5, method="arch")
    done = arch("broken", "--resume", "--ema", "0.25")
    assert done.code == 2
    assert (
        "arch-seed7 cannot be resumed, because its settings or data changed: ema was 0.3, is 0.25"
        in done.err
    )
    done = arch("broken", "--resume", "--cache-device", "disk")  # which changes no result
    assert done.code == 0, done.err
    assert "arch-seed7: resumed from step 3" in done.out


@pytest.mark.slow
@pytest.mark.parametrize("method", OPTIONS)
def test_each_method_killed_in_step_and_save_ends_as_if_it_had_never_stopped(
    advreg: CommandServer, model: Path, table: Path, tmp_path: Path, method: str
) -> None:
    comparison = Comparison(advreg, model, table, tmp_path, method)
    comparison.whole("whole")
    comparison.killed("broken", kind="step", count=8, method=method)
    comparison.killed("broken", "--resume", kind="save", count=2, method=method)
    comparison.killed("broken", "--resume", kind="step", count=5, method=method)
    assert comparison("broken", "--resume").code == 0
    comparison.assert_same_end("whole", "broken")


@pytest.mark.slow
@pytest.mark.parametrize("method", OPTIONS)
def test_each_method_killed_inside_an_accumulation_group_ends_as_if_it_had_never_stopped(
    advreg: CommandServer, model: Path, table: Path, tmp_path: Path, method: str
) -> None:
    comparison = Comparison(advreg, model, table, tmp_path, method)
    # groups of 2, 2 and 1 batches are 3 updates to an epoch; saves at 4 and 8 fall inside epochs
    for field in ("gradient_accumulation_steps=2", "save_steps=4", f"max_steps={STEPS}"):
        comparison.arguments += ["--set", field]
    comparison.whole("whole")
    comparison.killed("broken", kind="step", count=9, method=method)
    comparison.killed("broken", "--resume", kind="save", count=2, method=method)
    assert comparison.sealed_steps("broken", method) == [4, 8]
    comparison.killed("broken", "--resume", kind="step", count=3, method=method)
    assert comparison("broken", "--resume").code == 0
    comparison.assert_same_end("whole", "broken")


@pytest.mark.slow
def test_runs_saved_at_the_ends_of_epochs_as_by_default_end_as_if_they_had_never_stopped(
    advreg: CommandServer, model: Path, table: Path, tmp_path: Path
) -> None:
    comparison = Comparison(advreg, model, table, tmp_path, "arch", "standard")
    comparison.arguments += ["--set", "save_strategy=epoch"]
    comparison.whole("whole")
    comparison.killed("broken", kind="step", count=12, method="arch")
    assert comparison.sealed_steps("broken", "arch") == [5, 10]
    comparison.killed("broken", "--resume", kind="step", count=7, method="standard")
    assert comparison("broken", "--resume").code == 0
    comparison.assert_same_end("whole", "broken")


@pytest.mark.slow
def test_a_step_that_is_saved_before_the_evaluation_of_its_epoch_can_be_resumed_exactly(
    arch: Comparison,
) -> None:
    arch.arguments += ["--set", "eval_strategy=epoch"]
    arch.whole("whole")
    arch.killed("broken", kind="step", count=17, method="arch")
    assert arch.sealed_steps("broken", "arch") == [
        12,
        15,
    ]  # 15 ends an epoch, and is evaluated after it was saved
    assert arch("broken", "--resume").code == 0
    arch.assert_same_end("whole", "broken")
