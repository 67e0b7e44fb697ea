"""Checks of values on a GPU that do not make the host wait."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class LateCheck:
    """A check whose result is read at the next check, or by :meth:`settle`.

    Reading a flag from a GPU makes the host wait for all queued work; a step that is bound by
    launching kernels then loses its lead. Here the flag is copied to the host behind the work and
    read in the next step. Values on the host are checked immediately.
    """

    def __init__(self) -> None:
        self._flag: Tensor | None = None  # on the host, where the result arrives
        self._arrived: torch.cuda.Event | None = None
        self._complain: Callable[[], None] | None = None  # set while a result is pending

    def put(self, fine: Tensor, complain: Callable[[], None]) -> None:
        """Call ``complain``, which raises, unless ``fine``; for a flag on a GPU, later."""
        self.settle()
        if fine.device.type != "cuda":
            if not bool(fine):
                complain()
            return
        if self._flag is None or self._arrived is None:
            self._flag = torch.empty((), dtype=torch.bool, pin_memory=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._flag.copy_(fine, non_blocking=True)
        self._arrived.record()
        self._complain = complain

    def settle(self) -> None:
        """Read the pending result, if there is one; waits only for work that was queued before the
        check.
        """
        complain, self._complain = self._complain, None
        if complain is None or self._arrived is None:
            return
        self._arrived.synchronize()
        if not bool(self._flag):
            complain()
