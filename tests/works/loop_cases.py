"""Loops without a Trainer: accelerate's, and Lightning's with manual and with automatic
optimisation.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import lightning
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader

from advreg import Clock, HFModelView, IdCollator, Identified, survey
from advreg.methods import Method, Step
from works import data
from works.cases import UPDATES, Case, Setting
from works.lightning_modules import Regularised, RegularisedAutomatically
from works.traces import Trace, weights_of
from works.trainer_cases import of

GROUP = "Loops without a Trainer"
RATE = 0.03
EPOCHS = 2

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


def parts_of(setting: Setting) -> tuple[Any, Any, Any]:
    """A model, rows and a collator."""
    torch.manual_seed(0)
    given = of("bert", data.classified)(setting)
    return given["model"], given["train_dataset"], given["data_collator"]


def loader_of(rows: Any, collate: Any, method: Method | None) -> Any:
    if method is None:
        return DataLoader(rows, batch_size=4, collate_fn=collate)
    return DataLoader(Identified(rows), batch_size=4, collate_fn=IdCollator(collate))  # type: ignore[arg-type]


def gradient_norm(model: nn.Module) -> float:
    return float(
        torch.stack(
            [value.grad.norm() for value in model.parameters() if value.grad is not None]
        ).norm()
    )


# ---- accelerate


def by_accelerate(method: Method | None, setting: Setting, accumulation: int = 1) -> Trace:
    model, rows, collate = parts_of(setting)
    trace = Trace(weights_of(model), {}, [])
    accelerator = Accelerator(cpu=True)
    task = HFModelView(model)
    if method is not None and method.memory is not None:
        method.memory.prepare(survey(task, rows, collate), seed=0, device=accelerator.device)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=RATE)
    wrapped, optimizer, loader = accelerator.prepare(
        model, optimizer, loader_of(rows, collate, method)
    )
    task.train_through(wrapped)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    for step, (epoch, batch) in enumerate(islice(epochs(loader), UPDATES)):
        with accelerator.accumulate(wrapped):
            if method is None:
                loss = wrapped(**batch).loss
                accelerator.backward(loss)
                line = {"loss": float(loss.detach())}
            else:
                line = figures(
                    method.step(task, batch, Step(Clock(epoch, step), accelerator.backward, update))
                )
            trace.lines.append({**line, "grad_norm": gradient_norm(model)})
            update()
    trace.weights = weights_of(model)
    return trace


def epochs(loader: Any) -> Iterator[tuple[int, Any]]:
    return ((epoch, batch) for epoch in range(EPOCHS) for batch in loader)


def figures(report: Any) -> dict[str, float]:
    penalty = {} if report.penalty is None else {"penalty": float(report.penalty)}
    return {"loss": float(report.loss), **penalty}


# ---- Lightning


class Plain(lightning.LightningModule):
    """Training without a method."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=RATE)


class Watch(lightning.Callback):
    """Collects what each update did."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.norm = math.nan

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.norm = gradient_norm(module)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.lines.append(logged | {"grad_norm": self.norm})


def lightning_trainer(setting: Setting, *callbacks: Any, **settings: Any) -> Any:
    usual = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return lightning.Trainer(
        accelerator="cpu",
        max_steps=UPDATES,
        enable_model_summary=False,
        default_root_dir=setting.folder,
        callbacks=list(callbacks),
        **usual | settings,
    )


def by_lightning(kind: Any, method: Method | None, setting: Setting) -> Trace:
    model, rows, collate = parts_of(setting)
    module = Plain(model) if method is None else kind(model, method)
    if method is not None and method.memory is not None:
        corpus = survey(module.task, rows, collate)
        method.memory.prepare(corpus, seed=0, device=torch.device("cpu"))
    watch, before = Watch(), weights_of(model)
    lightning_trainer(setting, watch).fit(module, loader_of(rows, collate, method))
    return Trace(before, weights_of(model), watch.lines)


SEVERAL = "{} propagates several losses in a step; use manual optimisation"

CASES = [
    Case(GROUP, "accelerate", by_accelerate),
    Case(GROUP, "Lightning, manual optimisation", partial(by_lightning, Regularised)),
    Case(
        GROUP,
        "Lightning, automatic optimisation",
        partial(by_lightning, RegularisedAutomatically),
        {name: SEVERAL.format(name) for name in ("freelb", "freeat")},
    ),
]
