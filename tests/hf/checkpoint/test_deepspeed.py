"""DeepSpeed under the trainers: what is refused, and, where it is installed, that ZeRO trains as
DDP does.
"""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Trainer

from advreg.core.schedule import Clock
from advreg.hf.checkpoint.deepspeed import refuse_deepspeed, require_readable
from advreg.hf.checkpoint.ranks import method_file
from advreg.hf.checkpoint.state import CheckpointError
from advreg.hf.view.view import HFModelView
from advreg.methods import Step, create, registry
from contracting import Contracting
from process_jobs import OPTIONS, trainer_of
from processes import together
from tiny_models import tiny, tiny_batch

CONFIG = {"zero_optimization": {"stage": 2}, "gradient_clipping": 1.0}
ARGUMENTS = SimpleNamespace(fp16=False, max_grad_norm=1.0)

# ---- what is refused


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("name", ["standard", "r3f", "smart", "arch"])
def test_methods_with_one_backward_pass_may_train_in_stages_that_leave_the_model_whole(
    name: str, stage: int
) -> None:
    config = {"zero_optimization": {"stage": stage}, "gradient_clipping": 1.0}
    refuse_deepspeed(config, create(name, **OPTIONS.get(name, {})), ARGUMENTS, "stop")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"config": {"zero_optimization": {"stage": 3}}},
            "stage must be 0, 1 or 2, got 3, .*; spread .* by FSDP2",
        ),
        (
            {"method": create("freelb")},
            "one backward pass a step .* got freelb; train under DDP or FSDP2",
        ),
        (
            {"method": create("freeat")},
            "one backward pass a step .* got freeat; train under DDP or FSDP2",
        ),
        (
            {"method": Contracting()},
            "bound of contracting must be off under .* or train under DDP",
        ),
        ({"on_non_finite": "skip"}, "on_non_finite must be 'stop' under DeepSpeed, got 'skip'"),
        (
            {"args": SimpleNamespace(fp16=True, max_grad_norm=1.0)},
            "fp16 must be off under DeepSpeed, .* train in bf16",
        ),
        (
            {"config": {"gradient_clipping": 0.5}},
            r"must be max_grad_norm \(1.0\), got 0.5, .*; set it to 'auto'",
        ),
        ({"config": {}}, r"must be max_grad_norm \(1.0\), got 0.0, .*; set it to 'auto'"),
        (
            {"config": CONFIG | {"nebula": {"enabled": True}}},
            "must not have the section 'nebula'.*; leave it out",
        ),
        (
            {"config": CONFIG | {"checkpoint": {"load_universal": True}}},
            "must not have the section 'checkpoint'",
        ),
    ],
)
def test_what_would_train_wrong_is_refused(changed: dict[str, Any], message: str) -> None:
    given = {"config": CONFIG, "method": create("r3f"), "args": ARGUMENTS, "on_non_finite": "stop"}
    with pytest.raises(ValueError, match=message):
        refuse_deepspeed(**given | changed)


def test_the_trainer_refuses_before_it_looks_at_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of("freelb", str(tmp_path))
    trainer.is_deepspeed_enabled = True
    plugin = SimpleNamespace(deepspeed_config=CONFIG)
    monkeypatch.setattr(type(trainer.accelerator.state), "deepspeed_plugin", plugin)
    trainer.train_dataset = None
    with pytest.raises(
        ValueError, match=r"one backward pass a step under DeepSpeed, .* got freelb"
    ):
        trainer.train()


@pytest.mark.parametrize("name", registry)
def test_a_method_says_whether_it_calls_backward_more_than_once(name: str, tmp_path: Path) -> None:
    calls = 0

    def backward(loss: Tensor) -> None:
        nonlocal calls
        calls += 1
        loss.backward()

    trainer = trainer_of(name, str(tmp_path))
    trainer.advreg.samples.identify()
    if trainer.method.memory is not None:
        trainer.advreg.run.prepare_method()
    batch = tiny_batch("bert")
    batch |= {"sample_id": torch.arange(len(batch["input_ids"]))}
    trainer.method.step(trainer.task, batch, Step(Clock(0, 0), backward, lambda: None))
    assert ("repeats_backward" in trainer.method.info.traits) == (calls > 1)


