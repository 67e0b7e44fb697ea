"""The error for what a trainer, a model or a batch does not offer."""

from __future__ import annotations

from advreg.methods.base import Need, UnsupportedError, registry

__all__ = ["UnsupportedError", "refusal"]


def refusal(need: Need, reason: str, remedy: str = "") -> UnsupportedError:
    """The error to raise: the reason, a remedy if there is one, and the methods without this
    need.
    """
    others = ", ".join(name for name, kind in registry.items() if need not in kind.info.needs)
    advice = f"{remedy}, or choose" if remedy else "choose"
    return UnsupportedError(f"{reason}; {advice} a method that works here: {others}")
