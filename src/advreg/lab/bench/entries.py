"""Build the benchmark's contenders from method specs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

from advreg.hf.view.doubling import twice
from advreg.lab.bench.loop import Contender
from advreg.lab.bench.settings import BenchSettings, Spec
from advreg.lab.bench.workload import Workload, prepare
from advreg.methods import Arch, Standard
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
        if method.memory is not None:
            method.memory.prepare(workload.corpus, settings.seed, device)
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
    if not method.memory.schedule.due(_REUSING):
        yield Contender(
            f"{label}, reuse", method, workload.batches, workload.ids, "reuse", _REUSING
        )
    yield Contender(
        f"{label}, refresh", method, workload.batches, workload.ids, "refresh", _REFRESHING
    )