@pytest.mark.parametrize("method", [*map(create, registry), Contracting()], ids=str)
def test_a_method_says_whether_it_changes_weights_after_an_update(method: Any) -> None:
    model = tiny("bert", dtype=torch.float64)
    with torch.no_grad():
        model.classifier.weight.mul_(100)
    before = {name: value.clone() for name, value in model.named_parameters()}
    method.updated(HFModelView(model))
    changed = [
        name for name, value in model.named_parameters() if not torch.equal(value, before[name])
    ]
    assert changed == (["classifier.weight"] if method.constraints() else [])


# ---- the step and the save


def test_losses_are_not_divided_by_the_accumulation_group_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, seen = trainer_of("standard", str(tmp_path)), []
    monkeypatch.setattr(
        trainer.accelerator, "backward", lambda loss, **keywords: seen.append(keywords)
    )
    for trainer.is_deepspeed_enabled in (False, True):
        trainer.advreg.steps.backward(torch.zeros(()))
    assert seen == [{}, {"scale_wrt_gas": False}]


def test_a_norm_that_deepspeed_does_not_tell_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "_get_grad_norm", lambda *_, **__: None)
    trainer = trainer_of("standard", str(tmp_path))
    trainer.train()
    assert trainer.state.global_step > 0
    assert all("grad_norm" not in line for line in trainer.state.log_history)


def test_a_part_that_cannot_be_written_ends_the_run_only_where_others_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Trainer, "_save_optimizer_and_scheduler", full)
    trainer = trainer_of("standard", str(tmp_path))
    with pytest.raises(OSError, match="no space left"):
        trainer._save_optimizer_and_scheduler(str(tmp_path / "checkpoint-3"))
    trainer.is_deepspeed_enabled = True
    with pytest.raises(OSError, match="no space left"):
        trainer._save_optimizer_and_scheduler(str(tmp_path / "checkpoint-3"))
    monkeypatch.setattr(type(trainer.args), "world_size", 2)
    with pytest.raises(
        CheckpointError,
        match=r"its part of checkpoint-3 \(no space left on device\), .* resume from",
    ):
        trainer._save_optimizer_and_scheduler(str(tmp_path / "checkpoint-3"))


# ---- checkpoints


