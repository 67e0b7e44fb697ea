"""One pass over the training set before training: lengths, sentence vectors, and a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from advreg.core.checks import check_whole
from advreg.core.divergence import Prediction
from advreg.core.shard import Shard
from advreg.hf.data import Collator, Sized, in_batches
from advreg.hf.guards.capability import refusal
from advreg.hf.guards.randomness import kept_randomness
from advreg.hf.view.head import IGNORED
from advreg.hf.view.injection import bare, find_sites
from advreg.hf.view.inputs import ModelInputs
from advreg.hf.view.view import HFModelView
from advreg.memory.corpus import Corpus
from advreg.memory.exchange import summed
from advreg.methods.base import Batch

_SAMPLES_AT_ONCE = 256  # that the collator is given at most


def survey(
    task: HFModelView,
    dataset: Sized,
    collator: Collator,
    advance: Callable[[int], None] | None = None,
    shard: Shard | None = None,
    batch_size: int = _SAMPLES_AT_ONCE,
) -> Corpus:
    """Pass once over the data set, in the order of its ids, and keep only what the Corpus holds.

    Args:
        task: the model whose token embeddings the sentence vectors are made of.
        dataset: the training samples; sample i has id i.
        collator: makes a batch of them, as in training.
        advance: called with the number of samples done since the last call, for a progress bar.
        shard: the samples of this process; all processes must call. None: all samples.
        batch_size: the most samples that the collator is given at once, as in training. The Corpus
            does not depend on it, unless the collator draws random numbers.
    """
    check_whole("batch_size", batch_size, least=1)
    shard = Shard(len(dataset)) if shard is None else shard
    _check_size(shard)
    device = bare(task.model).device
    streams = {
        name: _Stream(number, table_of(module).float(), shard)
        for number, (name, module) in enumerate(find_sites(task.model, "tokens").items())
    }
    labels = hashlib.sha256()
    items = torch.empty(len(shard), dtype=torch.int64)
    has_items, outputs = False, None
    widths: dict[str, int] = {}
    done, size = 0, min(batch_size, _SAMPLES_AT_ONCE)
    # a collator that masks words then masks the same ones each time
    with torch.no_grad(), kept_randomness(seed=0):
        for batch in in_batches(dataset, collator, size, shard.ids):
            widths = widths or task.widths(to_device(batch, device))
            rows = slice(done, done + len(batch["input_ids"]))
            _check_rows(rows.stop - done, min(size, len(shard) - done))
            for name, (tokens, mask) in task.tokens(batch).items():
                streams[name].add(rows, tokens, mask)
            if isinstance(batch.get("labels"), Tensor):
                known = batch["labels"].cpu()
                labels.update(known[known != IGNORED].to(torch.float64).numpy().tobytes())
                items[rows] = task.targets(batch)[1].reshape(rows.stop - done, -1).sum(1).cpu()
                has_items, outputs = True, outputs or outputs_of(task, known)
            if advance is not None:
                advance(rows.stop - done)
            done = rows.stop
    digests = [digest for stream in streams.values() for digest in stream.digests]
    checksum = sum(stream.checksum for stream in streams.values())
    return Corpus(
        {name: stream.lengths for name, stream in streams.items()},
        dict(widths),
        {name: stream.vectors for name, stream in streams.items()},
        hashlib.sha256(b"".join(each.digest() for each in [*digests, labels])).hexdigest(),
        shard,
        f"{summed(checksum, device, shard.world):016x}",
        items if has_items else None,
        outputs,
    )


def outputs_of(task: HFModelView, labels: Tensor) -> tuple[Prediction, int] | None:
    """What a model predicts and how many outputs it has, as its configuration tells."""
    model = bare(task.model)
    table = model.get_output_embeddings()
    count = getattr(model.config, "num_labels", None) if table is None else len(table.weight)
    if count is None:
        return None
    tokens = () if table is None else labels.shape[1:]
    logits = torch.empty(len(labels), *tokens, count, device="meta")
    return task.prediction_head.prediction(logits, labels), count


class _Stream:
    """What a Corpus holds of one stream, made batch by batch.

    Args:
        number: of the stream.
        table: W, converted to float32 once instead of in each batch.
        shard: the samples.
    """

    def __init__(self, number: int, table: Tensor, shard: Shard) -> None:
        self.lengths = torch.empty(len(shard), dtype=torch.int64)
        self.vectors = torch.empty(len(shard), table.shape[1])
        self.digests = (hashlib.sha256(), hashlib.sha256())  # of lengths and of tokens
        self.checksum = 0
        self._number, self._table, self._ids = number, table, shard.ids

    def add(self, rows: slice, tokens: Tensor, mask: Tensor) -> None:
        """Take the real tokens of the samples in these rows, (B, T)."""
        counts, real = mask.sum(1).cpu(), tokens[mask].cpu()
        self.lengths[rows] = counts
        self.vectors[rows] = mean_rows(self._table, real, counts).cpu()
        for digest, part in zip(self.digests, (counts, real), strict=True):
            digest.update(part.to(torch.int64).numpy().tobytes())
        self.checksum += token_checksum(self._number, self._ids[rows], counts, real)


def _check_size(shard: Shard) -> None:
    if shard.size == 0:
        raise ValueError("the training set must have at least one sample, got none")
    if shard.size < shard.world:
        raise ValueError(
            f"the training set must have a sample for each of {shard.world} processes, got "
            f"{shard.size}; start fewer"
        )


def _check_rows(found: int, expected: int) -> None:
    if found != expected:
        reason = (
            f"the collator must make one row of each sample, got {found} rows of {expected} samples"
        )
        raise refusal("ids", reason, "split long samples before training and not in the collator")


def mean_rows(table: Tensor, tokens: Tensor, counts: Tensor) -> Tensor:
    """v_i = (1/ℓ_i) Σ_ℓ W x_{i,ℓ}: the mean token embedding of each sentence, (B, d); zero for an
    empty one.

    Args:
        table: W, a row for each word.
        tokens: real ones of all sentences, end to end.
        counts: ℓ_i, how many each sentence has.
    """
    begins = (counts.cumsum(0) - counts).to(table.device)
    words = tokens.to(table.device, torch.int64)
    return F.embedding_bag(words, table, begins, mode="mean")  # never (B, T, d)


def token_checksum(stream: int, ids: range, counts: Tensor, tokens: Tensor) -> int:
    """Σ h(stream, id, place, token) over all tokens, where h scrambles 64 bits; it does not depend
    on which process adds which samples.

    Args:
        stream: its number.
        ids: of the samples.
        counts: real tokens of each.
        tokens: of all of them, end to end.
    """
    lengths = counts.numpy()
    sample = np.repeat(np.asarray(ids, dtype=np.uint64), lengths)
    place = np.arange(len(sample), dtype=np.uint64) - np.repeat(
        lengths.cumsum() - lengths, lengths
    ).astype(np.uint64)
    mixed = _scrambled(np.full_like(sample, stream))
    for values in (sample, place, tokens.numpy().astype(np.uint64)):
        mixed = _scrambled(mixed + values)
    return int(mixed.sum(dtype=np.uint64))


def _scrambled(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64 bits in which every input bit affects every output bit (the end of
    splitmix64).
    """
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def table_of(embedding: Any) -> Tensor:
    """The matrix W of a token-embedding module, also when PEFT wraps it."""
    weight: Tensor = getattr(embedding, "base_layer", embedding).weight
    return weight.detach()


def to_device(batch: Batch, device: torch.device) -> ModelInputs:
    return {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }
