"""One run of fine-tuning a language model: prompts and answers, resumable, with the scores of
PLAN-language.md.

The model is the folder in ADVREG_SMOLLM2: config, tokenizer with chat template, and weights (see
pack.py).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from contests import CONTESTS, STANDARD
from sacrebleu.metrics import BLEU
from scoring import above_chance
from stages import RESULT, Planned
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq
from translation_runs import bleu_counts

from advreg import AdversarialTrainer
from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.hf.survey import to_device
from advreg.hf.view.head import IGNORED
from advreg.lab.kinds.arguments import training_arguments
from advreg.lab.kinds.attention import for_any_shape
from advreg.lab.kinds.calibration import Tally, fit_temperature
from advreg.lab.kinds.final_model import SavedModel
from advreg.lab.kinds.training import (
    Result,
    Scores,
    checkpoint_at,
    device_name,
    quiet_libraries,
    report_steps,
    step_to_resume,
    usual_fields,
)
from advreg.lab.search.pool import JobReporter
from advreg.methods.base import create
from advreg.records import run as records

TRAIN, VALID, TEST, UNRELATED = "train", "valid", "test", "unrelated"
E2E, GSM8K = "e2e_low", "gsm8k"
MODEL_VARIABLE = "ADVREG_SMOLLM2"
MODEL_NAME = "SmolLM2-135M-Instruct from 4-bit weights"
NEWS = Path("mt/newstest_de-en/newstest2014.en.xz")
WINDOW = 512  # tokens of unrelated text that are read together
_TOKENS_AT_ONCE = 4096  # of a batch that is scored, with padding
_FIT_ON = 8192  # answer tokens of the validation set, for the temperature
_DECODED_AT_ONCE = 256
_LONGEST = {
    E2E: 96,
    GSM8K: 256,
}  # tokens of an answer that is decoded; the rest of a longer one is lost
_MULTIPLE = 8  # of batch widths
_WARMUP = 0.05  # of the updates

Row = dict[str, Any]


# ---- the data


@dataclass(frozen=True)
class Question:
    """A prompt to be answered, and the answers of people."""

    prompt: list[int]
    references: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """What a task's runs share.

    Args:
        rows: samples of each set, prompts with ignored labels; a row for each reference. Unrelated
            text has no prompt.
        questions: the prompts of the sets that answers are decoded for.
        cut: training samples that were longer than allowed.
        fingerprint: of the files.
    """

    tokenizer: Any
    rows: Mapping[str, list[Row]]
    questions: Mapping[str, list[Question]]
    cut: int
    fingerprint: str


def model_folder() -> Path:
    folder = Path(os.environ.get(MODEL_VARIABLE, ""))
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{MODEL_VARIABLE} must be a folder with config, tokenizer and weights of "
            "SmolLM2-135M-Instruct, got "
            f"'{os.environ.get(MODEL_VARIABLE, '')}'; unpack it as experiments/consistency/pack.py "
            "says"
        )
    return folder


@lru_cache(maxsize=2)
def prepared(task: str, data: Path, model: Path, max_length: int) -> Prepared:
    """The sets of a task as token ids."""
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="right")
    paths = {name: data / "sft" / task / f"{name}.jsonl.gz" for name in (TRAIN, VALID, TEST)}
    samples = {name: _samples(path) for name, path in paths.items()}
    rows = {
        name: [row for sample in found for row in _rows(tokenizer, sample)]
        for name, found in samples.items()
    }
    questions = {
        name: [
            Question(prompt_ids(tokenizer, each["prompt"]), _references(each))
            for each in samples[name]
        ]
        for name in (VALID, TEST)
    }
    cut = sum(len(row["input_ids"]) > max_length for row in rows[TRAIN])
    rows[TRAIN] = [{name: ids[:max_length] for name, ids in row.items()} for row in rows[TRAIN]]
    rows[UNRELATED] = windows(tokenizer, lzma.decompress((data / NEWS).read_bytes()).decode())
    content = b"".join(path.read_bytes() for path in (*paths.values(), data / NEWS))
    return Prepared(tokenizer, rows, questions, cut, hashlib.sha256(content).hexdigest()[:16])


def _samples(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _references(sample: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sample.get("references", [sample["completion"]]))


def prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """The prompt as a user's turn of the chat template, up to where the answer begins."""
    turns = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def _rows(tokenizer: Any, sample: Mapping[str, Any]) -> Iterator[Row]:
    """A row for each reference: labels are the answer and the end of the turn."""
    prompt = prompt_ids(tokenizer, sample["prompt"])
    for reference in _references(sample):
        answer = [
            *tokenizer(reference, add_special_tokens=False)["input_ids"],
            tokenizer.eos_token_id,
        ]
        yield {"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer}


def windows(tokenizer: Any, text: str) -> list[Row]:
    """Plain text in rows of equal length, the last one shorter; every token but the first of a row
    is predicted.
    """
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    parts = [ids[first : first + WINDOW] for first in range(0, len(ids), WINDOW)]
    return [{"input_ids": part, "labels": part} for part in parts if len(part) > 1]


def fewer(data: Prepared, values: Mapping[str, Any]) -> Prepared:
    """A part of the samples and questions, for a quick trial."""
    most, looked_at = values.get("samples"), values.get("evaluate_on")
    rows = {
        name: found[: most if name == TRAIN else looked_at] for name, found in data.rows.items()
    }
    return replace(
        data,
        rows=rows,
        questions={name: found[:looked_at] for name, found in data.questions.items()},
    )


# ---- a run


class LengthTrainer(AdversarialTrainer):
    """Batches of samples of like length, in an order that depends on seed and epoch alone.

    The stock sampler draws from the global generator, so a method that draws random numbers would
    change the order.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.advreg.samples.batches = self.advreg.samples.shard_batches()


@dataclass(frozen=True)
class LanguageRun:
    """One run of a contest of language models, as the work of a runner's job; gives its record.

    Args:
        planned: what to run.
        data: the folder of the data.
        changes: of the contest's own settings, for a quick look at whether everything works.
        scratch: the checkpoint of a run that is stopped goes here; the same run resumes from it.
        solves: let runs for the results solve the test's problems; see :func:`scoring.can_solve`.
    """

    planned: Planned
    data: Path
    changes: tuple[tuple[str, Any], ...]
    scratch: Path
    solves: bool = False

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
        data = fewer(
            prepared(self.planned.task, self.data, model_folder(), values["max_length"]), values
        )
        trainer = make_trainer(self.planned, values, data, folder)
        record = self._begun(trainer, values, data)
        before = unrelated_loss(trainer.model, data)
        report_steps(trainer, reporter.step)
        resumed = step_to_resume(folder)
        try:
            trainer.train(resume_from_checkpoint=checkpoint_at(folder, resumed))
        except NonFiniteLossError as error:
            return record.fail(error)
        found = Judge(trainer.model, data, self.planned, self.solves).found(before)
        shutil.rmtree(folder, ignore_errors=True)
        return finished(
            record,
            Result.of(trainer, [], Scores(metrics=found.metrics), resumed, SavedModel()),
            found,
        )

    def _begun(
        self, trainer: LengthTrainer, values: Mapping[str, Any], data: Prepared
    ) -> records.RunRecord:
        planned, args = self.planned, trainer.args
        contest = {
            name: getattr(planned, name) for name in ("contest", "stage", "contestant", "candidate")
        }
        model: Any = trainer.model
        return records.RunRecord.begin(
            name=planned.key,
            method=records.MethodInfo(
                name=trainer.method.info.name, settings=trainer.method.options()
            ),
            task=records.TaskInfo(
                name=planned.task,
                fingerprint=data.fingerprint,
                sizes={name: len(rows) for name, rows in data.rows.items()},
                details={**contest, "point": dict(values), "cut_samples": data.cut},
            ),
            model=records.ModelInfo(name=MODEL_NAME, parameters=model.num_parameters()),
            training=records.TrainingInfo(
                epochs=args.num_train_epochs,
                batch_size=args.per_device_train_batch_size,
                learning_rate=args.learning_rate,
                precision="bf16" if args.bf16 else "fp32",
                seed=planned.seed,
                more={
                    "lr_scheduler_type": str(args.lr_scheduler_type.value),
                    "warmup_steps": args.warmup_steps,
                    "weight_decay": args.weight_decay,
                    "neftune_noise_alpha": args.neftune_noise_alpha,
                    "attention_dropout": model.config.attention_dropout,
                },
            ),
            device=device_name(),
        )


def load_model(dropout: float = 0.0) -> Any:
    """The model in float32; Llama has a dropout of attention probabilities only."""
    model = AutoModelForCausalLM.from_pretrained(
        model_folder(), dtype=torch.float32, attention_dropout=dropout
    )
    model.config.use_cache = False
    return model


def make_trainer(
    planned: Planned, values: Mapping[str, Any], data: Prepared, folder: Path
) -> LengthTrainer:
    """The trainer of a run, which has trained nothing yet."""
    batch = values["batch_size"]
    fields = {
        **usual_fields(planned.seed),
        "num_train_epochs": values["epochs"],
        "per_device_train_batch_size": batch,
        "learning_rate": values["learning_rate"],
        "weight_decay": values["weight_decay"],
        "lr_scheduler_type": "linear",
        "warmup_steps": _WARMUP,
        "train_sampling_strategy": "group_by_length",
        "neftune_noise_alpha": values.get("neftune"),
        "tf32": torch.cuda.is_available(),
        "eval_strategy": "no",
        "save_strategy": "steps",  # at the end, and when the run is stopped
        "save_steps": math.ceil(len(data.rows[TRAIN]) / batch) * values["epochs"],
        "save_total_limit": 1,
        "logging_strategy": "no",
    }
    return LengthTrainer(
        model=load_model(values["dropout"]),
        args=training_arguments(folder, "fp32" if device_name() == "cpu" else "bf16", fields),
        train_dataset=data.rows[TRAIN],
        data_collator=collator(data.tokenizer),
        method=create(planned.point.method, **planned.point.options),
    )


def collator(tokenizer: Any) -> DataCollatorForSeq2Seq:
    """Pads rows and labels on the right."""
    return DataCollatorForSeq2Seq(
        tokenizer, pad_to_multiple_of=_MULTIPLE, label_pad_token_id=IGNORED
    )


# ---- scores


@dataclass
class Found:
    """Metrics of a run, and what a bootstrap over test samples needs."""

    metrics: dict[str, float] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)


def finished(record: records.RunRecord, result: Result, found: Found) -> records.RunRecord:
    record = replace(
        record, task=replace(record.task, details={**record.task.details, **found.details})
    )
    return record.finish(
        metrics=found.metrics,
        timing={"seconds_per_step": result.seconds_per_step, "steps": float(result.steps)},
        epoch_seconds=result.epoch_seconds,
        passes=result.passes,
        cache_bytes=result.memory_bytes,
    )


def precise(model: Any) -> AbstractContextManager[Any]:
    """Passes as in training: bfloat16 on a GPU."""
    return torch.autocast("cuda", torch.bfloat16) if model.device.type == "cuda" else nullcontext()


@torch.inference_mode()
def scored_rows(
    model: Any, tokenizer: Any, rows: Sequence[Row]
) -> Iterator[tuple[list[int], Tensor, Tensor, Tensor]]:
    """Teacher-forced logits of the labelled tokens, some rows at a time: indices, logits, labels,
    place of the row.
    """
    model.eval()
    collate = collator(tokenizer)
    for indices in _batches([len(row["input_ids"]) for row in rows]):
        batch = to_device(collate([dict(rows[index]) for index in indices]), model.device)
        labels = batch.pop("labels")[:, 1:]
        with precise(model):
            logits = model(**batch).logits[:, :-1]
        real = labels != IGNORED
        yield indices, logits[real], labels[real], real.nonzero()[:, 0]


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows of like length, the longest first, at most ``_TOKENS_AT_ONCE`` tokens with padding."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    while order:
        count = max(1, _TOKENS_AT_ONCE // (lengths[order[0]] + _MULTIPLE))
        yield order[:count]
        order = order[count:]


def unrelated_loss(model: Any, data: Prepared) -> float:
    """Mean loss of a token of unrelated text."""
    tally = Tally(1.0)
    for _, logits, labels, _ in scored_rows(model, data.tokenizer, data.rows[UNRELATED]):
        tally.add(logits, labels)
    return tally.scores()["nll"]


@dataclass(frozen=True)
class Judge:
    """Scores a model that is trained.

    Args:
        model: the trained one.
        data: with the sets to score.
        planned: the run.
        solves: whether runs for the results solve problems.
    """

    model: Any
    data: Prepared
    planned: Planned
    solves: bool

    def found(self, unrelated_before: float) -> Found:
        """All scores; the temperature is fitted on the validation set."""
        temperature = self._temperature()
        found = Found({"temperature": temperature})
        for name, prefix in ((VALID, f"{VALID}_"), (TEST, "")):
            metrics, losses = self._answers(name, temperature)
            found.metrics |= {f"{prefix}{score}": value for score, value in metrics.items()}
        found.details |= losses  # of the test
        after = unrelated_loss(self.model, self.data)
        found.metrics |= {"unrelated_nll_before": unrelated_before, "unrelated_nll": after}
        found.metrics["forgetting"] = after - unrelated_before
        if self.planned.task == E2E:
            self._describe(found)
        else:
            self._solve(found)
        return found

    def _temperature(self) -> float:
        """Fitted on every n-th answer token, so that the logits fit in memory."""
        rows = self.data.rows[VALID]
        step = math.ceil(sum(label != IGNORED for row in rows for label in row["labels"]) / _FIT_ON)
        kept, seen = [], 0
        for _, logits, labels, _ in scored_rows(self.model, self.data.tokenizer, rows):
            kept.append((logits[-seen % step :: step], labels[-seen % step :: step]))
            seen += len(labels)
        return fit_temperature(
            torch.cat([logits for logits, _ in kept]), torch.cat([labels for _, labels in kept])
        )

    def _answers(
        self, name: str, temperature: float
    ) -> tuple[dict[str, float], dict[str, list[int]]]:
        """Likelihood and calibration of a set's answer tokens; the loss of each row in thousandths,
        and its tokens.
        """
        tally, rows = Tally(temperature), self.data.rows[name]
        losses, tokens = [0] * len(rows), [0] * len(rows)
        for indices, logits, labels, places in scored_rows(self.model, self.data.tokenizer, rows):
            each = tally.add(logits, labels)
            sums = torch.zeros(len(indices), dtype=torch.float64, device=each.device).index_add_(
                0, places, each
            )
            counts = places.bincount(minlength=len(indices))
            for index, total, count in zip(indices, sums.tolist(), counts.tolist(), strict=True):
                losses[index], tokens[index] = round(1000 * total), count
        return tally.scores(), {"answer_losses": losses, "answer_tokens": tokens}

    # ---- answers that the model writes

    def _describe(self, found: Found) -> None:
        """BLEU with all references, of greedy answers."""
        found.details["bleu_statistics"] = {}
        for name, prefix in ((VALID, f"{VALID}_"), (TEST, "")):
            questions = self.data.questions[name]
            lines = self._written(questions)
            references = list(zip_longest(*(question.references for question in questions)))
            bleu = BLEU()
            found.metrics[f"{prefix}bleu"] = float(
                bleu.corpus_score(lines, [list(each) for each in references]).score
            )
            found.details["bleu_statistics"][name] = bleu_counts(lines, *references)
            found.details["signature"] = str(bleu.get_signature())

    def _solve(self, found: Found) -> None:
        """Exact match: of Standard's candidates on the validation set, of results on the test if it
        says anything.
        """
        if self.planned.stage != RESULT and self.planned.contestant == STANDARD:
            right, chance = self._solved(VALID)
            count = len(right)
            found.metrics |= {
                "valid_exact_match": 100 * sum(right) / count,
                "valid_chance": 100 * chance,
            }
            found.details["above_chance"] = above_chance(sum(right), count, chance)
        if self.planned.stage == RESULT and self.solves:
            right, chance = self._solved(TEST)
            found.metrics |= {"exact_match": 100 * sum(right) / len(right), "chance": 100 * chance}
            found.details["solved"] = "".join(str(int(each)) for each in right)

    def _solved(self, name: str) -> tuple[list[bool], float]:
        """Which problems have the right number, and how often another problem's number would be
        right.
        """
        questions = self.data.questions[name]
        given = [number_in(text) for text in self._written(questions)]
        wanted = [number_in(question.references[0]) for question in questions]
        right = [a is not None and a == b for a, b in zip(given, wanted, strict=True)]
        return right, chance_of(given, wanted)

    @torch.inference_mode()
    def _written(self, questions: Sequence[Question]) -> list[str]:
        """Greedy answers."""
        model, tokenizer = self.model.eval(), self.data.tokenizer
        order = sorted(range(len(questions)), key=lambda index: len(questions[index].prompt))
        texts = [""] * len(questions)
        for first in range(0, len(order), _DECODED_AT_ONCE):
            part = order[first : first + _DECODED_AT_ONCE]
            prompts = [{"input_ids": questions[index].prompt} for index in part]
            batch = tokenizer.pad(prompts, padding_side="left", return_tensors="pt").to(
                model.device
            )
            with precise(model):
                ids = model.generate(
                    **batch, do_sample=False, use_cache=True, max_new_tokens=_LONGEST[self.planned.task],
                    pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
                )  # fmt: skip
            answers = tokenizer.batch_decode(
                ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
            )
            for index, answer in zip(part, answers, strict=True):
                texts[index] = answer.strip()
        return texts


_NUMBER = re.compile(r"####\s*\$?\s*(-?[\d,]*\.?\d+)")


def number_in(answer: str) -> float | None:
    """The number behind ``####``, if there is one."""
    found = _NUMBER.search(answer)
    return None if found is None else float(found[1].replace(",", ""))


def chance_of(given: Sequence[float | None], wanted: Sequence[float | None]) -> float:
    """How often an answer is the right one of another problem: the mean over all pairs of different
    problems.
    """
    pairs = sum(
        a is not None and a == b
        for i, a in enumerate(given)
        for j, b in enumerate(wanted)
        if i != j
    )
    return pairs / max(1, len(given) * (len(wanted) - 1))
