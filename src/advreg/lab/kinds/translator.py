"""A translation model with its subwords: training it, resumably, and using what came out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from advreg.core.shard import Shard
from advreg.hf.attach import OnNonFinite
from advreg.hf.checkpoint.ranks import first_decides, process_count
from advreg.hf.guards.randomness import kept_randomness
from advreg.hf.patches.compile_layers import compile_layers
from advreg.hf.survey import survey, to_device
from advreg.hf.trainer import AdversarialTrainer
from advreg.hf.view.head import IGNORED
from advreg.hf.view.view import HFModelView
from advreg.lab.kinds.arguments import training_arguments
from advreg.lab.kinds.attention import for_any_shape
from advreg.lab.kinds.averaging import Snapshots, set_weights
from advreg.lab.kinds.batching import PairCollator, Pairs, TokenBatches, TokenBudgetMixin
from advreg.lab.kinds.decoding import Decoding, decode, generation
from advreg.lab.kinds.fine_tuning import (
    OnStep,
    Result,
    checkpoint_at,
    keep_logs,
    report_steps,
    step_to_resume,
)
from advreg.lab.kinds.health import forget_peak, save_health
from advreg.lab.kinds.models import ModelError, load_any
from advreg.lab.kinds.subwords import SubwordError, Subwords, translator_folder
from advreg.memory.corpus import Corpus
from advreg.methods.base import Method

_DECODING = "decoding.json"

Score = Callable[[list[str]], dict[str, float]]


class Translator:
    """A trained model, its subwords, and how it decodes.

    Args:
        model: an encoder–decoder.
        subwords: of both languages.
        decoding: beam size and length penalty, unless others are asked for.
    """

    def __init__(self, model: Any, subwords: Subwords, decoding: Decoding) -> None:
        self.model, self.subwords, self.decoding = model, subwords, decoding

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], device: str | None = None, dropout: float | None = None
    ) -> Translator:
        """What :meth:`save` wrote: a model folder that transformers can read, with the subwords
        beside it.

        Args:
            folder: of the model, or of the run that made it.
            device: by default the GPU if there is one.
            dropout: of a further training, instead of the model's own.
        """
        place, folder = _device(device), Path(folder)
        if not folder.is_dir():
            raise ModelError(
                f"model must be the model folder of a translation run, got '{folder}', "
                f"{'a file' if folder.exists() else 'which does not exist'}"
            )
        folder = translator_folder(folder)
        subwords = Subwords.load(folder)
        model = load_any(str(folder), settings={} if dropout is None else {"dropout": dropout})
        sizes = len(subwords.source), len(subwords.target)
        config = model.config
        wanted = config.vocab_size, getattr(config, "decoder_vocab_size", None) or config.vocab_size
        if sizes != wanted:
            raise SubwordError(
                f"'{folder}': subwords must be {wanted[0]} and {wanted[1]}, got {sizes[0]} and "
                f"{sizes[1]}"
            )
        model.to(place)
        return cls(model.eval(), subwords, _read_decoding(folder / _DECODING))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write model, subwords and decoding settings; with a tokenizer and a generation config for
        transformers.
        """
        folder, positions = Path(folder), positions_of(self.model)
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)
        generation(self.model.config, self.decoding, positions).save_pretrained(folder)
        self.subwords.save(folder, positions)
        fresh = folder / f"{_DECODING}.new"
        fresh.write_text(json.dumps(asdict(self.decoding)), encoding="utf-8")
        os.replace(fresh, folder / _DECODING)

    def translate(
        self,
        lines: Sequence[str],
        decoding: Decoding | None = None,
        max_tokens: int | None = None,
        precision: str = "fp32",
        advance: Callable[[int], None] | None = None,
    ) -> list[str]:
        """The translation of each line, in their order; an empty line stays empty.

        A line longer than the model has positions is cut.
        """
        real = [index for index, line in enumerate(lines) if line.strip()]
        sources = cut(
            self.subwords.source.encode([lines[index] for index in real]), positions_of(self.model)
        )
        rows = decode(
            self.model, sources, decoding or self.decoding, max_tokens, precision, advance
        )
        found = [""] * len(lines)
        for index, text in zip(real, self.subwords.target.decode(rows), strict=True):
            found[index] = text
        return found


