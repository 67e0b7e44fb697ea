"""What is tuned over, and in which order candidates are tried."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from advreg.core.checks import suggest
from advreg.core.options import options_of
from advreg.lab.kinds import SCRATCH
from advreg.lab.runs.bases import KINDS
from advreg.lab.runs.settings import SettingsError, settings_errors
from advreg.lab.runs.translation_settings import MODELS as TRANSLATORS
from advreg.methods import create, describe, registry
from advreg.methods.base import by_part

Values = Mapping[str, Sequence[Any]]
Point = dict[str, Any]

TUNABLE = {
    each.name: each for kind in KINDS for each in options_of(kind) if each.about.get("tunes")
}
"""Settings that every method has and that may be tuned, by name."""

# By family of tasks; the methods' own options are in their MethodInfo.tune. "understanding" is Zuo
# et al. 2021, appendix on natural language understanding, which tunes λ of no method; R3F's λ is
# from the grid of Aghajanyan et al. 2020. "fine-tuning" is around the preset of this name: balls
# from 0.1 to 1 made no difference in our study; FreeLB learns CoLA with a radius of 0.02, and
# nothing with 0.1 (docs/results). "small" is for the small model, which is trained from scratch:
# other rates suit it, and a ball that moves its predictions. The paper tunes nothing on
# translation: around its settings.
_COMMON: Mapping[str, Values] = {
    "understanding": {
        "learning_rate": [5e-5, 8e-5, 1e-4, 2e-4],
        "batch_size": [8, 16, 32, 64, 128],
        "encoder_dropout": [0.0, 0.1],
    },
    "fine-tuning": {
        "learning_rate": [5e-5, 1e-4, 2e-4],
        "batch_size": [16, 32],
        "encoder_dropout": [0.0, 0.1],
        "label_smoothing": [0.0, 0.1],
        "weight_decay": [0.0, 0.1],
        "epochs": [5, 10],
    },
    "small": {
        "learning_rate": [5e-4, 1e-3, 2e-3],
        "batch_size": [16, 32],
        "encoder_dropout": [0.0, 0.1],
        "label_smoothing": [0.0, 0.1],
        "weight_decay": [0.0, 0.1],
        "epochs": [6, 12],
    },
    "translation": {
        "learning_rate": [5e-4, 1e-3, 2e-3],
        "model_dropout": [0.1, 0.3],
        "label_smoothing": [0.1, 0.2],
        "weight_decay": [1e-4, 1e-2],
    },
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

    def own(self, method: str) -> Values:
        """Values of a method's own options; a sum of methods has the options of its parts."""
        given = self.methods.get(method)
        return by_part(method, lambda part: self.methods.get(part, {})) if given is None else given

    def size(self, method: str) -> int:
        """How many points a method's grid has."""
        return math.prod(map(len, [*self.common.values(), *self.own(method).values()]))

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
        own = _spread(self.own(method), f"{seed}:{method}", budget)
        lap = math.lcm(len(common), len(own))
        count = min(budget, len(common) * len(own))
        return [{**common[i % len(common)], **own[(i + i // lap) % len(own)]} for i in range(count)]


def default_grid(model: str, preset: str | None = None, common: Values | None = None) -> Grid:
    """What suits a model: the small one, a translator, or one that is pretrained; with its preset
    the paper's grid. ``common`` is what a kind of task tunes with every method.
    """
    if model in TRANSLATORS:
        family = "translation"
    elif preset == "understanding":
        family = "understanding"
    else:
        family = "small" if model == SCRATCH else "fine-tuning"
    tunes = {name: kind.info.tune for name, kind in registry.items()}
    also = "fine-tuning" if family == "understanding" else family  # the paper has few methods
    own = {name: tune.get(family, tune.get(also, {})) for name, tune in tunes.items()}
    methods = {
        name: {option: list(values) for option, values in each.items()}
        for name, each in own.items()
        if each
    }
    return Grid(common or _COMMON[family], methods)


def read_grid(table: Mapping[str, Any]) -> Grid:
    """A grid from a config file: lists of values, and a table of such lists for each method."""
    own = {name: value for name, value in table.items() if name in registry}
    for name, value in own.items():
        if not isinstance(value, Mapping):
            raise SettingsError(f"grid.{name} must be a table, [grid.{name}], got {value!r}")
    common = {name: value for name, value in table.items() if name not in registry}
    Grid(common, own)  # refuses unknown names before values are read by their types
    with settings_errors():
        return Grid(
            {
                name: [replace(TUNABLE[name], name=f"grid.{name}").value(value) for value in values]
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

    The first n points have n different values of a setting with n values, whatever else the grid
    holds.
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
