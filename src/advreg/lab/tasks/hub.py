"""Data sets of the Hugging Face hub, by the package `datasets`, with errors that say what to do."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from advreg.lab.tasks.textdata import DATA_VARIABLE, DataError


@dataclass(frozen=True)
class HubSplit:
    """A split of a data set on the hub: its path, its configuration if it has several, and the
    split's name there.
    """

    path: str
    config: str | None
    split: str


def load_split(task: str, where: HubSplit) -> Any:
    """`datasets.load_dataset`; `task` is what a user calls it."""
    try:
        load = importlib.import_module("datasets").load_dataset
    except ImportError as error:
        raise DataError(
            f"task '{task}' is loaded from the Hugging Face hub by the package datasets; install "
            "advreg[data], or "
            f"give a folder of files with --data or {DATA_VARIABLE}"
        ) from error
    try:
        return load(where.path, where.config, split=where.split)
    except Exception as error:  # of a dozen kinds, from four libraries
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"'{where.path}' ({task}, {where.split}) cannot be loaded from the Hugging Face hub: "
            f"{first}. "
            f"Without a connection, give a folder of files with --data or {DATA_VARIABLE}"
        ) from error


def require_columns(dataset: Any, names: Iterable[str], where: HubSplit, part: str) -> None:
    """Refuse a data set that has changed; `part` is what we call the split."""
    for name in names:
        if name not in dataset.column_names:
            raise DataError(
                f"'{where.path}': {part} must have a column {name!r}, got "
                f"{', '.join(dataset.column_names)}; "
                "the hub's data set has changed, give files with --data"
            )
