# ruff: noqa: I001
"""The methods: one paper, one file. Importing this package registers them all."""

from advreg.methods.base import (
    Method as Method,
    MethodInfo as MethodInfo,
    ModelView as ModelView,
    OptionInfo as OptionInfo,
    Step as Step,
    StepReport as StepReport,
    create as create,
    describe as describe,
    registry as registry,
)
from advreg.methods.presets import preset as preset

# One line a method; the order is the order in tables and of colours.
from advreg.methods.standard import Standard as Standard
from advreg.methods.adversarial.freeat import FreeAT as FreeAT
from advreg.methods.adversarial.freelb import FreeLB as FreeLB
from advreg.methods.adversarial.smart import Smart as Smart
from advreg.methods.noise.r3f import R3F as R3F
from advreg.methods.consistency.rdrop import RDrop as RDrop
from advreg.methods.consistency.simcut import SimCut as SimCut
from advreg.methods.consistency.temporal import Temporal as Temporal
from advreg.methods.consistency.ols import OLS as OLS
from advreg.methods.adversarial.arch import Arch as Arch
