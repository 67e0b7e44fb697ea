"""Laws that every registered method obeys, on families that differ in how tokens become
predictions.

A method that is registered tomorrow is held to them too, with its default settings unless
`SETTINGS` has a line for it.
"""

import gc
import weakref
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import TrainingArguments

from advreg.core.schedule import Clock
from advreg.hf.checkpoint.state import load_method, save_method
from advreg.hf.components.steps import StepRunner
from advreg.hf.trainer import AdversarialTrainer
from advreg.hf.view.view import HFModelView
from advreg.methods import Method, Step, create, registry
from advreg.methods.options import TargetOptions
from contracting import Contracting
from observe import (
    Batch,
    Copies,
    Exchanging,
    Padded,
    Wrapper,
    batch_of,
    close,
    content_noise,
    dropping,
    exact,
    features_of,
    gradients,
    heard,
    known_dropout,
    ready,
    real_tokens,
    step,
    switched_off,
    take,
    watched,
)

# Large enough to show in a gradient: with the papers' sizes most laws would hold by being too small
# to measure.
SETTINGS: dict[str, dict[str, Any]] = {
    "freeat": {"replays": 3, "radius": 0.05, "step_size": 0.03},
    "freelb": {"radius": 0.5, "ascent_steps": 2, "step_size": 0.3, "start_scale": 0.3},
    "smart": {
        "radius": 0.5,
        "ascent_steps": 2,
        "step_size": 0.4,
        "proximal_weight": 0.5,
        "proximal_momentum": 0.5,
    },
    "r3f": {"noise_scale": 0.1},
    "simcut": {"cut": 0.3},
    "temporal": {"weight": 3.0},
    "ols": {"weight": 2.0},
    "arch": {
        "radius": 0.5,
        "ascent_steps": 2,
        "step_size": 0.4,
        "refresh_every": 2,
        "ema": 0.3,
        "cache_fraction": 0.5,
        "neighbours": 1,
    },
}
METHODS = list(registry)
FAMILIES = ["bert", "marian", "gpt2", "t5"]
TWO = ["bert", "marian"]  # one stream and samples; two streams and target tokens
every_method = pytest.mark.parametrize("name", METHODS)
every_family = pytest.mark.parametrize("family", FAMILIES)
two_families = pytest.mark.parametrize("family", TWO)


@pytest.fixture(autouse=True)
def copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Copies | None:
    """R-Drop's copies differ by their dropout alone, which here follows a sample wherever a batch
    puts it.
    """
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    return known_dropout(monkeypatch) if needs_dropout(parameters.get("name")) else None


def needs_dropout(name: str | None) -> bool:
    return name is not None and "dropout" in registry[name].info.needs


def model_for(name: str, family: str) -> Any:
    return dropping(family) if needs_dropout(name) else exact(family)


def make(name: str, **options: Any) -> Method:
    return create(name, **SETTINGS.get(name, {}) | options)


def setting(
    name: str, family: str, size: int = 4, **options: Any
) -> tuple[Method, HFModelView, Batch]:
    method, task, batch = (
        make(name, **options),
        HFModelView(model_for(name, family)),
        batch_of(family, size),
    )
    ready(method, task, batch)
    return method, task, batch


def epochs_of(name: str) -> tuple[int, ...]:
    """Of a method that remembers: nothing known, then what the epochs before made known (of ARCH a
    refresh, a reuse, and a refresh with a past).
    """
    return (0,) if make(name).memory is None else (0, 1, 2)


def waits_for_an_epoch(name: str) -> bool:
    """Whether the penalty is towards what an earlier epoch predicted."""
    return issubclass(registry[name], TargetOptions)


def descended(method: Method, task: HFModelView, batch: Batch, **ways: Any) -> dict[str, Tensor]:
    """The gradients of one step, taken off the model again."""
    task.model.zero_grad()
    step(method, task, batch, **ways)
    found = gradients(task.model)
    task.model.zero_grad()
    return found


# ---- (a) padding


