from __future__ import annotations

from typing import Any

import lightning
import torch

from advreg.hf.session import Session


class Regularised(lightning.LightningModule):
    """A session in Lightning's manual optimisation; its state goes into the checkpoint."""

    automatic_optimization = False

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.model, self.session = session.model, session

    def training_step(self, batch: Any, index: int) -> None:
        report = self.session.step(batch)
        self.log("loss", report.loss)
        if report.penalty is not None:
            self.log("penalty", report.penalty)
        optimizer = self.optimizers()
        optimizer.step()
        optimizer.zero_grad()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.session.optimizer

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["session"] = self.session.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.session.load_state_dict(checkpoint["session"])


class RegularisedAutomatically(Regularised):
    """The same in automatic optimisation, for methods that propagate one loss in a step."""

    automatic_optimization = True

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        report = self.session.objective(batch)
        self.log("loss", report.loss)
        if report.penalty is not None:
            self.log("penalty", report.penalty)
        return report.loss
