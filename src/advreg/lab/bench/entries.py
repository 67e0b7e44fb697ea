"""Build the benchmark's contenders from method specs."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from advreg.hf.view.doubling import twice
from advreg.lab.bench.loop import Contender
from advreg.lab.bench.settings import BenchSettings, Spec
from advreg.lab.bench.workload import Workload, prepare
from advreg.methods import Arch, Method, Standard
from advreg.records.bench import YARDSTICK

_DOUBLED = 8  # batches of the yardstick
_REFRESHING, _REUSING = 0, 1  # epochs


def enter(
    spec: Spec, workload: Workload, settings: BenchSettings, device: torch.device
) -> list[Contender]:
    """The contenders of one spec: one, or for ARCH one for each kind of epoch; fused methods again
    with two passes, if asked for.
    """
    method = spec.create(refresh_every=settings.refresh_every)
    if isinstance(method, Arch):
        prepare(method, workload, settings.seed, device)
    elif method.memory is not None:
        method.memory.prepare(workload.corpus, settings.seed, device)
    found = list(_contenders(method, spec.label, workload))
    if settings.reuse_only:
        found = _without_refresh(found)
    if settings.two_pass and getattr(method, "fuse", False):
        apart: Any = copy.copy(method)  # shares the cache
        apart.fuse = False
        split = _contenders(apart, f"{spec.label}, two passes", workload)
        found += _without_refresh(split)  # a refresh is not fused to begin with
    return found


def yardstick(workload: Workload) -> Contender:
    """Standard on twice the samples: the arithmetic of one fused pass, without any of a method's
    own work.
    """
    doubled = [twice(batch) for batch in workload.batches[:_DOUBLED]]
    return Contender(YARDSTICK, Standard(), doubled, [], factor=2)


def _contenders(method: Method, label: str, workload: Workload) -> Iterator[Contender]:
    data = workload.batches, workload.ids
    if not isinstance(method, Arch):
        yield Contender(label, method, *data)
        return
    if not method.memory.schedule.due(_REUSING):
        yield Contender(f"{label}, reuse", method, *data, "reuse", _REUSING)
    yield Contender(f"{label}, refresh", method, *data, "refresh", _REFRESHING)


def _without_refresh(contenders: Iterable[Contender]) -> list[Contender]:
    return [one for one in contenders if one.phase != "refresh"]
