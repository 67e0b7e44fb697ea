"""What a case is: a way to train, what it refuses, and the settings under which a method must equal
the stock trainer.

A case trains five updates of four samples, twelve samples in all, so that ARCH both refreshes and
reuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from advreg.hf.components.steps import StepRunner
from advreg.hf.guards.capability import UnsupportedError
from advreg.hf.trainer import AdversarialMixin
from advreg.methods import Method, create, registry
from advreg.methods.base import Dropout
from observe import switched_off
from works.traces import Trace, require_like, weights_of

UPDATES = 5

WITHOUT_EFFECT: dict[str, dict[str, Any]] = {
    "standard": {},
    "r3f": {"weight": 0.0, "noise_scale": 0.1},
    "smart": {"weight": 0.0, "radius": 0.5, "ascent_steps": 1},
    "arch": {
        "weight": 0.0,
        "radius": 0.5,
        "ascent_steps": 1,
        "cache_fraction": 0.5,
        "refresh_every": 2,
    },
    "freelb": {"radius": 0.0, "ascent_steps": 0},
    "freeat": {"radius": 0.0, "replays": 1},
}
"""Options with which a method trains as the stock trainer does: λ = 0, or one point at δ = 0."""

COUNTED_TWICE = {"rdrop": ("num_tokens",)}
"""What TRL counts in each call of ``compute_loss``, which sees both copies of a batch where both
have a loss.
"""

WITHOUT_DELTA: dict[str, dict[str, Any]] = {
    "r3f": {"noise_scale": 0.0},
    "smart": {"radius": 0.0, "ascent_steps": 1},
    "arch": {"radius": 0.0, "ascent_steps": 1, "cache_fraction": 0.5, "refresh_every": 2},
}
"""Options with which δ = 0, and so the penalty with shared dropout masks."""


def without_effect(name: str) -> Method:
    """A method that must train as stock does."""
    return create(name, **WITHOUT_EFFECT.get(name, switched_off(name)))


def without_delta(name: str, dropout: Dropout) -> Method:
    """A method whose penalty must be zero."""
    return create(name, dropout=dropout, **WITHOUT_DELTA[name])


@dataclass(frozen=True)
class Setting:
    """How to train a case.

    Args:
        folder: for what the trainer writes.
        dropout: of the model.
        fields: of the arguments, over the case's own.
    """

    folder: Path
    dropout: float = 0.0
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Args:
        group: its heading.
        name: what the row is called.
        train: trains with a method, or by the stock trainer if there is none.
        refused: what the refusal says, by method or by what methods need; the first that applies.
        is_fast: whether the default suite runs it.
    """

    group: str
    name: str
    train: Callable[[Method | None, Setting], Trace]
    refused: Mapping[str, str] = field(default_factory=dict)
    is_fast: bool = False

    def refusal(self, method: str) -> str | None:
        """What a method's refusal says; None where it works."""
        needs = {method, *registry[method].info.needs}
        return next((told for need, told in self.refused.items() if need in needs), None)


@dataclass(frozen=True)
class ByTrainer:
    """Trains by a Trainer, mixed with ours where there is a method.

    Args:
        given: makes the trainer's arguments, model and data.
        base: the stock trainer.
        arguments: its class of arguments.
        fields: of the arguments.
    """

    given: Callable[[Setting], dict[str, Any]]
    base: type = Trainer
    arguments: type = TrainingArguments
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, method: Method | None, setting: Setting) -> Trace:
        trainer = self.trainer(method, setting)
        before = weights_of(trainer.model)
        trainer.train()
        return Trace.of(trainer, before)

    def trainer(self, method: Method | None, setting: Setting) -> Any:
        torch.manual_seed(0)
        args = self.arguments(**_usual(setting.folder) | dict(self.fields) | dict(setting.fields))
        given = {"args": args, **self.given(setting)}
        if args.eval_strategy != "no":
            given["eval_dataset"] = given["train_dataset"]
        return self.base(**given) if method is None else mixed(self.base)(**given, method=method)


def mixed(base: type) -> type:
    """A trainer with a method."""
    return type(f"Adversarial{base.__name__}", (AdversarialMixin, base), {})


def _usual(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": UPDATES,
        "optim": "sgd",
        "learning_rate": 0.1,
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }


def outcome(case: Case, method: str, folder: Path, stock: dict[str, Trace]) -> str | None:
    """What the refusal says, or None if a method without effect trains as the stock trainer does.

    A penalty of a perturbation has no weight, but is there, and not zero.

    Args:
        case: the row.
        method: the column.
        folder: for what the trainers write.
        stock: what the stock trainer did, by the name of the case; filled here.

    Raises:
        AssertionError: the training differs from stock's, or was refused after an update.
    """
    refusal: UnsupportedError | None = None
    with counted_steps() as steps:
        try:
            ours = case.train(without_effect(method), Setting(folder))
        except UnsupportedError as error:
            refusal = error
    if refusal is not None:
        assert len(steps) <= 1, f"refused in step {len(steps)}, after an update: {refusal}"
        return said(refusal)
    if case.name not in stock:
        stock[case.name] = case.train(None, Setting(folder / "stock"))
    require_like(ours, stock[case.name], ignoring=COUNTED_TWICE.get(method, ()))
    if method in WITHOUT_DELTA:
        penalties = [line["penalty"] for line in ours.lines if "penalty" in line]
        assert all(value > 0 for value in penalties), (
            f"the perturbation moves no prediction: {penalties}"
        )
    return None


@contextmanager
def counted_steps() -> Iterator[list[None]]:
    """Within, the list grows by each training step."""
    steps: list[None] = []
    step = StepRunner.training_step

    def counted(*args: Any, **kwargs: Any) -> Any:
        steps.append(None)
        return step(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepRunner, "training_step", counted)
        yield steps


def said(error: BaseException) -> str:
    """What a refusal says before it names the methods that work."""
    return re.split(r"(?:, or|;) choose a method that works here: ", str(error))[0]
