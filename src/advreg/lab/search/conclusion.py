"""A comparison in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from advreg.lab.catalogue import title_of
from advreg.lab.search.sequential import Look, Looks
from advreg.lab.search.verdicts import MOST_SEEDS, more_seeds
from advreg.methods import describe
from advreg.records.compare import MethodGain


def conclusion(
    reference: str,
    gains: Sequence[MethodGain],
    looks: Mapping[str, Looks],
    chosen: Mapping[str, Mapping[str, Any]],
    margin: float,
    level: float,
    tuned: bool,
    decimals: int = 1,
) -> str:
    """What to use, or what it would take to find out.

    Args:
        reference: the method that the others are compared with.
        gains: of the methods, in the primary outcome.
        looks: at the gains.
        chosen: options of each method that the tuning chose.
        margin: the largest gain that is of no interest.
        level: error rate of all verdicts together.
        tuned: whether the reference was tuned.
        decimals: of a score.
    """
    paying = [gain for gain in gains if gain.verdict == "pays"]
    if paying:
        best = max(paying, key=lambda gain: gain.mean or 0.0)
        return f"use {_named(best.method, chosen)}: {_gain(best, decimals)}"
    nothing = f"nothing beats {'tuned ' if tuned else ''}{_title(reference)}"
    still_open = {
        gain.method: looks[gain.method].looks[-1]
        for gain in gains
        if gain.verdict == "undecided" and gain.flaw is None and gain.method in looks
    }
    parts = [f"{_title(gain.method)} is undecided: {gain.flaw}" for gain in gains if gain.flaw]
    if still_open:
        parts.append(_outlook(still_open, margin, level, decimals))
    elif not parts and all(gain.verdict == "undecided" for gain in gains):
        parts.append("there are too few runs for a verdict")
    return "; ".join([nothing, *parts])


def _title(method: str) -> str:
    return title_of(method) or method


def _named(method: str, chosen: Mapping[str, Mapping[str, Any]]) -> str:
    """A method with the options that were chosen for it."""
    symbols = {option.name: option.help.partition(",")[0] for option in describe(method)}
    options = [
        f"{symbols[name] if len(symbols.get(name, '')) == 1 else name} = {_value(value)}"
        for name, value in chosen.get(method, {}).items()
    ]
    return ", ".join([_title(method), *options])


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def _gain(gain: MethodGain, decimals: int) -> str:
    """The gain with its interval and its price."""
    low, high = (f"{each or 0.0:.{decimals}f}" for each in (gain.low, gain.high))
    interval = "" if gain.low is None else f" [{low}, {high}]"
    price = "" if gain.time is None else f" at {gain.time:.2f} × the time"
    return f"{gain.mean or 0.0:+.{decimals}f}{interval}{price}".replace("-", "−")


def _outlook(still_open: Mapping[str, Look], margin: float, level: float, decimals: int) -> str:
    """How many seeds would decide the most promising method."""
    name, look = max(still_open.items(), key=lambda item: item[1].mean)
    width = max(abs(look.mean), margin, 10**-decimals)
    found = f"{_title(name)} is undecided at {look.mean:+.{decimals}f}".replace("-", "−")
    seeds = more_seeds(look, width, level)
    if seeds is not None:
        return (
            f"{found}; {seeds} more seed{'s' if seeds > 1 else ''} would show ±{width:.{decimals}f}"
        )
    least = Look(look.seeds, 0.0, 0.0, look.sampling).reach(level)
    if least > width:
        return f"{found}, and a test set of this size shows ±{least:.{decimals}f} at best"
    return f"{found}; more than {MOST_SEEDS} seeds would be needed to show ±{width:.{decimals}f}"