@pytest.mark.parametrize(  # families whose predictions do not depend on the side
    ("family", "name"),
    [
        ("m2m100", "arch"),
        ("qwen", "arch"),
        *((family, name) for family in ("t5", "llama") for name in METHODS),
    ],
)
def test_left_and_right_padding_agree(family: str, name: str) -> None:
    """With the method's own random draws; and what was remembered on one side is found again on the
    other.
    """
    found = {}
    for sides in (("right",) * 3, ("left",) * 3, ("left", "right", "left")):
        method, task, _ = setting(name, family)
        batches = [batch_of(family, 4, side=side) for side in sides]
        found[sides] = [
            descended(method, task, batches[epoch], epoch=epoch, seed=epoch)
            for epoch in epochs_of(name)
        ]
    first, *others = found.values()
    tolerance = (
        1e-6 if family in ("t5", "m2m100") else 1e-4
    )  # rotary angles are float32 whatever the model is
    for other in others:
        assert all(
            close(mine, theirs, tolerance) for mine, theirs in zip(other, first, strict=True)
        )


@every_method
@two_families
def test_wider_padding_changes_nothing(name: str, family: str) -> None:
    found = []
    for pad_to in (None, 17):
        method, task, _ = setting(name, family)
        batch = batch_of(family, 4, pad_to=pad_to)
        found.append(
            [descended(method, task, batch, epoch=epoch, seed=epoch) for epoch in epochs_of(name)]
        )
    assert all(close(mine, theirs) for mine, theirs in zip(*found, strict=True))


# ---- (b) order and size of the batch