class Trap:
    """Runs a command when it is unpickled."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.sprung}",)


def saved(folder: Path, named: str = "global_step3", **held: Any) -> Path:
    """A checkpoint as one process writes it under DeepSpeed, holding a tensor and what is given."""
    (folder / "global_step3").mkdir(parents=True)
    (folder / method_file()).touch()
    (folder / "latest").write_text(named)
    torch.save({"tensor": torch.ones(3), **held}, folder / "global_step3" / "optim_states.pt")
    return folder


def test_a_checkpoint_of_tensors_and_numbers_is_read(tmp_path: Path) -> None:
    require_readable(saved(tmp_path, step=3), engaged=True)


def test_a_pickle_that_would_run_code_is_refused_without_running(tmp_path: Path) -> None:
    folder = saved(tmp_path / "checkpoint-3", trap=Trap(tmp_path / "sprung"))
    with pytest.raises(
        CheckpointError, match=r"optim_states.pt cannot be read \(.* possibly code, or is damaged\)"
    ):
        require_readable(folder, engaged=True)
    assert not (tmp_path / "sprung").exists()
    torch.load(folder / "global_step3" / "optim_states.pt", weights_only=False)
    assert (tmp_path / "sprung").exists()  # else it was no trap


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path) / "global_step3" / "optim_states.pt"
    whole = file.read_bytes()
    for size in (0, 10, len(whole) - 10):
        file.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="or is damaged"):
            require_readable(tmp_path, engaged=True)


@pytest.mark.parametrize("named", ["../elsewhere", "/tmp", "", "global_step4"])
def test_a_checkpoint_cannot_send_deepspeed_elsewhere(named: str, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"latest must name a folder global_step… in its own folder, got"
    ):
        require_readable(saved(tmp_path, named), engaged=True)


def test_checkpoints_with_deepspeed_and_without_are_not_mixed(tmp_path: Path) -> None:
    require_readable(tmp_path, engaged=False)
    with pytest.raises(
        CheckpointError,
        match=r"saved without DeepSpeed and this run is with it, .* resume without it",
    ):
        require_readable(tmp_path, engaged=True)
    with pytest.raises(
        CheckpointError, match=r"saved with DeepSpeed and this run is without it, .* resume with it"
    ):
        require_readable(saved(tmp_path), engaged=False)


def test_another_number_of_processes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(
        CheckpointError, match=r"under DeepSpeed by 1 processes, got 2, .*; start 1"
    ):
        require_readable(saved(tmp_path), engaged=True)
    for file in tmp_path.glob("advreg_*"):
        file.unlink()
    require_readable(
        tmp_path, engaged=True
    )  # of the stock Trainer, whose processes DeepSpeed itself counts


def test_the_trainer_looks_at_a_checkpoint_before_it_resumes_and_before_it_takes_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_of("standard", str(tmp_path), save_strategy="steps", save_steps=2)
    trainer.train()
    last = tmp_path / f"checkpoint-{trainer.state.global_step}"
    trainer.is_deepspeed_enabled, trainer.state.best_model_checkpoint = True, str(last)
    without = "was saved without DeepSpeed and this run is with it"
    for given in (True, str(last)):
        with pytest.raises(CheckpointError, match=without):
            trainer.advreg.checkpoints.settle(given)
    with pytest.raises(CheckpointError, match=without):
        trainer._load_best_model()


# ---- with DeepSpeed, in two processes

installed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None,
    reason="DeepSpeed is not installed (advreg[deepspeed])",
)
RUNS: list[dict[str, Any]] = [
    *({"name": name} for name in ("standard", "r3f", "smart", "arch")),
    *(
        {"name": name, "gradient_accumulation_steps": 2}
        for name in ("standard", "r3f", "smart", "arch")
    ),
    {"name": "smart", "family": "marian"},
    {"name": "arch", "gradient_checkpointing": True},
    {"name": "arch", "max_grad_norm": 0.0},
]


def farthest(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    assert set(one) == set(other)
    return max((float((one[name] - other[name]).abs().max()) for name in one), default=0.0)


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@installed
def test_every_stage_trains_as_ddp_does(tmp_path: Path) -> None:
    """Three epochs, in which ARCH refreshes, reuses and refreshes."""
    wide = [{"dtype": "float32", "momentum": 0.5, **run} for run in RUNS]
    plain = together("process_jobs:train_dealt", 2, tmp_path / "ddp", 300, runs=wide)
    zero = together(
        "deepspeed_jobs:train_in_stages", 2, tmp_path / "zero", 500, runs=RUNS, stages=[0, 1, 2]
    )
    for rank in range(2):
        for stage, found in zero[rank].items():
            for run, mine, theirs in zip(RUNS, found, plain[rank], strict=True):
                assert mine["steps"] == theirs["steps"], (stage, run)
                assert farthest(mine["weights"], theirs["weights"]) < 1e-6, (stage, run)
                assert farthest(mine["memory"], theirs["memory"]) < 2e-6, (stage, run)
                whole = sum(value.numel() for value in mine["weights"].values())
                assert (mine["moments"] < 0.6 * whole) == (stage > 0), (stage, run)
                for line, other in zip(mine["logs"], theirs["logs"], strict=True):
                    assert line["loss"] == pytest.approx(other["loss"], abs=1e-4)
                    assert ("grad_norm" in line) == (stage > 0)
                    assert line.get("grad_norm", other["grad_norm"]) == pytest.approx(
                        other["grad_norm"], rel=1e-4
                    )


@pytest.mark.slow
@installed
def test_runs_are_resumed_bit_for_bit_and_a_gradient_that_is_not_finite_reaches_no_weight(
    tmp_path: Path,
) -> None:
    ranks = together("deepspeed_jobs:resume_and_break", 2, tmp_path, 300, folder=str(tmp_path))
    for rank in ranks:
        for stage, error_and_moved in rank.pop("spoilt").items():
            error, moved = error_and_moved
            assert error.startswith("the gradient's norm is inf at step 1"), stage
            assert not moved, stage
        for kind, (whole, again) in rank.items():
            assert whole["steps"] == again["steps"] == 16, kind
            assert equal(whole["weights"], again["weights"]), kind
            assert equal(whole["memory"], again["memory"]), kind


@pytest.mark.slow
@installed
def test_a_disk_full_in_one_process_ends_all(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError,
        match=r"could not write its part of checkpoint-3 .* resume from the checkpoint",
    ):
        together(
            "deepspeed_jobs:fill_disk_of_second", 2, tmp_path, 120, folder=str(tmp_path / "run")
        )
    assert not list((tmp_path / "run").glob("checkpoint-*"))
