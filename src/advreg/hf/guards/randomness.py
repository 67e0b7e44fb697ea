"""The states of the random generators, to restore them and to share dropout masks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor


@contextmanager
def kept_randomness(seed: int | None = None) -> Iterator[None]:
    """Restores the states of Python's, numpy's and torch's generators afterwards.

    Args:
        seed: of the generators inside; by default they continue.
    """
    states = generator_states()
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
    try:
        yield
    finally:
        set_generator_states(states)


def random_states() -> list[Tensor]:
    """States of torch's generators, which dropout draws from: the CPU's and every GPU's."""
    return [
        torch.get_rng_state(),
        *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []),
    ]


def set_random_states(states: list[Tensor]) -> None:
    """Back to states that :func:`random_states` gave."""
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])


def generator_states(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """The states of all global random generators and of the given ones, as plain values and
    tensors.
    """
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), *rest],
        "torch": random_states(),
        "others": [generator.get_state() for generator in generators],
    }


def set_generator_states(
    states: Mapping[str, Any], generators: Sequence[torch.Generator] = ()
) -> None:
    """Back to states that :func:`generator_states` gave."""
    random.setstate(states["python"])
    np.random.set_state(tuple(states["numpy"]))
    set_random_states(states["torch"])
    for generator, state in zip(generators, states["others"], strict=True):
        generator.set_state(state)
