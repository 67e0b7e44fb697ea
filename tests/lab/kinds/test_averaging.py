from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from advreg.lab.kinds.averaging import (
    MovingAverage,
    Snapshots,
    average_weights,
    set_weights,
    weights_of,
)
from tiny_models import tiny, tiny_batch


def test_an_average_is_the_mean_of_each_weight() -> None:
    parts = [{"w": torch.full((2,), float(value)), "n": torch.tensor(value)} for value in (1, 2, 6)]
    mean = average_weights(parts)
    assert mean["w"].tolist() == [3.0, 3.0]
    assert mean["n"] == 6
    half = average_weights([{"w": torch.tensor([60_000.0], dtype=torch.float16)}] * 3)["w"]
    assert half.dtype is torch.float16
    assert half.tolist() == [60_000.0]  # the sum would not fit


def test_weights_of_different_models_are_refused() -> None:
    with pytest.raises(
        ValueError, match="weights must be of one model, but only some of them have b"
    ):
        average_weights([{"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)}])
    with pytest.raises(ValueError, match="needs at least one set of weights, got none"):
        average_weights([])


@pytest.mark.parametrize("family", ["marian", "bart", "bert"])
def test_weights_given_to_another_model_make_it_the_same_model(family: str) -> None:
    one, other = tiny(family, seed=1).eval(), tiny(family, seed=2).eval()
    batch = tiny_batch(family)
    set_weights(other, weights_of(one))
    with torch.no_grad():
        assert torch.equal(one(**batch).logits, other(**batch).logits)


def test_tied_weights_are_kept_once_and_stay_tied() -> None:
    model: Any = tiny("marian")
    weights = weights_of(model)
    embeddings = [
        name for name, value in weights.items() if value.shape == model.lm_head.weight.shape
    ]
    assert len(embeddings) == 1
    set_weights(model, {name: value + 1 for name, value in weights.items()})
    assert model.lm_head.weight is model.get_input_embeddings().weight


def test_taking_weights_copies_them() -> None:
    model = tiny("bert")
    weights = weights_of(model)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    assert not torch.equal(next(iter(weights.values())), next(model.parameters()))


def snapshots(folder: Path, scores: list[float], keep: int = 2, higher: bool = True) -> Snapshots:
    """Snapshots at steps 10, 20, … of a model whose first weight says which."""
    found = Snapshots(folder, keep, higher)
    model = tiny("bert")
    for number, score in enumerate(scores, start=1):
        with torch.no_grad():
            next(model.parameters()).fill_(float(number))
        found.take(model, 10 * number, score)
    return found


def first(weights: Any) -> float:
    return float(
        next(value for name, value in weights.items() if "word_embeddings" in name).flatten()[0]
    )


def test_the_best_and_the_last_are_kept_and_no_other(tmp_path: Path) -> None:
    found = snapshots(tmp_path, [1.0, 9.0, 3.0, 4.0, 5.0])
    assert found.scores() == {20: 9.0, 40: 4.0, 50: 5.0}
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        f"step-{at}.safetensors" for at in (20, 40, 50)
    ]
    assert (found.best(), found.last(2), found.last(1)) == (20, [40, 50], [50])
    assert first(found.load([20])) == 2.0
    assert first(found.load([40, 50])) == 4.5


def test_of_equal_scores_the_first_is_best_and_nan_never_is(tmp_path: Path) -> None:
    assert snapshots(tmp_path / "a", [math.nan, 2.0, 2.0], keep=3).best() == 20
    assert snapshots(tmp_path / "b", [3.0, 1.0, 2.0], keep=3, higher=False).best() == 20


def test_what_came_after_a_checkpoint_is_forgotten(tmp_path: Path) -> None:
    found = snapshots(tmp_path, [1.0, 2.0, 3.0], keep=3)
    found.forget_after(20)
    assert found.scores() == {10: 1.0, 20: 2.0}
    assert not (tmp_path / "step-30.safetensors").exists()


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no weights; the run was never validated"):
        Snapshots(tmp_path / "none", 3).best()


def test_a_moving_average_follows_its_formula_and_is_in_place_within_only() -> None:
    model = torch.nn.Linear(3, 2)
    average, expected = (
        MovingAverage(0.5),
        [weight.detach().clone() for weight in model.parameters()],
    )
    for update in range(1, 8):
        if update > 1:
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(torch.randn_like(weight))
        decay = min(0.5, (1 + update) / (10 + update))
        expected = [
            decay * mean + (1 - decay) * w.detach()
            for mean, w in zip(expected, model.parameters(), strict=True)
        ]
        average.update(model)
    trained = [weight.detach().clone() for weight in model.parameters()]
    with average.in_place(model):
        for weight, mean in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(weight.detach(), mean)
    assert all(
        torch.equal(weight, before)
        for weight, before in zip(model.parameters(), trained, strict=True)
    )


def test_a_moving_average_refuses_a_decay_that_is_none_and_to_be_used_before_training() -> None:
    with pytest.raises(ValueError, match=r"decay must be above 0 and below 1, got 1\.0; usual are"):
        MovingAverage(1.0)
    with (
        pytest.raises(ValueError, match="there is no average yet"),
        MovingAverage(0.9).in_place(torch.nn.Linear(1, 1)),
    ):
        pass


def test_an_average_goes_on_from_a_checkpoint_exactly(tmp_path: Path) -> None:
    model, whole = torch.nn.Linear(3, 2), MovingAverage(0.9)

    def step(*averages: MovingAverage) -> None:
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight))
        for average in averages:
            average.update(model)

    for _ in range(3):
        step(whole)
    whole.save(tmp_path)
    resumed = MovingAverage(0.9)
    resumed.load(tmp_path, model)
    for _ in range(3):
        step(whole, resumed)
    means = []
    for average in (whole, resumed):
        with average.in_place(model):
            means.append([weight.detach().clone() for weight in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*means, strict=True))


def test_a_checkpoint_without_an_average_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"average\.safetensors must hold the average"):
        MovingAverage(0.9).load(tmp_path, torch.nn.Linear(1, 1))
