"""The interface of methods, and of the model as methods see it."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor

from advreg.core.checks import UnsupportedError, suggest, unknown_method
from advreg.core.divergence import Divergence, Prediction
from advreg.core.options import Checked, OptionInfo, Options, option, options_of
from advreg.core.perturbation import Cut, Perturbation
from advreg.core.schedule import Clock
from advreg.memory.memory import Memory

__all__ = ["OptionInfo", "UnsupportedError", "option", "suggest"]

Batch = Mapping[str, Any]
Backward = Callable[[Tensor], None]
Update = Callable[[], None]
Dropout = Literal["fresh", "shared", "off"]
Need = Literal["predictions", "perturbation", "ids", "dropout", "labels"]
"""What a method needs beyond the trainer's own step: the logits, δ in the embeddings, stable ids of
the samples, dropout in the model, labels.
"""
Trait = Literal["corpus", "repeats_backward", "updates_itself"]
"""What is unusual about a method: its memory looks at the training set before the first step; its
step calls backward more than once; its step takes optimizer steps itself.
"""


class ModelView(Protocol):
    """A model as methods see it: predictions on a batch, clean or perturbed, and their loss."""

    def logits(self, batch: Batch, delta: Perturbation | None = None) -> Tensor:
        """f(x + δ) by the pass that computes the task loss. Under data parallelism: one such pass
        per backward.
        """

    def bare_logits(self, batch: Batch, delta: Perturbation | Cut | None = None) -> Tensor:
        """f(x + δ) on the bare model: no task loss, no synchronisation between processes."""

    def ascent_logits(self, batch: Batch, delta: Perturbation) -> Tensor:
        """f(x + δ) on the bare model for the ascent: differentiated with respect to δ only."""

    def paired_logits(
        self,
        batch: Batch,
        delta: Perturbation | Cut | None,
        fuse: bool = True,
        both_losses: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """f(x) and f(x + δ): one pass over the doubled batch when ``fuse``, two passes otherwise.

        A :class:`Cut` in place of δ sets embeddings to 0. With ``None`` the two differ by their
        dropout masks alone. The task loss is then of f(x), or with ``both_losses`` the mean of
        both.
        """

    def averaged(self, batch: Batch, parameters: Mapping[str, Tensor]) -> Tensor:
        """f(x) with other values of the trained parameters, without gradient."""

    def loss_at(self, batch: Batch, delta: Perturbation | None = None) -> Tensor:
        """The task loss at x + δ by the pass that :meth:`logits` makes; the model need not output
        logits.
        """

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """The task loss of the pass that gave these logits: :meth:`logits`, or the clean ones of
        :meth:`paired_logits`.
        """

    def targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The label for each row of logits, and which rows have one: (B,) or (B, T)."""

    def prediction(self, logits: Tensor, batch: Batch) -> Prediction:
        """What the head predicts: one of several classes, several labels at once, or a value."""

    def items(self, batch: Batch) -> Tensor:
        """The denominator of the task loss: samples, or target tokens, of the whole accumulation
        group.
        """

    def divergence(
        self,
        clean: Tensor,
        perturbed: Tensor,
        batch: Batch,
        kind: Divergence,
        detach_clean: bool = False,
    ) -> Tensor:
        """ℓ_v summed (not averaged) over the predicted items of the batch; padding excluded."""

    def masks(self, batch: Batch) -> Mapping[str, Tensor]:
        """Real tokens of each stream, (B, T)."""

    def is_causal(self) -> bool:
        """Whether the model is a decoder without an encoder, in which the first token of a row sees
        itself alone.
        """

    def zeros(self, batch: Batch) -> Perturbation:
        """δ = 0 for this batch."""

    def gradient(self, objective: Tensor, delta: Perturbation) -> Perturbation:
        """∇_δ objective, safe in mixed precision; parameters' gradients are left alone."""

    def sample_ids(self, batch: Batch) -> Tensor:
        """Stable dataset ids of the batch, (B,)."""

    def accumulating(self) -> AbstractContextManager[None]:
        """Within: gradients stay in this process; the next pass outside exchanges them together
        with its own.
        """

    def dropout(self, mode: Dropout) -> AbstractContextManager[None]:
        """Within: ``fresh`` masks for each pass, the ``shared`` masks of the first, or dropout
        ``off``.
        """

    def part(self, batch: Batch, rows: slice) -> Batch:
        """Some of the samples of a batch, with their padding."""

    def parameters(self) -> Mapping[str, Tensor]:
        """The trained parameters by name."""

    def has_dropout(self) -> bool:
        """Whether two training passes over the same batch differ."""


