"""Flags of ``advreg train`` for translation; apart from what they set in motion, so that help comes
at once.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from advreg.cli.flags import flags_of
from advreg.lab.kinds.classification.tasks import TASKS as UNDERSTANDING
from advreg.lab.runs.settings import DOCSTRINGS, FILES, TrainSettings, read_toml
from advreg.lab.runs.translation_settings import TASKS, TranslationSettings

_PANEL = "Translation (--task translation, or a known corpus)"


def is_translation(config: Path | None, given: Mapping[str, Any]) -> bool:
    """Is a translation task asked for, by flag or by config file? What has its text, if no known
    task is named.
    """
    values = {**(read_toml(config) if config is not None else {}), **given}
    task = values.get("task")
    return task in TASKS or (
        "train_source" in values and task not in (DOCSTRINGS, FILES, *UNDERSTANDING)
    )


def with_translation_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Add a flag for each setting of a translation that it has none for yet; to be put above
    ``with_flags``.
    """
    known = {field.name for field in dataclasses.fields(TrainSettings)}
    signature = inspect.signature(command)
    more = flags_of(TranslationSettings, but=known, panel=_PANEL)
    parameters = [*signature.parameters.values(), *more]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
