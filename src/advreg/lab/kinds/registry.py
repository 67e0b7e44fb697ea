"""The kinds of task. A new one is a folder and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advreg.lab.kinds.classification.description import Classification
from advreg.lab.kinds.description import Description, Metrics
from advreg.lab.kinds.language.description import Language
from advreg.lab.kinds.translation.description import Translation
from advreg.records.run import TaskInfo

KINDS: dict[str, Description] = {
    kind.name: kind for kind in (Classification(), Translation(), Language())
}
"""By name. Records that no kind recognises are shown like runs of the first. Where several kinds
claim a file or metrics, the last of them has them.
"""


def kind_of(task: TaskInfo) -> Description:
    """The kind of the runs whose records have this task."""
    usual, *_ = KINDS.values()
    return next((kind for kind in KINDS.values() if kind.recognises(task)), usual)


def main_metrics(task: str, metrics: Metrics) -> tuple[str, ...]:
    """The metrics by which a run is judged, from the name of its task and the metrics it has.

    Example:
        >>> main_metrics("mrpc", {"accuracy": 0.84, "f1": 0.89})
        ('accuracy', 'f1')
        >>> main_metrics("reviews", {"loss": 1.0, "bleu": 30.5})
        ('bleu',)
        >>> main_metrics("e2e", {"perplexity": 5.7, "bleu": 30.5})
        ('perplexity',)
    """
    found = (kind.main_metrics(task, metrics) for kind in reversed(KINDS.values()))
    return next(filter(None, found), ())


@dataclass(frozen=True)
class Scale:
    """How scores are shown and ranked."""

    decimals: int = 1
    lower_is_better: bool = False


def scale_of(metrics: Sequence[str]) -> Scale:
    """The scale of the mean of metrics by which runs are judged.

    Example:
        >>> scale_of(["perplexity"]), scale_of(["accuracy", "f1"])
        (Scale(decimals=3, lower_is_better=True), Scale(decimals=1, lower_is_better=False))
    """
    lower = any(metric in kind.lower_is_better for kind in KINDS.values() for metric in metrics)
    return Scale(3, True) if lower else Scale()
