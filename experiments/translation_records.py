"""The records for docs/results/translation.md: benches and comparisons; several comparisons may be
parts of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from advreg.lab.report.compare import read
from advreg.lab.report.labels import method_name, method_order, task_name
from advreg.lab.runs.settings import decisive
from advreg.records.bench import BenchRecord
from advreg.records.bench import load as load_bench
from advreg.records.compare import COMPARE_FILE, CompareRecord
from advreg.records.run import RunRecord

RESULTS = Path(__file__).resolve().parent.parent / "results"
RECORDS = RESULTS / "translation"
BENCHES = tuple(sorted((RESULTS / "cost").glob("translation*.json"), key=lambda path: path.stem))
ARCH = "arch"

# what the runs of a comparison have in common, unless a method has its own
SHARED = (
    *(
        "epochs",
        "vocabulary",
        "max_tokens",
        "update_tokens",
        "learning_rate",
        "warmup_steps",
        "model_dropout",
    ),
    *("label_smoothing", "precision", "weights", "judge"),
)

Key = tuple[str, str, int]  # task, method, seed


@dataclass(frozen=True)
class Compared:
    """A comparison and its finished runs."""

    name: str
    record: CompareRecord
    runs: Mapping[Key, RunRecord]

    @property
    def tasks(self) -> list[str]:
        """The methods that have a finished run."""
        return [
            task.name for task in self.record.tasks if any(key[0] == task.name for key in self.runs)
        ]

    def methods(self, task: str) -> list[str]:
        """The methods that have a finished run on a task, in the order of tables."""
        return sorted({key[1] for key in self.runs if key[0] == task}, key=method_order)

    def of(self, task: str, method: str) -> dict[int, RunRecord]:
        """The runs of a method on a task, by seed."""
        return {
            seed: run
            for (name, mine, seed), run in self.runs.items()
            if (name, mine) == (task, method)
        }

    def asked(self, task: str, method: str) -> int:
        """How many seeds there were to be."""
        return sum((entry.task, entry.method) == (task, method) for entry in self.record.runs)

    def title(self, task: str) -> str:
        """A task, and the model where several comparisons may have it."""
        return f"{task_name(task)}, {self.record.settings['model']}"

    @property
    def terms(self) -> str:
        """What its runs share whatever the task and the method, which may have a learning rate of
        its own; and however they were computed."""
        own = {"options": None, "learning_rate": None}
        return json.dumps({**decisive(self.record.tasks[0].settings), **own}, sort_keys=True)

    def settings(self, name: str, task: str | None = None) -> set[Any]:
        """The values of a setting in its runs, or in the runs of a task."""
        return {
            run.training.more.get(name)
            for (of, _, _), run in self.runs.items()
            if task in (None, of)
        }

    def named(self, task: str, run: RunRecord) -> str:
        """A run's method, and the settings that distinguish it within its task."""
        own = [
            f"{name} {run.training.more[name]}"
            for name in SHARED
            if len(self.settings(name, task)) > 1
        ]
        return ", ".join([method_name(run.method.name), *own])

    def own_of(self, task: str) -> list[str]:
        """The settings that all runs of a task share, but not runs of other tasks."""
        values = {
            name: self.settings(name, task) for name in SHARED if len(self.settings(name)) > 1
        }
        return [f"{name} {next(iter(value))}" for name, value in values.items() if len(value) == 1]

    def joined(self, other: Compared) -> Compared:
        """One comparison of two on the same terms; a run that both were to make is the one that did
        not fail.
        """
        mine, theirs = self.record, other.record
        entries = sorted(
            [*mine.runs, *theirs.runs], key=lambda run: run.error is None
        )  # the last one counts
        runs = {(run.task, run.method, run.seed): run for run in entries}
        record = replace(
            mine,
            status=mine.status if set(runs) - {*self.runs, *other.runs} else "finished",
            reference=ARCH if any(run.method == ARCH for run in runs.values()) else mine.reference,
            tasks=list({task.name: task for task in [*mine.tasks, *theirs.tasks]}.values()),
            choices=[*mine.choices, *theirs.choices],
            runs=sorted(runs.values(), key=lambda run: method_order(run.method)),
            notes=list(dict.fromkeys([*mine.notes, *theirs.notes])),
        )
        return Compared(self.name, record, {**other.runs, **self.runs})


class Records:
    """The records there are."""

    def __init__(self, folder: Path, benches: Sequence[Path] = BENCHES) -> None:
        self.folder, self._benches = folder, benches

    @cached_property
    def comparisons(self) -> list[Compared]:
        folders = sorted(path.parent for path in self.folder.glob(f"*/{COMPARE_FILE}"))
        alike: dict[str, Compared] = {}
        for each in (Compared(folder.name, *read(folder)) for folder in folders):
            if each.runs:
                alike[each.terms] = alike[each.terms].joined(each) if each.terms in alike else each
        return list(alike.values())

    @cached_property
    def benches(self) -> dict[str, BenchRecord]:
        """The methods' steps timed in turns, by model."""
        return {bench.settings["model"]: bench for bench in map(load_bench, self._benches)}

    @property
    def pairs(self) -> list[tuple[Compared, str]]:
        """Every comparison with each of its tasks."""
        return [(compared, task) for compared in self.comparisons for task in compared.tasks]

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return (
            [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            if path.is_file()
            else []
        )
