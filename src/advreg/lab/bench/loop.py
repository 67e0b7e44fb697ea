"""The timed training loop: a method's step and the code around it in a user's script."""

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
    """One model and one optimizer for all contenders; the weights change, which does not affect
    the times.

    Args:
        task: the model.
        device: where it is.
        optimizer: whether clipping and AdamW are part of a step.
        half: whether the loss is scaled, as float16 needs.
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
        """Clip, step, clear; without an optimizer, only clear the gradients."""
        if self.updates:
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.parameters, _LARGEST_NORM)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def step(
        self, contender: Contender, task: Any = None, backward: Backward | None = None
    ) -> None:
        """One step of a contender, as in a training loop."""
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
        """Mean milliseconds of an action; syncs with the device before and after it, and collects
        garbage before it.
        """
        gc.collect()
        gc.disable()  # or it would count for the current contender
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
        """Peak GPU memory during an action, including memory kept between steps."""
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
    """A method in one phase, with the batches it cycles through.

    Args:
        name: of its row.
        method: ready to step.
        batches: on the device.
        ids: of the batches, on the host.
        epoch: determines whether ARCH refreshes.
        factor: number of passes over one batch that a pass over these batches counts as.
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
        """Prefetch the rows of these samples, which come next."""
        if self.method.memory is not None:
            self.method.memory.prefetch(ids)

    def advance(self, loop: Loop) -> None:
        """One step."""
        loop.step(self)

    def turn(self, loop: Loop, steps: int) -> float:
        """Milliseconds per step in one round; a first step is not timed, because the caches still
        hold another contender's data.
        """
        self.advance(loop)
        return loop.milliseconds(partial(self.advance, loop), steps)

    def meter(self, loop: Loop) -> Cost:
        """Passes of one step, counted independently."""
        metered = MeteredTask(loop.task)
        loop.step(self, metered, metered.counted(loop.backward))
        return metered.cost(1).times(self.factor)

    def retire(self) -> None:
        """Release the data and the method's memory; the row stays."""
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
