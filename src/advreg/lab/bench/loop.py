"""The training loop that is timed: what surrounds a method's step in a script of one's own."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor

from advreg.core.schedule import Clock
from advreg.hf.view.injection import is_compiled
from advreg.hf.view.view import HFModelView
from advreg.lab.bench.passes import Cost, MeteredTask
from advreg.lab.bench.workload import Batch
from advreg.methods import Method, ModelView, Standard
from advreg.methods.base import Backward, Step, memory_bytes
from advreg.records.bench import STANDARD, Phase, Row

_LEARNING_RATE = 1e-6  # small: random labels are not to carry the weights away
_LARGEST_NORM = 1.0


class Loop:
    """One model and one optimizer for all contenders; their weights move, which times do not depend
    on.

    Args:
        task: the model.
        device: where it is.
        optimizer: is clipping and AdamW part of a step?
        half: is the loss scaled, as float16 wants it?
    """

    def __init__(
        self, task: HFModelView, device: torch.device, optimizer: bool = True, half: bool = False
    ) -> None:
        self.task = task
        self.device = device
        self.updates = optimizer
        self.compiled = is_compiled(task.calls.trained)
        self.parameters = [value for value in task.model.parameters() if value.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=_LEARNING_RATE, fused=device.type == "cuda"
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=half)

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Clip, step, clear; without an optimizer the gradients are cleared and no more."""
        if self.updates:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.parameters, _LARGEST_NORM)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def step(
        self, contender: Contender, task: Any = None, backward: Backward | None = None
    ) -> None:
        """One step of a contender, as a training loop has it."""
        if self.compiled:
            cast(Any, torch.compiler).cudagraph_mark_step_begin()
        number = next(contender.taken)
        batch, following = contender.at(number), contender.ids_at(number + 1)
        if following is not None:
            contender.prefetch(following)
        step = Step(
            Clock(contender.epoch, number), backward or self.backward, self.update, self.optimizer
        )
        contender.method.step(cast(ModelView, task or self.task), batch, step)
        self.update()
        if self.updates:
            contender.method.updated(cast(ModelView, self.task))

    def milliseconds(self, action: Callable[[], None], times: int = 1) -> float:
        """Of an action, on average; the device is waited for before and after, and garbage is
        collected before.
        """
        gc.collect()
        gc.disable()  # or it would fall on whoever's turn it is
        try:
            self.wait()
            begun = time.perf_counter()
            for _ in range(times):
                action()
            self.wait()
            return (time.perf_counter() - begun) / times * 1e3
        finally:
            gc.enable()

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_bytes(self, action: Callable[[], None]) -> int | None:
        """Most memory allocated on the GPU during an action, all that is kept between steps
        included.
        """
        if self.device.type != "cuda":
            return None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        action()
        self.wait()
        return torch.cuda.max_memory_allocated(self.device)

    def allocated(self) -> int:
        """Bytes in use on the GPU between steps."""
        if self.device.type != "cuda":
            return 0
        self.wait()
        return torch.cuda.memory_allocated(self.device)


@dataclass
class Contender:
    """A method in one phase, with the batches it goes through in turn.

    Args:
        name: of its row.
        method: ready to step.
        batches: on the device.
        ids: of the batches, on the host.
        epoch: tells ARCH's kinds of epoch apart.
        factor: passes over one batch that a pass over these batches is.
    """

    name: str
    method: Method
    batches: Sequence[Batch]
    ids: Sequence[Tensor]
    phase: Phase = "always"
    epoch: int = 1
    factor: int = 1
    against: str = STANDARD
    taken: Iterator[int] = field(default_factory=count)
    rounds: list[float] = field(default_factory=list)
    counted: Cost | None = None
    peak_bytes: int | None = None
    error: str | None = None
    _row: Row | None = None

    def at(self, number: int) -> Batch:
        return self.batches[number % len(self.batches)]

    def ids_at(self, number: int) -> Tensor | None:
        return self.ids[number % len(self.ids)] if self.ids else None

    def prefetch(self, ids: Tensor) -> None:
        """Let the memory bring the rows of these samples, which come next."""
        if self.method.memory is not None:
            self.method.memory.prefetch(ids)

    def advance(self, loop: Loop) -> None:
        """One step."""
        loop.step(self)

    def turn(self, loop: Loop, steps: int) -> float:
        """Milliseconds per step in one round; a first step, in which caches still hold another's
        data, is not timed.
        """
        self.advance(loop)
        return loop.milliseconds(partial(self.advance, loop), steps)

    def meter(self, loop: Loop) -> Cost:
        """Passes of one step, counted from outside."""
        metered = MeteredTask(loop.task)
        loop.step(self, metered, metered.counted(loop.backward))
        return metered.cost(1).times(self.factor)

    def retire(self) -> None:
        """Let go of the data and of what the method remembers; its row stays."""
        self._row, self.batches, self.ids = self.row(), (), ()
        self.method = Standard()

    def row(self) -> Row:
        if self._row is not None:
            return self._row
        cost = self.counted
        return Row(
            name=self.name,
            method=self.method.info.name,
            settings=self.method.options(),
            phase=self.phase,
            against=self.against,
            rounds=list(self.rounds),
            forward=None if cost is None else cost.forward,
            backward=None if cost is None else cost.backward,
            arithmetic=None if cost is None else cost.arithmetic,
            peak_bytes=self.peak_bytes,
            cache_bytes=memory_bytes(self.method),
            error=self.error,
        )
