"""The workload of settings. The module of its kind is imported only when it is needed."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from advreg.lab.kinds.base import Workload
from advreg.lab.runs.settings import RunSettings

__all__ = ["Workload", "load_workload", "source_of"]


def load_workload(settings: RunSettings, keep: Path | None = None) -> Workload:
    """The data that the settings name.

    Args:
        settings: of a run.
        keep: a folder in which to cache prepared data for later runs.
    """
    return _class_for(settings).load(settings, keep)


def source_of(settings: RunSettings) -> str:
    """A key of the data: equal for settings that name the same data."""
    return repr([getattr(settings, name) for name in _class_for(settings).names_data])


def _class_for(settings: RunSettings) -> type[Workload]:
    module = import_module(f"advreg.lab.kinds.{settings.kind}.workload")
    found: type[Workload] = module.WORKLOAD
    return found