@dataclass(frozen=True)
class StepReport:
    """What one step did, for the log.

    Args:
        loss: what is minimised; carries the graph of the last point until :meth:`Method.step` has
            propagated it.
        task_loss: the task's part of it, detached.
        penalty: the regulariser, before its weight.
        measures: anything else worth plotting: ‖δ‖, staleness of the cache, …
    """

    loss: Tensor
    task_loss: Tensor
    penalty: Tensor | None = None
    measures: Mapping[str, Tensor | float] = field(default_factory=dict)


def plain(view: ModelView, batch: Batch) -> StepReport:
    """What standard training minimises."""
    loss = view.loss_at(batch)
    return StepReport(loss, loss.detach())


@dataclass(frozen=True)
class Passes:
    """Passes over the model per step, averaged over a refresh cycle, in units of one pass over the
    batch.
    """

    forward: float
    backward: float


@dataclass
class Step:
    """One step of a training loop.

    Args:
        clock: epoch and step.
        backward: propagates the loss of a point.
        update: takes an optimizer step and clears the gradients; FreeAT does so between replays.
        optimizer: takes the step that follows, for methods that read its state.

    Example:
        >>> from advreg import R3F, Clock, HFModelView
        >>> step = Step(Clock(epoch=0, step=0), backward=lambda loss: (2 * loss).backward())
        >>> bool(R3F().step(HFModelView(model), batch, step).loss > 0)
        True
    """

    clock: Clock
    backward: Backward = torch.Tensor.backward
    update: Update | None = None
    optimizer: torch.optim.Optimizer | None = None


