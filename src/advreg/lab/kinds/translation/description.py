"""Description of translation runs for reports and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from advreg.lab.kinds.description import Description, Metrics, ScoreTable
from advreg.lab.kinds.items import Items
from advreg.lab.kinds.translation.corpora import CORPORA
from advreg.lab.kinds.translation.parallel import TEST, TRANSLATION
from advreg.records.run import RunRecord, TaskInfo

_HEADINGS = {"tokenised_bleu": "tokenised BLEU", "bleu": "sacreBLEU"}


class Translation(Description):
    """Machine translation."""

    name = "translation"
    settings = "advreg.lab.runs.translation_settings"
    pipeline = "translation"
    tasks = (TRANSLATION, *CORPORA)
    streams = 2
    architectures = ("ForConditionalGeneration", "MTModel")
    usage = """\
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained(".")
tokenizer = AutoTokenizer.from_pretrained(".")
inputs = tokenizer(["A sentence, as in the training data."], padding=True, return_tensors="pt")
translations = tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)"""

    def recognises(self, task: TaskInfo) -> bool:
        return "languages" in task.details

    def main_metrics(self, task: str, metrics: Metrics) -> tuple[str, ...]:
        return ("bleu",) if "bleu" in metrics else ()

    def scored_on(self, task: TaskInfo) -> str:
        return str(task.details.get("scored", TEST))

    def table(self, record: RunRecord) -> ScoreTable:
        details = record.task.details
        score = "tokenised_bleu" if details["tokenised"] else "bleu"
        subset = ", a subset" if details.get("subset") else ""
        return ScoreTable(
            title=f"{record.task.name}{subset}: {details['scored']} scores, mean ± sd over seeds",
            caption=f"{details['signatures'][score]}\ntime: of a step, relative to Standard",
            columns={_HEADINGS[name]: (name,) for name in dict.fromkeys((score, "bleu"))},
            decimals=2,
            narrow=True,
        )

    def rescore(
        self, items: Items, metrics: Sequence[str], rows: Mapping[str, Sequence[int]]
    ) -> dict[str, float]:
        from advreg.lab.kinds.translation.bleu import rescored

        return rescored(items, metrics, rows)
