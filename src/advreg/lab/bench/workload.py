"""Synthetic data of a given shape: batches on the device, and the corpus for the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from advreg.core.ball import Start
from advreg.core.perturbation import Perturbation
from advreg.hf.data import Limits
from advreg.hf.patches.mask_sync import PADDED, padding_of
from advreg.hf.view.inputs import SAMPLE_ID
from advreg.hf.view.view import HFModelView
from advreg.lab.bench.settings import BenchSettings, Shape
from advreg.lab.doctor import random_batch
from advreg.memory.corpus import Corpus
from advreg.methods import Arch

Batch = dict[str, Any]

_VECTOR_WIDTH = (
    16  # narrow: neighbours of random vectors mean nothing, so they may be found quickly
)
_TOKENS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Workload:
    """Data of one shape.

    Args:
        task: the model they are for.
        shape: samples and tokens of a batch.
        batches: on the device, with ids.
        ids: of each batch, on the host.
        corpus: of all samples, including samples in no batch.
    """

    task: HFModelView
    shape: Shape
    batches: list[Batch]
    ids: list[Tensor]
    corpus: Corpus

    @classmethod
    def draw(cls, task: HFModelView, shape: Shape, settings: BenchSettings) -> Workload:
        """Random tokens; each sample is in one batch at most."""
        check_length(task, shape)
        generator = torch.Generator().manual_seed(settings.seed)
        lengths = draw_lengths(settings.samples, shape.tokens, settings.padding, generator)
        order = torch.randperm(settings.samples, generator=generator)
        count = min(settings.batches, settings.samples // shape.batch)
        ids = list(torch.split(order[: count * shape.batch], shape.batch))
        batches = [
            make_batch(task, own, lengths, shape.tokens, seed) for seed, own in enumerate(ids)
        ]
        widths = task.widths(batches[0])
        per_stream = {stream: lengths.clone() for stream in widths}
        items = torch.ones_like(lengths)  # samples in no batch are never predicted
        for own, batch in zip(ids, batches, strict=True):
            items[own] = task.targets(batch)[1].reshape(len(own), -1).sum(1).cpu()
            for stream, mask in task.masks(batch).items():  # a decoder may read a token more
                per_stream[stream][own] = mask.sum(1).cpu()
        vectors = {
            stream: torch.randn(len(lengths), _VECTOR_WIDTH, generator=generator)
            for stream in widths
        }
        name = f"random-{shape}-{settings.seed}"
        corpus = Corpus(per_stream, dict(widths), vectors, name, items=items)
        return cls(task, shape, batches, ids, corpus)


def check_length(task: HFModelView, shape: Shape) -> None:
    """Refuse more tokens than the model has positions for."""
    positions = Limits.of(task.model).positions
    if positions is not None and shape.tokens > positions:
        raise ValueError(
            f"shape {shape} has too many tokens: the model takes at most {positions}; choose a "
            "shorter one"
        )


def draw_lengths(samples: int, tokens: int, padding: float, generator: torch.Generator) -> Tensor:
    """Tokens of each sample, uniform around the mean that leaves this share of ``tokens`` to
    padding.
    """
    mean = tokens * (1 - padding)
    least, most = (2 * mean - tokens, tokens) if padding <= 0.5 else (0, 2 * mean)
    drawn = least + (most - least) * torch.rand(samples, generator=generator)
    return drawn.round().long().clamp(1, tokens)


def make_batch(task: HFModelView, ids: Tensor, lengths: Tensor, width: int, seed: int) -> Batch:
    """Random tokens for these samples, on the model's device, as a complete trainer batch."""
    batch: Batch = dict(random_batch(task.model, seed, lengths[ids].tolist(), width))
    return {**batch, SAMPLE_ID: ids.to(batch["input_ids"].device), PADDED: padding_of(batch)}


def prepare(method: Arch, workload: Workload, seed: int, device: torch.device) -> None:
    """Fill ARCH's cache with a random δ inside the ball for every cached sample, so that reads can
    be timed without an ascent."""
    corpus = workload.corpus
    memory = method.memory
    memory.prepare(corpus, seed, device)
    memory.load((), epoch=0)  # which is the epoch that the cache is written at below
    for ids in torch.split(
        memory.cache.ids.cpu(), max(_TOKENS_AT_ONCE // workload.shape.tokens, 1)
    ):
        masks = {
            stream: (torch.arange(int(length[ids].max()))[None, :] < length[ids][:, None]).to(
                device
            )
            for stream, length in corpus.lengths.items()
        }
        zeros = Perturbation.zeros(masks, corpus.widths, torch.float32)
        memory.write(ids.to(device), Start("uniform").draw(zeros, method.ball), 0)