@dataclass(frozen=True)
class MethodInfo:
    """A method as data.

    Args:
        name: on the command line and in records.
        title: in tables and pictures.
        paper: authors and year.
        cost: passes per step as a formula.
        needs: what it needs of trainer, model and data.
        traits: what is unusual about it.
        movable: options that change no result, so that a resumed run may change them.
        tune: the values that ``advreg compare`` tries for each option, by family of tasks.
    """

    name: str
    title: str
    paper: str
    cost: str
    needs: frozenset[Need]
    traits: frozenset[Trait] = frozenset()
    movable: tuple[str, ...] = ()
    tune: Mapping[str, Mapping[str, Sequence[object]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Constraint:
    """What the settings of a method exclude.

    Args:
        kind: ``"whole_weights"``: every process must hold all weights, which FSDP's do not;
            ``"writes_weights"``: :meth:`Method.updated` changes weights, which ZeRO undoes.
        option: the option that causes it.
        why: the reason, as a clause.
    """

    kind: Literal["whole_weights", "writes_weights"]
    option: str
    why: str


@dataclass
class Method(Checked, ABC):
    """One way to train on a batch. A method's dataclass fields are its options."""

    info: ClassVar[MethodInfo]
    memory: Memory | None = field(default=None, init=False, repr=False, compare=False)
    """What the method remembers between steps."""

    def constraints(self) -> Sequence[Constraint]:
        """What these settings exclude."""
        return ()

    def warnings(self, epochs: float) -> Sequence[str]:
        """Warnings for a training of ``epochs`` epochs."""
        return ()

    @abstractmethod
    def objective(self, view: ModelView, batch: Batch, step: Step) -> StepReport:
        """What to minimise on this batch, in a report whose ``loss`` is still to be propagated.

        A method that trains on several points propagates all but the last itself, by
        ``step.backward``. The caller propagates the last one, so a trainer keeps its own scaling,
        accumulation and contexts.
        """

    def step(self, view: ModelView, batch: Batch, step: Step) -> StepReport:
        """Add this batch's gradients to the parameters: :meth:`objective`, and its backward
        pass.
        """
        report = self.objective(view, batch, step)
        if (
            report.loss.requires_grad
        ):  # FreeAT holds micro-batches back until their group is complete
            step.backward(report.loss)
        return replace(report, loss=report.loss.detach())

    def updated(self, view: ModelView) -> None:
        """To be called before the first step and after each optimizer step."""

    @abstractmethod
    def passes(self) -> Passes:
        """Forward and backward passes per step that these settings cost."""

    def options(self) -> Options:
        """The settings by name."""
        return {option.name: getattr(self, option.name) for option in self._described()}

    def fresh(self, **changes: object) -> Self:
        """A method that remembers nothing yet, with these options changed."""
        return type(self)(**{**self.options(), **_known(type(self), changes)})

    def __add__(self, other: Method) -> Method:
        """Both penalties on one task loss; see :class:`~advreg.methods.combined.Combined`."""
        from advreg.methods.combined import added

        return added(self, other)

    @classmethod
    def _described(cls) -> tuple[OptionInfo, ...]:
        return options_of(cls)


def memory_bytes(method: Method) -> int:
    """Bytes that a method keeps between steps."""
    return 0 if method.memory is None else method.memory.bytes


def validate(method: Method, samples: int) -> None:
    """Refuse options that do not fit this number of samples or this machine; see
    :meth:`Memory.validate`.
    """
    if method.memory is not None:
        method.memory.validate(samples)


def decisive_options(method: Method) -> Options:
    """The settings that decide results, which a resumed run must agree on."""
    return {
        name: value for name, value in method.options().items() if name not in method.info.movable
    }


def upgraded_options(method: type[Method], saved: Mapping[str, object]) -> Options:
    """The options of a saved run as plain values.

    Options that are newer than the run have their defaults, which do what was done without them.
    """
    usual = {
        option.name: option.default
        for option in method._described()
        if option.default is not dataclasses.MISSING
    }
    options: Options = json.loads(json.dumps(usual | dict(saved)))
    return options


class Registry(dict[str, "type[Method]"]):
    """The methods by name; sums of them, such as ``temporal+smart``, are made when asked for."""

    def of(self, name: str) -> type[Method]:
        """The method of this name, or an error that names the closest one."""
        if name not in self:
            raise ValueError(self.unknown(name))
        return self[name]

    def unknown(self, name: str) -> str:
        """The text of an error for a name that no method has."""
        return unknown_method(name, self)

    def canonical(self, name: str) -> str:
        """The one name of a method; the parts of a sum may come in any order."""
        return self[name].info.name if name in self else name

    def __missing__(self, name: str) -> type[Method]:
        from advreg.methods.combined import combination

        if name not in self:
            raise KeyError(name)
        return combination(name.split("+"))

    def __contains__(self, name: object) -> bool:
        parts = str(name).split("+")
        return all(super(Registry, self).__contains__(part) for part in parts)


registry = Registry()
M = TypeVar("M", bound=type[Method])


def register(
    name: str,
    *,
    title: str,
    paper: str,
    cost: str,
    needs: Iterable[Need] = ("predictions", "perturbation"),
    traits: Iterable[Trait] = (),
    movable: Sequence[str] = (),
    tune: Mapping[str, Mapping[str, Sequence[object]]] | None = None,
) -> Callable[[M], M]:
    """Make a method known by name to the command line and to :func:`create`; see
    :class:`MethodInfo`.
    """

    def add(method: M) -> M:
        method.info = MethodInfo(
            name,
            title,
            paper,
            cost,
            frozenset(needs),
            frozenset(traits),
            tuple(movable),
            tune or {},
        )
        registry[name] = method
        return method

    return add


def describe(name: str) -> list[OptionInfo]:
    """The options of a method, for flags, config keys and the table of ``advreg methods``."""
    return list(registry.of(name)._described())


def create(name: str, **options: object) -> Method:
    """A method by name.

    Example:
        >>> create("arch", cache_fraction=0.1).options()["cache_fraction"]
        0.1
    """
    method = registry.of(name)
    return method(**_known(method, options))


def by_part(method: str, find: Callable[[str], Mapping[str, object]]) -> Options:
    """What is found for a method; for a sum, what is found for each part, with its name in front.

    Example:
        >>> by_part("temporal+smart", {"temporal": {"weight": 10.0}, "smart": {}}.__getitem__)
        {'temporal.weight': 10.0}
    """
    if "+" not in method:
        return dict(find(method))
    parts = registry.of(method).info.name.split("+")
    return {f"{part}.{name}": value for part in parts for name, value in find(part).items()}


def options_named(method: str, given: str) -> list[str]:
    """The options of a method that a flag or key means.

    Example:
        >>> options_named("smart", "smart.weight"), options_named("temporal+smart", "weight")
        (['weight'], ['smart.weight', 'temporal.weight'])
    """
    names = (option.name for option in describe(method))
    return [name for name in names if given in (name, name.rpartition(".")[2], f"{method}.{name}")]


def _known(method: type[Method], options: Mapping[str, object]) -> Mapping[str, Any]:
    """The options; one that the method does not have is an error."""
    known = [option.name for option in method._described()]
    for given in options:
        if given not in known:
            raise ValueError(
                f"method '{method.info.name}' has no option '{given}'{suggest(given, known)}; it "
                f"has {', '.join(known) or 'none'}"
            )
    return options
