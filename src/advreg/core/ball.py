"""The ball ‖δ‖ ≤ ε a perturbation lives in, and where an ascent starts inside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from advreg.core.checks import check_choice, check_not_negative, check_positive
from advreg.core.perturbation import Perturbation, scatter_real

Norm = Literal["l2", "linf"]
Scope = Literal["sample", "token"]
StartKind = Literal["uniform", "normal"]


@dataclass(frozen=True)
class Ball:
    """{δ : ‖δ‖ ≤ ε}, separately for each stream, and for each sample or each token.

    Args:
        radius: ε. Zero gives the ball that holds nothing but δ = 0.
        norm: ``"l2"`` or ``"linf"``.
        scope: ``"sample"`` measures all real tokens of a sentence together, ``"token"`` each on its
            own.
    """

    radius: float
    norm: Norm = "l2"
    scope: Scope = "sample"

    def __post_init__(self) -> None:
        check_not_negative("radius", self.radius)
        check_choice("norm", self.norm, get_args(Norm))
        check_choice("scope", self.scope, get_args(Scope))

    def size(self, values: Tensor) -> Tensor:
        """‖δ‖ per sample (B, 1, 1) or per token (B, T, 1). Padding must be zero, and then does not
        count.
        """
        axes = (1, 2) if self.scope == "sample" else (2,)
        order = torch.inf if self.norm == "linf" else 2
        # float64, so that tiny gradients do not underflow when they are squared
        size: Tensor = torch.linalg.vector_norm(
            values, order, axes, keepdim=True, dtype=torch.float64
        )
        return size.to(values.dtype)

    def unit(self, delta: Perturbation) -> Perturbation:
        """δ / ‖δ‖; a zero stays zero."""
        return delta.scaled(lambda values: inverse(self.size(values)))

    def project(self, delta: Perturbation) -> Perturbation:
        """The nearest point of the ball: shrink (l2) or clip (linf) what lies outside."""
        if self.norm == "linf":
            return delta.map(lambda values, _: values.clamp(-self.radius, self.radius))
        tiny = torch.finfo(next(iter(delta.values.values())).dtype).tiny
        return delta.scaled(lambda x: (self.radius / self.size(x).clamp_min(tiny)).clamp_max(1.0))

    def rescale(self, delta: Perturbation) -> Perturbation:
        """ε δ / ‖δ‖: onto the surface of the ball, from inside as well as from outside."""
        return delta.map(lambda values, _: self.radius * (values * inverse(self.size(values))))

    def contains(self, delta: Perturbation, tolerance: float = 1e-5) -> bool:
        """Whether every sample's (or token's) δ is inside, up to rounding."""
        return bool(self.holds(delta, tolerance).all())

    def holds(self, delta: Perturbation, tolerance: float = 1e-5) -> Tensor:
        """Which samples' δ are inside, for scope ``"token"`` at every token, (B,); the host does
        not wait.
        """
        limit = self.radius * (1 + tolerance) + torch.finfo(torch.float32).tiny
        inside = [
            (self.size(values) <= limit).flatten(1).all(1) for values in delta.values.values()
        ]
        return torch.stack(inside).all(0)


@dataclass(frozen=True)
class Start:
    """Where the ascent starts.

    Args:
        kind: ``"uniform"`` draws each entry from U(−1, 1) and scales the result onto the ball's
            surface; ``"normal"`` draws from N(0, scale²). Exactly zero is not offered: the
            divergence is flat there.
        scale: standard deviation of ``"normal"``.
    """

    kind: StartKind = "uniform"
    scale: float = 1e-5

    def __post_init__(self) -> None:
        check_choice("start", self.kind, get_args(StartKind))
        check_positive("start_scale", self.scale)

    def draw(self, zeros: Perturbation, ball: Ball) -> Perturbation:
        """A random δ inside the ball, of the shape of ``zeros``; drawn per real token."""
        if self.kind == "uniform":
            return ball.rescale(zeros.map(uniform_noise))
        return ball.project(zeros.map(lambda values, mask: normal_noise(values, mask, self.scale)))


def uniform_noise(values: Tensor, mask: Tensor) -> Tensor:
    """U(−1, 1) at every coordinate of every real token."""
    return _drawn(
        lambda *shape: 2 * torch.rand(*shape, dtype=values.dtype, device=values.device) - 1,
        values,
        mask,
    )


def normal_noise(values: Tensor, mask: Tensor, scale: float) -> Tensor:
    """N(0, scale²) at every coordinate of every real token."""
    return _drawn(
        lambda *shape: scale * torch.randn(*shape, dtype=values.dtype, device=values.device),
        values,
        mask,
    )


def inverse(size: Tensor) -> Tensor:
    """1 / size, and 0 where the size is 0: a zero vector has no direction."""
    return torch.where(
        size > 0, 1 / size.clamp_min(torch.finfo(size.dtype).tiny), torch.zeros_like(size)
    )


def _drawn(draw: Callable[..., Tensor], values: Tensor, mask: Tensor) -> Tensor:
    """Noise that follows the tokens: the k-th real token of a sample gets the same, whichever side
    the padding is on.

    On a CPU one row is drawn per real token, so that neither the padded width nor the split into
    micro-batches matters. A GPU's generator would not honour that, and counting the tokens would
    make the host wait for it.
    """
    if values.device.type == "cpu":
        return scatter_real(draw(int(mask.sum()), values.shape[-1]), mask)
    position = (mask.long().cumsum(1) - 1).clamp_min(0)  # (B, T)
    return draw(*values.shape).gather(1, position[..., None].expand(values.shape))
