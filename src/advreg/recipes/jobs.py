"""A training run as a job for the runner: described by values, carried out in whatever process it is sent to."""

from __future__ import annotations

import gc
import json
import shutil
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from advreg import record as records
from advreg.hf.run import quiet_libraries
from advreg.hf.seal import RUN_FILE, STAGING
from advreg.hf.trainer import NonFiniteLossError
from advreg.recipes.classify import Plan, load_data, run
from advreg.recipes.plans import PLAN_FILE, RECORD_FILE, read_plan
from advreg.recipes.runner import Tell
from advreg.recipes.settings import SettingsError, TrainSettings
from advreg.recipes.textdata import TextData

_DATA_FIELDS = ("task", "data", "train", "dev", "text_column", "pair_column", "label_column")
_DATA_SETS_KEPT = 2  # in a worker: a task, and what is held out of it
_loaded: OrderedDict[str, TextData] = OrderedDict()


@dataclass(frozen=True)
class HeldOut:
    """Train on the rest of the training data and evaluate on ``share`` of it; dev is not touched."""

    share: float
    seed: int


@dataclass(frozen=True)
class TrainRun:
    """One run of a method with a seed; as a callable, the work of a :class:`~advreg.recipes.runner.Job`.

    Args:
        settings: of the task, the model and the method.
        method: its name.
        seed: of weights and order.
        folder: of checkpoints and record.
        held_out: tune on training data alone; none: train on all of it and evaluate on dev.
        keep_model: leave model and checkpoints once the record is written.
    """

    settings: TrainSettings
    method: str
    seed: int
    folder: Path
    held_out: HeldOut | None = None
    keep_model: bool = False

    def plan(self, data: TextData) -> Plan:
        return Plan(self.settings, data, self.method, self.seed, self.folder)

    def __call__(self, tell: Tell) -> records.RunRecord:
        """Train, or go on from the last checkpoint; returns the record, which is also in the folder."""
        quiet_libraries()
        try:
            plan = self.plan(self._data())
            shown = "/".join(self.folder.parts[-3:])
            notice = lambda text: tell.notice(text.replace(f"{plan.name}: ", f"{shown}: "))  # noqa: E731
            done = run(plan, lambda _, *step: tell.step(*step), notice, resume=True)
            self.tidy()
            return done
        except NonFiniteLossError:
            self.tidy()
            raise
        finally:
            _free_memory()

    def _data(self) -> TextData:
        """The samples; a worker keeps those of its last runs."""
        source = repr([getattr(self.settings, name, None) for name in _DATA_FIELDS])
        if self.held_out is None:
            return _kept(source, lambda: load_data(self.settings))
        share, seed = self.held_out.share, self.held_out.seed
        return _kept(f"{source} {share} {seed}", lambda: load_data(self.settings).held_out(share, seed))

    def facts(self, data: TextData, fingerprint: str) -> dict[str, Any]:
        """What must be the same for the run to be the same; ``fingerprint`` is the data's, which takes long to find."""
        few = replace(data, train=data.train[:1], dev=data.dev[:1])
        facts: dict[str, Any] = json.loads(json.dumps({**self.plan(few).facts(), "data": fingerprint}))
        return facts

    def settled(self, facts: Mapping[str, Any]) -> records.RunRecord | None:
        """The record of a run that need not be repeated: it finished, or its loss was not finite, as it would be again.

        A run of other facts in the same folder is an error that names them.
        """
        if not (self.folder / PLAN_FILE).is_file():
            return None
        saved = read_plan(self.folder)
        changed = [
            f"{name} was {saved.get(name)}, is {facts[name]}" for name in facts if saved.get(name) != facts[name]
        ]
        if changed:
            raise SettingsError(
                f"the run in {self.folder} cannot go on, because what it was started with changed: "
                f"{'; '.join(changed)}. Go on with the same data and settings, or choose another --output"
            )
        if not (self.folder / RECORD_FILE).is_file():
            return None
        record = records.load(self.folder / RECORD_FILE)
        if record.outcome.status != "finished" and not has_diverged(record):
            return None
        self.tidy()
        return record

    def tidy(self) -> None:
        """Delete what is of no use once the record is written: the model and the checkpoints."""
        if self.keep_model:
            return
        for folder in (self.folder / "model", self.folder / STAGING, *self.folder.glob("checkpoint-*")):
            shutil.rmtree(folder, ignore_errors=True)
        (self.folder / RUN_FILE).unlink(missing_ok=True)


def has_diverged(record: records.RunRecord) -> bool:
    """Did the run end because its loss was not a finite number?"""
    return (record.outcome.error or "").startswith(NonFiniteLossError.__name__)


def _kept(key: str, load: Any) -> TextData:
    if key not in _loaded:
        while len(_loaded) >= _DATA_SETS_KEPT:
            _loaded.popitem(last=False)
        _loaded[key] = load()
    _loaded.move_to_end(key)
    return _loaded[key]


def _free_memory() -> None:
    """Leave nothing of this run to the next one in the process."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
