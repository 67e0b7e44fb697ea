"""Description of runs on labelled texts for reports and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from advreg.lab.kinds.classification.tasks import TASKS, main_metrics
from advreg.lab.kinds.description import Baseline, Description, Metrics, ScoreTable
from advreg.lab.kinds.items import Items
from advreg.records.run import RunRecord, TaskInfo

_FURTHER = {"macro_f1": "macro F1", "ece": "ECE"}
DOCSTRINGS = "docstrings"
FILES = "files"


class Classification(Description):
    """Classification, and regression where the labels are scores."""

    name = "classification"
    settings = "advreg.lab.runs.settings"
    pipeline = "text-classification"
    tasks = (DOCSTRINGS, FILES, *TASKS)
    architectures = ("ForSequenceClassification",)
    one_line = 'transformers.pipeline("text-classification", model="{model}", truncation=True)'
    usage = """\
import transformers

predict = transformers.pipeline("text-classification", model=".", truncation=True)
predict(["A text, as in the training data."])
predict([{"text": "The first text of a pair.", "text_pair": "The second."}])"""

    def recognises(self, task: TaskInfo) -> bool:
        return "labels" in task.details

    def main_metrics(self, task: str, metrics: Metrics) -> tuple[str, ...]:
        return main_metrics(task, metrics)

    def scored_on(self, task: TaskInfo) -> str:
        return "dev"

    def table(self, record: RunRecord) -> ScoreTable:
        names = main_metrics(record.task.name, record.outcome.metrics) or ("pearson",)
        score = names[0] if len(names) == 1 else f"mean of {', '.join(names)}"
        further = {_FURTHER[name]: (name,) for name in _FURTHER if name in record.outcome.metrics}
        majority = record.task.details.get("majority") if names == ("accuracy",) else None
        told = f"\nmajority: the answer is always '{majority['label']}'" if majority else ""
        return ScoreTable(
            title=f"{record.task.name}: dev {score}, mean ± sd over seeds",
            caption=f"step time: relative to Standard; forward, backward: passes per step{told}",
            columns={score.split(" of ")[0]: names, **further},  # the title names parts of a mean
            decimals=1,
            narrow=bool(further),
            baseline=majority and Baseline("majority", 100 * majority["share"]),
        )

    def rescore(
        self, items: Items, metrics: Sequence[str], rows: Mapping[str, Sequence[int]]
    ) -> dict[str, float]:
        from advreg.lab.kinds.classification.metrics import rescored

        return rescored(items, metrics, rows)
