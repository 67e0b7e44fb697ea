"""The settings of ARCH's paper by family of tasks, for ARCH and for SMART, which shares the inner maximisation."""

from __future__ import annotations

from typing import Any, Literal, get_args

from advreg.core.checks import check_choice
from advreg.methods.base import describe

Preset = Literal["translation", "understanding"]

_HAVE_PRESETS = ("arch", "smart")

# Zuo et al. 2021, appendix "Machine Translation Experiments" and "Natural Language Understanding Experiments".
_PAPER: dict[str, dict[str, Any]] = {
    "translation": {
        "start": "uniform",
        "norm": "l2",
        "scope": "sample",
        "radius": 0.1,
        "step_size": 0.1,
        "step_rule": "normalised",
        "ascent_steps": 3,
        "refresh_every": 15,
        "ema": 0.01,
        "cache_fraction": 0.1,
        "neighbours": 1,
    },
    "understanding": {
        "start": "normal",
        "start_scale": 1e-5,
        "norm": "linf",
        "scope": "token",
        "radius": 1.0,
        "step_size": 1e-4,
        "step_rule": "gradient",
        "ascent_steps": 1,
        "refresh_every": None,
    },
}


def preset(family: str, method: str) -> dict[str, Any]:
    """The paper's options for a method; nothing for methods it gives no settings for.

    Example:
        >>> preset("understanding", "smart")["norm"], preset("understanding", "r3f")
        ('linf', {})
    """
    check_choice("preset", family, get_args(Preset))
    if method not in _HAVE_PRESETS:
        return {}
    known = {option.name for option in describe(method)}
    return {name: value for name, value in _PAPER[family].items() if name in known}
