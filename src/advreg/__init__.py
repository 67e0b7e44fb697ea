"""advreg: adversarial regularisation for language models, with cached perturbations.

Public names are loaded on first use, so that ``import advreg`` costs little more than
``import torch``, and transformers is imported only when it is needed.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the one list of public names; it is read from the source, too
    from advreg.core.schedule import Clock as Clock
    from advreg.hf.attach import attach as attach
    from advreg.hf.attach import detach as detach
    from advreg.hf.guards.capability import UnsupportedError as UnsupportedError
    from advreg.hf.session import prepare as prepare
    from advreg.hf.trainer import AdversarialSeq2SeqTrainer as AdversarialSeq2SeqTrainer
    from advreg.hf.trainer import AdversarialTrainer as AdversarialTrainer
    from advreg.hf.view.view import HFModelView as HFModelView
    from advreg.methods import OLS as OLS
    from advreg.methods import R3F as R3F
    from advreg.methods import Arch as Arch
    from advreg.methods import FreeAT as FreeAT
    from advreg.methods import FreeLB as FreeLB
    from advreg.methods import RDrop as RDrop
    from advreg.methods import SimCut as SimCut
    from advreg.methods import Smart as Smart
    from advreg.methods import Standard as Standard
    from advreg.methods import Step as Step
    from advreg.methods import Temporal as Temporal
    from advreg.methods import create as create

__version__ = "0.1.0"

_HOMES = {
    alias.name: str(node.module)
    for block in ast.parse(Path(__file__).read_text(encoding="utf-8")).body
    if isinstance(block, ast.If)
    for node in block.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "functional":
        return import_module("advreg.functional")
    if name not in _HOMES:
        raise AttributeError(f"module 'advreg' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
