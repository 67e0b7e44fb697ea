"""Beam search through ``model.generate``, in batches of like length; results come in the order of
the sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from advreg.core.retry import Fitting
from advreg.hf.guards.randomness import kept_randomness
from advreg.lab.kinds.attention import for_any_shape
from advreg.lab.kinds.translation.batching import round_up

# sources whose lengths round up to one multiple of it share a limit, and only they share a batch
_CLASS = 8
_TOKENS = {"cuda": 131_072, "cpu": 8_192}

Source = tuple[int, ...]


@dataclass(frozen=True)
class Decoding:
    """How translations are searched for.

    The score of a translation y is log p(y|x) / |y|^penalty, its end counted. As in fairseq, the
    search for a sentence ends when ``beam`` translations are complete, or at the length limit:
    ``ratio`` × source length + ``extra`` tokens (the source length rounded up to a multiple of 8,
    so that the limit depends on the sentence alone).

    Args:
        beam: hypotheses kept; 1 is greedy.
        length_penalty: above 0 favours long translations.
        ratio, extra: of the length limit.
    """

    beam: int = 5
    length_penalty: float = 1.0
    ratio: float = 2.0
    extra: int = 10

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ValueError(f"beam must be 1 or more, got {self.beam}")
        if not np.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty must be a finite number, got {self.length_penalty}")
        if self.ratio < 0 or self.extra < 1:
            raise ValueError(
                f"the length limit must be positive, got {self.ratio} × source length + "
                f"{self.extra}"
            )

    def limit(self, length: int, positions: int | None = None) -> int:
        """Maximum tokens of a translation, including its end, for a source of this length."""
        most = int(self.ratio * round_up(length, _CLASS)) + self.extra
        return most if positions is None else min(most, positions)

    def positions(self, length: int) -> int:
        """The part of a batch's budget that the hypotheses of a source of this length take."""
        return self.beam * max(length, self.limit(length))


@for_any_shape()
def decode(
    model: Any,
    sources: Sequence[Sequence[int]],
    decoding: Decoding,
    max_tokens: int | None = None,
    precision: str = "fp32",
    advance: Callable[[int], None] | None = None,
) -> list[list[int]]:
    """The best translation of each source: ids after the start, up to and with the end.

    What a source becomes depends on it alone, but for rounding: batches are composed by length, and
    each source has its own length limit. The order of the sources changes nothing at all: batches
    are composed by what the sources are, each once. A batch that is too much for the memory is
    searched in parts, and so are those after it.

    Args:
        model: an encoder–decoder.
        sources: ids of each sentence, its end included; none may be empty.
        decoding: beam size and length penalty.
        max_tokens: positions of a batch, the hypotheses of a beam counted; by default what suits
            the device.
        precision: fp32, or bf16 by autocast.
        advance: called with the number of sources done since the last call.
    """
    device = model.device
    budget = _TOKENS.get(device.type, _TOKENS["cpu"]) if max_tokens is None else max_tokens
    counts = Counter(map(tuple, sources))
    found: dict[Source, list[int]] = {}
    fitting = Fitting(what="decoding")
    training = model.training
    model.eval()
    try:
        with (
            torch.inference_mode(),
            kept_randomness(),
            torch.compiler.set_stance("force_eager"),
            _autocast(device, precision),
        ):
            for batch in batches_of(counts, decoding, budget):
                found.update(
                    zip(batch, _fitting_search(model, batch, decoding, fitting), strict=True)
                )
                if advance is not None:
                    advance(sum(counts[source] for source in batch))
    finally:
        model.train(training)
        if device.type == "cuda":
            # a search leaves much behind, which no other process on the GPU could have
            torch.cuda.empty_cache()
    return [list(found[tuple(source)]) for source in sources]


def batches_of(
    sources: Iterable[Source], decoding: Decoding, max_tokens: int
) -> Iterator[list[Source]]:
    """Sources in batches that share a length limit, longest first: a budget too large shows at
    once.
    """
    batch: list[Source] = []
    for source in sorted(sources, key=lambda source: (-len(source), source)):
        if batch:
            first = len(batch[0])
            size = (len(batch) + 1) * decoding.positions(first)
            if size > max_tokens or round_up(first, _CLASS) != round_up(len(source), _CLASS):
                yield batch
                batch = []
        batch.append(source)
    if batch:
        yield batch


def _fitting_search(
    model: Any, batch: Sequence[Source], decoding: Decoding, fitting: Fitting
) -> Iterator[list[int]]:
    """The translations of a batch, in parts that fit the memory."""
    positions = decoding.positions(len(batch[0]))
    return chain.from_iterable(
        fitting(len(batch), positions, lambda rows: _search(model, batch[rows], decoding))
    )


def _search(model: Any, sources: Sequence[Sequence[int]], decoding: Decoding) -> list[list[int]]:
    config = model.config
    width = max(len(source) for source in sources)
    ids = torch.full((len(sources), width), config.pad_token_id)
    mask = torch.zeros_like(ids)
    for row, source in enumerate(sources):
        ids[row, : len(source)] = torch.tensor(source)
        mask[row, : len(source)] = 1
    output = model.generate(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        generation_config=generation(config, decoding, width),
    )
    return [_until_end(row[1:], config.eos_token_id) for row in output.tolist()]


def generation(config: Any, decoding: Decoding, width: int) -> GenerationConfig:
    """The search settings of ``model.generate`` for sources up to a number of tokens."""
    never = [config.pad_token_id, *([] if config.bos_token_id is None else [config.bos_token_id])]
    # the first position is the start token's
    limit = decoding.limit(width, config.max_position_embeddings - 1)
    options: dict[str, Any] = (
        {} if decoding.beam == 1 else {"length_penalty": decoding.length_penalty}
    )
    return GenerationConfig(  # type: ignore[no-untyped-call]
        num_beams=decoding.beam,
        early_stopping=decoding.beam > 1,
        max_new_tokens=limit,
        do_sample=False,
        suppress_tokens=[token for token in never if token != config.eos_token_id],
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        **options,
    )


def _until_end(row: list[int], end: int) -> list[int]:
    return row[: row.index(end) + 1] if end in row else row


def _autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    if precision not in ("fp32", "bf16"):
        raise ValueError(f"precision of decoding must be fp32 or bf16, got {precision!r}")
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
