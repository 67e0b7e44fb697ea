"""Training a translation model, and scoring it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import TrainingArguments

from advreg.core.progress import Progress
from advreg.core.shard import Shard
from advreg.hf.checkpoint.ranks import first_decides, process_count
from advreg.hf.guards.randomness import kept_randomness
from advreg.hf.survey import survey
from advreg.hf.trainer import AdversarialTrainer
from advreg.hf.view.view import HFModelView
from advreg.lab.kinds.averaging import Snapshots, set_weights
from advreg.lab.kinds.models import load_any
from advreg.lab.kinds.training import Job, Scores
from advreg.lab.kinds.translation.batching import (
    PairCollator,
    Pairs,
    TokenBatches,
    TokenBudgetMixin,
)
from advreg.lab.kinds.translation.decoding import Decoding
from advreg.lab.kinds.translation.judging import TestSet, judge, pair_loss
from advreg.lab.kinds.translation.parallel import VALID
from advreg.lab.kinds.translation.subwords import Subwords
from advreg.lab.kinds.translation.translator import Translator
from advreg.lab.runs.translation_settings import Weights
from advreg.memory.corpus import Corpus

Score = Callable[[list[str]], dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class TranslationJob(Job):
    """A run of translation.

    Args:
        model: an encoder–decoder for these subwords.
        subwords: of both languages.
        train, valid: encoded pairs.
        valid_lines: source lines that are translated at each validation.
        score_lines: scores of their translations; ``judge`` is one of them.
        max_tokens, multiple: budget of a batch, and what its widths are rounded up to.
        decoding: how validation decodes.
        judge: the score, or ``loss``, by which the best weights are chosen.
        weights: which weights are exported and scored at the end.
        average: the number of validations whose weights are averaged, if they are.
        seed: of the batches.
        neighbours: other embeddings for the sentence vectors of ARCH; see :func:`other_vectors`.
        sets: what the exported model is scored on.
        search: how these sets are decoded.
        tokenised: are they tokenised?
        keep_subwords: saves the subwords for later runs, when the run begins.
    """

    subwords: Subwords
    train: Pairs
    valid: Pairs
    valid_lines: Sequence[str]
    score_lines: Score
    max_tokens: int
    multiple: int = 1
    decoding: Decoding = field(default_factory=lambda: Decoding(beam=1))
    judge: str = "bleu"
    weights: Weights = "best"
    average: int = 5
    seed: int = 0
    neighbours: Path | None = None
    sets: Mapping[str, TestSet] = field(default_factory=dict)
    search: Decoding = field(default_factory=Decoding)
    tokenised: bool = False
    keep_subwords: Callable[[], None] | None = None

    # ---- batches

    def batches(self, rank: int = 0) -> TokenBatches:
        """The batches of one process; all processes have the same number."""
        return TokenBatches(
            self.train.lengths, self.max_tokens, self.multiple, self.seed, rank, process_count()
        )

    def collator(self) -> PairCollator:
        return PairCollator(
            self.model.config.pad_token_id, self.model.config.decoder_start_token_id, self.multiple
        )

    def batch_count(self, arguments: TrainingArguments, samples: int) -> int:
        return len(self.batches())

    # ---- the run

    def trainer(self) -> TranslationTrainer:
        return TranslationTrainer(self)

    def begin(self, resumed_from: int | None) -> None:
        if self.keep_subwords is not None:
            first_decides(self.keep_subwords)
        first_decides(lambda: self.snapshots().forget_after(resumed_from or 0))

    def token_texts(self, stream: str, ids: Sequence[int]) -> Sequence[str]:
        sides = {"encoder": self.subwords.source, "decoder": self.subwords.target}
        return sides[stream].names(ids)

    # ---- the result

    def snapshots(self) -> Snapshots:
        keep = self.average if self.weights == "average" else 1
        return Snapshots(self.folder / "weights", keep, higher_is_better=self.judge != "loss")

    def score(self, trainer: Any, progress: Progress | None = None) -> Scores:
        """Export the chosen weights, and score the exported model on every set.

        From the validation set, it translates only the sentences that validations translate.
        """
        if first_decides(lambda: trainer.state.global_step not in self.snapshots().scores()):
            trainer.evaluate()
        return first_decides(lambda: self._judged(trainer.timer.per_step(), progress))

    def _judged(self, seconds: float, progress: Progress | None) -> Scores:
        steps = self._chosen_steps()
        self.export(steps)
        judged = judge(
            self.folder, self.sets, self.collator(), self.max_tokens, self.precision,
            self.tokenised, progress,
        )  # fmt: skip
        main = next((name for name in self.sets if name != VALID), VALID)
        details = {
            "scored": main,
            "signatures": judged.scores[main].signatures,
            "weights_of_steps": steps,
        }
        tokens = self.batches().target_tokens() * process_count()
        tokens *= self.fields["gradient_accumulation_steps"]  # of an update
        return Scores(
            metrics=judged.metrics(main),
            main=main,
            items={name: dict(scores.counts) for name, scores in judged.scores.items()},
            details=details,
            timing={"target_tokens_per_second": tokens / seconds if seconds else None},
        )

    def _chosen_steps(self) -> list[int]:
        snapshots = self.snapshots()
        if self.weights == "best":
            return [snapshots.best()]
        return snapshots.last(self.average if self.weights == "average" else 1)

    def export(self, steps: Sequence[int]) -> None:
        """Write the model with the weights of a validation, or the average of several."""
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)  # a kill while saving may have left a part of one
        set_weights(self.model, self.snapshots().load(steps))
        Translator(self.model, self.subwords, self.search).save(folder)


class TranslationTrainer(TokenBudgetMixin, AdversarialTrainer):
    """Trains on token batches, and validates by loss and by the score of translations."""

    def __init__(self, job: TranslationJob) -> None:
        self.job = job
        self.snapshots = job.snapshots()
        usual = job.usual_arguments()
        super().__init__(
            **usual,
            batches=job.batches(usual["args"].process_index),
            eval_dataset=job.valid,
            data_collator=job.collator(),
        )
        if job.neighbours is not None:
            self.advreg.samples.vectors = partial(self._other_vectors, job.neighbours)

    def _other_vectors(self, neighbours: Path, corpus: Corpus) -> dict[str, Tensor]:
        collator, streams = self.advreg.samples.collator(), tuple(corpus.vectors)
        return other_vectors(neighbours, self.train_dataset, collator, streams, corpus.shard)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        if self.method.info.needs and self.is_fsdp_enabled:
            raise ValueError(
                "fsdp must be off for translation: one process decodes at a validation, and needs "
                "all weights; train under DDP"
            )
        return super().train(*args, **kwargs)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = "eval",
        **_: Any,
    ) -> dict[str, float]:
        """Loss of the validation pairs and scores of their translations; keeps the current weights
        as a snapshot.

        The first process computes it, and the others wait for the result.
        """
        pairs = self.job.valid if eval_dataset is None else eval_dataset
        found = first_decides(lambda: self._validated(pairs))
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        if self.is_world_process_zero():
            self.snapshots.take(self.model, self.state.global_step, found[self.job.judge])
        return metrics

    def _validated(self, pairs: Pairs) -> dict[str, float]:
        job = self.job
        with kept_randomness():
            found = {"loss": pair_loss(self.model, pairs, job.collator(), job.max_tokens)}
            if not job.valid_lines:
                return found
            translator = Translator(self.model, job.subwords, job.decoding)
            return found | job.score_lines(translator.translate(job.valid_lines))


def other_vectors(
    path: Path, dataset: Any, collator: Any, streams: Sequence[str], shard: Shard | None = None
) -> dict[str, Tensor]:
    """Sentence vectors from other embeddings than the model's.

    Args:
        path: a model folder with the same subwords, whose token embeddings are averaged; or a
            safetensors file with a tensor (samples, width) for each stream.
        dataset, collator: the training samples and what makes a batch of them.
        streams: ``encoder`` and ``decoder``.
        shard: the samples of this process; none: all.
    """
    shard = Shard(len(dataset)) if shard is None else shard
    if path.is_dir():
        view = HFModelView(load_any(str(path)))
        return dict(survey(view, dataset, collator, shard=shard).vectors)
    try:
        with safe_open(str(path), framework="pt") as file:
            found = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"neighbour_embeddings must be a model folder or a safetensors file, got '{path}' "
            f"({error})"
        ) from error
    return {
        stream: _rows_of(stream, found, len(dataset), path)[shard.rank :: shard.world]
        for stream in streams
    }


def _rows_of(stream: str, found: Mapping[str, Tensor], samples: int, path: Path) -> Tensor:
    """The vectors of a stream: a row for each sample."""
    vectors = found.get(stream)
    if vectors is not None and vectors.dim() == 2 and len(vectors) == samples:
        return vectors
    got = (", ".join(found) or "nothing") if vectors is None else tuple(vectors.shape)
    raise ValueError(
        f"{path}: must hold '{stream}', a vector for each of the {samples} training samples, got "
        f"{got}"
    )
