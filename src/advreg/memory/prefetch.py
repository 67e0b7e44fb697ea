"""Bringing rows from host memory or disk to the device, ahead of time where the next samples are
known.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

Bundle = dict[str, Tensor]
Arrival = tuple[Bundle, torch.cuda.Event | None]  # rows, and when they are there

_MOST_AWAITED = 64  # batches gathered ahead at most; an accumulation group is rarely larger


class Courier:
    """Gathers the rows of a batch in a worker thread and copies them on a separate stream while the
    model computes.

    Args:
        gather: the rows of these samples, on the host, in pinned memory if ``device`` is a GPU;
            runs in the worker.
        device: where the rows are needed.
    """

    def __init__(self, gather: Callable[[Tensor], Bundle], device: torch.device) -> None:
        self._gather = gather
        self._device = device
        is_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if is_gpu else None  # type: ignore[no-untyped-call]
        self._worker: ThreadPoolExecutor | None = None
        self._awaited: dict[tuple[int, ...], Future[Arrival]] = {}

    def prefetch(self, ids: Tensor) -> None:
        """Start to gather the rows of these samples."""
        key = _key(ids)
        if key in self._awaited:
            return
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="advreg-cache")
        while len(self._awaited) >= _MOST_AWAITED:
            self._awaited.pop(next(iter(self._awaited)))
        self._awaited[key] = self._worker.submit(self._fetch, ids.cpu())

    def bring(self, ids: Tensor) -> Bundle:
        """The rows of these samples on the device, prefetched or gathered now."""
        awaited = self._awaited.pop(_key(ids), None)
        bundle, arrived = self._fetch(ids.cpu()) if awaited is None else awaited.result()
        if arrived is not None:
            here = torch.cuda.current_stream(self._device)
            here.wait_event(arrived)
            for rows in bundle.values():
                rows.record_stream(here)
        return bundle

    def forget(self, ids: Tensor) -> None:
        """Discard prefetched rows of these samples, which are about to change."""
        changed = set(_key(ids))
        for key in [key for key in self._awaited if not changed.isdisjoint(key)]:
            self._awaited.pop(key).cancel()

    def _fetch(self, ids: Tensor) -> Arrival:
        bundle = self._gather(ids)
        if self._stream is None:
            return bundle, None
        with torch.cuda.stream(self._stream):
            near = {name: rows.to(self._device, non_blocking=True) for name, rows in bundle.items()}
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        return near, arrived


def _key(ids: Tensor) -> tuple[int, ...]:
    return tuple(ids.tolist())
