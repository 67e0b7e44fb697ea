"""Time and memory of a Trainer's steps, measured independently for the stock one and ours, on the
same model and data.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    default_data_collator,
)
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from advreg.hf.trainer import AdversarialTrainer
from advreg.lab.kinds.arguments import training_arguments
from advreg.methods.base import Method


@dataclass(frozen=True)
class TrainerJob:
    """A model, its data and its trainer.

    Args:
        model: trained further by each job it is given to.
        samples: one epoch; all of one length, so that the default collator can stack them.
        batch: samples in a batch.
        precision: fp32, bf16 or fp16.
        cpu: stay on the CPU even if there is a GPU?
        method: of :class:`AdversarialTrainer`; none takes the stock ``Trainer``.
        epochs: each is timed.
        compile: by the Trainer's own ``torch_compile``?
        compile_mode: its ``torch_compile_mode``.
    """

    model: Any
    samples: Sequence[Mapping[str, Tensor]]
    batch: int
    precision: str = "fp32"
    cpu: bool = False
    method: Method | None = None
    epochs: int = 1
    compile: bool = False
    compile_mode: str | None = None


@dataclass(frozen=True)
class Lap:
    """The timed steps of one epoch.

    Args:
        milliseconds: per step.
        peak_bytes: the most memory that was allocated on the GPU; ``None`` on a CPU.
    """

    milliseconds: float
    peak_bytes: int | None = None


def laps_of(job: TrainerJob, warmup: int, steps: int) -> list[Lap]:
    """Train, and measure each epoch without its first ``warmup`` steps.

    The time runs from the start of a step to the end of a later one, so that the Trainer's work
    between steps counts as well.
    """
    if len(job.samples) < (warmup + steps) * job.batch:
        raise ValueError(
            f"samples must fill {warmup} + {steps} batches of {job.batch} samples, got "
            f"{len(job.samples)} samples"
        )
    watch = _Stopwatch(warmup, steps)
    with tempfile.TemporaryDirectory() as folder, as_it_was(job.model):
        _trainer(job, Path(folder), watch).train()
    return watch.laps


@contextmanager
def as_it_was(model: Any) -> Iterator[None]:
    """Remove attributes that the training added to the model.

    Accelerate wraps ``forward`` in autocast and marks the model as prepared; the next training
    would find the mark and train without autocast.
    """
    before = set(vars(model))
    try:
        yield
    finally:
        for name in set(vars(model)) - before:
            del vars(model)[name]


def _trainer(job: TrainerJob, folder: Path, watch: TrainerCallback) -> Any:
    fields = {
        "per_device_train_batch_size": job.batch,
        "num_train_epochs": job.epochs,
        "learning_rate": 1e-6,
        "save_strategy": "no",
        "logging_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": job.cpu,
        "torch_compile": job.compile,
        "torch_compile_mode": job.compile_mode,
    }
    common = {
        "model": job.model,
        "args": training_arguments(folder, job.precision, fields),
        "train_dataset": list(job.samples),
        "data_collator": default_data_collator,
    }
    trainer: Any = (
        Trainer(**common) if job.method is None else AdversarialTrainer(**common, method=job.method)
    )
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.add_callback(watch)
    return trainer


class _Stopwatch(TrainerCallback):
    """Starts when an epoch's warm-up is over and stops ``steps`` steps later."""

    def __init__(self, warmup: int, steps: int) -> None:
        self.warmup = warmup
        self.steps = steps
        self.laps: list[Lap] = []

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        self.seen = 0

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        if self.seen == self.warmup:
            if args.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(args.device)
            self.begun = _now(args.device)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> None:
        self.seen += 1
        if self.seen == self.warmup + self.steps:
            spent = _now(args.device) - self.begun
            peak = (
                torch.cuda.max_memory_allocated(args.device) if args.device.type == "cuda" else None
            )
            self.laps.append(Lap(spent / self.steps * 1e3, peak))


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
