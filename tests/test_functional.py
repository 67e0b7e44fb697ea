"""Penalties as functions are the penalties of the methods, and what their formulas say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import advreg
from advreg import HFModelView, functional
from advreg.core.schedule import Clock
from advreg.methods import Method, Step, create
from tiny_models import tiny, tiny_batch

FAMILIES = ("bert", "marian", "gpt2")


def naive_kl(p: Tensor, q: Tensor) -> Tensor:
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def logits_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels_of(*shape: int, classes: int = 5) -> Tensor:
    labels = torch.randint(classes, shape, generator=torch.Generator().manual_seed(2))
    labels.view(-1)[0] = -100
    return labels


@pytest.mark.parametrize("shape", [(4,), (3, 6)])
def test_penalties_of_logits_are_their_formulas(shape: tuple[int, ...]) -> None:
    first, second = logits_of(*shape, 5), logits_of(*shape, 5, seed=1)
    labels = labels_of(*shape)
    kept = labels != -100
    both = (naive_kl(first, second) + naive_kl(second, first)) / 2
    assert functional.rdrop_penalty(first, second) == pytest.approx(float(both.mean()))
    assert functional.rdrop_penalty(first, second, labels) == pytest.approx(
        float(both[kept].mean())
    )
    past = naive_kl(second, first)
    assert functional.temporal_penalty(first, second) == pytest.approx(float(past.mean()))
    assert functional.temporal_penalty(first, second, labels) == pytest.approx(
        float(past[kept].mean())
    )
    targets = logits_of(5, 5, seed=3).softmax(-1)
    towards = [
        float(naive_kl(targets[y].log(), row))
        for y, row in zip(labels[kept], first[kept], strict=True)
    ]
    assert functional.ols_penalty(first, labels, targets) == pytest.approx(
        sum(towards) / len(towards)
    )


def test_several_labels_and_values() -> None:
    first, second = logits_of(4, 3), logits_of(4, 3, seed=1)
    p, q = first.sigmoid(), second.sigmoid()
    labels = ((p - q) * (first - second) / 2).sum(-1).mean()
    found = functional.rdrop_penalty(first, second, prediction="labels")
    assert found == pytest.approx(float(labels))
    values = functional.rdrop_penalty(first[:, :1], second[:, :1], torch.ones(4), "value")
    assert values == pytest.approx(float((first - second)[:, 0].square().mean()))


def test_the_earlier_prediction_is_a_constant() -> None:
    first, second = (logits_of(4, 5, seed=seed).requires_grad_() for seed in (0, 1))
    functional.temporal_penalty(first, second).backward()
    assert second.grad is None
    expected = (first.softmax(-1) - second.softmax(-1)) / 4
    assert torch.allclose(first.grad, expected.detach(), atol=1e-12)


def test_a_sketch_may_stand_for_the_earlier_prediction() -> None:
    first, second = logits_of(4, 50), logits_of(4, 50, seed=1)
    exact = float(functional.temporal_penalty(first, second, sketch="whole"))
    lumped = float(functional.temporal_penalty(first, second, sketch="lumped", top=20))
    assert 0.5 * exact < lumped <= exact + 1e-9


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("r3f", {"noise_scale": 0.1}),
        ("smart", {"radius": 0.5, "ascent_steps": 2}),
        ("simcut", {"cut": 0.3}),
    ],
)
def test_penalties_of_a_model_are_those_of_the_methods(
    name: str, options: dict[str, Any], family: str
) -> None:
    model, batch = tiny(family, dropout=0.1), tiny_batch(family)
    method: Method = create(name, **options)
    view = HFModelView(model)
    view.widths(batch)
    torch.manual_seed(0)
    report = method.step(view, batch, Step(Clock(0, 0)))
    function = getattr(functional, f"{name}_penalty")
    for given in (model, view):
        torch.manual_seed(0)
        found = function(given, batch, **options)
        assert float(found) == pytest.approx(float(report.penalty), rel=1e-5)


def gradients_of(model: Any) -> dict[str, Tensor]:
    found = {
        name: value.grad.clone()
        for name, value in model.named_parameters()
        if value.grad is not None
    }
    model.zero_grad()
    return found


def test_a_kept_perturbation_gives_arch_s_penalty() -> None:
    model, batch = tiny("bert").eval(), tiny_batch("bert")
    view = HFModelView(model)
    delta = view.zeros(batch).map(lambda values, mask: torch.ones_like(values) * mask[..., None])
    clean = model(**batch).logits
    with view.streams.injection.adding(delta):
        perturbed = model(**batch).logits
    found = functional.arch_penalty(view, batch, delta)
    assert float(found) == pytest.approx(float(naive_kl(clean, perturbed).mean()), rel=1e-4)
    assert float(functional.arch_penalty(model, batch, view.zeros(batch))) == 0


def test_the_gradient_reaches_the_parameters_and_no_hook_stays() -> None:
    model, batch = tiny("bert"), tiny_batch("bert")
    functional.smart_penalty(model, batch, radius=0.5).backward()
    assert float(model.bert.embeddings.word_embeddings.weight.grad.abs().sum()) > 0
    hooks = [
        hook
        for module in model.modules()
        for hook in (*module._forward_hooks, *module._forward_pre_hooks)
    ]
    assert hooks == []


def test_the_module_is_there_without_an_import() -> None:
    assert advreg.functional is functional
    assert all(getattr(functional, name).__doc__ for name in functional.__all__)


@pytest.mark.parametrize("name", functional.__all__)
def test_each_name_is_a_method_s(name: str) -> None:
    assert create(name.removesuffix("_penalty"))


def test_cross_entropy_plus_a_penalty_is_the_method_s_loss() -> None:
    model, batch = tiny("bert").eval(), tiny_batch("bert")
    torch.manual_seed(0)
    report = create("r3f", noise_scale=0.1).step(HFModelView(model), batch, Step(Clock(0, 0)))
    theirs = gradients_of(model)
    torch.manual_seed(0)
    outputs = model(**{name: value for name, value in batch.items() if name != "labels"})
    loss = F.cross_entropy(outputs.logits, batch["labels"])
    (loss + functional.r3f_penalty(model, batch, noise_scale=0.1)).backward()
    ours = gradients_of(model)
    assert float(report.loss) > 0
    assert all(torch.allclose(value, ours[name], atol=1e-5) for name, value in theirs.items())
