"""The gradient with respect to δ, in full and half precision."""

from typing import Any

import peft
import pytest
import torch
from torch import Tensor

from advreg.core.perturbation import Perturbation
from advreg.hf.view.gradient import CheckpointingError
from advreg.hf.view.view import HFModelView
from observe import noise_of, quiet
from tiny_models import tiny_batch


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_the_gradient_is_a_difference_quotient_and_touches_no_parameter(family: str) -> None:
    model, batch = quiet(family, dtype=torch.float64), tiny_batch(family)
    for name, value in model.named_parameters():
        value.requires_grad_("layer" not in name)  # frozen in the middle
    task = HFModelView(model)
    target, point = task.bare_logits(batch).detach(), noise_of(task, batch, 0.3).leaf()

    def objective(delta: Perturbation) -> Tensor:
        return task.divergence(target, task.bare_logits(batch, delta), batch, "kl")

    gradient = task.gradient(objective(point), point)
    assert all(value.grad is None for value in model.parameters())
    direction = noise_of(task, batch, 1.0, seed=1)
    slope = sum(float((gradient.values[s] * direction.values[s]).sum()) for s in gradient.values)
    ahead, behind = (objective(point.detach().plus(direction, step)) for step in (1e-5, -1e-5))
    assert slope == pytest.approx(float((ahead - behind).detach()) / 2e-5, rel=1e-4)


def test_the_gradient_passes_through_lora_and_a_frozen_model() -> None:
    batch = tiny_batch("bert")
    plain = quiet("bert")
    adapted = peft.get_peft_model(
        quiet("bert"), peft.LoraConfig(target_modules=["query"])
    )  # starts as the same function
    frozen = quiet("bert").requires_grad_(False)
    found = []
    for model in (plain, adapted, frozen):
        task = HFModelView(model)
        point = noise_of(task, batch).leaf()
        objective = task.divergence(
            task.bare_logits(batch).detach(), task.bare_logits(batch, point), batch, "kl"
        )
        found.append(task.gradient(objective, point).values["tokens"])
    assert torch.allclose(found[1], found[0], atol=1e-7)
    assert torch.allclose(found[2], found[0], atol=1e-7)
    assert float(found[0].abs().max()) > 1e-5


class Half(torch.autograd.Function):
    """y = scale · x, whose backward pass is held in float16, as a float16 model's is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return scale * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (grad.to(torch.float16) * ctx.scale).to(torch.float16).float(), None


def half_gradient(scale: float, half: bool) -> tuple[Tensor, HFModelView]:
    task, batch = HFModelView(quiet("bert"), half=half), tiny_batch("bert")
    point = task.zeros(batch).map(lambda values, _: torch.ones_like(values)).leaf()
    objective = Half.apply(point.values["tokens"], scale).sum()
    return task.gradient(objective, point).values["tokens"][0, 0], task


def test_a_gradient_below_float16_survives_by_scaling_the_objective() -> None:
    """Trap 29: 1e-9 is zero in float16."""
    assert not bool(half_gradient(1e-9, half=False)[0].any())
    found, _ = half_gradient(1e-9, half=True)
    assert torch.allclose(found, torch.full_like(found, 1e-9), rtol=2e-2)


def test_a_scale_that_overflows_backs_off_and_stays_lower() -> None:
    """2¹⁶ is infinite in float16, and so is 2¹² · 30; 2⁸ · 30 is not."""
    found, task = half_gradient(30.0, half=True)
    assert torch.equal(found, torch.full_like(found, 30.0))
    assert task.delta_gradient.scale == 2.0**8
    found, task = half_gradient(
        float("inf"), half=True
    )  # no scale helps: it is handed on, not looped over for ever
    assert not bool(torch.isfinite(found).any())
    assert task.delta_gradient.scale <= 1


def test_in_full_precision_the_objective_is_not_scaled() -> None:
    found, task = half_gradient(30.0, half=False)
    assert torch.equal(found, torch.full_like(found, 30.0))
    assert task.delta_gradient.scale == 2.0**16


def test_reentrant_checkpointing_that_starts_later_is_explained_when_it_fails() -> None:
    model, batch = quiet("bert"), tiny_batch("bert")
    task = HFModelView(model)
    point = noise_of(task, batch).leaf()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(
        CheckpointingError, match="reentrant gradient checkpointing cannot be differentiated"
    ):
        task.gradient(task.bare_logits(batch, point).sum(), point)
    with pytest.raises(CheckpointingError, match="reentrant"):
        HFModelView(model)
