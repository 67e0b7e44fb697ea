"""Batches of translations by a budget of tokens: sentences of like length together, so that little
is padding.

fairseq's ``max-tokens``: a batch holds as many pairs as fit when both sides are padded to their
longest sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from advreg.hf.sharding import EpochBatches
from advreg.hf.trainer import AdversarialMixin, AdversarialSeq2SeqTrainer
from advreg.hf.view.head import IGNORED

Lengths = NDArray[np.int64]

# Neighbouring target lengths that may share a batch: wider ones give sources of like length more
# room. The best of
# these is taken, for it depends on the data and on the budget.
_BANDS = (1, 2, 3, 4, 6, 8, 12, 16)


class Pairs(Dataset[dict[str, Tensor]]):
    """Encoded sentence pairs, flat in memory: a pair is ``{"input_ids": source, "labels":
    target}``.

    Args:
        source, target: ids of each sentence, their ends included.
    """

    def __init__(self, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]) -> None:
        if len(source) != len(target):
            raise ValueError(
                f"source and target must have the same number of sentences, got {len(source)} and "
                f"{len(target)}"
            )
        self._source, self._target = _Rows(source), _Rows(target)
        self.lengths: Lengths = np.stack(
            [self._source.lengths, self._target.lengths], axis=1
        )  # (n, 2)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self._source[index], "labels": self._target[index]}

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        """Some pairs, as a ``DataLoader`` asks for them, without a loop over them."""
        return Gathered(self._source.take(indices), self._target.take(indices))

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of each side."""
        return {"source": int(self.lengths[:, 0].sum()), "target": int(self.lengths[:, 1].sum())}


@dataclass(frozen=True)
class Ragged:
    """Rows of ids end to end, and the length of each."""

    flat: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, rows: Sequence[Any]) -> Ragged:
        return cls(
            torch.cat([torch.as_tensor(row) for row in rows]),
            torch.tensor([len(row) for row in rows]),
        )


@dataclass(frozen=True)
class Gathered:
    """Pairs of a batch, source and target sides end to end; other collators than
    :class:`PairCollator` iterate over the pairs.
    """

    source: Ragged
    target: Ragged

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        sides = (
            torch.split(side.flat, side.lengths.tolist()) for side in (self.source, self.target)
        )
        return ({"input_ids": one, "labels": other} for one, other in zip(*sides, strict=True))


