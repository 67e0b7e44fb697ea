"""Batches of one of several processes: each sample stays in its process, and all processes take
equally many steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import BatchSampler

from advreg.core.checks import check_whole
from advreg.core.shard import Shard

Indices = NDArray[np.int64]

_BATCHES_SORTED_TOGETHER = 50  # by length; as in transformers' own sampler


class EpochBatches(BatchSampler):
    """Batches of sample indices that differ from epoch to epoch; the loader sets the epoch."""

    _epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next batches."""
        self._epoch = epoch

    @property
    def sampler(self) -> Self:  # type: ignore[override]
        """Itself: a resumed epoch wraps it to skip batches, and accelerate sets the epoch of the
        inner sampler.
        """
        return self


class ShardBatches(EpochBatches):
    """Batches of sample indices of one process's shard; every sample is in one batch of each epoch.

    The order of each epoch depends on (seed, epoch, rank) alone. All batches are full but
    the last, or the last two where another process has one sample more. No sample is repeated to
    fill a batch, and none is left out unless ``drop_last``. With a batch size of 1 and shards of
    unequal size the larger ones end in a batch of two.

    Args:
        shard: the samples of this process.
        batch_size: samples in a batch.
        seed: of the order.
        shuffle: draw the order; otherwise samples come in the order of their ids.
        drop_last: leave out, in each epoch, what does not fill a batch in every process.
        lengths: tokens of each sample of the shard; samples of similar length then share a batch.
    """

    def __init__(
        self,
        shard: Shard,
        batch_size: int,
        seed: int = 0,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        lengths: Indices | None = None,
    ) -> None:
        check_whole("batch_size", batch_size, least=1)
        self.shard, self.batch_size, self.seed = shard, batch_size, seed
        self.shuffle, self.lengths = shuffle, lengths
        self.drop_last = drop_last
        least = shard.size // shard.world
        if drop_last:
            self._steps = least // batch_size
        else:
            self._steps = min(-(-shard.size // (shard.world * batch_size)), least)
        if self._steps == 0:
            what, remedy = "a sample", "start fewer processes"
            if drop_last:
                what, remedy = f"a batch of {batch_size}", f"{remedy}, or lower the batch size"
            raise ValueError(
                f"the training set must have {what} for each of {shard.world} processes, got "
                f"{shard.size} samples; "
                f"{remedy}"
            )

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        ids = self.shard.rank + self.shard.world * self._order()
        for first, end in pairwise([0, *self._cuts()]):
            yield ids[first:end].tolist()

    def _order(self) -> Indices:
        """Rows of the shard in the order of this epoch."""
        if not self.shuffle:
            return np.arange(len(self.shard))
        order = np.random.default_rng([self.seed, self._epoch, self.shard.rank]).permutation(
            len(self.shard)
        )
        if self.lengths is None:
            return order
        groups = np.arange(len(order)) // (_BATCHES_SORTED_TOGETHER * self.batch_size)
        return order[np.lexsort((-self.lengths[order], groups))]

    def _cuts(self) -> Indices:
        """Where each batch ends. Batches are full, unless too few samples are left for the steps to
        come.
        """
        steps = np.arange(1, self._steps + 1)
        if self.drop_last:
            return steps * self.batch_size
        cuts = np.minimum(steps * self.batch_size, len(self.shard) - (self._steps - steps))
        cuts[-1] = len(self.shard)
        return cuts
