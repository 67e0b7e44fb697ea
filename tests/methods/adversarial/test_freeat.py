from typing import Any

import pytest
import torch

import naive
from advreg.core.schedule import Clock
from advreg.hf.view.view import HFModelView
from advreg.methods import Step, create
from observe import Exchanging, batch_of, close, exact, gradients, step, take, watched

RATE = 0.05
SETTINGS = {
    "replays": 3,
    "radius": 0.015,
    "step_size": 0.01,
    "norm": "linf",
    "scope": "token",
    "step_rule": "sign",
}
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "l2", "scope": "sample", "step_rule": "normalised", "radius": 0.15, "step_size": 0.1},
    {"norm": "l2", "scope": "token", "step_rule": "sign", "radius": 0.05},
]


class Loop:
    """A plain training loop around FreeAT: an optimizer, and what to do between two replays."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model, self.updates = model, 0
        self.optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def update(self) -> None:
        self.updates += 1
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize("family", ["bert", "marian"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_freeat_agrees_with_its_reference(family: str, variant: dict[str, Any]) -> None:
    settings = SETTINGS | variant
    model, reference, batch = exact(family), exact(family), batch_of(family)
    task, loop = HFModelView(model), Loop(model)
    task.widths(batch)
    with watched(model) as passes:
        report = step(create("freeat", **settings), task, batch, update=loop.update)
    loop.update()  # the last replay's gradient is the outer loop's to use
    expected = naive.freeat(reference, batch, RATE, **settings)
    assert float(report.loss) == pytest.approx(expected.loss, abs=1e-6)
    assert len(passes) == len(expected.path) == loop.updates == 3
    for one, deltas in zip(passes, expected.path, strict=True):
        for mine, theirs in zip(one.samples(task, batch), deltas, strict=True):
            assert all(
                torch.allclose(mine[stream], rows, atol=1e-6, rtol=0)
                for stream, rows in theirs.items()
            )
    assert passes[0].perturbed is False
    assert passes[1].perturbed
    assert passes[2].perturbed
    assert close(dict(model.named_parameters()), dict(reference.named_parameters()))


def test_freeat_replays_a_group_of_micro_batches_as_one_batch() -> None:
    """The optimizer sees the group as one batch, so the replays must too: nothing happens before it
    is complete.
    """
    whole, parts, batch = exact("marian"), exact("marian"), batch_of("marian")
    items = (batch["labels"] != -100).sum()
    first, second = Loop(whole), Loop(parts)
    step(create("freeat", **SETTINGS), HFModelView(whole), batch, update=first.update)
    method, task = create("freeat", **SETTINGS), HFModelView(parts)
    for row in range(4):
        micro = {**take(batch, [row]), "num_items_in_batch": items}
        report = method.step(
            task, micro, Step(Clock(0, 0, closes_group=row == 3), update=second.update)
        )
        if row < 3:
            assert gradients(parts) == {}
            assert float(report.loss) == 0.0
    first.update()
    second.update()
    assert close(dict(parts.named_parameters()), dict(whole.named_parameters()), 1e-10)


def test_freeat_forgets_its_group_once_it_is_replayed() -> None:
    model, batch, method = exact("bert"), batch_of("bert"), create("freeat", **SETTINGS)
    task = HFModelView(model)
    task.widths(batch)
    for _ in range(2):
        with watched(model) as passes:
            step(method, task, batch)
        assert len(passes) == 3
        assert not passes[0].perturbed  # δ starts at zero for each batch


def test_freeat_says_that_it_needs_an_update() -> None:
    with pytest.raises(
        ValueError, match=r"freeat updates the weights between replays; pass Step\(clock, update="
    ):
        step(create("freeat"), HFModelView(exact("bert")), batch_of("bert"), update=None)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("replays", 0, "replays must be a whole number of 1 or more, got 0"),
        ("replays", 2.5, "replays must be a whole number.*, got 2.5"),
        ("radius", -1, "radius must be a finite number of 0 or more, got -1"),
        ("step_size", 0, "step_size must be a positive finite number, got 0"),
        ("norm", "l1", "norm must be one of l2, linf, got 'l1'"),
        ("scope", "word", "scope must be one of sample, token, got 'word'"),
        (
            "step_rule",
            "gradient",
            "step_rule must be one of sign, normalised, got 'gradient'",
        ),
        ("step_rule", "up", "step_rule must be one of .*, got 'up'"),
        ("dropout", "on", "dropout must be one of fresh, shared, off, got 'on'"),
    ],
)
def test_freeat_refuses_bad_values(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create("freeat", **{option: value})


def test_freeat_suggests_the_close_name_of_an_option() -> None:
    with pytest.raises(
        ValueError, match=r"'freeat' has no option 'replay' \(did you mean 'replays'\?\); it has"
    ):
        create("freeat", replay=3)


def test_the_micro_batches_of_a_group_exchange_their_gradients_once_per_replay() -> None:
    model = exact("bert")
    task, loop, batch = HFModelView(model), Loop(model), batch_of("bert")
    wrapper = Exchanging(model, [])
    task.train_through(wrapper)
    method = create("freeat", **SETTINGS)
    for number, rows in enumerate(([0, 1], [2], [3])):
        method.step(
            task, take(batch, rows), Step(Clock(0, 0, number == 2), wrapper.backward, loop.update)
        )
    told = [event for event in wrapper.events if event != "forward"]
    assert told == ["kept", "kept", "exchanged"] * SETTINGS["replays"]  # type: ignore[operator]
