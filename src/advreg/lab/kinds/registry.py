"""The kinds of task. A new one is a folder and a line here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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


def kind_of_model(folder: Path) -> Description:
    """The kind of the model in a folder, by its class in ``config.json``."""
    path = folder / "config.json"
    try:
        names = json.loads(path.read_text(encoding="utf-8"))["architectures"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"'{folder}' must be the folder of a run or of a model, with a config.json that names "
            f"its architectures ({error})"
        ) from error
    for kind in KINDS.values():
        if any(name.endswith(kind.architectures) for name in names or ()):
            return kind
    known = ", ".join(f"…{end}" for kind in KINDS.values() for end in kind.architectures)
    raise ValueError(
        f"{path}: a model to predict with must be of a class {known}, got {names}; train it first"
    )


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
