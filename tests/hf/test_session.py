"""A method in a loop of one's own trains as the trainer does, and goes on where it was stopped."""

from __future__ import annotations

import io
from collections.abc import Iterator
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

import advreg
from advreg.hf.checkpoint.state import CheckpointError
from advreg.hf.guards.capability import UnsupportedError
from advreg.hf.session import Session, prepare
from advreg.hf.view.inputs import ITEMS, SAMPLE_ID
from advreg.methods import Method, create, registry
from contracting import Contracting
from observe import Padded, dropping, features_of
from process_jobs import OPTIONS, fixed_noise, trainer_of
from tiny_models import tiny, tiny_batch

RATE = 0.1
SIZE = 9


@pytest.fixture(autouse=True)
def _fresh_accelerate() -> Iterator[None]:
    """Each accelerator has its own settings."""
    yield
    AcceleratorState._reset_state()
    GradientState._reset_state()


def method_of(name: str, **more: Any) -> Method:
    return create(name, **OPTIONS.get(name, {}) | more)


def model_of(name: str, family: str = "bert", dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    exact = {"dropout": dropout, "dtype": torch.float64}
    return dropping(family) if name == "rdrop" and dropout == 0 else tiny(family, **exact)


def rows(family: str = "bert", size: int = SIZE) -> Any:
    return features_of(tiny_batch(family, batch=size))


def loader_of(model: Any, family: str = "bert", size: int = SIZE, **more: Any) -> Any:
    collate = Padded(model.config.pad_token_id)
    return DataLoader(rows(family, size), batch_size=2, collate_fn=collate, **more)  # type: ignore[arg-type]


def session_of(name: str = "r3f", **more: Any) -> Session:
    model = more.pop("model", None) or model_of(name, dropout=more.pop("dropout", 0.0))
    loader = more.pop("loader") if "loader" in more else loader_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=more.pop("momentum", 0.0))
    method = more.pop("method", None) or method_of(name)
    return prepare(model, loader, method, optimizer, **more)


def run(session: Session, epochs: int = 3) -> dict[str, Tensor]:
    """Train; the weights at the end."""
    for _ in range(epochs):
        for batch in session.loader:
            session.step(batch)
            if session.closes_group:
                session.optimizer.step()
                session.optimizer.zero_grad()
    return weights(session)


def weights(session: Session) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in session.view.parameters().items()}


def gap(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((value - other[name]).abs().max()) for name, value in one.items())


# ---- it trains as the trainer does


WAYS = [
    (name, accumulation)
    for name in registry
    for accumulation in (1, 2)
    if (name, accumulation) != ("standard", 2)  # the stock step's loss grows with accumulation
]


@pytest.mark.parametrize(("name", "accumulation"), WAYS)
def test_every_method_trains_as_in_the_trainer(
    name: str, accumulation: int, tmp_path: Path
) -> None:
    with fixed_noise():
        trainer = trainer_of(
            name, str(tmp_path), size=SIZE, train_sampling_strategy="sequential",
            gradient_accumulation_steps=accumulation, max_grad_norm=0.0,
        )  # fmt: skip
        before = {n: value.detach().clone() for n, value in trainer.model.named_parameters()}
        trainer.train()
        session = session_of(name, accumulation=accumulation, seed=trainer.args.seed)
        ours = run(session)
    expected = {n: value.detach() for n, value in trainer.model.named_parameters()}
    assert gap(ours, before) > 1e-3
    assert gap(ours, expected) < 1e-6
    assert session.updates == trainer.state.global_step
    assert session.epoch == 3
    if name not in ("standard", "freelb", "freeat"):
        assert bool(session.step(next(iter(session.loader))).penalty is not None)


@pytest.mark.parametrize("name", ["smart", "arch", "freeat"])
def test_translation_trains_as_in_the_trainer(name: str, tmp_path: Path) -> None:
    """Batches of a group differ in their number of target tokens."""
    with fixed_noise():
        trainer = trainer_of(
            name, str(tmp_path), size=SIZE, family="marian", train_sampling_strategy="sequential",
            gradient_accumulation_steps=2, max_grad_norm=0.0,
        )  # fmt: skip
        trainer.train()
        model = model_of(name, "marian")
        session = session_of(
            name, model=model, loader=loader_of(model, "marian"), accumulation=2,
            seed=trainer.args.seed,
        )  # fmt: skip
        ours = run(session)
    assert gap(ours, dict(trainer.model.named_parameters())) < 1e-6


