"""Pseudo-random numbers as a function of a key: the same in any order and on any device."""

from __future__ import annotations

from torch import Tensor


def scrambled(values: Tensor) -> Tensor:
    """splitmix64 of int64 values: a bijection of 64 bits in which every input bit affects every
    output bit.
    """
    values = values + _signed(0x9E3779B97F4A7C15)
    values = (values ^ _shifted(values, 30)) * _signed(0xBF58476D1CE4E5B9)
    values = (values ^ _shifted(values, 27)) * _signed(0x94D049BB133111EB)
    return values ^ _shifted(values, 31)


def combined(key: Tensor, *others: Tensor | int) -> Tensor:
    """One key from several, which broadcast; their order matters."""
    for other in others:
        key = scrambled(key) + other
    return scrambled(key)


def uniform(keys: Tensor) -> Tensor:
    """A uniform number in [0, 1) for each key, float64."""
    return _shifted(scrambled(keys), 11).double() * 2.0**-53


def _signed(constant: int) -> int:
    """The int64 with the same bits."""
    return constant - 2**64 if constant >= 2**63 else constant


def _shifted(values: Tensor, bits: int) -> Tensor:
    """A right shift of unsigned numbers."""
    moved: Tensor = (values >> bits) & (2 ** (64 - bits) - 1)
    return moved
