"""The methods: one paper, one file. Importing this package registers them all."""

# ruff: noqa: I001 - the order in which the methods are listed everywhere
from advreg.methods.adversarial.arch import Arch
from advreg.methods.base import (
    Method,
    ModelView,
    OptionInfo,
    Step,
    StepReport,
    create,
    describe,
    registry,
)
from advreg.methods.adversarial.freeat import FreeAT
from advreg.methods.adversarial.freelb import FreeLB
from advreg.methods.consistency.ols import OLS
from advreg.methods.presets import preset
from advreg.methods.noise.r3f import R3F
from advreg.methods.consistency.rdrop import RDrop
from advreg.methods.consistency.simcut import SimCut
from advreg.methods.adversarial.smart import Smart
from advreg.methods.standard import Standard
from advreg.methods.consistency.temporal import Temporal

__all__ = [
    "OLS",
    "R3F",
    "Arch",
    "FreeAT",
    "FreeLB",
    "Method",
    "ModelView",
    "OptionInfo",
    "RDrop",
    "SimCut",
    "Smart",
    "Standard",
    "Step",
    "StepReport",
    "Temporal",
    "create",
    "describe",
    "preset",
    "registry",
]
