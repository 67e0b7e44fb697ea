"""What a step of a method does around the objective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn
from transformers import TrainerCallback

from advreg.methods import create
from tiny_models import tiny
from tiny_runs import stock_trainer, tiny_trainer


class Modes(TrainerCallback):
    """Turns dropout off before each step, and notes in which mode the step ran and what set it.

    Args:
        modules: of the model.
        freezes: whether to turn anything off.
    """

    def __init__(self, modules: list[nn.Module], freezes: bool) -> None:
        self.modules, self.freezes = modules, freezes
        self.calls = 0
        self.modes: list[bool] = []
        self.watched = modules[-1]
        self.watched.train = self.train  # type: ignore[method-assign]
        self.watched.register_forward_pre_hook(lambda *_: self.modes.append(self.watched.training))

    def train(self, mode: bool = True) -> nn.Module:
        self.calls += 1
        return nn.Module.train(self.watched, mode)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.calls = 0 if state.global_step == 0 else self.calls
        if self.freezes:
            self.watched.eval()


@pytest.mark.parametrize("freezes", [True, False])
def test_a_step_sets_the_mode_of_modules_only_where_one_has_left_it(
    tmp_path: Path, freezes: bool
) -> None:
    model = tiny("bert", dropout=0.1)
    modes = Modes(list(model.modules()), freezes)
    trainer = tiny_trainer(tmp_path, create("rdrop"), model, save_strategy="no", callbacks=[modes])
    trainer.train()
    assert (
        modes.modes == [True] * 4
    )  # as the stock step, which undoes what a callback has turned off
    # each eval() is a call and each step that follows it
    assert modes.calls == (2 * 4 if freezes else 0)
    assert "train" not in vars(model)


def test_the_stock_step_turns_a_module_on_again_too(tmp_path: Path) -> None:
    model = tiny("bert", dropout=0.1)
    modes = Modes(list(model.modules()), True)
    stock_trainer(tmp_path, model=model, save_strategy="no", callbacks=[modes]).train()
    assert modes.modes == [True] * 4