@every_method
@two_families
def test_shuffling_the_batch_shuffles_the_perturbations(
    name: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content_noise(monkeypatch)
    order = [2, 0, 3, 1]
    method, task, batch = setting(name, family)
    other = deepcopy(method)
    for epoch in epochs_of(name):
        with watched(task.model) as passes:
            straight = descended(method, task, batch, epoch=epoch)
        with watched(task.model) as shuffled:
            permuted = descended(other, task, take(batch, order), epoch=epoch)
        for one, two in zip(passes, shuffled, strict=True):
            rows = torch.tensor(order if one.rows == 4 else order + [4 + row for row in order])
            assert all(
                torch.allclose(delta[rows], two.deltas[s], atol=1e-9)
                for s, delta in one.deltas.items()
            )
        assert close(permuted, straight, 1e-9)


@every_method
@two_families
def test_the_size_of_the_batch_does_not_change_the_weight_of_the_penalty(
    name: str, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sample twice: a mean stays what it was, and each δ must climb as far as it did
    alone.
    """
    content_noise(monkeypatch)
    method, task, batch = setting(name, family)
    other = deepcopy(method)
    for epoch in epochs_of(name):
        once = step(method, task, batch, epoch=epoch)
        straight = gradients(task.model)
        task.model.zero_grad()
        twice = step(other, task, take(batch, [0, 1, 2, 3, 3, 2, 1, 0]), epoch=epoch)
        assert float(twice.loss) == pytest.approx(float(once.loss), abs=1e-9)
        assert close(gradients(task.model), straight, 1e-9)
        task.model.zero_grad()


# ---- (c) what is borrowed is returned


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """All that a method could leave behind on a model, its parameters' values and gradients
    aside.
    """
    hooks = [attribute for attribute in vars(nn.Module()) if "hook" in attribute]
    found: dict[str, Any] = {"config": model.config.to_dict()}
    for name, module in model.named_modules():
        own = {
            key: value
            for key, value in vars(module).items()
            if key not in ("_parameters", "_modules", "_buffers")
        }
        found[f"{name}: attributes"] = {
            key: repr(value) for key, value in own.items() if key not in hooks
        }
        found[f"{name}: hooks"] = {
            key: list(vars(module)[key].items()) for key in hooks if vars(module)[key]
        }
        found[f"{name}: class"] = type(module), list(module._modules), list(module._parameters)
        found[f"{name}: buffers"] = {
            key: None if b is None else b.clone() for key, b in module._buffers.items()
        }
        weights = {key: value for key, value in module._parameters.items() if value is not None}
        found[f"{name}: parameters"] = {
            key: (id(w), w.requires_grad, w.dtype) for key, w in weights.items()
        }
    return found


def equal(one: Any, two: Any) -> bool:
    if isinstance(one, dict):
        return set(one) == set(two) and all(equal(value, two[key]) for key, value in one.items())
    return torch.equal(one, two) if isinstance(one, Tensor) else bool(one == two)


@every_method
@pytest.mark.parametrize(
    ("family", "dropout"),
    [("bert", "shared"), ("bert", "off"), *((family, "fresh") for family in FAMILIES)],
)
def test_the_model_is_left_as_it_was(name: str, family: str, dropout: str) -> None:
    options = {"dropout": dropout} if "dropout" in make(name).options() else {}
    method, task, batch = setting(name, family, **options)
    model = task.model
    embedding = model.get_input_embeddings()
    embedding.register_forward_hook(lambda *_: None)  # a hook of the user's
    list(model.children())[-1].eval()  # a part that the user does not train
    global_hooks = len(nn.modules.module._global_forward_hooks)
    before = fingerprint(model)
    for epoch in epochs_of(name):
        step(method, task, batch, epoch=epoch)
        method.updated(task)
    assert equal(before, fingerprint(model))
    assert len(nn.modules.module._global_forward_hooks) == global_hooks


@every_method
@two_families
def test_the_model_is_left_as_it_was_when_a_pass_fails(name: str, family: str) -> None:
    method, task, batch = setting(name, family)
    before = fingerprint(task.model)

    class Interrupted(Exception):  # noqa: N818
        pass

    def backward(loss: Tensor) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        step(method, task, batch, backward=backward)
    assert equal(before, fingerprint(task.model))


@every_method
@every_family
def test_what_is_frozen_stays_frozen(name: str, family: str) -> None:
    """The embeddings and the first layer: δ's gradient passes through the one and past the
    other.
    """
    method, task, batch = setting(name, family)
    frozen = {n for n, value in task.model.named_parameters() if not value.requires_grad}
    for n, value in task.model.named_parameters():
        if "embed" in n or "wte" in n or "shared" in n or ".0." in n:
            value.requires_grad_(False)
            frozen.add(n)
    values = {
        n: value.detach().clone() for n, value in task.model.named_parameters() if n in frozen
    }
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    for epoch in epochs_of(name):
        step(method, task, batch, epoch=epoch)
        trained = gradients(task.model)
        optimizer.step()
        optimizer.zero_grad()
        method.updated(task)
        assert trained
        assert not frozen & set(trained)
    for n, value in task.model.named_parameters():
        assert value.requires_grad == (n not in frozen)
        assert n not in frozen or torch.equal(value, values[n])


@every_method
@two_families
def test_only_backward_leaves_gradients(name: str, family: str) -> None:
    """Neither the ascent nor a look at the clean prediction may: with `backward` cut, parameters
    have no gradient.
    """
    method, task, batch = setting(name, family)
    for epoch in epochs_of(name):
        step(method, task, batch, epoch=epoch, backward=lambda loss: None)
        assert gradients(task.model) == {}


@every_method
@two_families
def test_no_prediction_outlives_its_step(name: str, family: str) -> None:
    """Nor waits for the garbage collector: a cycle would keep a whole graph, and confuse CUDA
    graphs.
    """
    method, task, batch = setting(name, family)
    made: list[weakref.ref[Tensor]] = []
    task.model.register_forward_hook(
        lambda module, inputs, output: made.append(weakref.ref(output.logits))
    )
    gc.disable()
    try:
        for epoch in epochs_of(name):
            report = step(method, task, batch, epoch=epoch)
            assert made
            assert not any(reference() is not None for reference in made)
            del report
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "name", [name for name in METHODS if "updates_itself" not in registry[name].info.traits]
)
def test_gradients_are_added_to_those_that_are_there(name: str) -> None:
    """Accumulation: a step adds; only FreeAT's updates clear."""
    method, task, batch = setting(name, "bert")
    alone = descended(deepcopy(method), task, batch)
    for value in task.model.parameters():
        value.grad = torch.ones_like(value)
    step(method, task, batch)
    assert close(
        {n: value - 1 for n, value in gradients(task.model).items() if n in alone}, alone, 1e-9
    )


# ---- (d) the ball

SHAPES = [
    {"norm": norm, "scope": scope} for norm in ("l2", "linf") for scope in ("sample", "token")
]
ENDS = [
    {"step_end": "rescale"},
    {"start": "normal", "start_scale": 1.0},
    {"step_rule": "gradient", "step_size": 50.0},
]


MAGNITUDES = ("radius", "noise_scale", "cut")


def still(name: str) -> dict[str, float]:
    """Options with which a method is standard training: a perturbation of size 0, or all numbers
    0.
    """
    known = make(name).options()
    sizes = ({option: 0.0} for option in MAGNITUDES if option in known)
    return next(sizes, switched_off(name))


BOUNDED = [  # those with a bound on what is added to an embedding, or that add nothing
    name
    for name in METHODS
    if {"radius", "noise_scale"} & set(make(name).options())
    or "perturbation" not in registry[name].info.needs
]


def accepts(name: str, options: dict[str, Any]) -> bool:
    try:
        make(name, **options)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    ("family", "name", "options"),
    [(family, name, {}) for family in FAMILIES for name in BOUNDED]
    + [
        ("bert", name, options)
        for options in SHAPES + ENDS
        for name in BOUNDED
        if accepts(name, options)
    ],
)
def test_perturbations_stay_inside_their_ball_and_off_the_padding(
    family: str, name: str, options: dict[str, Any]
) -> None:
    method, task, batch = setting(name, family, **options)
    radius, norm, scope = _ball(method)
    seen = 0.0
    for epoch in epochs_of(name):
        with watched(task.model) as passes:
            step(method, task, batch, epoch=epoch)
        for one in passes:
            for stream, delta in one.deltas.items():
                real = real_tokens(task, batch)[stream].repeat(one.rows // 4, 1)
                assert not bool(delta[~real].any())
                for sample, mask in zip(delta, real, strict=True):
                    pieces = [sample[mask]] if scope == "sample" else sample[mask]
                    sizes = [
                        float(piece.abs().max() if norm == "linf" else piece.norm())
                        for piece in pieces
                    ]
                    seen = max(seen, *sizes)
                    assert max(sizes) <= radius + 1e-9 + 1e-6 * radius
    assert (seen > 0.5 * radius) == (radius > 0)  # and it makes use of its ball


def _ball(method: Method) -> tuple[float, str, str]:
    options = method.options()
    if "radius" in options:
        return options["radius"], options.get("norm", "l2"), options.get("scope", "sample")
    return options.get("noise_scale", 0.0), "linf", "token"


# ---- (e) checkpoints


@every_method
@two_families
def test_a_checkpoint_repeats_the_next_step_exactly(name: str, family: str, tmp_path: Path) -> None:
    method, task, batch = setting(name, family)
    optimizer = torch.optim.SGD(
        task.model.parameters(), lr=0.3
    )  # so that some predictions are right
    for epoch in (0, 0, 1):
        step(method, task, batch, epoch=epoch)
        optimizer.step()
        optimizer.zero_grad()
        method.updated(task)
    save_method(method, tmp_path)
    fresh = make(name)
    ready(fresh, task, batch)
    forgetful = deepcopy(fresh)
    load_method(fresh, tmp_path)
    for epoch in (1, 2):
        expected = descended(deepcopy(method), task, batch, epoch=epoch, seed=epoch)
        again = descended(deepcopy(fresh), task, batch, epoch=epoch, seed=epoch)
        assert all(torch.equal(again[n], value) for n, value in expected.items())
        if method.memory is not None:  # and without the checkpoint it would be another step
            assert not close(
                descended(deepcopy(forgetful), task, batch, epoch=epoch, seed=epoch), expected
            )


@every_method
def test_a_checkpoint_of_other_options_is_refused(name: str, tmp_path: Path) -> None:
    method, task, batch = setting(name, "bert")
    save_method(method, tmp_path)
    for option, other in {"radius": 0.123, "noise_scale": 0.123}.items():
        if option in method.options():
            changed = make(name, **{option: other})
            ready(changed, task, batch)
            with pytest.raises(
                ValueError,
                match=rf"options of {name} differ from the checkpoint's: {option} .* → 0",
            ):
                load_method(changed, tmp_path)
    wrong = make("r3f" if name == "standard" else "standard")
    with pytest.raises(ValueError, match=f"trained with {name}, this run with {wrong.info.name}"):
        load_method(wrong, tmp_path)


# ---- (f) nothing to perturb with


@pytest.mark.parametrize(
    "name", [name for name in METHODS if still(name) or not registry[name].info.needs]
)
@two_families
def test_a_ball_of_radius_zero_is_standard_training(
    name: str, family: str, copies: Copies | None
) -> None:
    if copies is not None:
        copies.differ = False
    method, task, batch = setting(name, family, **still(name))
    expected = step(create("standard"), task, batch)
    clean = gradients(task.model)
    for epoch in epochs_of(name):
        task.model.zero_grad()
        report = step(method, task, batch, epoch=epoch)
        assert report.penalty is None or abs(float(report.penalty)) < 1e-12
        assert float(report.loss) == pytest.approx(float(expected.loss), abs=1e-9)
        assert close(gradients(task.model), clean, 1e-9)


@pytest.mark.parametrize("name", [name for name in METHODS if accepts(name, {"weight": 0.0})])
def test_a_weight_of_zero_is_standard_training(name: str) -> None:
    one_loss = {"both_losses": False} if "both_losses" in make(name).options() else {}
    method, task, batch = setting(name, "bert", weight=0.0, **one_loss)
    clean = descended(create("standard"), task, batch)
    assert close(descended(method, task, batch), clean, 1e-9)


# ---- (f') not yet

STARTED = [name for name in METHODS if "start_at" in make(name).options()]


@pytest.mark.parametrize("name", STARTED)
@two_families
def test_before_its_start_a_step_is_standard_training_to_the_bit_and_then_it_is_the_method_s(
    name: str, family: str
) -> None:
    method, task, batch = setting(name, family, start_at=0.5)
    standard = descended(create("standard"), task, batch, planned=10)
    assert equal(descended(method, task, batch, at=4, planned=10), standard)
    begun = descended(method, task, batch, epoch=1, at=5, planned=10)
    at_once, _, _ = setting(name, family)
    if waits_for_an_epoch(name):  # it remembers what it saw before
        descended(at_once, task, batch)
        assert equal(begun, descended(at_once, task, batch, epoch=1))
    else:  # ARCH refreshes in its first epoch, whichever that is
        assert equal(begun, descended(at_once, task, batch))
    assert not close(begun, standard, 1e-9)


@pytest.mark.parametrize("name", STARTED)
def test_a_start_in_mid_run_needs_a_plan(name: str) -> None:
    method, task, batch = setting(name, "bert", start_at=0.5)
    with pytest.raises(ValueError, match="start_at and ramp need the number of planned updates"):
        step(method, task, batch)


@pytest.mark.parametrize("name", [name for name in STARTED if accepts(name, {"ramp": "linear"})])
def test_a_ramp_is_the_weight_of_its_moment(name: str) -> None:
    method, task, batch = setting(name, "bert", weight=2.0, ramp="linear")
    other, _, _ = setting(name, "bert", weight=1.5)
    for one in (method, other) if waits_for_an_epoch(name) else ():
        descended(one, task, batch, planned=8)
    epoch = 1 if waits_for_an_epoch(name) else 0
    risen = descended(method, task, batch, epoch=epoch, at=6, planned=8)
    assert close(risen, descended(other, task, batch, epoch=epoch), 1e-12)


# ---- (g) and (h) passes


@every_method
@every_family
def test_each_backward_follows_one_pass_through_the_wrapper(name: str, family: str) -> None:
    """What DDP expects; passes of the ascent and clean targets go past it."""
    method, task, batch = setting(name, family)
    for epoch in epochs_of(name):
        events: list[str] = []
        task.train_through(Wrapper(task.model, events))
        step(method, task, batch, epoch=epoch, backward=heard(events))
        assert events
        assert events == ["forward", "backward"] * (len(events) // 2)


@every_method
def test_gradients_are_exchanged_once_for_each_update_and_last_of_all(name: str) -> None:
    method, task, batch = setting(name, "bert")
    for epoch in epochs_of(name):
        wrapper = Exchanging(task.model, [])
        task.train_through(wrapper)
        step(method, task, batch, epoch=epoch, backward=wrapper.backward)
        told = [event for event in wrapper.events if event != "forward"]
        updates = method.options().get("replays", 1)
        assert told == ["kept"] * (len(told) - updates) + ["exchanged"] * updates
        repeats = "repeats_backward" in method.info.traits
        assert len(told) == (method.passes().backward if repeats else updates)


def counted(method: Method, task: HFModelView, batch: Batch, epoch: int) -> tuple[float, float]:
    """Passes of one step in units of the batch, counted on the model and on the two ways to
    differentiate.
    """
    events: list[str] = []
    plain: Callable[..., Any] = task.gradient
    task.gradient = lambda objective, delta: (
        events.append("gradient"),
        plain(objective, delta),
    )[1]  # type: ignore[method-assign]
    with watched(task.model) as passes:
        step(method, task, batch, epoch=epoch, backward=heard(events))
    return sum(one.rows for one in passes) / len(batch["input_ids"]), float(len(events))


S, M, GAP = 2, 4, 3
COSTS: dict[str, tuple[dict[str, Any], tuple[float, float]]] = {  # design/algorithm.md, "Costs"
    "standard": ({}, (1, 1)),
    "freelb": ({"ascent_steps": S}, (1 + S, 1 + S)),
    "smart": ({"ascent_steps": S, "proximal_weight": 0.0}, (2 + S, 1 + S)),
    "r3f": ({}, (2, 1)),
    "rdrop": ({}, (2, 1)),
    "simcut": ({}, (2, 1)),
    "temporal": ({}, (1, 1)),
    "ols": ({}, (1, 1)),
    "arch": ({"ascent_steps": S, "refresh_every": GAP}, (2 + S / GAP, 1 + S / GAP)),
    "freeat": ({"replays": M}, (M, M)),
}


@pytest.mark.parametrize("name", COSTS)
@two_families
def test_a_cycle_costs_the_passes_of_the_table(name: str, family: str) -> None:
    options, expected = COSTS[name]
    method, task, batch = setting(name, family, **options)
    counts = [counted(method, task, batch, epoch) for epoch in range(GAP)]
    assert sum(forward for forward, _ in counts) / GAP == pytest.approx(expected[0])
    assert sum(backward for _, backward in counts) / GAP == pytest.approx(expected[1])
    if name == "arch":
        assert counts == [(2 + S, 1 + S)] + [(2, 1)] * (GAP - 1)


@every_method
@pytest.mark.parametrize("ways", [{}, {"fuse": False}, {"dropout": "shared"}, {"ascent_steps": 0}])
def test_a_method_says_what_it_costs(name: str, ways: dict[str, Any]) -> None:
    method, task, batch = setting(
        name, "bert", **{k: v for k, v in ways.items() if k in make(name).options()}
    )
    cycle = getattr(method, "refresh_every", 1)
    counts = [counted(method, task, batch, epoch) for epoch in range(cycle)]
    said = method.passes()
    assert said.forward == pytest.approx(sum(forward for forward, _ in counts) / cycle)
    assert said.backward == pytest.approx(sum(backward for _, backward in counts) / cycle)


# ---- (i) and (j) trainers


def train(
    name: str,
    family: str,
    folder: Path,
    batch_size: int,
    accumulate: int = 1,
    samples: int = 8,
    resume: str | None = None,
    model: nn.Module | None = None,
    **arguments: Any,
) -> AdversarialTrainer:
    model = model or model_for(name, family)
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": batch_size,
        "gradient_accumulation_steps": accumulate,
        "num_train_epochs": 2,
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "seed": 11,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    trainer = AdversarialTrainer(
        model=model,
        args=TrainingArguments(**settings | arguments),
        train_dataset=features_of(batch_of(family, samples)),
        data_collator=Padded(model.config.pad_token_id),
        optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)),
        method=make(name),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer: AdversarialTrainer) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in trainer.model.named_parameters()}


