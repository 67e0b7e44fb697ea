"""Where data come from: the folder of the data, and the Hugging Face hub through the package
`datasets`. Errors say what to do.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA_VARIABLE = "ADVREG_DATA"
"""The environment variable that names the folder of the data where no flag does."""


class DataError(ValueError):
    """The data cannot be used as they are; the text names the place and the remedy."""


def data_folder(given: Path | None) -> Path | None:
    """The folder of the data: the given one, else the one that ADVREG_DATA names; None: use the
    hub.
    """
    named = os.environ.get(DATA_VARIABLE)
    return given if given is not None or not named else Path(named)


def held_out_details(share: float, seed: int, rows: int | None, of: int) -> dict[str, Any]:
    """What a record says of samples that were held out of the training set."""
    return {**({"share": share} if rows is None else {"rows": rows}), "seed": seed, "of": of}


@dataclass(frozen=True)
class HubSplit:
    """A split of a data set on the hub: its path, its configuration if it has several, and the
    split's name there.
    """

    path: str
    config: str | None
    split: str


def load_split(task: str, where: HubSplit) -> Any:
    """`datasets.load_dataset`; `task` is the user's name for the data set."""
    try:
        load = importlib.import_module("datasets").load_dataset
    except ImportError as error:
        raise DataError(
            f"task '{task}' is loaded from the Hugging Face hub by the package datasets; install "
            f"advreg[data], or give a folder of files with --data or {DATA_VARIABLE}"
        ) from error
    try:
        return load(where.path, where.config, split=where.split)
    except Exception as error:  # of a dozen types, from four libraries
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"'{where.path}' ({task}, {where.split}) cannot be loaded from the Hugging Face hub: "
            f"{first}. Without a connection, give a folder of files with --data or {DATA_VARIABLE}"
        ) from error


def require_columns(dataset: Any, names: Iterable[str], where: HubSplit, part: str) -> None:
    """Refuse a data set whose columns have changed; `part` is our name of the split."""
    for name in names:
        if name not in dataset.column_names:
            raise DataError(
                f"'{where.path}': {part} must have a column {name!r}, got "
                f"{', '.join(dataset.column_names)}; the hub's data set has changed, give files "
                "with --data"
            )
