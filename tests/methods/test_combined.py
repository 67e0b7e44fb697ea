"""Sums of regularisers: their laws, their names, and what cannot be added up."""

import pickle
import re
from copy import deepcopy
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from advreg.hf.checkpoint.state import load_method, save_method
from advreg.hf.view.view import HFModelView
from advreg.methods import Method, RDrop, Smart, Standard, Temporal, create, registry
from advreg.methods.combined import Combined
from advreg.methods.regulariser import Regulariser
from observe import (
    Batch,
    batch_of,
    close,
    content_noise,
    dropping,
    exact,
    gradients,
    heard,
    known_dropout,
    ready,
    remembered,
    step,
    watched,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "arch": {"radius": 0.5, "ascent_steps": 2, "cache_fraction": 0.5, "refresh_every": 2},
    "smart": {"radius": 0.5, "ascent_steps": 2, "proximal_weight": 0.5},
    "r3f": {"noise_scale": 0.1},
    "simcut": {"cut": 0.3},
    "rdrop": {"both_losses": False},
}
PARTS = [name for name, kind in registry.items() if issubclass(kind, Regulariser)]
PAIRS = [*combinations(PARTS, 2)]
every_pair = pytest.mark.parametrize("pair", PAIRS, ids="+".join)


@pytest.fixture(autouse=True)
def fixed_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise and dropout as functions of the text, so that methods do not shift each other's: one
    mask for clean passes, another for second copies, whichever way these are made.
    """
    content_noise(monkeypatch)
    copies, plain = known_dropout(monkeypatch), HFModelView.bare_logits

    def second(*args: Any) -> Tensor:
        with copies.of(1):
            return plain(*args)

    monkeypatch.setattr(HFModelView, "bare_logits", second)


def part(name: str, **options: Any) -> Any:
    return create(name, **{**OPTIONS.get(name, {}), **options})


def prepared(method: Method, family: str = "bert") -> tuple[HFModelView, Batch]:
    view, batch = HFModelView(dropping(family)), batch_of(family)
    ready(method, view, batch)
    return view, batch


def trained(method: Method, epochs: int = 2) -> list[dict[str, Tensor]]:
    """The gradients of a step in each epoch."""
    view, batch = prepared(method)
    found = []
    for epoch in range(epochs):
        view.model.zero_grad()
        step(method, view, batch, epoch=epoch)
        found.append(gradients(view.model))
        with torch.no_grad():
            for value in view.model.parameters():
                value.mul_(0.99)
        method.updated(view)
    return found


@every_pair
def test_the_order_of_the_parts_does_not_matter(pair: tuple[str, str]) -> None:
    one, other = pair
    there, back = part(one) + part(other), part(other) + part(one)
    assert there.info == back.info
    assert there == back
    for mine, theirs in zip(trained(there), trained(back), strict=True):
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@every_pair
@pytest.mark.parametrize("off", [0, 1])
def test_a_part_of_weight_zero_leaves_the_other_part_alone(pair: tuple[str, str], off: int) -> None:
    weights = {"proximal_weight": 0.0} if pair[off] == "smart" else {}
    silent, alone = part(pair[off], weight=0.0, **weights), part(pair[1 - off])
    together = silent + deepcopy(alone)
    for mine, theirs in zip(trained(together), trained(alone), strict=True):
        assert close(mine, theirs, 1e-9)


@every_pair
def test_a_sum_adds_the_penalties_to_one_task_loss(pair: tuple[str, str]) -> None:
    """Each part against the same method alone, on the same batch."""
    parts = [part(name, weight=weight) for name, weight in zip(pair, (0.7, 2.0), strict=True)]
    alone = [deepcopy(one) for one in parts]
    together = parts[0] + parts[1]
    view, batch = prepared(together)
    for one in alone:
        ready(one, view, batch)
    for epoch in range(2):
        report = step(together, view, batch, epoch=epoch)
        singles = [step(one, view, batch, epoch=epoch) for one in alone]
        task_loss = float(singles[0].task_loss)
        expected = sum(float(one.loss) for one in singles) - task_loss
        assert float(report.loss) == pytest.approx(expected, abs=1e-9)
        assert float(report.task_loss) == pytest.approx(task_loss, abs=1e-9)
        for one, its in zip(alone, singles, strict=True):
            name = one.info.name
            assert float(report.measures[f"{name}.penalty"]) == pytest.approx(
                float(its.penalty), abs=1e-9
            )
            assert all(f"{name}.{measure}" in report.measures for measure in its.measures)


@every_pair
def test_a_sum_says_what_it_costs(pair: tuple[str, str]) -> None:
    method = part(pair[0]) + part(pair[1])
    view, batch = prepared(method)
    forward, backward, plain = [], [], view.gradient
    for epoch in range(2):  # of ARCH a refresh and a reuse
        events: list[str] = []
        view.gradient = lambda objective, delta, events=events: (  # type: ignore[method-assign]
            events.append("gradient"),
            plain(objective, delta),
        )[1]
        with watched(view.model) as passes:
            step(method, view, batch, epoch=epoch, backward=heard(events))
        forward.append(sum(one.rows for one in passes) / 4)
        backward.append(len(events))
    said = method.passes()
    assert (sum(forward) / 2, sum(backward) / 2) == (said.forward, said.backward)


@every_pair
def test_a_checkpoint_of_a_sum_repeats_the_next_step(pair: tuple[str, str], tmp_path: Path) -> None:
    method = part(pair[0]) + part(pair[1])
    view, batch = prepared(method)
    for epoch in range(2):
        step(method, view, batch, epoch=epoch)
        method.updated(view)
    save_method(method, tmp_path)
    fresh = method.fresh()
    assert fresh == method
    ready(fresh, view, batch)
    load_method(fresh, tmp_path)
    assert remembered(fresh).keys() == remembered(method).keys()
    assert all(name.split(".")[0] in pair for name in remembered(method))
    found = []
    for one in (method, fresh):
        view.model.zero_grad()
        step(one, view, batch, epoch=2)
        found.append(gradients(view.model))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_three_parts_are_a_sum_too() -> None:
    once = (part("temporal") + part("smart")) + part("rdrop")
    again = part("rdrop") + (part("smart") + part("temporal"))
    assert once.info.name == again.info.name == "rdrop+smart+temporal"
    assert once.passes().forward == 1 + 1 + 4 + 0
    trained(once)


def test_a_part_that_starts_later_costs_nothing_before() -> None:
    method = create("temporal+smart", **{"smart.start_at": 0.5, "temporal.weight": 10})
    view, batch = prepared(method)
    rows = []
    for at in (0, 6):
        with watched(view.model) as passes:
            step(method, view, batch, epoch=at // 3, at=at, planned=10)
        rows.append(sum(one.rows for one in passes))
    assert rows == [4, 4 * 5]


def test_options_have_the_name_of_their_part() -> None:
    method = create("temporal+smart", **{"temporal.weight": "10", "smart.ascent_steps": 2})
    assert isinstance(method, Combined)
    assert method == Temporal(weight=10.0) + Smart(ascent_steps=2)
    assert method.options()["temporal.weight"] == 10.0
    assert method.fresh(**{"smart.radius": 0.7}).options()["smart.radius"] == 0.7
    assert set(method.info.needs) == {"predictions", "perturbation", "ids", "labels"}
    with pytest.raises(ValueError, match=r"'smart\+temporal' has no option 'temporal\.wait'"):
        create("temporal+smart", **{"temporal.wait": 1})


def test_a_sum_is_copied_with_what_it_remembers() -> None:
    method = Temporal(weight=2.0) + RDrop()
    view, batch = prepared(method)
    step(method, view, batch)
    for other in (deepcopy(method), pickle.loads(pickle.dumps(method))):
        assert other == method
        mine, theirs = remembered(method), remembered(other)
        assert mine
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_constraints_and_warnings_are_those_of_the_parts() -> None:
    method = create(
        "smart+arch",
        **{
            "smart.proximal_weight": 1.0,
            "arch.refresh_every": 9,
            "arch.cache_device": "disk",
        },
    )
    assert [found.option for found in method.constraints()] == ["smart.proximal_weight"]
    assert len(method.warnings(3)) == 1
    assert "arch.cache_device" in method.info.movable


@pytest.mark.parametrize("name", [name for name in registry if name not in PARTS])
def test_a_method_without_a_penalty_is_refused_by_name(name: str) -> None:
    message = f"{name} cannot be combined with other methods: its objective is not the task loss"
    for make in (lambda: create(name) + Smart(), lambda: Smart() + create(name)):
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(ValueError, match=message):
        create(f"smart+{name}")


def test_what_cannot_share_a_pass_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="got 'fresh' of rdrop and 'off' of smart: they share"):
        RDrop() + Smart(dropout="off")
    with pytest.raises(ValueError, match="a combination has each method once, got smart"):
        Smart() + Smart()
    with pytest.raises(ValueError, match="unknown method 'tmporal'"):
        create("smart+tmporal")
    assert Standard().info.name == "standard"  # and nothing was registered
    assert not any("+" in name for name in registry)


def test_a_sum_trains_without_dropout_too() -> None:
    method = part("temporal") + part("smart", dropout="off")
    view, batch = HFModelView(exact("bert")), batch_of("bert")
    ready(method, view, batch)
    assert float(step(method, view, batch, epoch=0).loss) > 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("temporal.weight", -1.0),
        ("temporal.weight", "heavy"),
        ("temporal.sketch", "whale"),
        ("smart.radius", -1.0),
        ("smart.start_at", 3),
        ("smart.ascent_steps", -1),
    ],
)
def test_a_bad_value_is_named_with_its_part(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(option)} must be .*got '?{value}"):
        create("temporal+smart", **{option: value})


def test_a_part_that_does_not_fit_the_data_is_named() -> None:
    method = create("arch+temporal", **{"temporal.cache_folder": "/nowhere"})
    assert method.memory is not None
    with pytest.raises(ValueError, match=r"^temporal\.cache_folder must be a folder that exists"):
        method.memory.validate(40)


@pytest.mark.parametrize("name", ["temporal+smrt", "smrt+temporal", "smrt"])
def test_an_unknown_part_is_named_with_the_method_that_was_probably_meant(name: str) -> None:
    with pytest.raises(ValueError, match=r"^unknown method 'smrt' \(did you mean 'smart'\?\); "):
        create(name)