@pytest.mark.parametrize("name", ["r3f", "smart", "arch", "freelb", "freeat"])
@pytest.mark.parametrize("prepared", ["before", "after"])
def test_accelerate_prepares_before_or_after(name: str, prepared: str) -> None:
    with fixed_noise():
        plain = run(session_of(name, accumulation=2))
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = model_of(name)
        parts: Any = (model, torch.optim.SGD(model.parameters(), lr=RATE), loader_of(model))
        if prepared == "before":
            parts = accelerator.prepare(*parts)
        model, optimizer, loader = parts
        session = prepare(model, loader, method_of(name), optimizer, accelerator=accelerator)
        for _ in range(3):
            for batch in session.loader:
                session.step(batch)
                session.optimizer.step()  # which accelerate skips within a group
                session.optimizer.zero_grad()
    assert gap(weights(session), plain) < 1e-6
    assert session.updates == 3 * 3


def test_the_loop_may_propagate_the_objective_itself() -> None:
    with fixed_noise():
        expected = run(session_of("r3f"))
        session = session_of("r3f")
        for _ in range(3):
            for batch in session.loader:
                session.objective(batch).loss.backward()
                session.optimizer.step()
                session.optimizer.zero_grad()
    assert gap(weights(session), expected) == 0
    session = session_of("freelb")
    with pytest.raises(UnsupportedError, match="freelb propagates several losses in a step; call"):
        session.objective(next(iter(session.loader)))


def test_the_method_follows_updates_and_not_freeat_s_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, steps in (("smart", 1), ("freeat", 2)):
        session, seen = session_of(name), []
        monkeypatch.setattr(session.method, "updated", lambda view, seen=seen: seen.append(1))
        calls: list[int] = []
        session.optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append(1))
        run(session, epochs=1)
        assert session.updates == 5
        assert len(seen) == 1 + 5  # before the first step too
        assert len(calls) == 5 * steps


def test_weights_that_a_method_writes_after_an_update_stay_written() -> None:
    session = session_of(method=Contracting())
    weight = session.view.parameters()["classifier.weight"]
    with torch.no_grad():
        weight.mul_(100)
    session.step(next(iter(session.loader)))
    assert float(torch.linalg.matrix_norm(weight.detach(), 2)) <= 1 + 1e-6
    run(session, 1)
    assert float(torch.linalg.matrix_norm(weight.detach(), 2)) <= 1 + 1e-6


def test_freeat_clips_between_its_replays() -> None:
    with fixed_noise():
        ends = [run(session_of("freeat", max_grad_norm=most)) for most in (None, 1e9, 1e-3)]
    assert gap(ends[0], ends[1]) < 1e-12
    assert gap(ends[0], ends[2]) > 1e-4


def test_a_penalty_that_starts_late_needs_the_number_of_updates() -> None:
    late = method_of("r3f", start_at=0.5)
    session = session_of(method=late, planned=10)
    found = []
    for _ in range(2):
        for batch in session.loader:
            found.append(session.step(batch).penalty is not None)
            session.optimizer.step()
    assert found == [False] * 5 + [True] * 5


# ---- the loader


def test_the_loader_is_the_user_s_with_ids() -> None:
    model = model_of("arch")
    given = loader_of(
        model, num_workers=1, generator=torch.Generator().manual_seed(3), shuffle=True
    )
    session = session_of("arch", model=model, loader=given)
    loader = session.loader
    assert len(loader) == len(given)
    assert (loader.sampler, loader.num_workers, loader.generator) == (
        given.sampler,
        given.num_workers,
        given.generator,
    )
    assert given.dataset[0] == rows()[0]
    generator = torch.Generator().manual_seed(3)
    torch.empty((), dtype=torch.int64).random_(generator=generator)  # the seed of the workers
    order = list(RandomSampler(rows(), generator=generator))
    seen = [batch[SAMPLE_ID].tolist() for batch in loader]
    assert [*chain.from_iterable(seen)] == order
    assert all(SAMPLE_ID not in batch for batch in given)
    again = [batch[SAMPLE_ID].tolist() for batch in loader]
    assert sorted(chain.from_iterable(again)) == sorted(order)
    assert again != seen
    assert session.epoch == 2


def test_each_batch_of_a_group_has_the_group_s_items() -> None:
    session = session_of("r3f", accumulation=2)
    found = [int(batch[ITEMS]) for batch in session.loader]
    assert found == [4, 4, 4, 4, 1]
    assert all(ITEMS not in batch for batch in session_of("r3f").loader)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(rows())


