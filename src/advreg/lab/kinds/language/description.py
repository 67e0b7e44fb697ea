"""What reports and tables say of runs of language models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from advreg.lab.kinds.description import Description, Metrics, ScoreTable
from advreg.lab.kinds.items import Items
from advreg.records.run import RunRecord, TaskInfo

LANGUAGE = "language"
KNOWN = ("gsm8k", "e2e_low")
"""Data sets that ``--task`` knows; :mod:`advreg.lab.kinds.language.samples` loads them."""

_HEADINGS = {"perplexity": "perplexity", "bleu": "BLEU", "exact_match": "exact"}


class Language(Description):
    """Fine-tuning of causal language models."""

    name = "language"
    settings = "advreg.lab.kinds.language.settings"
    pipeline = "text-generation"
    tasks = (LANGUAGE, *KNOWN)
    architectures = ("ForCausalLM", "LMHeadModel")
    lower_is_better = ("perplexity", "loss")
    usage = """\
from transformers import pipeline

write = pipeline("text-generation", model=".")
write([{"role": "user", "content": "A prompt, as in the training data."}], max_new_tokens=256)"""

    def recognises(self, task: TaskInfo) -> bool:
        return "sample_form" in task.details

    def main_metrics(self, task: str, metrics: Metrics) -> tuple[str, ...]:
        return ("perplexity",) if "perplexity" in metrics else ()

    def scored_on(self, task: TaskInfo) -> str:
        return str(task.details["scored"])

    def table(self, record: RunRecord) -> ScoreTable:
        details, metrics = record.task.details, record.outcome.metrics
        signature = details.get("signature")
        return ScoreTable(
            title=f"{record.task.name}: {details['scored']} scores, mean ± sd over seeds",
            caption="perplexity: lower is better; time: of a step, relative to Standard"
            + (f"\n{signature}" if signature else ""),
            columns={title: (name,) for name, title in _HEADINGS.items() if name in metrics},
            decimals=3,
            narrow=True,
        )

    def rescore(
        self, items: Items, metrics: Sequence[str], rows: Mapping[str, Sequence[int]]
    ) -> dict[str, float]:
        from advreg.lab.kinds.language.metrics import rescored

        return rescored(items, metrics, rows)
