"""Groups of options that several regularisers share, each with the one thing it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from advreg.core.ascent import Ascent, EndRule, StepRule, ascend
from advreg.core.ball import Ball, Norm, Scope, Start, StartKind
from advreg.core.checks import check_not_negative, optional
from advreg.core.divergence import Divergence
from advreg.core.perturbation import Cut, Perturbation
from advreg.core.retry import Fitting
from advreg.core.schedule import Clock
from advreg.memory.tiers import CacheDevice, Storage
from advreg.methods.base import Batch, Dropout, ModelView, Passes, option
from advreg.methods.regulariser import CleanPass, Penalty, Regulariser


@dataclass
class DivergenceOptions(Regulariser):
    """The divergence ℓ_v of a perturbed prediction from the clean one."""

    divergence: Divergence = option(
        "kl", "kl: KL(f(x) ‖ f(x+δ)); symmetric_kl: mean of both directions"
    )
    detach_clean: bool = option(False, "let no gradient flow through the clean prediction f(x)")

    def compared(
        self,
        view: ModelView,
        batch: Batch,
        clean: Tensor,
        perturbed: Tensor,
        measures: Mapping[str, Tensor | float] | None = None,
    ) -> Penalty:
        """ℓ_v with the denominator of the task loss, so that λ means the same at every batch
        size.
        """
        total = view.divergence(clean, perturbed, batch, self.divergence, self.detach_clean)
        return Penalty(total / view.items(batch), measures or {})


@dataclass
class DropoutOptions(Regulariser):
    """The dropout masks of the passes of a step."""

    dropout: Dropout = option(
        "fresh", "dropout masks of the passes of a step: fresh, shared or off"
    )


@dataclass
class FuseOptions(Regulariser):
    """One pass over both copies of a batch, or two."""

    fuse: bool = option(True, "clean and perturbed copies in one pass over the doubled batch")

    def beside(
        self, clean: CleanPass, delta: Perturbation | Cut | None, both_losses: bool = False
    ) -> Tensor:
        """The perturbed prediction; copies in one pass cannot share their masks."""
        shares = getattr(self, "dropout", "fresh") == "shared"
        return clean.beside(delta, self.fuse and not shares, both_losses)

    def passes(self) -> Passes:
        return Passes(2, 1)


STORAGE = ("cache_device", "cache_budget_gb", "cache_folder")
"""The options of :class:`StorageOptions`, which change no result."""


@dataclass
class StorageOptions(Regulariser):
    """Where the rows of a memory live."""

    cache_device: CacheDevice = option(
        "auto", "where rows live: device, host memory, disk; auto: the first with room"
    )
    cache_budget_gb: float | None = option(
        None,
        "GB on the device for auto; none: a quarter of what is free",
        check=optional(check_not_negative),
    )
    cache_folder: str | None = option(
        None, "folder of a cache on disk; none: the system's temporary one"
    )

    @property
    def storage(self) -> Storage:
        return Storage(self.cache_device, self.cache_budget_gb, self.cache_folder)


@dataclass
class TargetOptions(Regulariser):
    """A penalty towards constant targets from earlier epochs; the first epoch has none."""

    def has_begun(self, clock: Clock) -> bool:
        """At once: predictions are remembered before the penalty starts."""
        return True

    def weight_at(self, clock: Clock) -> float:
        weight = super().weight_at(clock)
        return weight if clock.epoch > 0 else 0.0

    def passes(self) -> Passes:
        return Passes(1, 1)

    @staticmethod
    def rows_of(logits: Tensor, labels: Tensor) -> Tensor:
        """One row of logits per label position: virtual tokens of prompt tuning come first and have
        no label.
        """
        if logits.dim() > 2:
            logits = logits[:, logits.shape[1] - labels.shape[1] :]
        return logits.flatten(0, -2)


@dataclass
class AscentOptions(DropoutOptions, DivergenceOptions):
    """The inner maximisation max_{‖δ‖ ≤ ε} ℓ_v(x, δ, θ)."""

    radius: float = option(0.1, "ε, radius of the ball the perturbation stays in")
    norm: Norm = option("l2", "norm of the ball: l2 or linf")
    scope: Scope = option(
        "sample", "what the ball measures: the sample (all its tokens together) or each token"
    )
    ascent_steps: int = option(3, "S, gradient-ascent steps")
    step_size: float = option(0.1, "η, size of an ascent step")
    step_rule: StepRule = option(
        "normalised", "step along g/‖g‖ (normalised), g (gradient) or its sign"
    )
    step_end: EndRule = option(
        "project", "after a step: project into the ball, or rescale onto its surface"
    )
    start: StartKind = option(
        "uniform", "start of the ascent: uniform on the ball's surface, or normal"
    )
    start_scale: float = option(1e-5, "standard deviation of a normal start")
    _fitting: Fitting = field(default_factory=Fitting, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.ball, self.ascent, self.origin  # refuses bad values before training

    @property
    def ball(self) -> Ball:
        return Ball(self.radius, self.norm, self.scope)

    @property
    def ascent(self) -> Ascent:
        return Ascent(self.ascent_steps, self.step_size, self.step_rule, self.step_end)

    @property
    def origin(self) -> Start:
        return Start(self.start, self.start_scale)

    def warnings(self, epochs: float) -> Sequence[str]:
        return self.ascent.warnings()

    def worst_case(self, view: ModelView, batch: Batch, clean: Tensor) -> Perturbation:
        """Δ_i by ascent on ℓ_v(x_i, δ_i, θ), from a random start.

        The clean prediction is a constant here: only δ moves. Samples do not depend on each other,
        so where memory runs out a part of the batch is climbed at a time.
        """
        start = self.origin.draw(view.zeros(batch), self.ball)

        def climb(rows: slice) -> Perturbation:
            part, target = (
                (batch, clean) if rows == whole else (view.part(batch, rows), clean[rows])
            )

            def objective(delta: Perturbation) -> Tensor:
                return view.divergence(
                    target.detach(), view.ascent_logits(part, delta), part, self.divergence
                )

            return ascend(objective, start.part(rows), self.ascent, self.ball, view.gradient)

        whole = slice(0, start.batch_size)
        return Perturbation.joined(self._fitting(start.batch_size, start.width, climb))
