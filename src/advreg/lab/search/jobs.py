"""A training run as a job for the runner: values that describe it, and can be sent to any
process.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from advreg.hf.checkpoint.manifest import STAGING
from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.lab.kinds.training import quiet_libraries
from advreg.lab.runs.bases import AnySettings
from advreg.lab.runs.plans import PLAN_FILE, RECORD_FILE, agree, run_facts
from advreg.lab.runs.workloads import Workload, load_workload, source_of
from advreg.lab.search.pool import JobReporter
from advreg.records import run as records
from advreg.records.diagnostics import HEALTH_FILE
from advreg.records.environment import EnvironmentInfo, capture_environment

_DATA_SETS_KEPT = 2  # in a worker: a task, and the part of it to tune on
MODEL = "model"
_LARGE = (MODEL, "weights", "checkpoint-*", STAGING)  # folders that a finished run can do without
Keep = Literal["nothing", "model", "all"]

_loaded: OrderedDict[str, Workload] = OrderedDict()
_compiled_for = ""


@dataclass(frozen=True)
class HeldOut:
    """Train on the rest of the training data and evaluate on ``share`` of it, or on this many
    ``rows``; dev is not touched. With ``swapped`` the two change places.
    """

    share: float
    seed: int
    rows: int | None = None
    swapped: bool = False

    def of(self, data: Workload) -> Workload:
        """The data to tune on."""
        return data.held_out(self.share, self.seed, self.rows, self.swapped)


@dataclass(frozen=True)
class TrainRun:
    """One run of a method with a seed; as a callable, the work of a
    :class:`~advreg.lab.search.pool.Job`.

    Args:
        settings: of the task, the model and the method.
        method: its name.
        seed: of weights and order.
        folder: of checkpoints and record.
        held_out: tune on training data alone; none: train on all of it and evaluate on dev.
        keep: what stays once the record is written: nothing else, the model, or checkpoints too.
    """

    settings: AnySettings
    method: str
    seed: int
    folder: Path
    held_out: HeldOut | None = None
    keep: Keep = "nothing"

    def __call__(self, reporter: JobReporter) -> records.RunRecord:
        """Train, or resume from the last checkpoint; returns the record, which is also in the
        folder.
        """
        quiet_libraries()
        _forget_other_graphs(
            f"{self.settings.task} {self.settings.model} {self.settings.site} {self.method}"
        )
        try:
            name, shown = (
                f"{self.method}-seed{self.seed}: ",
                f"{'/'.join(self.folder.parts[-3:])}: ",
            )
            notice = lambda text: reporter.notice(text.replace(name, shown))  # noqa: E731
            done = self._workload().run(
                self.settings, self.method, self.seed, self.folder, reporter.step, notice
            )
            self.tidy()
            return done
        except NonFiniteLossError:
            self.tidy()
            raise
        finally:
            _free_memory()

    def _workload(self) -> Workload:
        """The samples; a worker keeps the data of its last runs."""
        source = source_of(self.settings)
        if self.held_out is None:
            return _kept(source, lambda: load_workload(self.settings))
        part = self.held_out
        return _kept(f"{source} {part}", lambda: part.of(load_workload(self.settings)))

    def cost(self, samples: int) -> float:
        """The time it takes relative to other runs of the model: the samples in all its forward
        passes.
        """
        return samples * self.settings.epochs * self.settings.method(self.method).passes().forward

    def facts(self, fingerprint: str) -> dict[str, Any]:
        """What decides the result of the run, as its plan file holds it."""
        facts: dict[str, Any] = json.loads(
            json.dumps(run_facts(self.settings, fingerprint, self.method, self.seed))
        )
        return facts

    def settled(self, fingerprint: str) -> records.RunRecord | None:
        """The record of a run that need not be repeated: it finished, or diverged, as it would
        again.

        A run with other data (by their fingerprint) or settings in the same folder is an error that
        names them.
        """
        if not (self.folder / PLAN_FILE).is_file():
            return None
        agree(f"the run in {self.folder}", self.folder, self.facts(fingerprint), resume=True)
        if not (self.folder / RECORD_FILE).is_file():
            return None
        record = records.load(self.folder / RECORD_FILE)
        if record.outcome.status != "finished" and not has_diverged(record):
            return None
        self.tidy()
        return record

    def tidy(self) -> None:
        """Delete what a finished run can do without: checkpoints and the model, unless they are to
        be kept, and the diagnostics of a tuning run.
        """
        if self.keep == "all":
            return
        for name in _LARGE:
            for folder in self.folder.glob(name):
                if name != MODEL or self.keep == "nothing":
                    shutil.rmtree(folder, ignore_errors=True)
        if self.held_out is not None:
            (self.folder / HEALTH_FILE).unlink(missing_ok=True)


class Environment:
    """The environment of many runs: this process's, with all devices that the runs name."""

    def __init__(self) -> None:
        self._here = capture_environment()
        self._devices: set[str] = set()

    def saw(self, run: records.RunRecord) -> None:
        """Add the device of a run."""
        self._devices |= {str(device) for device in (run.environment.get("device"),) if device}

    def as_dict(self) -> EnvironmentInfo:
        return {**self._here, "device": ", ".join(sorted(self._devices)) or None}


def has_diverged(record: records.RunRecord) -> bool:
    """Whether the run ended because its loss was not a finite number."""
    return (record.outcome.error or "").startswith(NonFiniteLossError.__name__)


def _kept(key: str, load: Callable[[], Workload]) -> Workload:
    if key not in _loaded:
        while len(_loaded) >= _DATA_SETS_KEPT:
            _loaded.popitem(last=False)
        _loaded[key] = load()
    _loaded.move_to_end(key)
    return _loaded[key]


def _forget_other_graphs(kind: str) -> None:
    """Discard compiled graphs when the kind of run changes: they count towards torch.compile's
    limit.
    """
    global _compiled_for
    if kind != _compiled_for and "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    _compiled_for = kind


def _free_memory() -> None:
    """Free what this run holds, except for its compiled graphs."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
