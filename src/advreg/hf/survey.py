"""Seeing the training set once before training: lengths, sentence vectors, and a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from advreg.hf.data import Features, Sized, in_batches
from advreg.hf.injection import bare, find_sites
from advreg.hf.randomness import kept_randomness
from advreg.hf.task import ModelTask
from advreg.memory.corpus import Corpus

_SAMPLES_AT_ONCE = 256


def survey(
    task: ModelTask,
    dataset: Sized,
    collator: Callable[[Features], Any],
    advance: Callable[[int], None] | None = None,
) -> Corpus:
    """Pass over the data set in the order of its ids.

    Args:
        task: the model whose token embeddings the sentence vectors are made of.
        dataset: the training samples; sample i has id i.
        collator: makes a batch of them, as in training.
        advance: called with the number of samples done, for a progress bar.
    """
    if len(dataset) == 0:
        raise ValueError("the training set must have at least one sample, got none")
    tables = {stream: table_of(module) for stream, module in find_sites(task.model, "tokens").items()}
    lengths: dict[str, list[Tensor]] = {stream: [] for stream in tables}
    vectors: dict[str, list[Tensor]] = {stream: [] for stream in tables}
    digests = {stream: (hashlib.sha256(), hashlib.sha256()) for stream in tables}  # of lengths and of tokens
    widths: dict[str, int] = {}
    with kept_randomness(seed=0):  # a collator that masks words then masks the same ones each time
        for batch in in_batches(dataset, collator, _SAMPLES_AT_ONCE):
            widths = widths or task.widths(to_device(batch, bare(task.model).device))
            for stream, (ids, mask) in task.tokens(batch).items():
                lengths[stream].append(mask.sum(1))
                vectors[stream].append(sentence_vectors(ids, mask, tables[stream]).cpu())
                for digest, part in zip(digests[stream], (mask.sum(1), ids[mask]), strict=True):
                    digest.update(part.to("cpu", torch.int64).numpy().tobytes())
            if advance is not None:
                advance(len(batch["input_ids"]))
    return Corpus(
        {stream: torch.cat(parts).cpu() for stream, parts in lengths.items()},
        dict(widths),
        {stream: torch.cat(parts) for stream, parts in vectors.items()},
        combined(digest for pair in digests.values() for digest in pair),
    )


def sentence_vectors(ids: Tensor, mask: Tensor, table: Tensor) -> Tensor:
    """v_i = (1/ℓ_i) Σ_ℓ W x_{i,ℓ}: the mean token embedding of each sentence, padding left out; (B, d)."""
    ids, mask = ids.to(table.device), mask.to(table.device)
    weights = mask.float() / mask.sum(1, keepdim=True).clamp_min(1)
    return torch.einsum("bt,btd->bd", weights, table[ids].float())


def combined(digests: Iterable[Any]) -> str:
    """One fingerprint of several hashes."""
    return hashlib.sha256(b"".join(digest.digest() for digest in digests)).hexdigest()


def table_of(embedding: Any) -> Tensor:
    """The matrix W of a token-embedding module, also when PEFT wraps it."""
    module = getattr(embedding, "base_layer", embedding)
    weight: Tensor = module.weight
    return weight.detach()


def to_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