def _device(name: str | None) -> torch.device:
    """A device that can be used; by default the GPU if there is one."""
    best = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name or best).device
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        there = "cpu" if best == "cpu" else "cpu or cuda"
        what = "a CUDA device" if str(name).startswith("cuda") else "a device"
        raise ValueError(
            f"device must be {there} here, got '{name}', {what} that torch does not find; leave it "
            f"out to use {best}"
        ) from error


def _read_decoding(path: Path) -> Decoding:
    if not path.is_file():
        return Decoding()
    try:
        return Decoding(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"{path}: must hold settings of the decoding, got: {error}; delete it to use others"
        ) from error


def positions_of(model: Any) -> int:
    """Tokens either side may have."""
    return int(model.config.max_position_embeddings)


def cut(rows: Sequence[list[int]], most: int) -> list[list[int]]:
    """Rows of at most so many ids; one that is longer keeps its beginning and its end."""
    return [row if len(row) <= most else [*row[: most - 1], row[-1]] for row in rows]


# ---- training


@dataclass(frozen=True)
class TranslationJob:
    """What to train on what, and how.

    Args:
        model: an encoder–decoder for these subwords.
        subwords: of both languages.
        train, valid: encoded pairs.
        valid_lines: source lines that are translated at each validation.
        score: scores of their translations; ``judge`` is one of them.
        method: how to train on a batch.
        folder: where checkpoints and weights go.
        max_tokens, multiple: budget of a batch, and what its widths are rounded up to.
        decoding: how validation decodes.
        judge: the score, or ``loss``, that the best weights have the best of.
        keep: how many of the last weights to keep for an average.
        precision, site: as in other runs.
        compile_layers: train with compiled layers?
        on_non_finite: what to do when the loss or a gradient is not finite: stop, or skip that
            update.
        seed: of the batches.
        neighbours: other embeddings for the sentence vectors of ARCH; see :func:`other_vectors`.
        fields: fields of ``TrainingArguments``.
        logged: all that was logged, also that of a run which fails.
    """

    model: Any
    subwords: Subwords
    train: Pairs
    valid: Pairs
    valid_lines: Sequence[str]
    score: Score
    method: Method
    folder: Path
    max_tokens: int
    multiple: int = 1
    decoding: Decoding = field(default_factory=lambda: Decoding(beam=1))
    judge: str = "bleu"
    keep: int = 5
    precision: str = "fp32"
    site: str = "tokens"
    compile_layers: bool = False
    on_non_finite: OnNonFinite = "stop"
    seed: int = 0
    neighbours: Path | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    logged: list[dict[str, Any]] = field(default_factory=list)

    def batches(self, rank: int = 0) -> TokenBatches:
        """Those of one process; all processes have as many."""
        return TokenBatches(
            self.train.lengths, self.max_tokens, self.multiple, self.seed, rank, process_count()
        )

    def collator(self) -> PairCollator:
        return PairCollator(
            self.model.config.pad_token_id, self.model.config.decoder_start_token_id, self.multiple
        )

    def snapshots(self) -> Snapshots:
        return Snapshots(self.folder / "weights", self.keep, higher_is_better=self.judge != "loss")