class _Rows:
    """Rows of ids end to end."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.lengths: Lengths = np.fromiter(
            (len(row) for row in rows), dtype=np.int64, count=len(rows)
        )
        flat = np.fromiter(
            (number for row in rows for number in row),
            dtype=np.int32,
            count=int(self.lengths.sum()),
        )
        self._flat = torch.from_numpy(flat)
        self._ends = np.concatenate([[0], self.lengths.cumsum()])

    def __getitem__(self, index: int) -> Tensor:
        return self._flat[self._ends[index] : self._ends[index + 1]]

    def take(self, indices: Sequence[int]) -> Ragged:
        lengths = self.lengths[indices]
        ends = lengths.cumsum()
        moved = np.repeat(
            self._ends[:-1][indices] - (ends - lengths), lengths
        )  # from its place there to that here
        return Ragged(
            self._flat[torch.from_numpy(moved + np.arange(ends[-1]))], torch.from_numpy(lengths)
        )


@dataclass(frozen=True)
class PairCollator:
    """Pads both sides on the right, and hands the decoder its inputs: the start, then each label
    but the last.

    It takes a list of pairs, or :class:`Gathered` pairs without a loop over them.

    Args:
        padding, start: ids.
        multiple: widths are rounded up to it, so that shapes repeat.
    """

    padding: int
    start: int
    multiple: int = 1

    def __call__(self, features: Sequence[dict[str, Any]] | Gathered) -> dict[str, Tensor]:
        pairs = features if isinstance(features, Gathered) else _gathered(features)
        source, real = self._padded(pairs.source, self.padding)
        labels, _ = self._padded(pairs.target, IGNORED)
        shifted = torch.cat([labels.new_full((len(labels), 1), self.start), labels[:, :-1]], dim=1)
        return {
            "input_ids": source,
            "attention_mask": real.long(),
            "labels": labels,
            "decoder_input_ids": shifted.masked_fill(shifted == IGNORED, self.padding),
        }

    def _padded(self, rows: Ragged, fill: int) -> tuple[Tensor, Tensor]:
        """Rows side by side, and which positions are theirs; without a loop over rows: the GPU
        waits for a batch.
        """
        real = (
            torch.arange(int(round_up(int(rows.lengths.max()), self.multiple)))
            < rows.lengths[:, None]
        )  # (B, T)
        return torch.full(real.shape, fill).masked_scatter_(real, rows.flat.long()), real


def _gathered(features: Sequence[dict[str, Any]]) -> Gathered:
    return Gathered(
        Ragged.of([row["input_ids"] for row in features]),
        Ragged.of([row["labels"] for row in features]),
    )


def round_up(length: Any, multiple: int) -> Any:
    """The next multiple; of a number or of an array of them.

    Example:
        >>> round_up(9, 8), round_up(8, 8), round_up(9, 1)
        (16, 8, 9)
    """
    return -(-length // multiple) * multiple


# ---- composing


class TokenBatches(EpochBatches):
    """Batches of sample indices, each of at most ``max_tokens`` positions on either side, padding
    counted.

    Sentences are sorted by length, and the sorted row is cut where the budget is full. Which
    sentences of one length fall to which batch, and the order of the batches, are drawn for
    each epoch from (seed, epoch) alone; shapes and number of the batches do not change. Every
    sample is in one batch of each epoch.

    Args:
        lengths: source and target tokens of each sample, (n, 2).
        max_tokens: the budget.
        multiple: widths are rounded up to it, as in :class:`PairCollator`.
        seed: of the shuffling.
        rank, world: this process and how many there are. A sample belongs to one process for the
            whole run, and all have the same number of batches.
    """

    def __init__(
        self,
        lengths: Lengths,
        max_tokens: int,
        multiple: int = 1,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self._check(lengths, max_tokens, multiple)
        self.max_tokens, self.multiple, self.seed = max_tokens, multiple, seed
        self._lengths = lengths
        shares = [
            _Share(np.arange(first, len(lengths), world), lengths, max_tokens, multiple)
            for first in range(world)
        ]
        self._share = shares[rank]
        self._share.split_to(max(len(share) for share in shares))

    def _check(self, lengths: Lengths, max_tokens: int, multiple: int) -> None:
        if len(lengths) == 0:
            raise ValueError("the training set must have at least one sample, got none")
        padded = round_up(lengths, multiple).max(axis=1)
        if int(padded.max()) > max_tokens:
            worst = int(padded.argmax())
            raise ValueError(
                f"max_tokens must be at least the longest sentence, got {max_tokens}, but sample "
                f"{worst} has "
                f"{int(lengths[worst].max())} tokens (padded to {int(padded[worst])}); raise it, "
                "or filter by length"
            )

    def __len__(self) -> int:
        return len(self._share)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng([self.seed, self._epoch])
        batches = self._share.batches(random)
        for number in random.permutation(len(batches)):
            yield batches[number].tolist()

    def padding_share(self) -> dict[str, float]:
        """Share of the positions that are padding: of the source side, the target side, and
        both.
        """
        real, padded = np.zeros(2), np.zeros(2)
        for batch in self._share.batches(np.random.default_rng(self.seed)):
            lengths = self._lengths[batch]
            real += lengths.sum(axis=0)
            padded += round_up(lengths.max(axis=0), self.multiple) * len(batch)
        source, target = (1 - real / padded).tolist()
        return {"source": source, "target": target, "both": 1 - float(real.sum() / padded.sum())}

    def target_tokens(self) -> float:
        """Mean number of real target tokens in a batch."""
        return float(self._lengths[self._share.samples, 1].sum()) / len(self)


class _Share:
    """The samples of one process in the order of their lengths, and where that order is cut into
    batches.
    """

    def __init__(self, samples: Lengths, lengths: Lengths, max_tokens: int, multiple: int) -> None:
        rounded = round_up(lengths[samples], multiple)
        best: tuple[int, Lengths, list[int]] | None = None
        for band in _BANDS:
            order = _snake(rounded, band * multiple)
            cuts, area = _cut(rounded[order], max_tokens)
            if best is None or area < best[0]:
                best = area, order, cuts
        assert best is not None
        _, order, self._cuts = best
        self.samples = samples[order]
        keys = rounded[order]
        # runs of samples with the same two widths: they may change places without changing a
        # batch's shape
        self._runs = np.flatnonzero(np.any(keys[1:] != keys[:-1], axis=1)) + 1

    def __len__(self) -> int:
        return len(self._cuts) - 1

    def split_to(self, count: int) -> None:
        """Split the largest batches until there are ``count``, as another process has."""
        while len(self) < count and len(self) < len(self.samples):
            sizes = np.diff(self._cuts)
            largest = int(sizes.argmax())
            self._cuts.insert(largest + 1, self._cuts[largest] + int(sizes[largest]) // 2)

    def batches(self, random: np.random.Generator) -> list[Lengths]:
        """The batches in the order of their lengths; who sits where among samples of one shape is
        drawn.
        """
        mixed = np.concatenate(
            [random.permutation(run) for run in np.split(self.samples, self._runs)]
        )
        return np.split(mixed, self._cuts[1:-1])


def _snake(rounded: Lengths, band: int) -> Lengths:
    """Order by bands of target lengths; within a band by source length, up in one and down in the
    next.

    A batch that reaches from one band into the next then still has sources of like length.
    """
    bands = (rounded[:, 1] - 1) // band
    turned = np.where(bands % 2 == 0, rounded[:, 0], -rounded[:, 0])
    return np.lexsort((rounded[:, 1], turned, bands))


def _cut(widths: Lengths, max_tokens: int) -> tuple[list[int], int]:
    """Where to cut a row of (source, target) widths so that each part keeps the budget, and all
    positions it takes.
    """
    longer = widths.max(axis=1)
    cuts, area = [0], 0
    while (first := cuts[-1]) < len(widths):
        most = max_tokens // int(longer[first])  # the part that begins here holds no more
        padded = np.maximum.accumulate(widths[first : first + most])
        fits = (
            padded.max(axis=1) * np.arange(1, len(padded) + 1) <= max_tokens
        )  # whether the first n rows fit: true, then false
        count = int(fits.sum())
        area += count * int(padded[count - 1].sum())
        cuts.append(first + count)
    return cuts, area


# ---- the trainer


class TokenBudgetMixin(AdversarialMixin):
    """Turns any adversarial trainer into one on batches of a token budget; put it before the
    trainer among the bases.

    Args:
        batches: indices of the training samples, batch by batch; see :class:`TokenBatches`.
        kwargs: all the arguments of the trainer; ``per_device_train_batch_size`` has no effect on
            the batches.
    """

    def __init__(self, *args: Any, batches: TokenBatches, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.batches = self.advreg.samples.batches = batches

    def _get_collator_with_removed_columns(
        self, data_collator: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Callable[..., Any]:
        """The collator itself: pairs have no other columns."""
        return data_collator


class TokenBudgetTrainer(TokenBudgetMixin, AdversarialSeq2SeqTrainer):
    """:class:`AdversarialSeq2SeqTrainer` with ``batches=``."""
