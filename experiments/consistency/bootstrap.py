"""How far gains depend on the test samples: a bootstrap over them, seeds fixed.

    python experiments/consistency/bootstrap.py --data DATA

Records hold what was predicted for each test sample; the right answers are in DATA (as work.py
reads it), or come with the interpreter for the built-in task. Test samples are drawn with
replacement, the same for all contestants and seeds of a task; the mean gain over the seeds is taken
for each draw, and the middle 95 % of the draws are the interval. Intervals are written to
results/consistency/bootstrap.json. Those made of the same runs before are kept.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import builtin_data
import numpy as np
from cells import Cell, Records
from contests import CONTESTS
from numpy.typing import NDArray
from outcomes import Entry, Outcome, outcomes
from scoring import primary_score
from text_runs import TEST, samples

from advreg.lab.kinds.classification.tasks import TASKS
from advreg.records.log import RecordLog
from advreg.records.run import RunRecord
from advreg.records.sealed import load_as, save_as

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "results" / "consistency" / "runs.jsonl.gz"
BOOTSTRAP = RUNS.with_name("bootstrap.json")
DRAWS = 2000
_NEAR = 0.02  # points, of a score made again of predictions that were rounded to hundredths

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The interval for one contestant's gain in one outcome.

    Args:
        outcome, contestant: their names.
        runs: fingerprint of the predictions it was made of.
        low, high: in the units of the outcome.
    """

    outcome: str
    contestant: str
    runs: str
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class BootstrapRecord:
    """All intervals."""

    schema: int = 1
    kind: Literal["bootstrap"] = "bootstrap"
    draws: int = DRAWS
    intervals: list[Interval] = field(default_factory=list)

    def find(self, outcome: Outcome, entry: Entry) -> Interval | None:
        """The interval, if it was made of the runs that there are now."""
        made = outcome.key, entry.contestant.name, fingerprint(entry)
        return next(
            (each for each in self.intervals if (each.outcome, each.contestant, each.runs) == made),
            None,
        )


def read(path: Path = BOOTSTRAP) -> BootstrapRecord:
    return load_as(path, BootstrapRecord) if path.is_file() else BootstrapRecord()


def fingerprint(entry: Entry) -> str:
    """A hash of all predictions that a gain rests on."""
    digest = hashlib.sha256()
    for cells in (entry.cells, entry.standard):
        for task in sorted(cells):
            for seed, run in sorted(cells[task].runs.items()):
                digest.update(f"{task} {seed} {predicted(run)}\n".encode())
    return digest.hexdigest()[:16]


def predicted(run: RunRecord) -> Any:
    details = run.task.details
    return details["predictions"] if "predictions" in details else details["bleu_statistics"]


# ---- scores of weighted samples: weights (draws, N), predictions and labels (N,), scores (draws,)


def accuracy(weights: Array, predictions: Array, labels: Array) -> Array:
    shares: Array = weights @ (predictions == labels) / weights.sum(1)
    return shares


def f1(weights: Array, predictions: Array, labels: Array) -> Array:
    """F1 for class 1."""
    guessed, true = predictions == 1, labels == 1
    marked = weights @ guessed + weights @ true
    found: Array = 2 * (weights @ (guessed & true)) / np.maximum(marked, 1)
    return found


def pearson(weights: Array, predictions: Array, labels: Array) -> Array:
    """Pearson's correlation; 0 where one side does not vary. Each side is (N,), or (draws, N)."""
    total = weights.sum(1)

    def mean(values: Array) -> Array:
        product: Array = (
            (weights * values).sum(1) / total if values.ndim == 2 else weights @ values / total
        )
        return product

    x, y = predictions - predictions.mean(), labels - labels.mean()
    covariance = mean(x * y) - mean(x) * mean(y)
    spread = np.sqrt(np.maximum((mean(x * x) - mean(x) ** 2) * (mean(y * y) - mean(y) ** 2), 0))
    return np.where(spread > 1e-12, covariance / np.maximum(spread, 1e-12), 0.0)


def matthews(weights: Array, predictions: Array, labels: Array) -> Array:
    """Matthews' correlation: with two classes it is Pearson's."""
    return pearson(weights, predictions, labels)


def spearman(weights: Array, predictions: Array, labels: Array) -> Array:
    return pearson(weights, ranks(weights, predictions), ranks(weights, labels))


def ranks(weights: Array, values: Array) -> Array:
    """The rank of each sample in each draw (draws, N), where it stands weight times; equals share
    their mean rank.
    """
    distinct, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(distinct)))
    counts = np.add.reduceat(weights[:, order], starts, axis=1)
    middle: Array = counts.cumsum(1) - (counts - 1) / 2
    return middle[:, place]


MEASURES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "accuracy": accuracy, "f1": f1, "matthews": matthews, "pearson": pearson, "spearman": spearman,
}  # fmt: skip


def bleu(weights: Array, counts: Array) -> Array:
    """BLEU of each draw, from lengths and n-gram matches of each sentence (N, 10) as sacreBLEU
    counts them.

    100 · min(1, exp(1 − r / h)) · (Π m_n / t_n)^¼ with the summed lengths of output h and reference
    r.
    """
    hypothesis, reference, *rest = (weights @ counts).T
    precisions = np.log(np.maximum(rest[:4], 1e-9)) - np.log(np.maximum(rest[4:], 1e-9))
    shortness: Array = np.minimum(0, 1 - reference / np.maximum(hypothesis, 1))
    result: Array = 100 * np.exp(shortness + precisions.mean(0))
    return result


# ---- scores of a run