class TranslationTrainer(TokenBudgetMixin, AdversarialTrainer):
    """Trains on token batches, and validates by loss and by the score of translations."""

    def __init__(self, job: TranslationJob) -> None:
        self.job = job
        self.snapshots = job.snapshots()
        if job.compile_layers:
            compile_layers(job.model)
        arguments = training_arguments(job.folder, job.precision, job.fields)
        super().__init__(
            batches=job.batches(arguments.process_index),
            model=job.model,
            args=arguments,
            train_dataset=job.train,
            eval_dataset=job.valid,
            data_collator=job.collator(),
            method=job.method,
            site=job.site,
            on_non_finite=job.on_non_finite,
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
                "all weights; train "
                "under DDP"
            )
        return super().train(*args, **kwargs)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: Any = None,
        metric_key_prefix: str = "eval",
        **_: Any,
    ) -> dict[str, float]:
        """Loss of the validation pairs and scores of their translations; the weights of now are
        kept for a while.

        The first of many processes does it, and the others wait for what comes out.
        """
        job = self.job
        pairs = job.valid if eval_dataset is None else eval_dataset
        translator = Translator(self.model, job.subwords, job.decoding)

        def judged() -> dict[str, float]:
            with kept_randomness():
                found = {"loss": pair_loss(self.model, pairs, job.collator(), job.max_tokens)}
                return found | (
                    job.score(translator.translate(job.valid_lines)) if job.valid_lines else {}
                )

        found = first_decides(judged)
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        if self.is_world_process_zero():
            self.snapshots.take(self.model, self.state.global_step, found[job.judge])
        return metrics


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
        return dict(
            survey(HFModelView(load_any(str(path))), dataset, collator, shard=shard).vectors
        )
    try:
        with safe_open(str(path), framework="pt") as file:
            found = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"neighbour_embeddings must be a model folder or a safetensors file, got '{path}' "
            f"({error})"
        ) from error
    for stream in streams:
        shape = tuple(found[stream].shape) if stream in found else None
        if shape is None or len(shape) != 2 or shape[0] != len(dataset):
            raise ValueError(
                f"{path}: must hold '{stream}', a vector for each of the {len(dataset)} training "
                "samples, got "
                f"{shape if shape is not None else ', '.join(found) or 'nothing'}"
            )
    return {stream: found[stream][shard.rank :: shard.world] for stream in streams}


def pair_loss(model: Any, pairs: Pairs, collator: PairCollator, max_tokens: int) -> float:
    """Negative log-likelihood of the targets, per token, without label smoothing."""
    order = TokenBatches(
        pairs.lengths, max(max_tokens, int(pairs.lengths.max()) + collator.multiple)
    )
    total, count = torch.zeros((), dtype=torch.float64), 0
    training = model.training
    model.eval()
    with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
        for indices in order:
            batch = to_device(collator([pairs[index] for index in indices]), model.device)
            labels = batch.pop("labels")
            logits = model(**batch, use_cache=False).logits
            nll = F.cross_entropy(
                logits.float().flatten(0, 1),
                labels.flatten(),
                ignore_index=IGNORED,
                reduction="sum",
            )
            total += nll.double().cpu()
            count += int((labels != IGNORED).sum())
    model.train(training)
    return float(total) / count


@for_any_shape()
def train_translator(
    job: TranslationJob, on_step: OnStep | None = None, resume: bool = False
) -> Result:
    """Train; the weights at each validation are in ``job.snapshots()``.

    With ``resume`` the run goes on from its last whole checkpoint, if there is one, and ends
    exactly as if it had never stopped.
    """
    trainer = TranslationTrainer(job)
    report_steps(trainer, on_step)
    resumed_from = step_to_resume(job.folder) if resume else None
    first_decides(lambda: trainer.snapshots.forget_after(resumed_from or 0))
    forget_peak()
    with keep_logs(trainer, job.logged):
        trainer.train(resume_from_checkpoint=checkpoint_at(job.folder, resumed_from))
        if first_decides(lambda: trainer.state.global_step not in trainer.snapshots.scores()):
            trainer.evaluate()
    sides = {"encoder": job.subwords.source, "decoder": job.subwords.target}
    save_health(trainer, job.folder, lambda stream, ids: sides[stream].names(ids))
    return Result.of(trainer, job.logged, metrics={}, resumed_from=resumed_from)


def export(job: TranslationJob, steps: Sequence[int], decoding: Decoding, folder: Path) -> None:
    """Write the model with the weights of a validation, or the average of several, to ``folder``,
    and nothing else.
    """
    shutil.rmtree(folder, ignore_errors=True)  # half of one, where a kill fell into the saving
    set_weights(job.model, job.snapshots().load(steps))
    Translator(job.model, job.subwords, decoding).save(folder)
