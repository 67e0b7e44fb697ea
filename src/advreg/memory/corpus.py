"""What a method may know of the training set before training starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from advreg.core.divergence import Prediction
from advreg.core.shard import Shard


@dataclass(frozen=True)
class Corpus:
    """The training set seen once, sample by sample, in the order of its stable ids 0 … n−1.

    Where several processes train together, each has seen its own samples, and n here is their
    number.

    Args:
        lengths: per stream, the number of real tokens of each sample, (n,).
        widths: per stream, the width D of the embeddings δ is added to.
        vectors: per stream, the sentence vectors v_i = mean of the token embeddings of sample i,
            (n, d); the paper's sentence-vector equation.
        fingerprint: a hash of every token and label of every sample, to notice that the data
            changed.
        part: which samples these are; none: all there are.
        checksum: another hash, of all samples of all processes, that is the same however many there
            are.
        items: number of predicted items of each sample, (n,): 1, or its labelled tokens; ``None``
            without labels.
        outputs: what the model predicts and how many outputs it has, where its configuration tells.
    """

    lengths: Mapping[str, Tensor]
    widths: Mapping[str, int]
    vectors: Mapping[str, Tensor]
    fingerprint: str
    part: Shard | None = None
    checksum: str = ""
    items: Tensor | None = None
    outputs: tuple[Prediction, int] | None = None

    def __len__(self) -> int:
        return next(iter(self.lengths.values())).shape[0]

    @property
    def shard(self) -> Shard:
        """Which samples these are."""
        return Shard(len(self)) if self.part is None else self.part
