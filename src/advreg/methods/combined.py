"""Sums of regularisers: one task loss, several penalties, one clean prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

from advreg.core.options import Options
from advreg.memory.memory import Memories, named, under
from advreg.methods.base import (
    Batch,
    Constraint,
    Method,
    MethodInfo,
    ModelView,
    OptionInfo,
    Passes,
    Step,
    StepReport,
    UnsupportedError,
    by_part,
    registry,
)
from advreg.methods.options import FuseOptions
from advreg.methods.regulariser import Regulariser, dropout_of, regularised


class Combined(Method):
    """L(θ) + Σ λ_k · penalty_k of several regularisers, which share the clean prediction.

    The name is the names of the parts, such as ``smart+temporal``; an option has the name of its
    part in front, such as ``temporal.weight``. The order of the parts does not matter. Each
    combination is a class, made by :func:`combination`.

    Example:
        >>> from advreg.methods import Smart, Temporal
        >>> method = Temporal(weight=10.0) + Smart(start_at=0.67)
        >>> method.info.name, method.passes(), method.options()["temporal.weight"]
        ('smart+temporal', Passes(forward=5, backward=4), 10.0)
    """

    kinds: ClassVar[tuple[type[Regulariser], ...]]

    def __init__(self, **options: Any) -> None:
        parts = []
        for kind in self.kinds:
            with named(kind.info.name):
                parts.append(kind(**under(f"{kind.info.name}.", options)))
        self._hold(parts)

    def _hold(self, parts: Iterable[Regulariser]) -> None:
        self.parts = tuple(parts)
        dropout_of(self.parts)  # refuses parts that differ
        memories = {part.info.name: part.memory for part in self.parts if part.memory is not None}
        self.memory = Memories(memories) if memories else None

    def constraints(self) -> Sequence[Constraint]:
        return [
            replace(found, option=f"{part.info.name}.{found.option}")
            for part in self.parts
            for found in part.constraints()
        ]

    def warnings(self, epochs: float) -> Sequence[str]:
        return [text for part in self.parts for text in part.warnings(epochs)]

    def objective(self, view: ModelView, batch: Batch, step: Step) -> StepReport:
        return regularised(self.parts, view, batch, step)

    def updated(self, view: ModelView) -> None:
        for part in self.parts:
            part.updated(view)

    def passes(self) -> Passes:
        each = [part.passes() for part in self.parts]
        return Passes(
            1 + sum(one.forward - 1 for one in each), 1 + sum(one.backward - 1 for one in each)
        )

    def options(self) -> Options:
        options = {part.info.name: part.options() for part in self.parts}
        return by_part(self.info.name, options.__getitem__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Combined) and self.parts == other.parts

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.parts))

    def __reduce__(self) -> tuple[Callable[..., Combined], tuple[Regulariser, ...]]:
        return added, self.parts

    @classmethod
    def _described(cls) -> tuple[OptionInfo, ...]:
        return tuple(
            replace(option, name=f"{kind.info.name}.{option.name}")
            for kind in cls.kinds
            for option in kind._described()
        )


def added(*methods: Method) -> Combined:
    """The sum of methods, or of sums."""
    parts = [
        part
        for method in methods
        for part in (method.parts if isinstance(method, Combined) else (method,))
    ]
    kind = combination(tuple(part.info.name for part in parts))
    found = object.__new__(kind)
    own = {part.info.name: part for part in parts if isinstance(part, Regulariser)}
    found._hold(own[part.info.name] for part in kind.kinds)
    return found


def combination(names: Sequence[str]) -> type[Combined]:
    """The class of a sum of these methods."""
    for name in names:
        if not issubclass(registry.of(name), Regulariser):
            able = (name for name, kind in registry.items() if issubclass(kind, Regulariser))
            raise UnsupportedError(
                f"{name} cannot be combined with other methods: its objective is not the task loss "
                f"plus a penalty; combine {', '.join(able)}"
            )
    if len(set(names)) < len(names):
        raise ValueError(f"a combination has each method once, got {'+'.join(names)}")
    return _combination(frozenset(names))


@cache
def _combination(names: frozenset[str]) -> type[Combined]:
    found = sorted((registry[name] for name in names), key=_rank)
    kinds = tuple(kind for kind in found if issubclass(kind, Regulariser))
    about = [kind.info for kind in kinds]
    families = {family: None for info in about for family in info.tune}
    info = MethodInfo(
        "+".join(one.name for one in about),
        " + ".join(one.title for one in about),
        "; ".join(one.paper for one in about),
        "; ".join(f"{one.title}: {one.cost}" for one in about) + "; one clean pass for all",
        frozenset().union(*(one.needs for one in about)),
        frozenset().union(*(one.traits for one in about)),
        tuple(f"{one.name}.{option}" for one in about for option in one.movable),
        {
            family: {
                f"{one.name}.{option}": values
                for one in about
                for option, values in one.tune.get(family, {}).items()
            }
            for family in families
        },
    )
    return type(
        "Combined", (Combined,), {"kinds": kinds, "info": info, "__doc__": Combined.__doc__}
    )


def _rank(kind: type[Method]) -> tuple[bool, bool, str]:
    """Place of a part in a step: the one whose two copies are both trained on makes the clean pass,
    else one that makes it together with its own.
    """
    return not hasattr(kind, "both_losses"), not issubclass(kind, FuseOptions), kind.info.name
