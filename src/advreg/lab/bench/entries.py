"""Who takes part: from method specs to contenders that are ready to step."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch

from advreg.core.schedule import Clock
from advreg.hf.view.doubling import twice
from advreg.lab.bench.loop import Contender, Loop
from advreg.lab.bench.passes import Cost, MeteredTask
from advreg.lab.bench.settings import BenchSettings, Spec
from advreg.lab.bench.workload import Workload, prepare
from advreg.methods import Arch, ModelView, Standard
from advreg.records.bench import YARDSTICK

_DOUBLED = 8  # batches of the yardstick
_REFRESHING, _REUSING = 0, 1  # epochs


def enter(
    spec: Spec, workload: Workload, settings: BenchSettings, device: torch.device
) -> list[Contender]:
    """The contenders of one spec: one, or for ARCH one for each kind of epoch."""
    method = spec.create(refresh_every=settings.refresh_every)
    if isinstance(method, Arch):
        prepare(method, workload, settings.seed, device)
        found = [
            one
            for one in _phases(method, spec.label, workload)
            if one.phase == "reuse" or not settings.reuse_only
        ]
    else:
        if method.needs_corpus:
            method.prepare(workload.corpus, settings.seed, device)
        found = [Contender(spec.label, method, workload.batches, workload.ids)]
    if not settings.two_pass or not getattr(method, "fuse", False):
        return found
    apart: Any = copy.copy(method)  # shares the cache
    apart.fuse = False
    if isinstance(method, Arch):  # a refresh is not fused to begin with
        split = [
            one
            for one in _phases(apart, f"{spec.label}, two passes", workload)
            if one.phase == "reuse"
        ]
    else:
        split = [Contender(f"{spec.label}, two passes", apart, workload.batches, workload.ids)]
    return [*found, *split]


def yardstick(workload: Workload) -> Contender:
    """Standard on twice the samples: the arithmetic of one fused pass, without any of a method's
    own work.
    """
    doubled = [twice(batch) for batch in workload.batches[:_DOUBLED]]
    return Contender(YARDSTICK, Standard(), doubled, [], factor=2)


def _phases(method: Arch, label: str, workload: Workload) -> Iterator[Contender]:
    sweeps = getattr(method, "refresh", "epoch") == "sweep"
    if not method.schedule.due(_REUSING):
        yield Contender(
            f"{label}, reuse", method, workload.batches, workload.ids, "reuse", _REUSING
        )
    elif sweeps:
        raise ValueError(
            f"refresh_every must be 2 or more to time sweeps, got {method.refresh_every}"
        )
    if sweeps:
        yield Sweep(
            f"{label}, sweep", method, workload.batches, workload.ids, "sweep", workload=workload
        )
    else:
        yield Contender(
            f"{label}, refresh", method, workload.batches, workload.ids, "refresh", _REFRESHING
        )


@dataclass
class Sweep(Contender):
    """A sweep over the whole cache set, its time divided by the steps of the epoch that it
    precedes.
    """

    workload: Workload | None = None

    def advance(self, loop: Loop) -> None:
        self.sweep(loop.task)

    def turn(self, loop: Loop, steps: int) -> float:
        return loop.milliseconds(partial(self.advance, loop)) / self.steps_per_epoch

    def sweep(self, task: Any) -> None:
        assert self.workload is not None
        method: Any = self.method
        often = method.refresh_every or 1
        method._swept_at = -1  # else it would not sweep again
        epoch = 0 if method.refresh_every is None else next(self.taken) * often
        method.begin_epoch(cast(ModelView, task), Clock(epoch, 0), self.workload.fetch)

    def meter(self, loop: Loop) -> Cost:
        assert self.workload is not None
        method = cast(Arch, self.method)
        metered = MeteredTask(loop.task)
        self.sweep(metered)
        # by samples: a sweep's batches have a size of their own
        batches = len(list(method.cache.groups(method.sweep_tokens)))
        share = len(method.cache.ids) / len(self.workload.corpus)
        return metered.cost(batches).times(share)

    def retire(self) -> None:
        super().retire()
        self.workload = None

    @property
    def steps_per_epoch(self) -> float:
        assert self.workload is not None
        return len(self.workload.corpus) / self.workload.shape.batch
