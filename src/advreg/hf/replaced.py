"""An attribute of an instance that is replaced for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(attributes: dict[str, Any], name: str, value: object) -> Iterator[None]:
    """Within, a dict such as ``vars(instance)`` has this entry; afterwards it has its own again, or
    none.

    Example:
        >>> own = {"compute_loss": "stock"}
        >>> with replaced(own, "compute_loss", "objective"), replaced(own, "train", "skip"):
        ...     print(own)
        {'compute_loss': 'objective', 'train': 'skip'}
        >>> own
        {'compute_loss': 'stock'}
    """
    before = {name: attributes[name]} if name in attributes else {}
    attributes[name] = value
    try:
        yield
    finally:
        attributes.update(before)  # in its place among the entries
        if not before:
            del attributes[name]
