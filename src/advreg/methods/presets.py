"""Options of methods by family of tasks.

``translation`` and ``understanding`` are the settings of ARCH's paper, for ARCH and for SMART,
which shares the inner maximisation. ``fine-tuning`` is the default of our own study of a pretrained
encoder (docs/results/studies.md). For other methods a family holds only the options without which
they fail there.

With the paper's text alone the ascent of ``understanding`` is inert: a plain gradient times 1e-4
leaves δ at its random start. The paper refers to MT-DNN for details, so the rest is from its code:
δ enters behind the LayerNorm of the embeddings (``site="block"``, a setting of the training), each
word's gradient is divided by its largest entry (until August 2020), and δ is rescaled to ε (since
then). docs/methods/arch.md shows the effect of each reading.
"""

from __future__ import annotations

from typing import get_args

from advreg.core.checks import check_choice
from advreg.core.options import Options
from advreg.core.options import Preset as Preset
from advreg.methods.base import by_part, describe

_HAVE_PRESETS = ("arch", "smart")

# Zuo et al. 2021, appendix "Machine Translation Experiments" and "Natural Language Understanding
# Experiments".
_PAPER: dict[str, Options] = {
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
        "step_rule": "normalised",
        "step_end": "rescale",
        "ascent_steps": 1,
        "refresh_every": None,
    },
}
_OPTIONS: dict[str, Options] = {
    **_PAPER,
    # perturbations that are cached once and never refreshed gained nothing
    "fine-tuning": {**_PAPER["translation"], "ascent_steps": 1, "refresh_every": 3},
}
_NEEDED: dict[tuple[str, str], Options] = {
    # They train on perturbed text alone: with their default balls, a model trained from scratch
    # ignored the source (docs/results/translation.md).
    ("translation", "freelb"): {"radius": 0.03, "step_size": 0.03},
    ("translation", "freeat"): {
        "norm": "l2",
        "scope": "sample",
        "radius": 0.03,
        "step_size": 0.03,
        "step_rule": "normalised",
    },
}


def preset(family: str, method: str) -> Options:
    """The options of a family for a method; empty where the family sets none.

    Example:
        >>> preset("understanding", "smart")["norm"], preset("understanding", "r3f")
        ('linf', {})
        >>> preset("translation", "freelb")
        {'radius': 0.03, 'step_size': 0.03}
    """
    check_choice("preset", family, get_args(Preset))
    return by_part(method, lambda part: _of_one(family, part))


def _of_one(family: str, method: str) -> Options:
    if method not in _HAVE_PRESETS:
        return dict(_NEEDED.get((family, method), {}))
    known = {option.name for option in describe(method)}
    return {name: value for name, value in _OPTIONS[family].items() if name in known}
