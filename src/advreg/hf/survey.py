"""Seeing the training set once before training: lengths, sentence vectors, and a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from advreg.core.checks import check_whole
from advreg.core.divergence import Prediction
from advreg.core.shard import Shard
from advreg.hf.data import Sized, in_batches
from advreg.hf.guards.capability import refusal
from advreg.hf.guards.randomness import kept_randomness
from advreg.hf.view.head import IGNORED
from advreg.hf.view.injection import bare, find_sites
from advreg.hf.view.view import HFModelView
from advreg.memory.corpus import Corpus
from advreg.memory.exchange import summed

_SAMPLES_AT_ONCE = 256  # that are hashed and averaged together, however few the collator is given
_FETCHED_AT_ONCE = (
    2**24
)  # numbers that wait on the model's device, 64 MiB, so that it is not waited for in each batch


def survey(
    task: HFModelView,
    dataset: Sized,
    collator: Callable[[Any], Any],
    advance: Callable[[int], None] | None = None,
    shard: Shard | None = None,
    batch_size: int = _SAMPLES_AT_ONCE,
) -> Corpus:
    """Pass over the data set in the order of its ids, once, keeping of each batch no more than the
    Corpus holds.

    Args:
        task: the model whose token embeddings the sentence vectors are made of.
        dataset: the training samples; sample i has id i.
        collator: makes a batch of them, as in training.
        advance: called with the number of samples done since the last call, for a progress bar.
        shard: the samples to see, of this process; all processes must call. None: all samples there
            are.
        batch_size: the most samples that the collator is given at once, as in training. The Corpus
            does not depend on it, unless the collator is a random one.
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
    with (
        torch.no_grad(),
        kept_randomness(seed=0),
    ):  # a collator that masks words then masks the same ones each time
        for batch in in_batches(dataset, collator, size, shard.ids):
            widths = widths or task.widths(to_device(batch, device))
            rows = len(batch["input_ids"])
            _check_rows(rows, min(size, len(shard) - done))
            for name, (tokens, mask) in task.tokens(batch).items():
                streams[name].add(tokens, mask)
            if isinstance(batch.get("labels"), Tensor):
                told = batch["labels"].cpu()
                labels.update(told[told != IGNORED].to(torch.float64).numpy().tobytes())
                items[done : done + rows] = task.targets(batch)[1].reshape(rows, -1).sum(1)
                has_items, outputs = True, outputs or outputs_of(task, told)
            done += rows
            if advance is not None:
                advance(rows)
    vectors = {name: stream.finish() for name, stream in streams.items()}
    return Corpus(
        {name: stream.lengths for name, stream in streams.items()},
        dict(widths),
        vectors,
        combined([*(digest for stream in streams.values() for digest in stream.digests), labels]),
        shard,
        f"{summed(sum(stream.checksum for stream in streams.values()), device, shard.world):016x}",
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
    """What a Corpus holds of one stream, made from batches as they come.

    Args:
        number: of the stream.
        table: W, in float32 once instead of in each batch.
        shard: the samples.
    """

    def __init__(self, number: int, table: Tensor, shard: Shard) -> None:
        self.lengths = torch.empty(len(shard), dtype=torch.int64)
        self.digests = (hashlib.sha256(), hashlib.sha256())  # of lengths and of tokens
        self.checksum = 0
        self._number, self._table, self._ids = number, table, shard.ids
        self._vectors = _HostRows(len(shard), table.shape[1])
        self._waiting: list[
            tuple[Tensor, Tensor]
        ] = []  # of each batch: tokens in each sample, and the tokens
        self._done = 0

    def add(self, tokens: Tensor, mask: Tensor) -> None:
        """Take the real tokens of a batch, (B, T)."""
        self._waiting.append((mask.sum(1), tokens[mask]))
        if sum(len(counts) for counts, _ in self._waiting) >= _SAMPLES_AT_ONCE:
            self._sum_up()

    def finish(self) -> Tensor:
        """The sentence vectors of all samples, (n, d)."""
        self._sum_up()
        return self._vectors.finish()

    def _sum_up(self) -> None:
        if not self._waiting:
            return
        counts, tokens = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
        self._waiting.clear()
        first, self._done = self._done, self._done + len(counts)
        self.lengths[first : self._done] = counts
        self._vectors.append(mean_rows(self._table, tokens, counts))
        for digest, part in zip(self.digests, (counts, tokens), strict=True):
            digest.update(part.to("cpu", torch.int64).numpy().tobytes())
        self.checksum += token_checksum(
            self._number, self._ids[first : self._done], counts.cpu(), tokens.cpu()
        )


class _HostRows:
    """Rows made on a device a few at a time, in one tensor on the host, (size, width)."""

    def __init__(self, size: int, width: int) -> None:
        self.rows = torch.empty(size, width)
        self.fetched = 0
        self.waiting: list[Tensor] = []

    def append(self, part: Tensor) -> None:
        self.waiting.append(part)
        if (
            part.device.type == "cpu"
            or sum(rows.numel() for rows in self.waiting) >= _FETCHED_AT_ONCE
        ):
            self._fetch()

    def finish(self) -> Tensor:
        self._fetch()
        return self.rows

    def _fetch(self) -> None:
        if self.waiting:
            part = torch.cat(self.waiting)
            self.rows[self.fetched : self.fetched + len(part)] = part
            self.fetched += len(part)
            self.waiting.clear()


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
    tokens = tokens.to(table.device, torch.int64)
    return F.embedding_bag(tokens, table, begins, mode="mean")  # never (B, T, d)


def token_checksum(stream: int, ids: range, counts: Tensor, tokens: Tensor) -> int:
    """Σ h(stream, id, place, token) over all tokens, h scrambling 64 bits; it does not depend on which
    process adds which samples.

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
    """A bijection of 64 bits in which every input bit moves every output bit (the end of
    splitmix64).
    """
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def combined(digests: Iterable[Any]) -> str:
    """One fingerprint of several hashes."""
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


def table_of(embedding: Any) -> Tensor:
    """The matrix W of a token-embedding module, also when PEFT wraps it."""
    module = getattr(embedding, "base_layer", embedding)
    weight: Tensor = module.weight
    return weight.detach()


def to_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in batch.items()
    }
