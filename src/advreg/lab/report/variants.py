"""The settings of runs, and the options in which runs differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from advreg.lab.report.labels import method_name, value_text
from advreg.records.run import RunRecord

_NOT_SETTINGS = ("seed", "data_seed", "logging_steps", "eval_steps", "save_steps")


def settings_of(record: RunRecord) -> dict[str, Any]:
    """Every option of a run but its seed: first the method's, then the training's."""
    training = record.training
    general = {
        "epochs": training.epochs,
        "batch_size": training.batch_size,
        "learning_rate": training.learning_rate,
        "precision": training.precision,
    }
    chosen = {**record.method.settings, **general, **training.more}
    return {name: value for name, value in chosen.items() if name not in _NOT_SETTINGS}


def varying_options(records: Sequence[RunRecord]) -> list[list[str]]:
    """The options in which these runs differ.

    Options that change together (ε and η, say) are in one list. Options of the method come first,
    so the first name of a list is the one to show.
    """
    chosen = [settings_of(record) for record in records]
    found: dict[tuple[int, ...], list[str]] = {}
    for name in dict.fromkeys(name for settings in chosen for name in settings):
        column = [json.dumps(settings.get(name), sort_keys=True) for settings in chosen]
        order = list(dict.fromkeys(column))
        if len(order) > 1:
            found.setdefault(tuple(map(order.index, column)), []).append(name)
    return list(found.values())


def label_of(method: str, options: Mapping[str, Any]) -> str:
    """A method and the options that distinguish its settings; without any, its bare name."""
    told = [f"{name} {value_text(value)}" for name, value in options.items()]
    return ", ".join([method_name(method), *told]) if told else method
