"""Training a job of any kind: steps, logs, resumption, and what comes out."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from advreg.core.progress import Progress
from advreg.hf.attach import OnNonFinite
from advreg.hf.checkpoint.ranks import first_decides, process_count
from advreg.hf.checkpoint.saving import failed_write
from advreg.hf.checkpoint.state import last_whole_checkpoint
from advreg.hf.patches.compile_layers import compile_layers
from advreg.hf.trainer import AdversarialTrainer
from advreg.lab.kinds.arguments import training_arguments
from advreg.lab.kinds.attention import for_any_shape
from advreg.lab.kinds.averaging import MovingAverage
from advreg.lab.kinds.final_model import SavedModel, save_model
from advreg.lab.kinds.health import forget_peak, save_health
from advreg.methods.base import Method, memory_bytes

logger = logging.getLogger(__name__)

OnStep = Callable[[int, int, Mapping[str, float]], None]
Notice = Callable[[str], None]
_CHECKPOINT = "checkpoint-"


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What the trained model is worth.

    Args:
        metrics: by name; on further sets the name begins with the name of the set.
        main: the set whose metrics have no prefix.
        items: by set, the outcome of each sample; see :class:`advreg.lab.kinds.items.Items`.
        details: to be added to what the record says of the task.
        timing: to be added to the record's figures of time.
    """

    metrics: Mapping[str, float]
    main: str = "dev"
    items: Mapping[str, dict[str, list[Any]]] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    timing: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """A run that is ready to begin: model, samples, method and settings. Nothing is written yet.

    Args:
        model: to be trained.
        method: how to train on a batch.
        folder: of the run.
        train: the training samples.
        precision: fp32, bf16 or fp16.
        site: where δ is added.
        compile_layers: train with compiled layers?
        on_non_finite: what to do when the loss or a gradient is not finite: stop, or skip that
            update.
        weight_ema: decay of the average of the weights that is evaluated and saved; none: the
            weights of the last update are.
        fields: fields of ``TrainingArguments``.
        sizes: samples of each set, for the record.
        details: what the record says of the task.
        more: what the record says of the training, besides the fields.
        logged: the whole log, also of a failed run.
    """

    model: Any
    method: Method
    folder: Path
    train: Any
    precision: str = "fp32"
    site: str = "tokens"
    compile_layers: bool = False
    on_non_finite: OnNonFinite = "stop"
    weight_ema: float | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    logged: list[dict[str, Any]] = field(default_factory=list)

    @abstractmethod
    def trainer(self) -> AdversarialTrainer:
        """The trainer of the job, which has trained nothing yet."""

    @abstractmethod
    def save(self, trainer: Any, folder: Path) -> None:
        """Write the trained model to a folder; all processes call it, and the first one writes."""

    @abstractmethod
    def score(self, trainer: Any, model: Path | None, progress: Progress | None = None) -> Scores:
        """Evaluate the trained model.

        Args:
            trainer: that has trained.
            model: the folder that the model was saved to; none if it could not be saved.
            progress: of the evaluation.
        """

    @abstractmethod
    def token_texts(self, stream: str, ids: Sequence[int]) -> Sequence[str]:
        """The texts of token ids of a stream."""

    def begin(self, resumed_from: int | None) -> None:  # noqa: B027 - most jobs have nothing to do
        """Called when the run begins, before the first step; with the step it resumes from."""

    def batch_count(self, arguments: TrainingArguments, samples: int) -> int:
        """How many batches an epoch of this number of samples has, in one process."""
        whole, rest = divmod(samples, arguments.per_device_train_batch_size)
        return whole + (rest > 0 and not arguments.dataloader_drop_last)

    def usual_arguments(self) -> dict[str, Any]:
        """The arguments of the trainer that all kinds share. Compiles the layers if that is
        wanted.
        """
        arguments = training_arguments(self.folder, self.precision, self.fields)
        if self.compile_layers:
            compile_layers(self.model)
        return {
            "model": self.model,
            "args": arguments,
            "train_dataset": self.train,
            "method": self.method,
            "site": self.site,
            "on_non_finite": self.on_non_finite,
        }


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    scores: Scores
    history: list[dict[str, Any]]
    seconds_per_step: float
    epoch_seconds: list[float]
    steps: int
    passes: dict[str, float]
    memory_bytes: int
    resumed_from: int | None
    saved: SavedModel
    skipped: int = 0

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.scores.metrics

    @classmethod
    def of(
        cls,
        trainer: AdversarialTrainer,
        history: list[dict[str, Any]],
        scores: Scores,
        resumed_from: int | None,
        saved: SavedModel,
    ) -> Result:
        """The result of a trainer that has finished."""
        return cls(
            scores=scores,
            history=history,
            seconds_per_step=trainer.timer.per_step(),
            epoch_seconds=trainer.timer.epochs,
            steps=trainer.state.global_step,
            passes=trainer.passes.per_step(),
            memory_bytes=memory_bytes(trainer.method),
            resumed_from=resumed_from,
            saved=saved,
            skipped=trainer.skipped,
        )


