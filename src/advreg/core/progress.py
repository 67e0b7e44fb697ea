"""Progress callbacks."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]  # what is being done, how much is done, of how much


def counting(progress: Progress | None, what: str, total: int) -> Callable[[int], None] | None:
    """A callback for work that reports how much it did since its last report; ``None`` without
    ``progress``.

    Example:
        >>> report = lambda what, done, total: print(what, done, "of", total)
        >>> advance = counting(report, "samples", 10)
        >>> advance(4), advance(6)
        samples 4 of 10
        samples 10 of 10
        (None, None)
    """
    if progress is None:
        return None
    told, done = progress, 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        told(what, done, total)

    return advance
