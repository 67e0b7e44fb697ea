"""A look at the next batches, so that a memory can prefetch their rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from advreg.hf.view.inputs import SAMPLE_ID
from advreg.memory.memory import Memory


class Ahead:
    """Batches of an iterator in their order, with a look at the next ones.

    Example:
        >>> ahead, numbers = Ahead(), iter(range(5))
        >>> ahead.take(numbers, 2), ahead.glimpse(2), ahead.take(numbers, 2), ahead.glimpse(2)
        ([0, 1], [2, 3], [2, 3], [4])
    """

    def __init__(self) -> None:
        self._iterator: Iterator[Any] | None = None
        self._held: list[Any] = []

    def take(self, iterator: Iterator[Any], count: int) -> list[Any]:
        """The next ``count`` batches, or what is left of them."""
        if iterator is not self._iterator:  # another epoch
            self._iterator, self._held = iterator, []
        taken, self._held = self._held[:count], self._held[count:]
        return [*taken, *islice(iterator, count - len(taken))]

    def prefetch(self, memory: Memory | None, count: int) -> None:
        """Let a memory bring the rows of the ``count`` batches that will be taken next."""
        if memory is not None and memory.prefetches:
            for batch in self.glimpse(count):
                memory.prefetch(batch[SAMPLE_ID].cpu())

    def glimpse(self, count: int) -> list[Any]:
        """The ``count`` batches that will be taken next, or what is left of them."""
        if self._iterator is not None:
            self._held += islice(self._iterator, max(0, count - len(self._held)))
        return self._held[:count]