def test_a_data_set_without_items_by_index_is_refused_by_name() -> None:
    model = model_of("r3f")
    loader = DataLoader(Stream(), batch_size=2, collate_fn=Padded(0))
    with pytest.raises(UnsupportedError, match="by index, got Stream; load it whole"):
        session_of("r3f", model=model, loader=loader)


def test_a_batch_of_another_loader_is_refused() -> None:
    session = session_of("r3f")
    with pytest.raises(ValueError, match=r"batch must come from session\.loader"):
        session.step(tiny_batch("bert"))


def test_what_a_method_needs_is_checked_before_the_first_step() -> None:
    with pytest.raises(UnsupportedError, match=r"the model drops nothing, .* choose a method"):
        session_of("rdrop", model=tiny("bert", dropout=0.0))
    with pytest.raises(ValueError, match="accumulation must be a whole number of 1 or more, got 0"):
        session_of("r3f", accumulation=0)


# ---- it goes on where it was stopped


def stored(state: Any) -> Any:
    """After a way through a file that may hold data alone."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("stop", [1, 5, 6, 9])
@pytest.mark.parametrize("name", registry)
def test_a_resumed_loop_ends_as_an_uninterrupted_one(name: str, stop: int) -> None:
    """With dropout, shuffled batches and random starts."""
    torch.manual_seed(4)
    whole, at = session_for_resuming(name), {}
    for _ in range(3):
        for batch in whole.loader:
            update(whole, batch)
            if whole.updates == stop:
                at = saved(whole)
    torch.manual_seed(99)
    again = session_for_resuming(name)
    again.view.core.load_state_dict(at["model"])
    again.optimizer.load_state_dict(at["optimizer"])
    again.load_state_dict(at["session"])
    torch.rand(3)
    while again.epoch < 3:
        for batch in again.loader:
            update(again, batch)
    assert again.updates == whole.updates == 3 * 5
    assert gap(weights(whole), weights(again)) == 0
    if whole.method.memory is not None:
        kept = whole.method.memory.state().tensors
        found = again.method.memory.state().tensors
        assert all(torch.equal(value, found[key]) for key, value in kept.items())


def session_for_resuming(name: str) -> Session:
    model = model_of(name, dropout=0.1)
    return session_of(name, model=model, loader=loader_of(model, shuffle=True), momentum=0.9)


def update(session: Session, batch: Any) -> None:
    session.step(batch)
    session.optimizer.step()
    session.optimizer.zero_grad()


def saved(session: Session) -> dict[str, Any]:
    return stored(
        {
            "model": deepcopy(session.view.core.state_dict()),
            "optimizer": session.optimizer.state_dict(),
            "session": session.state_dict(),
        }
    )


def test_under_accelerate_a_resumed_loop_ends_as_an_uninterrupted_one() -> None:
    def one() -> Session:
        model = model_of("arch", dropout=0.1)
        loader = loader_of(model, shuffle=True)
        return session_of(
            "arch", model=model, loader=loader, accelerator=Accelerator(cpu=True), momentum=0.9
        )

    torch.manual_seed(4)
    whole, at = one(), {}
    for _ in range(3):
        for batch in whole.loader:
            update(whole, batch)
            if whole.updates == 7:
                at = saved(whole)
    again = one()
    again.view.core.load_state_dict(at["model"])
    again.optimizer.load_state_dict(at["optimizer"])
    again.load_state_dict(at["session"])
    while again.epoch < 3:
        for batch in again.loader:
            update(again, batch)
    assert gap(weights(whole), weights(again)) == 0


def test_a_state_of_another_method_or_of_half_a_group_is_refused() -> None:
    state = session_of("r3f").state_dict()
    with pytest.raises(CheckpointError, match="trained with r3f, this run with simcut"):
        session_of("simcut").load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"options of r3f differ .* noise_scale 0.1 → 0.2"):
        session_of(method=create("r3f", noise_scale=0.2)).load_state_dict(state)
    session = session_of("r3f", accumulation=2)
    session.step(next(iter(session.loader)))
    with pytest.raises(RuntimeError, match="the middle of an accumulation group"):
        session.state_dict()


def test_a_pass_that_is_left_early_counts() -> None:
    session = session_of("r3f")
    for _ in range(2):
        for batch in session.loader:
            session.step(batch)
            break
    assert session.epoch == 1
    list(session.loader)
    assert session.epoch == 3


def test_it_is_exported() -> None:
    assert advreg.prepare is prepare
