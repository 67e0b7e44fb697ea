"""A prediction in few bytes: what is kept of a row of logits, and the divergence of a later
prediction from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core.divergence import (
    Prediction,
    as_two_classes,
    in_parts,
    kl,
    row_parts,
    squared_error,
    widen,
)

Parts = dict[str, Tensor]
"""What is kept of N rows: tensors (N, …) by name."""

Kind = Literal["auto", "whole", "lumped", "drawn"]

WHOLE_AT_MOST = 512
"""Predictions with at most this number of outputs are kept whole by default."""
_SHORT = 2**16  # entries that two bytes can number


class Sketch(ABC):
    """How rows of logits are kept."""

    @property
    @abstractmethod
    def fields(self) -> Mapping[str, tuple[int, torch.dtype]]:
        """The numbers that are kept of a row and their type, by name."""

    @abstractmethod
    def encode(self, logits: Tensor, uniforms: Tensor) -> Parts:
        """What to keep of these rows, (N, V), given ``draws`` uniform numbers for each, (N,
        draws).
        """

    @abstractmethod
    def divergence(self, parts: Parts, logits: Tensor) -> Tensor:
        """KL(q ‖ p) of each row, (N,), with q from the kept parts and p from the logits; the
        squared error for values.

        Rows that were never written hold zeros, and give a finite number.
        """

    draws = 0


def sketch_for(kind: Kind, prediction: Prediction, outputs: int, top: int, draws: int) -> Sketch:
    """The sketch that was asked for; ``"auto"`` keeps few outputs whole, and of a vocabulary the
    likeliest entries.
    """
    if prediction == "value" or kind == "whole" or (kind == "auto" and outputs <= WHOLE_AT_MOST):
        return Whole(outputs, prediction)
    if prediction == "labels":
        raise ValueError(
            f"sketch must be whole for several labels at once, got '{kind}': they have no tail; "
            "use whole"
        )
    if top > outputs:
        raise ValueError(
            f"top must be at most the {outputs} outputs of the model, got {top}; use sketch='whole'"
        )
    return Drawn(outputs, top, draws) if kind == "drawn" else Lumped(outputs, top)


@dataclass(frozen=True)
class Whole(Sketch):
    """The probabilities of all outputs; for several labels at once, two per label: yes and no. The
    outputs of a regression, unchanged.
    """

    outputs: int
    prediction: Prediction = "classes"

    @property
    def fields(self) -> Mapping[str, tuple[int, torch.dtype]]:
        if self.prediction == "value":
            return {"values": (self.outputs, torch.float32)}
        count = self.outputs * (2 if self.prediction == "labels" else 1)
        return {"probabilities": (count, torch.float16)}

    def encode(self, logits: Tensor, uniforms: Tensor) -> Parts:
        if self.prediction == "value":
            return {"values": logits.float()}
        return {"probabilities": F.softmax(widen(self._rows(logits)), dim=-1).flatten(1)}

    def divergence(self, parts: Parts, logits: Tensor) -> Tensor:
        if self.prediction == "value":
            return squared_error(parts["values"], logits)
        rows = self._rows(logits)
        kept = _wide(parts["probabilities"], rows).view(rows.shape)
        return kl(log_of(kept), rows).view(len(rows), -1).sum(-1)

    def _rows(self, logits: Tensor) -> Tensor:
        return as_two_classes(logits) if self.prediction == "labels" else logits


@dataclass(frozen=True)
class Lumped(Sketch):
    """The k likeliest entries, and the mass of all others as one outcome: k + 1 outcomes, a lower
    bound of the KL.
    """

    outputs: int
    top: int

    @property
    def fields(self) -> Mapping[str, tuple[int, torch.dtype]]:
        entry = torch.int16 if self.outputs <= _SHORT else torch.int32
        return {
            "entries": (self.top, entry),
            "likeliest": (self.top, torch.float16),
            "rest": (1, torch.float16),
        }

    def encode(self, logits: Tensor, uniforms: Tensor) -> Parts:
        found = [
            self._encode(*rows)
            for rows in zip(*(row_parts(part, logits) for part in (logits, uniforms)), strict=True)
        ]
        return {name: torch.cat([part[name] for part in found]) for name in found[0]}

    def _encode(self, logits: Tensor, uniforms: Tensor) -> Parts:
        entries = logits.topk(self.top, dim=-1, sorted=False).indices
        probabilities = F.softmax(widen(logits), dim=-1)
        likeliest = probabilities.gather(-1, entries)
        tail = probabilities.scatter_(-1, entries, 0.0)
        return self._kept(entries, likeliest, tail, uniforms)

    def _kept(self, entries: Tensor, likeliest: Tensor, tail: Tensor, uniforms: Tensor) -> Parts:
        return {"entries": entries, "likeliest": likeliest, "rest": tail.sum(-1, keepdim=True)}

    def divergence(self, parts: Parts, logits: Tensor) -> Tensor:
        likeliest, rest = _normalised(parts, logits)
        entries = _long(parts["entries"])
        at, others = widen(logits.gather(-1, entries)), log_sum_of_others(logits, entries)
        total = torch.logaddexp(at.logsumexp(-1), others)
        tail = rest * (self._tail(parts, logits, others) - total)
        crossed = (likeliest * (at - total[:, None])).sum(-1) + tail
        return -self._entropy(parts, likeliest, rest) - crossed

    def _tail(self, parts: Parts, logits: Tensor, others: Tensor) -> Tensor:
        """The logit that stands for the rest."""
        return others

    def _entropy(self, parts: Parts, likeliest: Tensor, rest: Tensor) -> Tensor:
        """The entropy of q, (N,)."""
        return -(_negative_entropy(likeliest).sum(-1) + _negative_entropy(rest))


@dataclass(frozen=True)
class Drawn(Lumped):
    """The k likeliest entries, and m of the others drawn in proportion to p, each of them for 1/m
    of their mass.

    Unbiased: E[− Σ_top q_v log p_v − (rest / m) Σ_drawn log p_v] = − Σ_v q_v log p_v. Draws are
    stratified: each comes from its own m-th part of the distribution, which is never noisier than
    independent draws. The divergence of one row may be below 0.
    """

    draws: int

    @property
    def fields(self) -> Mapping[str, tuple[int, torch.dtype]]:
        fields = super().fields
        return {
            **fields,
            "drawn": (self.draws, fields["entries"][1]),
            "entropy": (1, torch.float16),
        }

    def _kept(self, entries: Tensor, likeliest: Tensor, tail: Tensor, uniforms: Tensor) -> Parts:
        kept = super()._kept(entries, likeliest, tail, uniforms)
        entropy = -(_negative_entropy(likeliest).sum(-1) + _negative_entropy(tail).sum(-1))
        strata = torch.arange(self.draws, device=uniforms.device)
        drawn = inverse_cumulative(tail, (strata + uniforms) / self.draws)
        return {**kept, "drawn": drawn, "entropy": entropy[:, None]}

    def _tail(self, parts: Parts, logits: Tensor, others: Tensor) -> Tensor:
        return widen(logits.gather(-1, _long(parts["drawn"]))).mean(-1)

    def _entropy(self, parts: Parts, likeliest: Tensor, rest: Tensor) -> Tensor:
        return _wide(parts["entropy"], rest)[:, 0]


def inverse_cumulative(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Entries drawn in proportion to the weights, (N, V), one for each uniform number, (N, m)."""
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))  # the product may round up to the total
    points = torch.minimum(uniforms.to(weights.dtype) * total, below)
    return torch.searchsorted(cumulative, points, right=True).clamp_max(weights.shape[-1] - 1)


