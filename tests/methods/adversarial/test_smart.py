import math
from typing import Any

import pytest
import torch
from torch import Tensor

import naive
from advreg.hf.view.view import HFModelView
from advreg.methods import create, preset, registry
from advreg.methods.base import memory_bytes
from naive import Inner
from observe import batch_of, close, exact, gradients, step, watched

# λ and the sizes are large enough for every part to show in the loss.
SETTINGS = {
    "radius": 0.5,
    "ascent_steps": 3,
    "step_size": 0.4,
    "weight": 2.0,
    "divergence": "symmetric_kl",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "paper's translation": {},
    "one direction": {"divergence": "kl"},
    "paper's understanding, as its text reads": {
        "norm": "linf",
        "scope": "token",
        "start": "normal",
        "start_scale": 0.01,
        "step_rule": "gradient",
        "step_size": 0.5,
        "radius": 0.02,
    },
    "paper's understanding": {
        "norm": "linf",
        "scope": "token",
        "start": "normal",
        "start_scale": 0.01,
        "step_end": "rescale",
        "step_size": 0.05,
        "radius": 0.02,
    },
    "per token, rescaled": {"scope": "token", "step_end": "rescale", "radius": 0.2},
    "sign, linf": {"norm": "linf", "step_rule": "sign", "radius": 0.05, "step_size": 0.03},
    "normalised, linf, rescaled": {
        "norm": "linf",
        "step_end": "rescale",
        "radius": 0.05,
        "step_size": 0.03,
    },
    "clean side detached": {"detach_clean": True},
}


def agree(
    family: str,
    settings: dict[str, Any],
    proximal: dict[str, Any],
    steps: int = 1,
    **model_settings: Any,
) -> None:
    """Train a model by SMART and a copy by its reference, and compare all there is after each
    step.
    """
    # Evaluation mode, since Marian draws a number per layer in training (for layer drop) even where
    # it drops none.
    model, reference = (
        exact(family, **model_settings).eval(),
        exact(family, **model_settings).eval(),
    )
    batch = batch_of(family, 3)
    if model.config.num_labels == 1:
        batch["labels"] = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
    if model.config.problem_type == "multi_label_classification":
        batch["labels"] = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 1]], dtype=torch.float64)
    task, method = HFModelView(model), create("smart", **settings, **proximal)
    task.widths(batch)
    other = naive.Smart(Inner(**settings), **proximal)
    for number in range(steps):
        with watched(model) as passes:
            report = step(method, task, batch, seed=number)
        torch.manual_seed(number)
        expected = other.step(reference, batch)
        assert float(report.loss) == pytest.approx(expected.loss, abs=1e-6)
        assert float(report.task_loss) == pytest.approx(expected.task_loss, abs=1e-6)
        assert float(report.penalty) == pytest.approx(expected.penalty, abs=1e-6)
        perturbed = [one for one in passes if one.perturbed]
        assert len(perturbed) == len(expected.path)
        for one, deltas in zip(perturbed, expected.path, strict=True):
            for mine, theirs in zip(one.samples(task, batch), deltas, strict=True):
                assert all(
                    torch.allclose(mine[stream], rows, atol=1e-6, rtol=0)
                    for stream, rows in theirs.items()
                )
        assert close(gradients(model), gradients(reference))
        for one in (model, reference):
            torch.optim.SGD(one.parameters(), lr=0.1).step()
            one.zero_grad()
        method.updated(task)
        other.updated(reference)


@pytest.mark.parametrize(
    ("family", "variant"),
    [("bert", variant) for variant in VARIANTS]
    + [
        ("marian", variant)
        for variant in ("paper's translation", "paper's understanding", "per token, rescaled")
    ],
)
def test_smart_agrees_with_its_reference(family: str, variant: str) -> None:
    agree(family, SETTINGS | VARIANTS[variant], {})


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_smart_agrees_with_its_reference_under_the_proximal_term(family: str) -> None:
    """Over three updates: at the first the average is the model itself, and the term has no
    gradient.
    """
    agree(
        family,
        SETTINGS | {"ascent_steps": 1},
        {"proximal_weight": 5.0, "proximal_momentum": 0.8},
        steps=3,
    )


@pytest.fixture
def found() -> dict[str, dict[str, Tensor]]:
    """Start, end and effect of the ascent on the words of a batch, for two readings of the paper's
    recipe and noise.
    """
    batch, perturbations = batch_of("bert", 4), {}
    task = HFModelView(exact("bert"), site="block")
    clean = task.bare_logits(batch).detach()
    for reading, options in {
        "preset": {},
        "text": {"step_rule": "gradient", "step_end": "project"},
    }.items():
        method = create("smart", **preset("understanding", "smart") | options)
        torch.manual_seed(0)
        start = method.origin.draw(task.zeros(batch), method.ball)
        torch.manual_seed(0)
        perturbations[reading] = {"start": start, "end": method.worst_case(task, batch, clean)}
    perturbations["noise"] = {"start": start, "end": method.ball.rescale(start)}
    return {
        reading: {
            **{
                place: delta.values["tokens"][delta.masks["tokens"]]
                for place, delta in places.items()
            },
            "effect": task.divergence(
                clean, task.bare_logits(batch, places["end"]), batch, "kl"
            ).detach(),
        }
        for reading, places in perturbations.items()
    }


def test_with_the_preset_the_gradient_turns_every_word_of_a_perturbation_as_large_as_its_ball(
    found: dict[str, dict[str, Tensor]],
) -> None:
    assert torch.allclose(found["preset"]["end"].abs().amax(-1), torch.ones(()).double(), atol=1e-6)
    turned = torch.nn.functional.cosine_similarity(
        found["preset"]["start"], found["preset"]["end"], dim=-1
    )
    assert float(turned.abs().max()) < 0.95
    assert float(found["preset"]["effect"]) > 3 * float(found["noise"]["effect"])