def moved(trainer: AdversarialTrainer, family: str) -> bool:
    start = dict(exact(family).named_parameters())  # dropout or not
    return any(not torch.equal(value, start[name]) for name, value in weights(trainer).items())


@pytest.mark.parametrize("name", [name for name in METHODS if name != "standard"])
@two_families
def test_four_micro_batches_of_one_train_as_one_batch_of_four(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentences differ in length, so a mean of means would be another number."""
    if (
        family == "marian"
    ):  # its two streams are drawn one after the other, and do not line up between micro-batches
        content_noise(monkeypatch)
    whole, parts = (train(name, family, tmp_path, size, 4 // size) for size in (4, 1))
    assert whole.state.global_step == parts.state.global_step == 4
    assert moved(whole, family)
    assert close(weights(parts), weights(whole))


@pytest.mark.parametrize("name", [name for name in METHODS if name != "standard"])
def test_an_incomplete_last_group_is_averaged_over_what_it_has(name: str, tmp_path: Path) -> None:
    whole, parts = (train(name, "bert", tmp_path, size, 4 // size, samples=6) for size in (4, 1))
    assert whole.state.global_step == parts.state.global_step == 4
    assert close(weights(parts), weights(whole))


@every_method
@two_families
def test_a_plain_loop_trains_as_the_trainer_does(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content_noise(monkeypatch)
    orders: list[list[int]] = []
    stepped = StepRunner.training_step

    def training_step(self: StepRunner, model: nn.Module, inputs: Batch, *args: Any) -> Tensor:
        orders.append(inputs["sample_id"].tolist())
        return stepped(self, model, inputs, *args)

    monkeypatch.setattr(StepRunner, "training_step", training_step)
    trainer = train(name, family, tmp_path, 4)
    assert len(orders) == 4
    method, task, data = make(name), HFModelView(model_for(name, family)), batch_of(family, 8)
    ready(method, task, data, seed=11)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.02)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    collate = Padded(task.model.config.pad_token_id)
    for number, ids in enumerate(orders):
        batch = collate(features_of(take(data, ids))) | {"sample_id": torch.tensor(ids)}
        method.step(task, batch, Step(Clock(number // 2, number), update=update))
        update()
        method.updated(task)
    assert close(dict(task.model.named_parameters()), weights(trainer), 1e-9)


@every_method
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(name: str, tmp_path: Path) -> None:
    straight = train(name, "bert", tmp_path / "straight", 4)
    train(name, "bert", tmp_path / "cut", 4, save_strategy="steps", save_steps=3)
    resumed = train(
        name, "bert", tmp_path / "cut", 4, resume=str(tmp_path / "cut" / "checkpoint-3")
    )
    assert resumed.state.global_step == 4
    assert all(torch.equal(value, weights(straight)[n]) for n, value in weights(resumed).items())


def test_the_trainer_refreshes_archs_cache_in_epochs_zero_two_and_four(tmp_path: Path) -> None:
    model = exact("bert")
    with watched(model) as passes:
        train("arch", "bert", tmp_path, 4, model=model, num_train_epochs=5)
    survey, refresh, reuse = [4], [4] * 4 * 2, [8] * 2  # rows of each pass; two steps an epoch
    assert [one.rows for one in passes] == survey + refresh + reuse + refresh + reuse + refresh


def test_the_trainer_lets_a_method_write_weights_from_the_first_step_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry, "contracting", Contracting)
    model, norms = exact("bert"), []
    with torch.no_grad():
        model.classifier.weight.mul_(10)
    model.register_forward_pre_hook(
        lambda *_: norms.append(torch.linalg.matrix_norm(model.classifier.weight, 2))
    )
    train("contracting", "bert", tmp_path, 4, model=model)
    assert len(norms) >= 4
    assert all(float(norm.detach()) <= 1 + 1e-6 for norm in norms[-4:])
    assert float(torch.linalg.matrix_norm(model.classifier.weight.detach(), 2)) <= 1 + 1e-6
