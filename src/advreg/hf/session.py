"""A method in a training loop without a Trainer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.distributed as distributed
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from advreg.core.checks import check_whole
from advreg.core.schedule import Clock
from advreg.hf.checkpoint.state import require_same_method
from advreg.hf.data import Ahead, IdCollator, Limits, attribute_of, identified
from advreg.hf.guards.capability import UnsupportedError
from advreg.hf.guards.randomness import generator_states, set_generator_states
from advreg.hf.guards.requirements import require_in_loop
from advreg.hf.replaced import replaced
from advreg.hf.survey import survey, to_device
from advreg.hf.view.inputs import ITEMS, ModelInputs
from advreg.hf.view.view import HFModelView
from advreg.memory.memory import MemoryState
from advreg.methods.base import Batch, Method, Step, StepReport, decisive_options

_PLACE = "advreg_place"  # the entry of a batch with its place in the training


class Place(NamedTuple):
    """Where a batch stands: its epoch, its number there, and whether its accumulation group ends
    with it.
    """

    epoch: int
    number: int
    closes_group: bool


def prepare(
    model: nn.Module,
    loader: DataLoader[object],
    method: Method,
    optimizer: Optimizer,
    *,
    accelerator: Accelerator | None = None,
    accumulation: int | None = None,
    planned: int | None = None,
    site: str = "tokens",
    seed: int = 0,
    max_grad_norm: float | None = None,
) -> Session:
    """Make a training loop of your own train with a method.

    The loop iterates over ``session.loader``, calls ``session.step(batch)`` where it called
    ``model(**batch).loss.backward()``, and keeps its ``optimizer.step()``, which the session
    follows. Clipping, schedules and loss scalers stay the loop's.

    Args:
        model: the model, bare or in DDP.
        loader: makes the training batches of a data set with a length and items by index. The
            session uses a copy of it whose samples have ids, with the same sampler, workers and
            generator.
        method: how to train on a batch.
        optimizer: updates the weights.
        accelerator: of accelerate, if the loop uses one. What it has not prepared yet, it prepares
            now.
        accumulation: micro-batches of an update; by default as in ``accelerator``, or 1.
            Update where ``session.closes_group`` is true; no other context is needed.
        planned: updates of the whole run, for ``start_at`` and ``ramp``.
        site: where δ is added: ``"tokens"``, ``"block"`` or a module's name.
        seed: of what the method draws before training.
        max_grad_norm: clips the updates that FreeAT makes between its replays.

    Raises:
        UnsupportedError: the method cannot train this model on these data.

    Example:
        >>> from advreg import Smart
        >>> session = prepare(model, loader, Smart(radius=0.3, ascent_steps=1), optimizer)
        >>> for batch in session.loader:
        ...     report = session.step(batch)
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> session.epoch, session.updates
        (1, 2)
    """
    return Session(
        model, loader, method, optimizer, accelerator, accumulation, planned, site, seed,
        max_grad_norm,
    )  # fmt: skip


class Session:
    """A method in a training loop; see :func:`prepare`, which makes it and explains its arguments.

    Attributes:
        loader: the training batches; each pass over it is an epoch.
        model, optimizer: as given, or as prepared by ``accelerator``.
        view: the model as the method sees it.
        epoch: complete epochs.
        updates: optimizer steps so far.
        closes_group: whether the last batch completed its accumulation group.
    """

    def __init__(
        self,
        model: nn.Module,
        loader: DataLoader[object],
        method: Method,
        optimizer: Optimizer,
        accelerator: Accelerator | None,
        accumulation: int | None,
        planned: int | None,
        site: str,
        seed: int,
        max_grad_norm: float | None,
    ) -> None:
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            raise UnsupportedError(
                "loader must make batches of a data set with a length and items by index, got "
                f"{type(loader.dataset).__name__}; load it whole, and give the loader a batch_size"
            )
        if accumulation is None:
            accumulation = 1 if accelerator is None else accelerator.gradient_accumulation_steps
        check_whole("accumulation", accumulation, least=1)
        samples: Any = loader.dataset
        bare = model.module if isinstance(model, DistributedDataParallel) else model
        require_in_loop(bare, samples, loader.collate_fn, method, accelerator)
        self.method, self.planned, self.accumulation = method, planned, accumulation
        self.max_grad_norm, self.accelerator = max_grad_norm, accelerator
        self.epoch = self.updates = 0
        self.closes_group = True
        self.view = HFModelView(
            bare,
            site=site,
            half=accelerator is not None and accelerator.mixed_precision == "fp16",
            perturbs="perturbation" in method.info.needs,
        )
        self._done = 0  # batches of this epoch
        self._replays = False  # does FreeAT update between its replays?
        self._resumed: Mapping[str, Any] | None = None
        if "corpus" in method.info.traits and method.memory is not None:
            size = getattr(loader, "batch_size", None) or 1
            corpus = survey(self.view, samples, loader.collate_fn, batch_size=size)
            method.memory.prepare(corpus, seed, self.view.core.device)
        loader = with_ids(loader, "ids" in method.info.needs, Limits.of(bare))
        if accelerator is not None:
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        self.model, self.optimizer = model, optimizer
        self.view.train_through(model)
        self.loader = SessionLoader(self, loader)
        getattr(optimizer, "optimizer", optimizer).register_step_post_hook(self._follow)

    # ---- the step

    def step(self, batch: Batch) -> StepReport:
        """Add this batch's gradients to the parameters."""
        batch, step = self._begin(batch)
        with nullcontext() if self.closes_group else self.view.accumulating():
            return self.method.step(self.view, batch, step)

    def objective(self, batch: Batch) -> StepReport:
        """The objective of this batch, whose ``loss`` the loop propagates itself.

        Raises:
            UnsupportedError: the method propagates several losses in a step.
        """
        if "repeats_backward" in self.method.info.traits:
            raise UnsupportedError(
                f"{self.method.info.name} propagates several losses in a step; call session.step "
                "(in Lightning: manual optimisation)"
            )
        batch, step = self._begin(batch)
        return self.method.objective(self.view, batch, step)

    def backward(self, loss: Tensor) -> None:
        """Propagate a loss."""
        if self.accelerator is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:  # divides by the number of micro-batches; the loss is a part of their mean already
            self.accelerator.backward(loss * self.accelerator.gradient_accumulation_steps)

    def _begin(self, batch: Batch) -> tuple[Batch, Step]:
        """The batch for the method, and the step."""
        if _PLACE not in batch:
            raise ValueError(
                "batch must come from session.loader, got one without its place in the training; "
                "iterate over session.loader instead of the loader it was made of"
            )
        place = Place(*batch[_PLACE])
        self._done, self.closes_group = place.number + 1, place.closes_group
        if self.accelerator is not None:
            self.accelerator.sync_gradients = place.closes_group
        if self.updates == 0 and self._done == 1:
            self.method.updated(self.view)
        clock = Clock(place.epoch, self.updates, place.closes_group, self.planned)
        known = {name: value for name, value in batch.items() if name != _PLACE}
        known = to_device(known, self.view.core.device)
        return known, Step(clock, self.backward, self._update, self.optimizer)

    def _update(self) -> None:
        """The optimizer step between two replays of FreeAT."""
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.view.core.parameters(), self.max_grad_norm)
        with replaced(vars(self), "_replays", True):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def _follow(self, *_: object) -> None:
        """Count an optimizer step, and let the method follow the weights."""
        if not self._replays:
            self.updates += 1
            self.method.updated(self.view)

    # ---- the batches

    def items_of(self, batches: list[Batch]) -> Tensor | None:
        """The loss items of an accumulation group; per process, since DDP averages gradients.

        None where each batch is divided by its own.
        """
        world = distributed.get_world_size() if distributed.is_initialized() else 1
        if (self.accumulation == 1 and world == 1) or "labels" not in batches[0]:
            return None
        count = torch.stack([self.view.count(batch) for batch in batches]).sum()
        if world > 1:
            count = count.to(self.view.core.device)
            distributed.all_reduce(count)
        return count / world

    def begin_epoch(self) -> Mapping[str, Any] | None:
        """Begin a pass over the data; returns the state to resume it from, if there is one."""
        resumed, self._resumed = self._resumed, None
        if resumed is None and self._done > 0:  # the loop left the last pass early
            self.end_epoch()
        return resumed

    def end_epoch(self) -> None:
        """Count a pass over the data."""
        self.epoch, self._done = self.epoch + 1, 0

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What a resumed loop needs besides model and optimizer: what the method remembers, the
        place in the data, and the states of the random generators.

        Raises:
            RuntimeError: the last batch does not complete its accumulation group."""
        if not self.closes_group:
            raise RuntimeError(
                "state_dict must be called after an update, got the middle of an accumulation "
                "group; call it where session.closes_group is true"
            )
        memory = MemoryState() if self.method.memory is None else self.method.memory.state()
        return {
            "method": self.method.info.name,
            "options": decisive_options(self.method),
            "epoch": self.epoch,
            "updates": self.updates,
            "done": self._done,
            "memory": {"tensors": dict(memory.tensors), "facts": dict(memory.facts)},
            "epoch_random": self.loader.random,
            "random": generator_states(self.loader.generators),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; the next pass over ``loader`` resumes after the
        last batch of it.

        Raises:
            CheckpointError: the state belongs to another method, or to other options."""
        require_same_method(self.method, state["method"], state["options"])
        if self.method.memory is not None:
            self.method.memory.load([MemoryState(**state["memory"])])
        self.epoch, self.updates, self._done = state["epoch"], state["updates"], state["done"]
        self._resumed = state
        set_generator_states(state["random"], self.loader.generators)


