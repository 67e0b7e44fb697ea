"""Runs of the trainer that take a fraction of a second, for tests of what happens to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments

from advreg.hf.trainer import AdversarialTrainer
from advreg.methods import create
from observe import Padded, features_of, remembered
from tiny_models import tiny, tiny_batch

ARCH = {"cache_fraction": 0.5, "refresh_every": 2, "radius": 0.5, "ascent_steps": 2, "ema": 0.3}


def stock_trainer(folder: Path, **more: Any) -> Any:
    """The same run of the stock Trainer."""
    return tiny_trainer(folder, kind=Trainer, **more)


def tiny_trainer(
    folder: Path,
    method: Any = None,
    model: Any = None,
    size: int = 8,
    kind: Any = AdversarialTrainer,
    **more: Any,
) -> Any:
    """Two steps to an epoch, two epochs, a save at each step; ``more`` are fields of the arguments,
    or go to the trainer if it has them."""
    names = (
        "callbacks",
        "data_collator",
        "eval_dataset",
        "on_non_finite",
        "processing_class",
        "site",
    )
    own = {name: more.pop(name) for name in names if name in more}
    if kind is not Trainer:
        own["method"] = method if method is not None else create("arch", **ARCH)
    fields = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "num_train_epochs": 2, "save_strategy": "steps",
        "save_steps": 1, "logging_steps": 1, "report_to": "none", "disable_tqdm": True, "use_cpu": True,
    } | more  # fmt: skip
    model = model if model is not None else tiny("bert", dropout=0.1)
    return kind(
        model=model,
        args=TrainingArguments(**fields),
        train_dataset=features_of(tiny_batch("bert", batch=size)),
        **{"data_collator": Padded(model.config.pad_token_id)} | own,
    )


def end_of(trainer: Any) -> dict[str, Tensor]:
    """Weights and the method's memory."""
    weights = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    return {
        **weights,
        **remembered(trainer.method),
    }


def same_end(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(value, other[name]) for name, value in one.items()
    )