def test_as_the_text_of_the_paper_reads_the_ascent_leaves_its_start_where_it_is(
    found: dict[str, dict[str, Tensor]],
) -> None:
    start, end = found["text"]["start"], found["text"]["end"]
    assert float((end - start).norm() / start.norm()) < 1e-3
    assert float(found["text"]["effect"]) < 1e-6 * float(found["preset"]["effect"])


def test_smart_regularises_a_regression_by_the_squared_difference() -> None:
    agree(
        "bert", SETTINGS, {"proximal_weight": 5.0, "proximal_momentum": 0.5}, steps=2, num_labels=1
    )


@pytest.mark.parametrize("divergence", ["kl", "symmetric_kl"])
def test_smart_regularises_several_labels_each_on_its_own(divergence: str) -> None:
    agree(
        "bert", SETTINGS | {"divergence": divergence}, {}, problem_type="multi_label_classification"
    )


def test_detaching_the_clean_side_changes_the_gradient_and_not_the_loss() -> None:
    found = {}
    for detach in (True, False):
        model = exact("bert")
        report = step(
            create("smart", **SETTINGS, detach_clean=detach), HFModelView(model), batch_of("bert")
        )
        found[detach] = float(report.loss), gradients(model)
    assert found[True][0] == found[False][0]
    assert not close(found[True][1], found[False][1], 1e-3)


def test_symmetric_kl_is_the_mean_of_both_directions() -> None:
    clean, moved = torch.randn(2, 4, 3, dtype=torch.float64).unbind()
    batch, task = batch_of("bert"), HFModelView(exact("bert"))
    there, back = (task.divergence(*pair, batch, "kl") for pair in ((clean, moved), (moved, clean)))
    both = task.divergence(clean, moved, batch, "symmetric_kl")
    assert float(both) == pytest.approx(float(there + back) / 2, abs=1e-12)
    assert abs(float(there - back)) > 1e-3


def test_the_average_follows_the_weights_with_the_momentum() -> None:
    """θ̃ starts where the weights were before the first update, and then θ̃ ← β θ̃ + (1 − β) θ."""
    model, batch, momentum = exact("bert"), batch_of("bert"), 0.75
    task, method = (
        HFModelView(model),
        create("smart", proximal_weight=1.0, proximal_momentum=momentum, ascent_steps=1),
    )
    average = {name: value.detach().clone() for name, value in model.named_parameters()}
    for _ in range(3):
        step(method, task, batch)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        model.zero_grad()
        method.updated(task)
        average = {
            n: momentum * average[n] + (1 - momentum) * value.detach()
            for n, value in model.named_parameters()
        }
        assert close(method.memory.state().tensors, average, 1e-12)
    assert not close(average, dict(model.named_parameters()), 1e-3)
    assert memory_bytes(method) == sum(value.numel() * 8 for value in average.values())


def test_without_the_proximal_term_no_average_is_kept() -> None:
    task, method = HFModelView(exact("bert")), create("smart")
    step(method, task, batch_of("bert"))
    method.updated(task)
    assert memory_bytes(method) == 0


@pytest.mark.parametrize("dropout", ["fresh", "shared", "off"])
def test_dropout_of_the_two_predictions_is_what_was_asked(dropout: str) -> None:
    """With δ = 0 the predictions differ by their masks alone."""
    model = exact("bert", dropout=0.1)
    model.bert.encoder.layer[0].eval()  # a user's choice, to be found again afterwards
    flags = {name: module.training for name, module in model.named_modules()}
    report = step(
        create("smart", radius=0.0, dropout=dropout), HFModelView(model), batch_of("bert")
    )
    assert (float(report.penalty) == 0.0) == (dropout != "fresh")
    assert flags == {name: module.training for name, module in model.named_modules()}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("radius", -1, "radius must be a finite number of 0 or more, got -1"),
        ("weight", math.nan, "weight must be a finite number of 0 or more, got nan"),
        ("weight", -0.5, "weight must be a finite number of 0 or more, got -0.5"),
        ("norm", "l3", "norm must be one of l2, linf, got 'l3'"),
        ("scope", "batch", "scope must be one of sample, token, got 'batch'"),
        ("ascent_steps", -2, "ascent_steps must be a whole number of 0 or more, got -2"),
        ("step_size", 0.0, "step_size must be a positive finite number, got 0"),
        (
            "step_rule",
            "newton",
            "step_rule must be one of normalised, gradient, sign, got 'newton'",
        ),
        ("step_end", "clip", "step_end must be one of project, rescale, got 'clip'"),
        ("start", "zero", "start must be one of uniform, normal, got 'zero'"),
        ("start_scale", 0.0, "start_scale must be a positive finite number, got 0"),
        ("divergence", "js", "divergence must be one of kl, symmetric_kl, got 'js'"),
        ("dropout", "always", "dropout must be one of fresh, shared, off, got 'always'"),
        ("proximal_weight", -1.0, "proximal_weight must be a finite number of 0 or more, got -1"),
        ("proximal_momentum", 1.0, "proximal_momentum must be at least 0 and below 1, got 1"),
    ],
)
def test_smart_refuses_bad_values(option: str, value: Any, message: str) -> None:
    for make in (registry["smart"], lambda **options: create("smart", **options)):
        with pytest.raises(ValueError, match=message):
            make(**{option: value})


def test_smart_suggests_the_close_name_of_an_option() -> None:
    with pytest.raises(
        ValueError, match=r"no option 'proximal_wight' \(did you mean 'proximal_weight'\?\)"
    ):
        create("smart", proximal_wight=1.0)