def log_sum_of_others(logits: Tensor, entries: Tensor) -> Tensor:
    """log Σ exp z_v over all v but the entries, for each row: (N, V) and (N, k) → (N,). Very low if
    none is left.
    """
    return in_parts(_log_sum_of_others, logits, entries)


def _log_sum_of_others(logits: Tensor, entries: Tensor) -> Tensor:
    wide = widen(logits)
    return wide.scatter(-1, entries, torch.finfo(wide.dtype).min).logsumexp(-1)


def _normalised(parts: Parts, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities of the likeliest entries, (N, k), and of the rest, (N,), rescaled to sum to
    1.
    """
    likeliest, rest = _wide(parts["likeliest"], logits), _wide(parts["rest"], logits)[:, 0]
    total = (likeliest.sum(-1) + rest).clamp_min(torch.finfo(rest.dtype).tiny)
    return likeliest / total[:, None], rest / total


def _wide(kept: Tensor, logits: Tensor) -> Tensor:
    """In the precision of the comparison with these logits: at least float32."""
    return kept.to(torch.promote_types(logits.dtype, torch.float32))


def _negative_entropy(probabilities: Tensor) -> Tensor:
    """p log p of each entry, 0 where p is."""
    return torch.xlogy(probabilities, probabilities)


def log_of(probabilities: Tensor) -> Tensor:
    """log p, and a very low number where p is 0."""
    return probabilities.clamp_min(torch.finfo(torch.float32).tiny).log()


def _long(entries: Tensor) -> Tensor:
    """Entries as indices: two-byte entries are stored as signed numbers."""
    return entries.long() & (_SHORT - 1) if entries.dtype == torch.int16 else entries.long()
