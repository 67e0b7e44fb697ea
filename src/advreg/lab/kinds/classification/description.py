"""Description of runs on labelled texts for reports and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from advreg.lab.kinds.classification.tasks import TASKS, main_metrics
from advreg.lab.kinds.description import Description, Metrics, ScoreTable
from advreg.lab.kinds.items import Items
from advreg.records.run import RunRecord, TaskInfo

DOCSTRINGS = "docstrings"
FILES = "files"


class Classification(Description):
    """Classification, and regression where the labels are scores."""

    name = "classification"
    settings = "advreg.lab.runs.settings"
    pipeline = "text-classification"
    tasks = (DOCSTRINGS, FILES, *TASKS)
    usage = """\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

model = AutoModelForSequenceClassification.from_pretrained(".")
tokenizer = AutoTokenizer.from_pretrained(".")"""

    def recognises(self, task: TaskInfo) -> bool:
        return "labels" in task.details

    def main_metrics(self, task: str, metrics: Metrics) -> tuple[str, ...]:
        return main_metrics(task, metrics)

    def scored_on(self, task: TaskInfo) -> str:
        return "dev"

    def table(self, record: RunRecord) -> ScoreTable:
        names = main_metrics(record.task.name, record.outcome.metrics) or ("pearson",)
        score = names[0] if len(names) == 1 else f"mean of {', '.join(names)}"
        return ScoreTable(
            title=f"{record.task.name}: dev {score}, mean ± sd over seeds",
            caption="step time: relative to Standard; forward, backward: passes per step",
            columns={score.split(" of ")[0]: names},  # the title names the parts of a mean
            decimals=3,
        )

    def rescore(
        self, items: Items, metrics: Sequence[str], rows: Mapping[str, Sequence[int]]
    ) -> dict[str, float]:
        from advreg.lab.kinds.classification.metrics import rescored

        return rescored(items, metrics, rows)
