"""The score of a finished run in resamples of its test set, from the outcome of each sample that
the run left next to its record.
"""

from __future__ import annotations

from pathlib import Path

from advreg.lab.kinds.items import ITEMS_FILE, Items
from advreg.lab.kinds.registry import kind_of
from advreg.lab.search.resampling import Array, Rows, resampled
from advreg.records.compare import score_of
from advreg.records.run import RunRecord


def scores_in_draws(folder: Path, record: RunRecord) -> Array | None:
    """The main score in each draw; none if the run left no outcomes."""
    if not (folder / ITEMS_FILE).is_file():
        return None
    items, kind = Items.load(folder), kind_of(record.task)
    metrics = kind.main_metrics(record.task.name, record.outcome.metrics)
    tested = kind.scored_on(record.task)

    def score(rows: Rows) -> float:
        found = kind.rescore(items, metrics, {tested: rows.tolist()})
        return score_of(found, metrics) or 0.0

    return resampled(score, items.sizes[tested])