class Scorer:
    """Scores of the runs on a task in every draw of its test samples.

    Args:
        task: its name.
        labels: the right answers, of a task on texts.
    """

    def __init__(self, task: str, labels: Array | None) -> None:
        self.task, self.labels = task, labels

    def __call__(self, run: RunRecord, draws: int) -> Array:
        """Primary scores (draws,)."""
        if self.labels is None:
            sets = {name: counts(text) for name, text in predicted(run).items() if name != "valid"}
            found = [
                bleu(drawn(f"{self.task} {name}", len(each), draws), each)
                for name, each in sets.items()
            ]
        else:
            weights, guesses = drawn(self.task, len(self.labels), draws), numbers(predicted(run))
            found = [
                100 * MEASURES[name](weights, guesses, self.labels)
                for name in main_metrics(self.task)
            ]
        mean: Array = np.mean(found, axis=0)
        return mean

    def check(self, run: RunRecord) -> None:
        """Refuse labels with which a run's predictions do not have its recorded score."""
        again, recorded = float(self(run, 0)[0]), primary_score(run)
        if abs(again - recorded) > _NEAR:
            sys.exit(f"data must be what the runs read, got {self.task} on which {run.name} scores {again:.2f}, "
                     f"recorded {recorded:.2f}; give the folder of the runs as --data")  # fmt: skip


def drawn(name: str, size: int, draws: int) -> Array:
    """How often each sample is drawn (draws, size), the same for all runs on a task; without draws
    each once.
    """
    if draws == 0:
        return np.ones((1, size))
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return random.multinomial(size, np.full(size, 1 / size), size=draws).astype(np.float64)


def main_metrics(task: str) -> Sequence[str]:
    return TASKS[task].main_metrics if task in TASKS else ("accuracy",)


def numbers(predictions: str | list[int]) -> Array:
    """Classes, or values in hundredths, as text_runs.compact writes them."""
    values = (
        list(map(int, predictions))
        if isinstance(predictions, str)
        else [each / 100 for each in predictions]
    )
    return np.array(values, dtype=np.float64)


def counts(text: str) -> Array:
    """As translation_runs.bleu_counts writes them."""
    return np.array([list(map(int, row.split(","))) for row in text.split(";")], dtype=np.float64)


def labels_of(task: str, data: Path) -> Array:
    """The right answers of the test samples of a task on texts."""
    with tempfile.TemporaryDirectory() as scratch:
        if task.startswith("docstrings") and not (data / builtin_data.FOLDER).is_dir():
            data = Path(scratch)
            builtin_data.write(data / builtin_data.FOLDER)
        rows = samples(task, {}, 0, data).evaluations[TEST]
    return np.array([row.label for row in rows], dtype=np.float64)


# ---- intervals


def interval(
    outcome: Outcome, entry: Entry, scorers: Mapping[str, Scorer], draws: int = DRAWS
) -> Interval:
    """The interval for the mean gain over the seeds, in units of Standard's deviation where tasks
    are pooled.
    """
    parts = []
    for task, cell in entry.cells.items():
        unit = entry.standard[task].deviation if entry.pooled else 1.0
        gains = [
            mean_score(each, scorers[task], entry, draws) for each in (cell, entry.standard[task])
        ]
        parts.append((gains[0] - gains[1]) / unit)
    low, high = np.percentile(np.mean(parts, axis=0), [2.5, 97.5])
    return Interval(
        outcome=outcome.key,
        contestant=entry.contestant.name,
        runs=fingerprint(entry),
        low=float(low),
        high=float(high),
    )


def mean_score(cell: Cell, scorer: Scorer, entry: Entry, draws: int) -> Array:
    """Over the seeds that have a gain."""
    runs = [cell.runs[seed] for seed in entry.gains]
    for run in runs:
        scorer.check(run)
    found: Array = np.mean([scorer(run, draws) for run in runs], axis=0)
    return found


class Bootstrap:
    """Makes the intervals of entries, and keeps what is up to date in an earlier record.

    Args:
        kept: the earlier record.
        labels: gives the right answers of a task on texts.
        draws: of the test samples.
    """

    def __init__(
        self, kept: BootstrapRecord, labels: Callable[[str], Array], draws: int = DRAWS
    ) -> None:
        self.kept, self.labels, self.draws = kept, labels, draws
        self.scorers: dict[str, Scorer] = {}

    def record(self, judged: Iterable[Outcome]) -> BootstrapRecord:
        """The intervals for all entries with all seeds."""
        intervals = []
        for outcome in judged:
            for entry in outcome.entries.values():
                if entry.gain is not None:
                    made = self.kept.find(outcome, entry) or self.make(outcome, entry)
                    intervals.append(made)
                    print(
                        f"{made.outcome} {made.contestant}: [{made.low:+.2f}, {made.high:+.2f}]",
                        flush=True,
                    )
        return BootstrapRecord(draws=self.draws, intervals=intervals)

    def make(self, outcome: Outcome, entry: Entry) -> Interval:
        for task in entry.cells:
            if task not in self.scorers:
                labels = self.labels(task) if outcome.contest.kind == "text" else None
                self.scorers[task] = Scorer(task, labels)
        return interval(outcome, entry, self.scorers, self.draws)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("ADVREG_DATA"), help="else ADVREG_DATA's"
    )
    data = parser.parse_args().data
    if data is None:
        parser.error("--data must name the folder with nlu/, or ADVREG_DATA must")
    found = Records(RecordLog(RUNS).records())
    judged = [outcome for contest in CONTESTS.values() for outcome in outcomes(found, contest)]
    save_as(BOOTSTRAP, Bootstrap(read(), lambda task: labels_of(task, Path(data))).record(judged))


if __name__ == "__main__":
    main()
