"""Bad days of a run with two processes: a full disk, a signal to one of them, a damaged part,
another number.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from advreg.hf.checkpoint.manifest import flaw
from advreg.hf.checkpoint.ranks import method_file, method_files
from advreg.hf.checkpoint.state import checkpoints
from advreg.records import run as records
from chaos import STEPS, Trials, files, kill_runs
from command_server import CommandServer, Done
from ends import differences, unequal
from number_words import SOURCE, TARGET, write_numbers


@pytest.fixture(scope="module")
def two(advreg: CommandServer, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    """Runs of two processes that save every third step, and one of them that went undisturbed."""
    return Trials(advreg, tmp_path_factory.mktemp("two"), ranks=2)


def steps_saved(two: Trials, output: str) -> list[int]:
    assert all(flaw(folder) is None for folder in checkpoints(two.folder(output)).values())
    return sorted(checkpoints(two.folder(output)))


def assert_undisturbed(two: Trials, output: str, done: Done) -> None:
    assert done.code == 0, done.err
    assert differences(two.folder("whole"), two.folder(output), STEPS) == []
    assert files(two.folder(output)) == files(two.folder("whole"))


@pytest.mark.parametrize("struck", [0, 1])
def test_a_full_disk_of_one_process_costs_that_save_and_not_the_run(
    two: Trials, struck: int
) -> None:
    """The Trainer lets its processes wait for each other in a save once there is a best
    checkpoint.
    """
    best = ("--set", "metric_for_best_model=accuracy")
    done = two(f"full-{struck}", *best, fault={"kind": "full", "count": 7}, struck=struck)
    assert done.code == 0, done.err
    assert done.out.count("could not save checkpoint-20") == 1
    assert "training continues and earlier checkpoints are kept" in done.out
    assert steps_saved(two, f"full-{struck}") == [15, 18]
    (two.folder(f"full-{struck}") / "record.json").unlink()
    again = two(f"full-{struck}", *best, "--resume")
    assert "resumed from step 18" in again.out
    assert_undisturbed(two, f"full-{struck}", again)


@pytest.mark.parametrize("struck", [0, 1])
def test_sigterm_to_one_process_saves_a_checkpoint_of_all_and_ends_all(
    two: Trials, struck: int
) -> None:
    fault = {"kind": "step", "count": 8, "sign": "SIGTERM"}
    done = two(f"term-{struck}", fault=fault, struck=struck)
    assert done.code == 128 + signal.SIGTERM
    assert set(done.codes) <= {
        128 + signal.SIGTERM,
        -signal.SIGTERM,
    }  # the other is on its way out, and asked again
    assert steps_saved(two, f"term-{struck}") == [6, 8]
    assert len(method_files(two.folder(f"term-{struck}") / "checkpoint-8")) == 2
    again = two(f"term-{struck}", "--resume")
    assert "resumed from step 8" in again.out
    assert_undisturbed(two, f"term-{struck}", again)


def test_a_damaged_part_of_one_process_is_named_and_its_checkpoint_passed_over(two: Trials) -> None:
    shutil.copytree(two.home / "whole", two.home / "damaged")
    folder = two.folder("damaged")
    (folder / "record.json").unlink()
    part = folder / "checkpoint-20" / method_file(1, 2)
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    done = two("damaged", "--resume")
    assert f"checkpoint-20 is not used: {part.name} is not what was saved" in " ".join(
        done.out.split()
    )
    assert done.out.count("is not used") == 1
    assert "resumed from step 18" in done.out
    assert_undisturbed(two, "damaged", done)


def test_a_run_killed_after_its_last_save_is_resumed_to_the_same_record(two: Trials) -> None:
    shutil.copytree(two.home / "whole", two.home / "ended")
    (two.folder("ended") / "record.json").unlink()
    done = two("ended", "--resume")
    assert "resumed from step 20" in done.out
    assert_undisturbed(two, "ended", done)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_run_is_resumed_by_another_number_of_processes(
    two: Trials, before: int, after: int
) -> None:
    output = f"{before}-to-{after}"
    two.ranks = before
    killed = two(output, fault={"kind": "step", "count": 8})
    assert killed.code == -signal.SIGKILL
    two.ranks = after
    done = two(output, "--resume")
    two.ranks = 2
    assert done.code == 0, done.err
    assert "resumed from step 6" in done.out
    assert f"was saved by {before} processes and is resumed by {after}" in " ".join(
        done.out.split()
    )
    last = max(checkpoints(two.folder(output)).items())[1]
    assert [path.name for path in method_files(last)] == [
        method_file(rank, after) for rank in range(after)
    ]


# ---- translation


class Translations:
    """``advreg train --task translation`` in two processes: a run of seconds that learns little."""

    def __init__(self, advreg: CommandServer, home: Path) -> None:
        self.advreg, self.home = advreg, home
        folder = write_numbers(home / "numbers", train=60, valid=10, test=10)
        self.arguments = (
            "train", "--task", "translation", "--data", folder, "--source", SOURCE, "--target", TARGET, "--model",
            "transformer-small", "--vocabulary", 55, "--max-ratio", 3, "--max-tokens", 128, "--update-tokens", 200,
            "--method", "arch", "--refresh-every", 2, "--cache-fraction", 0.5, "--epochs", 3, "--seed", 3, "--beam", 2,
            "--tokenised", "yes", "--set", "use_cpu=true",
        )  # fmt: skip

    def __call__(self, output: str, *more: str, ranks: int = 2, **fault: Any) -> Done:
        return self.advreg(
            *self.arguments, "--output", output, *more, cwd=self.home, ranks=ranks, **fault
        )

    def record(self, output: str) -> records.RunRecord:
        return records.load(self.home / output / "arch-seed3" / "record.json")

    def weights(self, output: str) -> dict[str, Tensor]:
        return load_file(self.home / output / "arch-seed3" / "model" / "model.safetensors")


@pytest.mark.slow
def test_translation_in_two_processes_speaks_once_shares_the_updates_and_survives_a_kill(
    advreg: CommandServer, tmp_path: Path
) -> None:
    run = Translations(advreg, tmp_path)
    alone, whole = run("alone", ranks=1), run("whole")
    assert (alone.code, whole.code) == (0, 0), whole.err
    assert whole.out.count("test scores, mean ± sd over seeds") == 1
    assert whole.out.count("in each of 2 processes") == 2
    assert whole.out.count("each run's record.json") == 1
    one, two = run.record("alone"), run.record("whole")
    assert two.training.more["processes"] == 2
    steps, steps_alone = two.outcome.timing["steps"], one.outcome.timing["steps"]
    assert steps == pytest.approx(
        steps_alone, abs=3
    )  # an update has as many tokens; one more or less an epoch
    assert one.task.details["batches"] > two.task.details["batches"]
    assert two.outcome.metrics.keys() == one.outcome.metrics.keys()
    assert (
        len((tmp_path / "whole" / "arch-seed3" / "test.translations.txt").read_text().splitlines())
        == 10
    )

    # in the second epoch, which reuses; then in the first step after a resume
    for struck, count, more in ((1, two.task.details["batches"] + 2, []), (0, 1, ["--resume"])):
        killed = run("broken", *more, fault={"kind": "step", "count": count}, struck=struck)
        assert killed.code == -signal.SIGKILL
        assert killed.codes[1 - struck] != -signal.SIGKILL
    again = run("broken", "--resume")
    assert again.code == 0, again.err
    assert "arch-seed3: resumed from step" in again.out
    assert unequal(run.weights("whole"), run.weights("broken")) == []
    assert run.record("broken").outcome.metrics == two.outcome.metrics


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_runs_of_several_processes_killed_at_random_moments_end_as_if_they_had_never_stopped(
    advreg: CommandServer, tmp_path: Path, ranks: int
) -> None:
    kills = kill_runs(advreg, tmp_path, 6, seed=5, ranks=ranks)
    assert [kill for kill in kills if not kill.survived] == []
    assert {kill.rank for kill in kills} > {None}