class SessionLoader:
    """The batches of a session, with their place in the training and the items of their group.

    Other attributes are the wrapped loader's.

    Args:
        session: the session.
        loader: makes the batches.
    """

    def __init__(self, session: Session, loader: DataLoader[object]) -> None:
        self.loader, self._session = loader, session
        sampler = getattr(loader.batch_sampler, "sampler", None)
        found = (loader.generator, getattr(sampler, "generator", None))
        self.generators = [each for each in found if each is not None]
        self.random: Mapping[str, Any] | None = None  # at the beginning of this epoch

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return attribute_of(self, "loader", name)

    def __iter__(self) -> Iterator[ModelInputs]:
        session, size, ahead = self._session, self._session.accumulation, Ahead()
        resumed = session.begin_epoch()
        if resumed is not None:
            begins = resumed["epoch_random"] if resumed["done"] else resumed["random"]
            set_generator_states(begins, self.generators)
        self.random = generator_states(self.generators)
        if hasattr(self.loader, "set_epoch"):  # accelerate's
            self.loader.set_epoch(session.epoch)
        iterator, index = iter(self.loader), 0
        if resumed is not None:
            while index < resumed["done"]:
                index += len(ahead.take(iterator, size))
            set_generator_states(resumed["random"], self.generators)
        while group := ahead.take(iterator, size):
            ahead.prefetch(session.method.memory, size)
            items = session.items_of(group)
            for number, batch in enumerate(group, 1):
                place = Place(session.epoch, index, number == len(group))
                more = {} if items is None else {ITEMS: items}
                yield {**batch, **more, _PLACE: place}
                index += 1
        session.end_epoch()


def with_ids(loader: DataLoader[object], required: bool, limits: Limits) -> DataLoader[object]:
    """A copy of a data loader whose batches have the ids of their samples."""
    twin: DataLoader[object] = object.__new__(type(loader))
    parts = vars(twin)
    parts.update(vars(loader))
    if "base_dataloader" in parts:  # accelerate's
        parts["base_dataloader"] = with_ids(parts["base_dataloader"], required, limits)
    else:
        parts["dataset"] = identified(loader.dataset, required)
        parts["collate_fn"] = IdCollator(loader.collate_fn, limits)
        parts["_iterator"] = None  # its workers have the data set without ids
    return twin
