"""Fine-tuning a language model, and scoring it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from advreg.core.progress import Progress, counting
from advreg.hf.checkpoint.ranks import first_decides
from advreg.hf.guards.randomness import kept_randomness
from advreg.hf.trainer import AdversarialTrainer
from advreg.lab.kinds.language.encoding import Encoded, Encoder, Row
from advreg.lab.kinds.language.metrics import (
    Columns,
    bleu_counts,
    bleu_signature,
    is_match,
    scores_of,
)
from advreg.lab.kinds.language.samples import DEV, Sample
from advreg.lab.kinds.language.scorer import Scorer
from advreg.lab.kinds.training import Job, Scores
from advreg.records.sealed import write_text


@dataclass(frozen=True)
class EvaluationSet:
    """Samples to score, and their rows."""

    samples: Sequence[Sample]
    encoded: Encoded


@dataclass(frozen=True, kw_only=True)
class LanguageJob(Job):
    """A run of fine-tuning a language model.

    Args:
        tokenizer: saved with the model.
        collator: makes a batch of rows.
        train: rows.
        sets: what is scored, by name; ``dev`` also after each epoch.
        scored_on: the set whose metrics have no prefix.
        generates: generate an answer to each sample's prompt and score it by BLEU?
        pattern: finds the part of an answer that must match, for exact match.
        answer_length: most tokens of an answer.
        positions: tokens that the model takes; the beginning of a prompt that leaves no room for an
            answer is left out.
    """

    tokenizer: Any
    collator: Any
    train: list[Row]
    sets: Mapping[str, EvaluationSet]
    scored_on: str = DEV
    generates: bool = False
    pattern: str | None = None
    answer_length: int = 256
    positions: int | None = None
    found: dict[str, Columns] = field(default_factory=dict)

    def trainer(self) -> LanguageTrainer:
        return LanguageTrainer(self)

    def token_texts(self, stream: str, ids: Sequence[int]) -> Sequence[str]:
        texts: list[str] = self.tokenizer.convert_ids_to_tokens(ids)
        return texts

    def scorer(self, model: Any) -> Scorer:
        return Scorer(model, self.tokenizer, self.collator, self.precision == "bf16")

    def losses(self, model: Any, name: str) -> Columns:
        """The loss of each sample of a set."""
        each = self.sets[name]
        return self.scorer(model).losses(each.encoded, len(each.samples))

    # ---- the result

    def score(self, trainer: Any, progress: Progress | None = None) -> Scores:
        """Save the model, score every set, and write the generated answers."""
        if trainer.args.should_save:  # a kill while saving may have left a part of a model
            shutil.rmtree(self.folder / "model", ignore_errors=True)
        trainer.model.config.use_cache = True
        trainer.save_model(str(self.folder / "model"))
        if trainer.args.should_save:  # adapters come without it
            trainer.model.config.save_pretrained(self.folder / "model")
        return first_decides(lambda: self._scores(trainer.model, progress))

    def _scores(self, model: Any, progress: Progress | None) -> Scores:
        items = {
            name: {**self.losses(model, name), **self._answered(model, name, progress)}
            for name in self.sets
        }
        metrics = {
            f"{'' if name == self.scored_on else f'{name}_'}{score}": value
            for name, columns in items.items()
            for score, value in scores_of(columns).items()
        }
        references = [sample.answers for sample in self.sets[self.scored_on].samples]
        details = {"signature": bleu_signature(references)} if self.generates else {}
        return Scores(metrics=metrics, main=self.scored_on, items=items, details=details)

    def _answered(self, model: Any, name: str, progress: Progress | None) -> Columns:
        """What the generated answers of a set are worth, each; they are written to a file."""
        if not self.generates:
            return {}
        samples, encoder = self.sets[name].samples, Encoder(self.tokenizer)
        room = None if self.positions is None else max(1, self.positions - self.answer_length)
        prompts = [encoder.prompt_ids(sample)[-(room or 0) :] for sample in samples]
        advance = counting(progress, "answered", len(samples))
        answers = self.scorer(model).generate(prompts, self.answer_length, advance)
        references = [sample.answers for sample in samples]
        found: Columns = {"bleu": bleu_counts(answers, references)}
        if self.pattern is not None:
            pairs = zip(answers, references, strict=True)
            found["right"] = [int(is_match(self.pattern, *pair)) for pair in pairs]
        lines = [
            {"prompt": sample.prompt[-1][1] if sample.prompt else "", "answer": answer}
            for sample, answer in zip(samples, answers, strict=True)
        ]
        written = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
        write_text(self.folder / f"{name}.answers.jsonl", written)
        return found


class LanguageTrainer(AdversarialTrainer):
    """Trains on batches of rows of similar length, in an order that depends on seed and epoch
    alone, and evaluates by the loss of a token.

    The stock sampler draws from the global generator, so that a method that draws random numbers
    would change the order.
    """

    def __init__(self, job: LanguageJob) -> None:
        self.job = job
        super().__init__(
            **job.usual_arguments(),
            eval_dataset=job.sets[DEV].encoded.rows,
            data_collator=job.collator,
            processing_class=job.tokenizer,
        )
        self.advreg.samples.batches = self.advreg.samples.shard_batches()

    def train(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_fsdp_enabled:
            raise ValueError(
                "fsdp must be off for language models: one process scores them, and needs all "
                "weights; train under DDP"
            )
        return super().train(*args, **kwargs)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = "eval",
        **_: Any,
    ) -> dict[str, float]:
        """Loss and perplexity of the dev set; the first process computes them."""
        with kept_randomness():
            found = first_decides(lambda: scores_of(self.job.losses(self.model, DEV)))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics
