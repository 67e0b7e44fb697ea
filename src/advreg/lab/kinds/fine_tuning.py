"""One training run of a classifier or regressor, from samples to scores; resumable."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from advreg.hf.checkpoint.ranks import first_decides, process_count
from advreg.hf.checkpoint.state import last_whole_checkpoint
from advreg.hf.patches.compile_layers import compile_layers
from advreg.hf.trainer import AdversarialTrainer, OnNonFinite
from advreg.lab.kinds.allocation import keep_freed_memory
from advreg.lab.kinds.arguments import training_arguments
from advreg.lab.kinds.attention import for_any_shape
from advreg.lab.kinds.health import forget_peak, save_health
from advreg.methods.base import Method, memory_bytes

Metrics = Callable[[np.ndarray[Any, Any], np.ndarray[Any, Any]], dict[str, float]]
OnStep = Callable[[int, int, Mapping[str, float]], None]
_CHECKPOINT = "checkpoint-"


@dataclass(frozen=True)
class Job:
    """What to train on what, and how.

    Args:
        model: a model with its head.
        tokenizer: saved beside the model.
        collator: makes a batch of samples.
        train, dev: samples, each a mapping of token ids and ``labels``.
        metrics: scores from predictions and labels.
        method: how to train on a batch.
        folder: where checkpoints and the final model go.
        precision: fp32, bf16 or fp16.
        site: where δ is added.
        compile_layers: train with compiled layers?
        on_non_finite: what to do when the loss or a gradient is not finite: stop, or skip that
            update.
        fields: fields of ``TrainingArguments``.
        evaluations: further sets to evaluate on when the training is done; their scores bear the
            set's name.
        logged: all that was logged, also that of a run which fails.
    """

    model: Any
    tokenizer: Any
    collator: Any
    train: list[dict[str, Any]]
    dev: list[dict[str, Any]]
    metrics: Metrics
    method: Method
    folder: Path
    precision: str = "fp32"
    site: str = "tokens"
    compile_layers: bool = False
    on_non_finite: OnNonFinite = "stop"
    fields: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    logged: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Result:
    """What came out of a run."""

    metrics: dict[str, float]
    history: list[dict[str, Any]]
    seconds_per_step: float
    epoch_seconds: list[float]
    steps: int
    passes: dict[str, float]
    memory_bytes: int
    resumed_from: int | None
    skipped: int = 0

    @classmethod
    def of(cls, trainer: AdversarialTrainer, history: list[dict[str, Any]], **own: Any) -> Result:
        """Of a trainer that is done: what it measured, and what else there is to say."""
        return cls(
            history=history,
            seconds_per_step=trainer.timer.per_step(),
            epoch_seconds=trainer.timer.epochs,
            steps=trainer.state.global_step,
            passes=trainer.passes.per_step(),
            memory_bytes=memory_bytes(trainer.method),
            skipped=trainer.skipped,
            **own,
        )


@for_any_shape()
def fine_tune(job: Job, on_step: OnStep | None = None, resume: bool = False) -> Result:
    """Train, evaluate, and save the model to ``job.folder / "model"``.

    With ``resume`` the run goes on from its last whole checkpoint, if there is one, and ends
    exactly as if it had never stopped.
    """
    keep_freed_memory()
    trainer = make_trainer(job)
    report_steps(trainer, on_step)
    resumed_from = step_to_resume(job.folder) if resume else None
    forget_peak()
    with keep_logs(trainer, job.logged):
        trainer.train(resume_from_checkpoint=checkpoint_at(job.folder, resumed_from))
        scores = trainer.evaluate()
        for name, samples in job.evaluations.items():
            scores |= trainer.evaluate(samples, metric_key_prefix=f"eval_{name}")
    if trainer.args.should_save:
        shutil.rmtree(
            job.folder / "model", ignore_errors=True
        )  # half of one, where a kill fell into the saving
    trainer.save_model(str(job.folder / "model"))
    save_health(trainer, job.folder, lambda _, ids: job.tokenizer.convert_ids_to_tokens(ids))
    metrics = {
        name.removeprefix("eval_"): value
        for name, value in scores.items()
        if _is_score(name, value)
    }
    return Result.of(trainer, job.logged, metrics=metrics, resumed_from=resumed_from)


def step_to_resume(folder: Path) -> int | None:
    """The step of the last whole checkpoint, on which all processes agree."""
    checkpoint = first_decides(lambda: last_whole_checkpoint(folder))
    return None if checkpoint is None else int(checkpoint.name.removeprefix(_CHECKPOINT))


def checkpoint_at(folder: Path, step: int | None) -> str | None:
    return None if step is None else str(folder / f"{_CHECKPOINT}{step}")


def make_trainer(job: Job) -> AdversarialTrainer:
    """The trainer of a job, which has trained nothing yet."""
    arguments = training_arguments(job.folder, job.precision, job.fields)
    if job.compile_layers:
        compile_layers(job.model)
    try:
        return AdversarialTrainer(
            model=job.model,
            args=arguments,
            train_dataset=job.train,
            eval_dataset=job.dev,
            data_collator=job.collator,
            processing_class=job.tokenizer,
            compute_metrics=lambda prediction: job.metrics(
                prediction.predictions, prediction.label_ids
            ),
            method=job.method,
            site=job.site,
            on_non_finite=job.on_non_finite,
        )
    except (
        ImportError,
        RuntimeError,
    ) as error:  # report_to names a tracker that is not installed, and the like
        raise ValueError(f"the Trainer refuses these settings: {error}") from error


@contextmanager
def keep_logs(trainer: Any, logged: list[dict[str, Any]]) -> Iterator[None]:
    """What the Trainer logs is in ``logged`` afterwards, also if it fails."""
    try:
        yield
    finally:
        logged[:] = [dict(line) for line in trainer.state.log_history]


def report_steps(trainer: Any, on_step: OnStep | None) -> None:
    """Steps are told to ``on_step`` alone: nothing of the Trainer's own is printed."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if on_step is not None:
        trainer.add_callback(_Steps(on_step))


class _Steps(TrainerCallback):
    """Hands every step and its last log to a function."""

    def __init__(self, on_step: OnStep) -> None:
        self.on_step = on_step
        self.last: dict[str, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.last |= {
            name: value for name, value in (logs or {}).items() if isinstance(value, float | int)
        }

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_step(state.global_step, state.max_steps, self.last)


def _is_score(name: str, value: Any) -> bool:
    speed = ("_runtime", "_samples_per_second", "_steps_per_second")
    return isinstance(value, float | int) and name != "epoch" and not name.endswith(speed)


def quiet_libraries() -> None:
    """No progress bars and chatter of transformers between ours."""
    chatter: Any = transformers.utils.logging
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()


def device_name() -> str:
    """The accelerator in use, or the word cpu."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def usual_fields(seed: int) -> dict[str, Any]:
    """TrainingArguments of every run of ours: its seed, two checkpoints kept, and nothing printed
    by the Trainer.
    """
    fields: dict[str, Any] = {
        "seed": seed,
        "data_seed": seed,
        "save_total_limit": 2,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": device_name() != "cpu",
    }
    if process_count() > 1:
        fields["log_level_replica"] = (
            "error"  # the Trainer would have all others but the first speak again
        )
    return fields
