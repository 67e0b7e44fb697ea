"""What a method is, and all that it may know of the model it trains."""

from __future__ import annotations

import dataclasses
import difflib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, get_type_hints

import torch
from torch import Tensor

from advreg.core.divergence import Divergence, Prediction
from advreg.core.perturbation import Cut, Perturbation
from advreg.core.progress import Progress
from advreg.core.schedule import Clock
from advreg.memory.corpus import Corpus
from advreg.methods.coerce import coerce
from advreg.records.diagnostics import MemoryHealth

Batch = Mapping[str, Any]
Backward = Callable[[Tensor], None]
Update = Callable[[], None]
Fetch = Callable[
    [Sequence[Tensor]], Iterable[Batch]
]  # groups of sample ids → a batch of each, on the device
Dropout = Literal["fresh", "shared", "off"]
Need = Literal["predictions", "perturbation", "ids"]
"""What a method needs beyond the trainer's own step: the logits, δ in the embeddings, stable ids of
the samples.
"""


class UnsupportedError(ValueError):
    """A method needs what a trainer, a model or a batch does not offer."""


class ModelView(Protocol):
    """All that a method may know of a model: its predictions on a batch, clean or perturbed, and
    their loss.
    """

    def logits(self, batch: Batch, delta: Perturbation | None = None) -> Tensor:
        """f(x + δ) by the pass that computes the task loss. Under data parallelism: one such pass
        per backward.
        """

    def peek(self, batch: Batch, delta: Perturbation | None = None) -> Tensor:
        """f(x + δ) on the bare model: no task loss, and nothing is synchronised."""

    def probe(self, batch: Batch, delta: Perturbation) -> Tensor:
        """The same for the ascent: to be differentiated with respect to δ, and to nothing else."""

    def pair(
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
        :meth:`pair`.
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
        """Whether the model is a decoder without an encoder, in which the first token of a row sees itself alone."""

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
        """Some of the samples of a batch, padded as they were."""

    def parameters(self) -> Mapping[str, Tensor]:
        """The trained parameters by name."""

    def has_dropout(self) -> bool:
        """Whether two training passes over the same batch differ."""

    def head(self) -> torch.nn.Linear:
        """The last linear layer of the prediction head."""


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


@dataclass(frozen=True)
class MethodState:
    """What a method remembers: tensors, and facts (text) that must agree when it is loaded
    again.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Passes:
    """Passes over the model per step, averaged over a refresh cycle, in units of one pass over the
    batch.
    """

    forward: float
    backward: float


@dataclass
class Method(ABC):
    """One way to train on a batch. A method's dataclass fields are its options."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    cost: ClassVar[str] = ""  # passes per step as a formula
    needs: ClassVar[frozenset[Need]] = frozenset({"predictions", "perturbation"})
    needs_corpus: ClassVar[bool] = False  # must prepare() see the training set?
    repeats_backward: ClassVar[bool] = False  # does step() call backward more than once?
    updates_itself: ClassVar[bool] = False  # does step() take optimizer steps of its own?
    movable: ClassVar[
        tuple[str, ...]
    ] = ()  # options that change no result, so that a resumed run may change them

    @property
    def needs_whole_weights(self) -> str:
        """The option that needs all weights in every process, and so excludes FSDP; empty if none
        is set that does.
        """
        return ""

    def require(self, samples: int) -> None:  # noqa: B027 - optional
        """Refuse, before anything is trained, options that so many samples or this machine do not
        allow.

        Raises:
            ValueError: with the option, its value and a remedy.
        """

    @property
    def writes_weights(self) -> str:
        """The option by which :meth:`updated` changes weights, and which so excludes ZeRO; empty if
        none is set.
        """
        return ""

    def concerns(self, epochs: float) -> Sequence[str]:
        """What a user should be told before a training of so many epochs begins."""
        return ()

    def prepare(  # noqa: B027 - optional
        self, corpus: Corpus, seed: int, device: torch.device, progress: Progress | None = None
    ) -> None:
        """Look at the training set once, before the first step."""

    def begin_memory(self, epoch: float) -> None:  # noqa: B027 - optional
        """To be called where a run goes on without what the method remembered, as from another
        trainer's checkpoint.

        Args:
            epoch: where the run stands; 7.5 is the middle of the eighth epoch.
        """

    def begin_epoch(  # noqa: B027 - optional
        self, task: ModelView, clock: Clock, fetch: Fetch, progress: Progress | None = None
    ) -> None:
        """To be called before each epoch by loops that offer ARCH's sweep.

        Args:
            task: the model.
            clock: the epoch that begins.
            fetch: makes batches of groups of samples that the method asks for.
            progress: told what is being done, and how far it is.
        """

    @property
    def looks_ahead(self) -> bool:
        """Is it of use to call :meth:`expect`?"""
        return False

    def expect(self, ids: Tensor) -> None:  # noqa: B027 - optional
        """These samples come in one of the next steps: a memory that is not on the device starts to
        bring them.
        """

    @abstractmethod
    def objective(
        self,
        task: ModelView,
        batch: Batch,
        clock: Clock,
        backward: Backward,
        update: Update | None = None,
    ) -> StepReport:
        """What to minimise on this batch, in a report whose ``loss`` is still to be propagated.

        A method that trains on several points propagates all but the last itself. Whoever calls
        this propagates the last one, so a trainer keeps its own scaling, accumulation and contexts.

        Args:
            task: the model.
            batch: what the data loader gave.
            clock: epoch and step.
            backward: how to propagate the loss of an earlier point.
            update: takes an optimizer step and clears the gradients; only FreeAT uses it.
        """

    def step(
        self,
        task: ModelView,
        batch: Batch,
        clock: Clock,
        backward: Backward = torch.Tensor.backward,
        update: Update | None = None,
    ) -> StepReport:
        """Add this batch's gradients to the parameters: :meth:`objective`, and its backward
        pass.
        """
        report = self.objective(task, batch, clock, backward, update)
        if (
            report.loss.requires_grad
        ):  # FreeAT holds micro-batches back until their group is complete
            backward(report.loss)
        return replace(report, loss=report.loss.detach())

    def updated(self, task: ModelView) -> None:  # noqa: B027 - optional
        """To be called after each optimizer step by methods that follow the weights (SMART's
        average, R4F).
        """

    @abstractmethod
    def passes(self) -> Passes:
        """Forward and backward passes per step that these settings cost."""

    @property
    def memory_bytes(self) -> int:
        """Bytes the method keeps between steps."""
        return 0

    def health(self) -> MemoryHealth | None:
        """How what it remembers is doing; to be asked once, when training has ended."""
        return None

    @property
    def remembers(self) -> bool:
        """Whether a run with these settings needs :meth:`state` to go on exactly."""
        return type(self).state is not Method.state

    def state(self) -> MethodState:
        """What must be in a checkpoint for the next step to be exactly the same."""
        return MethodState()

    def load_state(self, state: MethodState) -> None:  # noqa: B027 - optional
        """Take a saved state over; refuse one that does not belong to this run."""

    def redealt(self, states: Iterable[MethodState]) -> MethodState:
        """This process's state, to be loaded, from the states of all processes of a run with
        another number of them.

        A method that remembers nothing of single samples remembers the same in every process.
        """
        return next(iter(states))

    def options(self) -> dict[str, Any]:
        """The settings by name."""
        return {
            option.name: getattr(self, option.name)
            for option in dataclasses.fields(self)
            if option.init
        }

    def fresh(self, **changes: Any) -> Self:
        """A method that remembers nothing yet, with these options changed."""
        known = {option.name: option.type for option in _options(type(self))}
        return type(self)(**{**self.options(), **coerced(self.name, changes, known)})

    def decisive_options(self) -> dict[str, Any]:
        """The settings that decide results, which a resumed run must agree on: all but the movable
        ones.
        """
        return {name: value for name, value in self.options().items() if name not in self.movable}

    @classmethod
    def as_then(cls, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a run that was saved, perhaps by an earlier version, as plain values.

        Those that did not exist then have their defaults, which do what was done without them.
        """
        optional = [
            option
            for option in dataclasses.fields(cls)
            if option.default is not dataclasses.MISSING
        ]
        usual = {option.name: option.default for option in optional if option.init}
        options: dict[str, Any] = json.loads(json.dumps(usual | dict(saved)))
        return options


def option(default: Any, help: str) -> Any:
    """A method's option: a dataclass field with its help text."""
    return field(default=default, metadata={"help": help})


registry: dict[str, type[Method]] = {}
M = TypeVar("M", bound=type[Method])


def register(name: str) -> Callable[[M], M]:
    """Make a method known by name to the command line and to :func:`create`."""

    def add(method: M) -> M:
        method.name = name
        registry[name] = method
        return method

    return add


@dataclass(frozen=True)
class OptionInfo:
    """One option as users meet it: name, type, default, help."""

    name: str
    type: Any
    default: Any
    help: str


def describe(name: str) -> list[OptionInfo]:
    """The options of a method, for flags, config keys and the table of ``advreg methods``."""
    return list(_options(_lookup(name)))


@cache
def _options(method: type[Method]) -> tuple[OptionInfo, ...]:
    hints = get_type_hints(method)  # slow, and asked for at every check of an option
    return tuple(
        OptionInfo(field.name, hints[field.name], field.default, field.metadata.get("help", ""))
        for field in dataclasses.fields(method)
        if field.init
    )


def create(name: str, **options: Any) -> Method:
    """A method by name.

    Example:
        >>> create("arch", cache_fraction=0.1).options()["cache_fraction"]
        0.1
    """
    known = {option.name: option.type for option in describe(name)}
    return _lookup(name)(**coerced(name, options, known))


def coerced(name: str, options: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Options as their types want them; one that the method does not have is an error."""
    for given in options:
        if given not in known:
            raise ValueError(
                f"method '{name}' has no option '{given}'{suggest(given, known)}; it has "
                f"{', '.join(known) or 'none'}"
            )
    return {given: coerce(given, value, known[given]) for given, value in options.items()}


def _lookup(name: str) -> type[Method]:
    if name not in registry:
        raise ValueError(
            f"unknown method '{name}'{suggest(name, registry)}; there are {', '.join(registry)}"
        )
    return registry[name]


def suggest(given: str, known: Iterable[str]) -> str:
    """A hint at the name that was probably meant, or nothing."""
    close = difflib.get_close_matches(given, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
