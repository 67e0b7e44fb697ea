"""SIGINT and SIGTERM end a run after its present step, with a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

_NOTICE = ": stopping after this step, with a checkpoint; send it again to leave at once\n"


class Stop:
    """Within, the first SIGINT or SIGTERM only sets ``asked``; the second acts as it would have
    before.

    Signals are not handled outside the main thread, nor where they were ignored (as under nohup).
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._before: dict[int, Callable[..., object] | int | None] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.asked is not None:  # in the last step
            self.leave()
        self._restore()

    def leave(self) -> NoReturn:
        """Do what the signal would have done: KeyboardInterrupt, an exit with 128 + its number, or
        its handler.
        """
        number = self.asked or signal.SIGTERM  # another process received it
        before = self._before.get(number)
        self._restore()
        if callable(before):
            signal.raise_signal(number)
        raise SystemExit(128 + number)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            self.asked = number
            self.leave()
        self.asked = number
        os.write(
            2, (signal.Signals(number).name + _NOTICE).encode()
        )  # not print, which may be what was interrupted

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        self._before = {}
