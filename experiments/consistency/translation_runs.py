"""One run of translation: a small translator from scratch, resumable, with BLEU and calibration of
what came out.
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from contests import CONTESTS
from sacrebleu.metrics import BLEU
from stages import Planned
from torch import Tensor

from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.hf.survey import to_device
from advreg.hf.view.head import IGNORED
from advreg.lab.kinds.architectures import build_translator
from advreg.lab.kinds.attention import for_any_shape
from advreg.lab.kinds.calibration import calibration, fit_temperature
from advreg.lab.kinds.final_model import SavedModel
from advreg.lab.kinds.training import (
    Notice,
    Result,
    Scores,
    checkpoint_at,
    device_name,
    quiet_libraries,
    report_steps,
    step_to_resume,
)
from advreg.lab.kinds.translation.batching import Pairs, TokenBatches
from advreg.lab.kinds.translation.bleu import score
from advreg.lab.kinds.translation.corpora import load_corpus
from advreg.lab.kinds.translation.job import TranslationJob, TranslationTrainer
from advreg.lab.kinds.translation.parallel import TRAIN, VALID, Bitext, ParallelData
from advreg.lab.kinds.translation.prepare import Prepared, encode_pairs, prepare_data
from advreg.lab.kinds.translation.subwords import SPECIAL, Subwords
from advreg.lab.kinds.translation.translator import Translator
from advreg.lab.kinds.translation.workload import Translations
from advreg.lab.runs.run import Plan, begin_record
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.lab.search.pool import JobReporter
from advreg.records import run as records

SIZES = {
    **{f"{side}_{name}": value for side in ("encoder", "decoder")
       for name, value in {"layers": 4, "attention_heads": 4, "ffn_dim": 1024}.items()},
    "d_model": 256, "init_std": (256 * 4) ** -0.5,
}  # fmt: skip
"""4 + 4 layers of width 256, as in the pilots."""
_POSITIONS = 1024
_VOCABULARY = 10_000
_SAVES = 4  # checkpoints of a run
_TEST_SETS = {"test": "2016", "test_2017_flickr": "2017"}


@dataclass(frozen=True)
class TranslationRun:
    """One run of a contest of translation, as the work of a runner's job; gives its record.

    Args:
        planned: what to run.
        data: the folder of the data.
        changes: of the contest's own settings, for a quick look at whether everything works.
        scratch: checkpoints go here; a stopped run resumes from its last one.
    """

    planned: Planned
    data: Path
    changes: tuple[tuple[str, Any], ...]
    scratch: Path

    def __call__(self, reporter: JobReporter) -> records.RunRecord:
        quiet_libraries()
        with for_any_shape():
            return self._run(reporter)

    def _run(self, reporter: JobReporter) -> records.RunRecord:
        folder = self.scratch / hashlib.sha256(self.planned.key.encode()).hexdigest()[:16]
        values = {
            **CONTESTS[self.planned.contest].base,
            **self.planned.point.settings,
            **dict(self.changes),
        }
        settings = self.settings(values)
        prepared = _prepared(self.planned.task, self.data, values.get("vocabulary", _VOCABULARY))
        corpus = _Corpus(ready=_fewer(prepared, values))
        plan = Plan(settings, corpus, self.planned.point.method, self.planned.seed, folder)
        job = _job(plan, corpus, values["dropout"])
        record = self._begun(plan, job, values)
        trainer = TranslationTrainer(job)
        report_steps(trainer, reporter.step)
        resumed = step_to_resume(folder)
        try:
            trainer.train(resume_from_checkpoint=checkpoint_at(folder, resumed))
        except NonFiniteLossError as error:
            return record.fail(error)
        result = Result.of(trainer, [], Scores(metrics={}), resumed, SavedModel())
        finished = judged(record, job, corpus.data, result)
        shutil.rmtree(folder, ignore_errors=True)
        return finished

    def settings(self, values: Mapping[str, Any]) -> TranslationSettings:
        """What the recipe is asked to do; nothing is validated before the end, and the last weights
        are judged.
        """
        point = self.planned.point
        return TranslationSettings(
            task=self.planned.task,
            data=str(self.data),
            model="transformer-small",  # its sizes are ours
            methods=(point.method,),
            options={point.method: point.options},
            epochs=values["epochs"],
            max_tokens=values.get("max_tokens", 8192),
            update_tokens=1,
            learning_rate=values["learning_rate"],
            warmup_steps=values.get("warmup_steps", 500),
            label_smoothing=values["label_smoothing"],
            weight_decay=values.get("weight_decay", 1e-4),
            clip_norm=1.0,
            precision="fp32" if device_name() == "cpu" else "bf16",
            validate_sentences=0,
            training={"lr_scheduler_type": "linear", "dataloader_num_workers": 0},
        )

    def _begun(
        self, plan: Plan, job: TranslationJob, values: Mapping[str, Any]
    ) -> records.RunRecord:
        record = replace(begin_record(plan, job), name=self.planned.key)
        contest = {
            name: getattr(self.planned, name)
            for name in ("contest", "stage", "contestant", "candidate")
        }
        details = {**record.task.details, **contest, "point": dict(values)}
        model = replace(record.model, name="marian 4+4 layers of width 256")
        return replace(record, task=replace(record.task, details=details), model=model)


@lru_cache(maxsize=2)
def _prepared(task: str, data: Path, vocabulary: int) -> Prepared:
    settings = TranslationSettings(task=task, data=str(data), vocabulary=vocabulary)
    return prepare_data(settings, load_corpus(task, data), None, lambda _: None)


def _fewer(prepared: Prepared, values: Mapping[str, Any]) -> Prepared:
    """The corpus, or a few of its pairs for a quick trial."""
    most = values.get("pairs")
    if most is None:
        return prepared
    few = {
        name: text.take(range(most if name == TRAIN else values["evaluate_on"]))
        for name, text in prepared.data.splits.items()
    }
    train = Pairs(*(rows[:most] for rows in _rows(prepared.train)))
    return dataclasses.replace(prepared, data=replace(prepared.data, splits=few), train=train)


def _rows(pairs: Pairs) -> tuple[list[Any], list[Any]]:
    found = [pairs[index] for index in range(len(pairs))]
    return [each["input_ids"] for each in found], [each["labels"] for each in found]


def vocabulary_and_pairs(task: str, data: Path) -> tuple[Subwords, Pairs]:
    """The subwords of a corpus and its training pairs, as the runs have them."""
    prepared = _prepared(task, data, _VOCABULARY)
    return prepared.subwords, prepared.train


def small_model(subwords: Subwords, dropout: float, seed: int) -> Any:
    """A translator of our sizes with random weights."""
    return build_translator(
        "transformer-small", len(subwords.source), None, dropout, _POSITIONS, seed, SPECIAL, SIZES
    )


class _Corpus(Translations):
    """Text with the subwords of the contest."""

    def __init__(self, ready: Prepared) -> None:
        super().__init__(ready.data)
        vars(self)["ready"] = ready

    def prepared(self, settings: TranslationSettings, notice: Notice) -> Prepared:
        found: Prepared = vars(self)["ready"]
        return found


def _job(plan: Plan, corpus: _Corpus, dropout: float) -> TranslationJob:
    """The recipe's job with a model of our sizes."""
    job = corpus.build(plan, lambda _: None)
    job = replace(job, model=small_model(job.subwords, dropout, plan.seed))
    updates = len(job.batches()) * plan.settings.epochs
    own = {"eval_strategy": "no", "save_steps": max(1, updates // _SAVES), "save_total_limit": 1}
    return replace(job, fields={**job.fields, **own})


# ---- scores


def judged(
    record: records.RunRecord, job: TranslationJob, data: ParallelData, result: Result
) -> records.RunRecord:
    """The record with BLEU and calibration of every set; the temperature is fitted on the
    validation set.
    """
    metrics: dict[str, float] = {}
    details = {**record.task.details, "bleu_statistics": {}}
    sets = {VALID: data.splits[VALID], **data.tests()}
    translator = Translator(job.model, job.subwords, job.search)
    fitted = None
    for name, text in sets.items():
        logits, labels = token_logits(job, text)
        fitted = fit_temperature(logits, labels) if fitted is None else fitted
        scores, statistics, signature = translated(translator, text, job.precision)
        found = {**scores, **calibration(logits, labels, fitted)}
        metrics |= {_named(score, name): value for score, value in found.items()}
        details["bleu_statistics"][name] = statistics
        details["signature"] = signature
    metrics["temperature"] = fitted if fitted is not None else 1.0
    record = replace(record, task=replace(record.task, details=details))
    return record.finish(
        metrics=metrics,
        timing={"seconds_per_step": result.seconds_per_step, "steps": float(result.steps)},
        epoch_seconds=result.epoch_seconds,
        passes=result.passes,
        cache_bytes=result.memory_bytes,
    )


def _named(score: str, name: str) -> str:
    return f"{VALID}_{score}" if name == VALID else f"{score}_{_TEST_SETS[name]}"


@torch.inference_mode()
def token_logits(job: TranslationJob, text: Bitext) -> tuple[Tensor, Tensor]:
    """Teacher-forced logits of every target token, and the tokens."""
    pairs, model, collator = (
        encode_pairs(text, job.subwords),
        job.model.eval(),
        job.collator(),
    )
    found: list[tuple[Tensor, Tensor]] = []
    for indices in TokenBatches(
        pairs.lengths, max(job.max_tokens, int(pairs.lengths.max()) + collator.multiple)
    ):
        batch = to_device(collator([pairs[index] for index in indices]), model.device)
        labels = batch.pop("labels")
        real = labels != IGNORED
        found.append((model(**batch, use_cache=False).logits[real].float(), labels[real]))
    return torch.cat([logits for logits, _ in found]), torch.cat([labels for _, labels in found])


def translated(
    translator: Translator, text: Bitext, precision: str
) -> tuple[dict[str, float], str, str]:
    """BLEU and chrF of a set, the counts of each sentence for a bootstrap, and sacreBLEU's
    signature.
    """
    lines = translator.translate(text.source, precision=precision)
    scores = score(lines, text.target)
    return (
        {"bleu": scores.bleu, "chrf": scores.chrf},
        bleu_counts(lines, text.target),
        scores.signatures["bleu"],
    )


def bleu_counts(lines: Sequence[str], *references: Sequence[str | None]) -> str:
    """Lengths and matches of each sentence, whose sums give BLEU: numbers with commas, sentences
    with semicolons.

    Args:
        lines: to be scored.
        references: the first of each line, then the second, and so on; none where a line has fewer.
    """
    rows = BLEU()._extract_corpus_statistics(list(lines), [list(each) for each in references])
    return ";".join(",".join(map(str, row)) for row in rows)
