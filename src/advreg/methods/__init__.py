"""The methods: one paper, one file. Importing this package registers them all."""

from advreg.methods.arch import Arch
from advreg.methods.base import Method, OptionInfo, StepReport, Task, create, describe, registry
from advreg.methods.freeat import FreeAT
from advreg.methods.freelb import FreeLB
from advreg.methods.ols import OLS
from advreg.methods.presets import preset
from advreg.methods.r3f import R3F
from advreg.methods.rdrop import RDrop
from advreg.methods.simcut import SimCut
from advreg.methods.smart import Smart
from advreg.methods.standard import Standard
from advreg.methods.temporal import Temporal

__all__ = [
    "OLS",
    "R3F",
    "Arch",
    "FreeAT",
    "FreeLB",
    "Method",
    "OptionInfo",
    "RDrop",
    "SimCut",
    "Smart",
    "Standard",
    "StepReport",
    "Task",
    "Temporal",
    "create",
    "describe",
    "preset",
    "registry",
]
