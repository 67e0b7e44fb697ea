"""Work on a batch in one go, or in parts where memory does not suffice."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass
class Fitting:
    """Does work on a batch in parts as large as the memory allows; they are halved whenever it runs
    out.

    Args:
        most: positions (samples × padded length) that a part may have; lowered for good when memory
            runs out.
        what: the work, as a warning calls it.
    """

    most: int | None = None
    what: str = "the ascent"

    def __call__(self, size: int, width: int, work: Callable[[slice], T]) -> list[T]:
        """What ``work`` gives for each part of a batch of ``size`` samples of ``width`` positions,
        in their order.

        ``work`` must be free of side effects, because it may be retried.
        """
        while True:
            step = size if self.most is None else min(size, max(1, self.most // max(1, width)))
            try:
                return [work(slice(first, first + step)) for first in range(0, size, step)]
            except torch.OutOfMemoryError:
                if step == 1:
                    raise
            # outside the handler: by now the failed pass's tensors are free
            self.most = (step + 1) // 2 * width
            logger.warning(
                "out of memory with %d samples of %d tokens; %s continues with %d at a time",
                step,
                width,
                self.what,
                (step + 1) // 2,
            )
