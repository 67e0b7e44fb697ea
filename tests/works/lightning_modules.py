from __future__ import annotations

from typing import Any

import lightning
import torch

from advreg import Clock, HFModelView
from advreg.hf.guards.capability import UnsupportedError
from advreg.memory.memory import MemoryState
from advreg.methods import Method, Step


class Regularised(lightning.LightningModule):
    """A method in Lightning's manual optimisation; what it remembers goes into the checkpoint."""

    automatic_optimization = False

    def __init__(self, model: Any, method: Method) -> None:
        super().__init__()
        self.model, self.method, self.task = model, method, HFModelView(model)

    def training_step(self, batch: Any, index: int) -> None:
        clock = Clock(self.current_epoch, self.global_step)
        step = Step(clock, self.manual_backward, self.update)
        report = self.method.step(self.task, batch, step)
        self.log("loss", report.loss)
        if report.penalty is not None:
            self.log("penalty", report.penalty)
        self.update()

    def update(self) -> None:
        optimizer = self.optimizers()
        optimizer.step()
        optimizer.zero_grad()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.03)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.method.memory is not None:
            state = self.method.memory.state()
            checkpoint["method"] = {"tensors": dict(state.tensors), "facts": dict(state.facts)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self.method.memory is not None:
            self.method.memory.load([MemoryState(**checkpoint["method"])])


class RegularisedAutomatically(Regularised):
    """The same in automatic optimisation, for methods that propagate one loss in a step."""

    automatic_optimization = True

    def __init__(self, model: Any, method: Method) -> None:
        super().__init__(model, method)
        if "repeats_backward" in method.info.traits:
            raise UnsupportedError(
                f"{method.info.name} propagates several losses in a step; use manual optimisation"
            )

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        clock = Clock(self.current_epoch, self.global_step)
        report = self.method.objective(self.task, batch, Step(clock, self.manual_backward))
        self.log("loss", report.loss)
        if report.penalty is not None:
            self.log("penalty", report.penalty)
        return report.loss
