"""advreg: adversarial regularisation for language models, with perturbations that are cached and
reused.

Public names are loaded when they are first used, so that ``import advreg`` costs little more than
``import torch`` and transformers is imported only by those who need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advreg.core.schedule import Clock
    from advreg.hf.attach import attach, detach
    from advreg.hf.guards.capability import UnsupportedError
    from advreg.hf.session import prepare
    from advreg.hf.trainer import AdversarialSeq2SeqTrainer, AdversarialTrainer
    from advreg.hf.view.view import HFModelView
    from advreg.methods import (
        OLS,
        R3F,
        Arch,
        FreeAT,
        FreeLB,
        RDrop,
        SimCut,
        Smart,
        Standard,
        Step,
        Temporal,
        create,
    )

__version__ = "0.1.0"

_HOMES = {
    "AdversarialSeq2SeqTrainer": "advreg.hf.trainer",
    "AdversarialTrainer": "advreg.hf.trainer",
    "Arch": "advreg.methods",
    "Clock": "advreg.core.schedule",
    "FreeAT": "advreg.methods",
    "FreeLB": "advreg.methods",
    "HFModelView": "advreg.hf.view.view",
    "OLS": "advreg.methods",
    "R3F": "advreg.methods",
    "RDrop": "advreg.methods",
    "SimCut": "advreg.methods",
    "Smart": "advreg.methods",
    "Standard": "advreg.methods",
    "Step": "advreg.methods",
    "Temporal": "advreg.methods",
    "UnsupportedError": "advreg.hf.guards.capability",
    "attach": "advreg.hf.attach",
    "create": "advreg.methods",
    "detach": "advreg.hf.attach",
    "prepare": "advreg.hf.session",
}

__all__ = [
    "OLS",
    "R3F",
    "AdversarialSeq2SeqTrainer",
    "AdversarialTrainer",
    "Arch",
    "Clock",
    "FreeAT",
    "FreeLB",
    "HFModelView",
    "RDrop",
    "SimCut",
    "Smart",
    "Standard",
    "Step",
    "Temporal",
    "UnsupportedError",
    "attach",
    "create",
    "detach",
    "prepare",
]


def __getattr__(name: str) -> Any:
    if name == "functional":
        return import_module("advreg.functional")
    if name not in _HOMES:
        raise AttributeError(f"module 'advreg' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