@for_any_shape()
def train(
    job: Job, on_step: OnStep | None = None, resume: bool = False, spares: Sequence[Path] = ()
) -> Result:
    """Train, save and score the model.

    With ``resume`` the run resumes from its last whole checkpoint, if there is one, and ends
    exactly as if it had never stopped. A model that cannot be saved in the run's folder goes to one
    of ``spares``.
    """
    trainer = job.trainer()
    average = None if job.weight_ema is None else MovingAverage(job.weight_ema)
    if average is not None:
        average.join(trainer)
    report_steps(trainer, on_step)
    resumed_from = step_to_resume(job.folder) if resume else None
    job.begin(resumed_from)
    forget_peak()
    with keep_logs(trainer, job.logged):
        trainer.train(resume_from_checkpoint=checkpoint_at(job.folder, resumed_from))
        unwritten = failed_write(lambda: save_health(trainer, job.folder, job.token_texts))
        if unwritten is not None:
            logger.error("could not write the run's health (%s)", unwritten)
        progress = _as_step(trainer.state.global_step, on_step)
        with nullcontext() if average is None else average.in_place(trainer.model):
            saved = save_model(partial(job.save, trainer), job.folder, spares)
            scores = job.score(trainer, saved.folder, progress)
    _correct_train_loss(trainer, job.logged)
    return Result.of(trainer, job.logged, scores, resumed_from, saved)


def _correct_train_loss(trainer: AdversarialTrainer, logged: list[dict[str, Any]]) -> None:
    """Let the last ``train_loss`` be the mean over the whole run: the Trainer's own begins anew at
    every resume.
    """
    steps = trainer.state.global_step
    rest = float(getattr(trainer, "_tr_loss", 0.0))
    loss = trainer.advreg.tally.loss.with_rest(rest, steps).mean
    last = next((line for line in reversed(logged) if "train_loss" in line), None)
    if last is not None and math.isfinite(loss):
        last["train_loss"] = loss


def _as_step(last: int, on_step: OnStep | None) -> Progress | None:
    """Progress of the scoring, reported as a log of the last step."""
    if on_step is None:
        return None
    return lambda name, done, total: on_step(last, last, {name: done / total})


def step_to_resume(folder: Path) -> int | None:
    """The step of the last whole checkpoint, on which all processes agree."""
    checkpoint = first_decides(lambda: last_whole_checkpoint(folder))
    return None if checkpoint is None else int(checkpoint.name.removeprefix(_CHECKPOINT))


def checkpoint_at(folder: Path, step: int | None) -> str | None:
    return None if step is None else str(folder / f"{_CHECKPOINT}{step}")


@contextmanager
def keep_logs(trainer: Any, logged: list[dict[str, Any]]) -> Iterator[None]:
    """Afterwards ``logged`` holds what the Trainer logged, also if it fails."""
    try:
        yield
    finally:
        logged[:] = [dict(line) for line in trainer.state.log_history]


def report_steps(trainer: Any, on_step: OnStep | None) -> None:
    """Report steps to ``on_step`` alone: the Trainer itself prints nothing."""
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if on_step is not None:
        trainer.add_callback(_Steps(on_step))


class _Steps(TrainerCallback):
    """Passes every step and its last log to a function."""

    def __init__(self, on_step: OnStep) -> None:
        self.on_step = on_step
        self.last: dict[str, float] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.last |= {
            name: value for name, value in (logs or {}).items() if isinstance(value, float | int)
        }

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.on_step(state.global_step, state.max_steps, self.last)


def quiet_libraries() -> None:
    """Silence the progress bars and messages of transformers."""
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
        fields["log_level_replica"] = "error"  # the Trainer would turn the other ranks' logs on
    return fields
