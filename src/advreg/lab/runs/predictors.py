"""The predictor of a trained model, whatever its kind of task."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from advreg.core.checks import suggest
from advreg.core.options import Given, options_of
from advreg.lab.kinds.predictor import Predictor
from advreg.lab.kinds.registry import kind_of_model


def load_predictor(folder: Path, given: Given) -> Predictor:
    """The predictor for the model in a folder, with the options that are given."""
    kind: type[Predictor] = import_module(
        f"advreg.lab.kinds.{kind_of_model(folder).name}.predictor"
    ).PREDICTOR
    known = [each.name for each in options_of(kind.options)]
    for name in given.keys() - set(known):
        raise ValueError(
            f"this model has no option '{name}'{suggest(name, known)} to predict with; it has "
            f"{', '.join(known)}"
        )
    return kind.load(folder, kind.options(**given))
