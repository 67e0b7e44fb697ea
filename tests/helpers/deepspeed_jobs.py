"""What processes do together under DeepSpeed in tests; it computes in float32, on CPUs too where it
is told to.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from advreg.hf.guards.nonfinite import NonFiniteLossError
from process_jobs import (
    DealtTrainer,
    fill_disk,
    fixed_noise,
    outcome,
    resumed,
    train_and_save,
    trainer_of,
)


@contextmanager
def on_cpu() -> Iterator[None]:
    """accelerate that is told to use CPUs leaves DeepSpeed out without a word."""
    with patch.dict(os.environ, {"DS_ACCELERATOR": "cpu"}):
        os.environ.pop("ACCELERATE_USE_CPU", None)
        yield


def under(stage: int, **settings: Any) -> dict[str, Any]:
    """Settings of a trainer under DeepSpeed."""
    config = {
        "zero_optimization": {"stage": stage, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": "auto"},
        **{
            name: "auto"
            for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        },
        "gradient_clipping": "auto",
    }
    return {"deepspeed": config, "dtype": "float32", "momentum": 0.5, **settings}


def train_in_stages(
    runs: list[dict[str, Any]], stages: list[int]
) -> dict[int, list[dict[str, Any]]]:
    """As :func:`process_jobs.train_dealt`, under each stage; and how much of the optimizer's state
    a process has.
    """
    found: dict[int, list[dict[str, Any]]] = {stage: [] for stage in stages}
    with tempfile.TemporaryDirectory() as folder, fixed_noise(), on_cpu():
        for stage in stages:
            for run in runs:
                trainer = trainer_of(folder=folder, kind=DealtTrainer, **under(stage, **run))
                trainer.train()
                engine = trainer.model_wrapped
                assert engine.zero_optimization_stage() == stage
                moments = sum(
                    held["momentum_buffer"].numel()
                    for held in engine.basic_optimizer.state.values()
                )
                found[stage].append(outcome(trainer) | {"moments": moments})
    return found


def resume_and_break(folder: str) -> dict[str, Any]:
    """Whole and resumed runs; and what a gradient that is not finite in one of two processes does
    to the weights.
    """
    found: dict[str, Any] = {}
    with on_cpu():
        for name, settings in {
            "0": under(0),
            "1": under(1),
            "2": under(2),
            "bf16": under(2, bf16=True),
        }.items():
            place = str(Path(folder) / name)
            found[name] = (
                outcome(train_and_save(place, **settings)),
                outcome(resumed(place, 6, **settings)),
            )
        found["spoilt"] = {stage: spoil(folder, stage) for stage in (1, 2)}
    return found


def spoil(folder: str, stage: int) -> tuple[str, bool]:
    """The error of a run whose gradient turns NaN at its second step in the second process; did a
    weight move by it?
    """
    trainer = trainer_of("arch", folder, **under(stage))
    before: dict[str, Tensor] = {}

    def nan_at_second(gradient: Tensor) -> Tensor:
        if trainer.state.global_step == 1:
            before.update(outcome(trainer)["weights"])
            return gradient * (torch.nan if trainer.args.process_index == 1 else 1.0)
        return gradient

    next(iter(trainer.model.parameters())).register_hook(nan_at_second)
    try:
        trainer.train()
    except NonFiniteLossError as error:
        after = outcome(trainer)["weights"]
        return str(error), any(not torch.equal(before[name], after[name]) for name in after)
    raise AssertionError("a gradient that is not finite went unnoticed")


def fill_disk_of_second(folder: str) -> None:
    """A run in which the second process cannot write its part of the first checkpoint."""
    with on_cpu():
        fill_disk(folder, rank=1, **under(2))
