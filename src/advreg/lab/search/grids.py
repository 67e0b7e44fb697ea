"""What is tuned over, and in which order candidates are tried."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from advreg.lab.kinds.models import SCRATCH
from advreg.lab.runs.settings import SettingsError, TrainSettings
from advreg.lab.runs.translation_settings import MODELS as TRANSLATORS
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.methods import create, describe, registry
from advreg.methods.base import suggest
from advreg.methods.coerce import coerce

Values = Mapping[str, Sequence[Any]]
Point = dict[str, Any]

TUNABLE = (
    *("learning_rate", "epochs", "batch_size", "encoder_dropout", "head_dropout", "warmup"),
    *("model_dropout", "label_smoothing", "update_tokens", "warmup_steps", "weight_decay"),
)
"""Settings that every method has and that may be tuned: of any task, of understanding, and of
translation.
"""

# Zuo et al. 2021, appendix on natural language understanding; it tunes λ of no method. R3F's λ is
# from the grid of
# Aghajanyan et al. 2020. The paper says nothing of FreeLB and FreeAT: theirs are around the
# defaults.
_PAPER_COMMON: Values = {
    "learning_rate": [5e-5, 8e-5, 1e-4, 2e-4],
    "batch_size": [8, 16, 32, 64, 128],
    "encoder_dropout": [0.0, 0.1],
}
_PAPER_METHODS: Mapping[str, Values] = {
    "arch": {"ascent_steps": [1, 2], "step_size": [1e-4, 1e-5]},
    "smart": {"ascent_steps": [1, 2], "step_size": [1e-4, 1e-5]},
    "r3f": {"weight": [0.1, 0.5, 1.0, 5.0]},
    "freelb": {"ascent_steps": [2, 3], "step_size": [0.03, 0.1]},
    "freeat": {"replays": [2, 3], "radius": [1e-3, 1e-2]},
}
# The consistency methods are tuned over λ; at 10 the target has 10/11 of the weight of the label.
_CONSISTENCY: Mapping[str, Values] = {
    "rdrop": {"weight": [1.0, 3.0]},
    "simcut": {"weight": [1.0, 3.0]},
    "temporal": {"weight": [1.0, 3.0, 10.0]},
    "ols": {"weight": [1.0, 3.0, 10.0]},
}
# Around the preset "fine-tuning". Balls from 0.1 to 1 made no difference in our study; FreeLB
# learns CoLA in one of
# 0.02, and nothing in one of 0.1 (docs/results).
_TUNED_COMMON: Values = {
    "learning_rate": [5e-5, 1e-4, 2e-4],
    "batch_size": [16, 32],
    "encoder_dropout": [0.0, 0.1],
}
_TUNED_METHODS: Mapping[str, Values] = {
    "arch": {"weight": [1.0, 3.0]},
    "smart": {"weight": [1.0, 3.0]},
    "r3f": {"weight": [1.0, 3.0]},
    "freelb": {"radius": [0.02, 0.1], "ascent_steps": [2, 3]},
    "freeat": {"radius": [1e-3, 1e-2], "replays": [2, 3]},
    **_CONSISTENCY,
}
# The small model starts from nothing: other rates suit it, and a ball that moves its predictions.
_SMALL_COMMON: Values = {
    "learning_rate": [5e-4, 1e-3, 2e-3],
    "batch_size": [16, 32],
    "encoder_dropout": [0.0, 0.1],
}
_SMALL_METHODS: Mapping[str, Values] = {
    "arch": {"radius": [0.1, 0.3, 1.0], "weight": [0.5, 1.0]},
    "smart": {"radius": [0.1, 0.3, 1.0], "weight": [0.5, 1.0]},
    "r3f": {"noise_scale": [0.01, 0.1, 0.3], "weight": [0.5, 1.0]},
    "freelb": {"radius": [0.003, 0.01, 0.03]},
    "freeat": {"radius": [1e-4, 1e-3]},
    **_CONSISTENCY,
}
# The paper tunes nothing on translation: around its settings, which are the preset.
_TRANSLATION_COMMON: Values = {"learning_rate": [5e-4, 1e-3, 2e-3], "model_dropout": [0.1, 0.3]}
_TRANSLATION_METHODS: Mapping[str, Values] = {
    "arch": {"weight": [0.5, 1.0, 2.0]},
    "smart": {"weight": [0.5, 1.0, 2.0]},
    "r3f": {"weight": [0.5, 1.0, 2.0], "noise_scale": [1e-3, 1e-2]},
    "freelb": {"ascent_steps": [2, 3], "step_size": [0.03, 0.1]},
    "freeat": {"replays": [2, 3], "radius": [1e-3, 1e-2]},
    "rdrop": {"weight": [1.0, 2.5]},
    "simcut": {"weight": [1.0, 3.0]},
    "temporal": {"weight": [1.0, 3.0, 10.0]},
}


@dataclass(frozen=True)
class Grid:
    """Values of each setting: those all methods share, and each method's own."""

    common: Values = field(default_factory=dict)
    methods: Mapping[str, Values] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in self.common.items():
            if name not in TUNABLE:
                raise SettingsError(
                    f"grid has the unknown entry '{name}'{suggest(name, (*TUNABLE, *registry))}; "
                    "it may have "
                    f"{', '.join(TUNABLE)}, and a table for each of {', '.join(registry)}"
                )
            _check_values(f"grid.{name}", values)
        for method, own in self.methods.items():
            known = [option.name for option in describe(method)]
            for name, values in own.items():
                if name not in known:
                    raise SettingsError(
                        f"grid.{method} has the unknown option '{name}'{suggest(name, known)}; it "
                        "may have "
                        f"{', '.join(known) or 'none'}"
                    )
                _check_values(f"grid.{method}.{name}", values)
                for value in values:
                    create(method, **{name: value})

    def without(self, common: Iterable[str], own: Mapping[str, Iterable[str]]) -> Grid:
        """The grid less what was fixed."""
        fixed = {method: set(names) for method, names in own.items()}
        kept = {
            method: {
                name: values
                for name, values in options.items()
                if name not in fixed.get(method, ())
            }
            for method, options in self.methods.items()
        }
        return Grid(
            {name: values for name, values in self.common.items() if name not in set(common)}, kept
        )

    def size(self, method: str) -> int:
        """How many points a method's grid has."""
        return math.prod(map(len, [*self.common.values(), *self.methods.get(method, {}).values()]))

    def candidates(self, method: str, budget: int, seed: int) -> list[Point]:
        """The first ``budget`` points of the grid, in a random order that spreads them, or all if
        there are fewer.

        The common settings of the i-th candidate are the same for every method (while i is below
        their number), so that no method is luckier with its learning rates than another; with each
        pass over them a method's own options come in other pairings. The order holds every point
        once: with C common and O own points, gcd(C, O) rounds of lcm(C, O) pairs (i mod C, (i +
        round) mod O).

        Example:
            >>> grid = Grid({"learning_rate": [1e-4, 2e-4]}, {"arch": {"radius": [0.1, 0.3, 1.0]}})
            >>> len(grid.candidates("standard", 4, seed=0)), len(grid.candidates("arch", 4, seed=0))
            (2, 4)
        """
        common = _spread(self.common, f"{seed}:common", budget)
        own = _spread(self.methods.get(method, {}), f"{seed}:{method}", budget)
        lap = math.lcm(len(common), len(own))
        count = min(budget, len(common) * len(own))
        return [{**common[i % len(common)], **own[(i + i // lap) % len(own)]} for i in range(count)]


def default_grid(model: str, preset: str | None = None) -> Grid:
    """What suits a model: the small one, a translator, or one that is pretrained; with its preset
    the paper's grid.
    """
    if model in TRANSLATORS:
        return Grid(_TRANSLATION_COMMON, _TRANSLATION_METHODS)
    if preset == "understanding":
        return Grid(_PAPER_COMMON, _PAPER_METHODS)
    return (
        Grid(_SMALL_COMMON, _SMALL_METHODS)
        if model == SCRATCH
        else Grid(_TUNED_COMMON, _TUNED_METHODS)
    )


def read_grid(table: Mapping[str, Any]) -> Grid:
    """A grid from a config file: lists of values, and a table of such lists for each method."""
    own = {name: value for name, value in table.items() if name in registry}
    for name, value in own.items():
        if not isinstance(value, Mapping):
            raise SettingsError(f"grid.{name} must be a table, [grid.{name}], got {value!r}")
    common = {name: value for name, value in table.items() if name not in registry}
    Grid(common, own)  # names and lists are checked before values are read as what they should be
    hints = get_type_hints(TranslationSettings) | get_type_hints(TrainSettings)
    return Grid(
        {
            name: [coerce(f"grid.{name}", value, hints[name]) for value in values]
            for name, values in common.items()
        },
        {
            method: {
                name: [create(method, **{name: v}).options()[name] for v in values]
                for name, values in each.items()
            }
            for method, each in own.items()
        },
    )


def _check_values(where: str, values: Any) -> None:
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise SettingsError(f"{where} must be a list of values, at least one, got {values!r}")
    if len({repr(value) for value in values}) < len(values):
        raise SettingsError(f"{where} must hold different values, got {list(values)}")


def _spread(values: Values, seed: str, first: int) -> list[Point]:
    """All points in a random order, the ``first`` of them spread: each has the values that were
    used least before it.

    Of a setting with n values the first n points have n different ones, whatever else is in the
    grid.
    """
    left = list(itertools.product(*(range(len(each)) for each in values.values())))
    random.Random(seed).shuffle(left)
    used: Counter[tuple[int, int]] = Counter()
    order = []
    for _ in range(min(first, len(left))):
        point = min(left, key=lambda point: sum(used[place] for place in enumerate(point)))
        left.remove(point)
        used.update(enumerate(point))
        order.append(point)
    return [
        {name: each[index] for (name, each), index in zip(values.items(), point, strict=True)}
        for point in (*order, *left)
    ]
