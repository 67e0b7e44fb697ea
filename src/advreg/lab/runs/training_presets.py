"""Settings of the training by family of tasks; options of methods are in
:mod:`advreg.methods.presets`.
"""

from __future__ import annotations

from typing import Any, get_args

from advreg.core.checks import check_choice
from advreg.core.options import Preset

# From the appendix that advreg.methods.presets names. Tasks without an entry in _CHOSEN get a
# middle value of the paper's choices.
_TRAINING: dict[str, dict[str, Any]] = {
    "translation": {},
    "understanding": {
        "epochs": 10,
        "warmup": 0.1,
        "batch_size": 32,
        "learning_rate": 1e-4,
        "encoder_dropout": 0.1,
        "head_dropout": 0.1,
        "site": "block",
    },
    "fine-tuning": {
        "epochs": 10,  # five were too few for penalised runs
        "warmup": 0.1,
        "training": {"train_sampling_strategy": "group_by_length"},  # or much of a batch is padding
    },
}
# Batch size, learning rate and dropout of BERT by task: from a table that is commented out in the
# paper's source.
_CHOSEN: dict[str, tuple[int, float, float]] = {
    "rte": (16, 1e-4, 0.0),
    "mrpc": (8, 2e-4, 0.1),
    "cola": (16, 5e-5, 0.1),
    "sst2": (32, 8e-5, 0.1),
    "stsb": (32, 2e-4, 0.0),
    "qnli": (32, 1e-4, 0.1),
    "qqp": (64, 2e-4, 0.1),
    "mnli": (128, 1e-4, 0.1),
}


def training_preset(family: str, task: str) -> dict[str, Any]:
    """The settings of the training for a task, by their names in ``advreg train``.

    ``training`` holds fields of ``TrainingArguments``.

    Example:
        >>> training_preset("understanding", "rte")["batch_size"]
        16
        >>> training_preset("understanding", "mr")["batch_size"]
        32
    """
    check_choice("preset", family, get_args(Preset))
    chosen = _CHOSEN.get(task) if family == "understanding" else None
    named = zip(("batch_size", "learning_rate", "encoder_dropout"), chosen or (), strict=False)
    return {**_TRAINING[family], **dict(named)}
