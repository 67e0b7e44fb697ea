import math
from typing import Any

import pytest
import torch

import naive
from advreg.core.schedule import Clock
from advreg.hf.view.view import HFModelView
from advreg.methods import Step, create, registry
from naive import Inner
from observe import batch_of, close, exact, gradients, step, watched

SETTINGS = {"noise_scale": 0.1, "weight": 3.0, "noise": "uniform"}
VARIANTS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "normal": {"noise": "normal"},
    "one direction": {"divergence": "kl"},
    "two passes": {"fuse": False},
    "clean side detached": {"detach_clean": True},
}


def agree(
    family: str, variant: dict[str, Any], labels: torch.Tensor | None = None, **model_settings: Any
) -> None:
    settings = SETTINGS | variant
    model, reference = exact(family, **model_settings), exact(family, **model_settings)
    batch = batch_of(family) | ({} if labels is None else {"labels": labels})
    task = HFModelView(model)
    task.widths(batch)
    with watched(model) as passes:
        report = step(create("r3f", **settings), task, batch)
    inner = Inner(
        weight=settings["weight"],
        divergence=settings.get("divergence", "symmetric_kl"),
        detach_clean=settings.get("detach_clean", False),
    )
    torch.manual_seed(0)
    expected = naive.r3f(reference, batch, inner, settings["noise"], settings["noise_scale"])
    assert float(report.loss) == pytest.approx(expected.loss, abs=1e-6)
    assert float(report.task_loss) == pytest.approx(expected.task_loss, abs=1e-6)
    assert float(report.penalty) == pytest.approx(expected.penalty, abs=1e-6)
    assert expected.penalty > 1e-4
    one = passes[0].second_half() if settings.get("fuse", True) else passes[1]
    for mine, theirs in zip(one.samples(task, batch), expected.path[0], strict=True):
        assert all(
            torch.allclose(mine[stream], rows, atol=1e-6, rtol=0) for stream, rows in theirs.items()
        )
    assert close(gradients(model), gradients(reference))


@pytest.mark.parametrize("family", ["bert", "marian"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_r3f_agrees_with_its_reference(family: str, variant: str) -> None:
    agree(family, VARIANTS[variant])


def test_r3f_regularises_a_regression_by_the_squared_difference() -> None:
    agree("bert", {}, torch.tensor([0.3, -1.2, 2.0, 0.0], dtype=torch.float64), num_labels=1)


def test_a_regression_may_have_its_labels_in_a_column() -> None:
    """(B, 1) against (B,) must not broadcast to B × B."""
    labels = torch.tensor([0.3, -1.2, 2.0, 0.0], dtype=torch.float64)
    task, batch = HFModelView(exact("bert", num_labels=1)), batch_of("bert")
    reports = [
        step(create("r3f", **SETTINGS), task, {**batch, "labels": shape})
        for shape in (labels, labels[:, None])
    ]
    assert float(reports[0].loss) == pytest.approx(float(reports[1].loss), abs=1e-12)


def test_r3f_regularises_several_labels_each_on_its_own() -> None:
    labels = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 1], [0, 0, 0]], dtype=torch.float64)
    agree("bert", {}, labels, problem_type="multi_label_classification")


@pytest.mark.parametrize("divergence", ["kl", "symmetric_kl"])
def test_far_apart_predictions_give_a_finite_gradient(divergence: str) -> None:
    """Logits some hundreds apart: probabilities underflow, their logarithms must not."""
    model = exact("bert", dtype=torch.float32)
    with torch.no_grad():
        model.classifier.weight.mul_(2000)
    settings = {"noise_scale": 1.0, "divergence": divergence}
    report = step(create("r3f", **settings), HFModelView(model), batch_of("bert"))
    assert float(report.penalty) > 10
    assert all(bool(torch.isfinite(value).all()) for value in gradients(model).values())


@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("dropout", ["fresh", "shared", "off"])
def test_dropout_of_the_two_predictions_is_what_was_asked(dropout: str, fuse: bool) -> None:
    """With δ = 0 the predictions differ by their masks alone; with shared masks, or none, not at
    all.
    """
    model = exact("bert", dropout=0.1)
    flags = {name: module.training for name, module in model.named_modules()}
    method = create("r3f", noise_scale=0.0, dropout=dropout, fuse=fuse)
    report = step(method, HFModelView(model), batch_of("bert"))
    if dropout == "fresh":
        assert float(report.penalty) > 1e-6
    elif dropout == "shared" or not fuse:
        assert float(report.penalty) == 0.0
    else:  # the two halves of a fused pass may be rounded differently
        assert float(report.penalty) < 1e-15
    assert flags == {name: module.training for name, module in model.named_modules()}


@pytest.mark.parametrize("dropout", ["fresh", "shared"])
def test_each_step_draws_masks_of_its_own(dropout: str) -> None:
    """Masks shared within a step are not shared between steps."""
    task, method = HFModelView(exact("bert", dropout=0.1)), create("r3f", dropout=dropout)
    torch.manual_seed(0)
    losses = {
        float(method.step(task, batch_of("bert"), Step(Clock(0, number))).task_loss)
        for number in range(3)
    }
    assert len(losses) == 3


def test_dropout_off_is_the_evaluated_model() -> None:
    model = exact("bert", dropout=0.1)
    report = step(create("r3f", dropout="off"), HFModelView(model), batch_of("bert"))
    expected = naive.standard(model.eval(), batch_of("bert"))
    assert float(report.task_loss) == pytest.approx(expected.task_loss, abs=1e-9)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("noise", "poisson", "noise must be one of uniform, normal, got 'poisson'"),
        ("noise_scale", -1e-5, "noise_scale must be a finite number of 0 or more, got -1e-05"),
        ("noise_scale", math.nan, "noise_scale must be a finite number of 0 or more, got nan"),
        ("weight", math.nan, "weight must be a finite number of 0 or more, got nan"),
        ("weight", math.inf, "weight must be a finite number of 0 or more, got inf"),
        ("divergence", "l2", "divergence must be one of kl, symmetric_kl, got 'l2'"),
        ("dropout", "", "dropout must be one of fresh, shared, off, got ''"),
    ],
)
def test_r3f_refuses_bad_values(option: str, value: Any, message: str) -> None:
    for make in (registry["r3f"], lambda **options: create("r3f", **options)):
        with pytest.raises(ValueError, match=message):
            make(**{option: value})


def test_r3f_suggests_the_close_name_of_an_option() -> None:
    with pytest.raises(
        ValueError,
        match=r"method 'r3f' has no option 'nois_scale' \(did you mean 'noise_scale'\?\)",
    ):
        create("r3f", nois_scale=0.1)
