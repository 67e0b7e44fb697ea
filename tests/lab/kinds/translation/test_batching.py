from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from transformers import Seq2SeqTrainingArguments, TrainerCallback

from advreg import Arch
from advreg.hf.checkpoint.state import last_whole_checkpoint
from advreg.hf.data import IdCollator, Identified, Picked
from advreg.hf.patches.mask_sync import PADDED
from advreg.hf.view.head import IGNORED
from advreg.hf.view.inputs import SAMPLE_ID
from advreg.lab.kinds.translation.batching import (
    PairCollator,
    Pairs,
    TokenBatches,
    TokenBudgetTrainer,
    _cut,
)
from advreg.methods.base import Method
from advreg.methods.standard import Standard
from observe import remembered
from tiny_models import tiny

START, PAD = 49, 49  # of the tiny Marian


def some_pairs(count: int = 40, seed: int = 0, kind: type[Pairs] = Pairs) -> Pairs:
    """Pairs whose targets can be told from their sources: each token is one more."""
    random = np.random.default_rng(seed)
    source = [
        (5 + random.integers(0, 30, size=random.integers(2, 14))).tolist() for _ in range(count)
    ]
    target = [
        [token + 1 for token in row[: random.integers(1, len(row) + 1)]] + [0] for row in source
    ]
    return kind(source, target)


# ---- pairs and collator


def test_pairs_keep_each_sentence_as_it_was() -> None:
    source, target = [[3, 4], [5]], [[6], [7, 8, 9]]
    pairs = Pairs(source, target)
    assert [pairs[index]["input_ids"].tolist() for index in range(2)] == source
    assert [pairs[index]["labels"].tolist() for index in range(2)] == target
    assert pairs.lengths.tolist() == [[2, 1], [1, 3]]
    assert pairs.tokens == {"source": 3, "target": 4}
    with pytest.raises(ValueError, match="the same number of sentences, got 2 and 1"):
        Pairs(source, target[:1])


def test_a_batch_is_padded_on_the_right_and_the_decoder_reads_what_came_before() -> None:
    pairs = Pairs([[3, 4, 2], [5, 2]], [[6, 2], [7, 8, 2]])
    batch = PairCollator(padding=1, start=2)([pairs[0], pairs[1]])
    assert batch["input_ids"].tolist() == [[3, 4, 2], [5, 2, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[6, 2, IGNORED], [7, 8, 2]]
    assert batch["decoder_input_ids"].tolist() == [[2, 6, 2], [2, 7, 8]]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 39), min_size=1, max_size=12), st.sampled_from([1, 4]))
def test_pairs_that_are_gathered_make_the_same_batch(indices: list[int], multiple: int) -> None:
    pairs, collate = some_pairs(40), PairCollator(PAD, START, multiple)
    expected, found = (
        collate([pairs[index] for index in indices]),
        collate(pairs.__getitems__(indices)),
    )
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
        assert found[name].dtype == value.dtype


def test_a_loader_gathers_pairs_and_their_ids() -> None:
    pairs, rows = some_pairs(12), [[3, 1, 7], [0, 11]]
    collate = IdCollator(PairCollator(PAD, START))
    for number, batch in enumerate(
        DataLoader(Identified(pairs), batch_sampler=rows, collate_fn=collate)
    ):
        expected = collate(Picked([pairs[index] for index in rows[number]], rows[number]))
        assert batch["sample_id"].tolist() == rows[number]
        assert batch.keys() == expected.keys()
        assert batch[PADDED] == expected[PADDED]
        assert all(
            torch.equal(batch[name], value) for name, value in expected.items() if name != PADDED
        )


def test_a_collator_that_knows_nothing_of_gathered_pairs_gets_them_one_by_one() -> None:
    collate = PairCollator(PAD, START)
    loader = DataLoader(
        Identified(some_pairs(6)),
        batch_sampler=[[4, 2]],
        collate_fn=IdCollator(lambda rows: collate(list(rows))),
    )
    (batch,) = loader
    pairs = [some_pairs(6)[index] for index in (4, 2)]
    expected = IdCollator(collate)(Picked(pairs, [4, 2]))
    assert torch.equal(batch["input_ids"], expected["input_ids"])
    assert batch["sample_id"].tolist() == [4, 2]


def test_the_decoders_inputs_are_those_the_model_would_make() -> None:
    model: Any = tiny("marian")
    pairs = some_pairs(6)
    batch = PairCollator(PAD, START)([pairs[index] for index in range(6)])
    assert torch.equal(
        batch["decoder_input_ids"], model.prepare_decoder_input_ids_from_labels(batch["labels"])
    )


def test_widths_are_rounded_up_so_that_shapes_repeat() -> None:
    pairs = Pairs([[3] * 9], [[3] * 8])
    batch = PairCollator(1, 2, multiple=8)([pairs[0]])
    assert (batch["input_ids"].shape, batch["labels"].shape) == ((1, 16), (1, 8))
    assert int(batch["attention_mask"].sum()) == 9


# ---- batches

lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=120)


@given(
    lengths=lengths,
    budget=st.integers(48, 300),
    multiple=st.sampled_from([1, 8]),
    world=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_batches_keep_their_budget_and_hold_every_sample_once(
    lengths: list[tuple[int, int]], budget: int, multiple: int, world: int
) -> None:
    table = np.array(lengths, dtype=np.int64)
    ranks = range(min(world, len(lengths)))
    samplers = [TokenBatches(table, budget, multiple, 3, rank, len(ranks)) for rank in ranks]
    seen: list[int] = []
    for sampler in samplers:
        sampler.set_epoch(2)
        batches = list(sampler)
        assert len(batches) == len(sampler)
        for batch in batches:
            widest = -(-int(table[batch].max()) // multiple) * multiple
            assert len(batch) * widest <= budget
        seen += [index for batch in batches for index in batch]
    assert sorted(seen) == list(range(len(lengths)))


def cut_one_by_one(widths: Any, max_tokens: int) -> tuple[list[int], int]:
    """The naive way: a sample joins the batch unless the budget is then exceeded."""
    batches: list[list[Any]] = [[]]
    for pair in widths.tolist():
        if (len(batches[-1]) + 1) * max(map(max, [*batches[-1], pair])) > max_tokens:
            batches.append([])
        batches[-1].append(pair)
    area = sum(len(batch) * sum(map(max, zip(*batch, strict=True))) for batch in batches)
    return [0, *np.cumsum([len(batch) for batch in batches]).tolist()], area


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60),
    st.integers(40, 300),
)
def test_a_row_is_cut_where_the_next_sample_would_exceed_the_budget(
    rows: list[tuple[int, int]], budget: int
) -> None:
    widths = np.array(rows)
    assert _cut(widths, budget) == cut_one_by_one(widths, budget)


def test_every_process_has_its_own_samples_for_the_whole_run_and_as_many_batches() -> None:
    table = some_pairs(101).lengths
    samplers = [TokenBatches(table, 40, rank=rank, world=4) for rank in range(4)]
    assert len({len(sampler) for sampler in samplers}) == 1
    for rank, sampler in enumerate(samplers):
        for epoch in range(3):
            sampler.set_epoch(epoch)
            assert {index % 4 for batch in sampler for index in batch} == {rank}


def test_the_order_follows_seed_and_epoch_alone() -> None:
    table = some_pairs(200).lengths

    def epoch(number: int, seed: int = 1) -> list[list[int]]:
        sampler = TokenBatches(table, 60, seed=seed)
        sampler.set_epoch(number)
        return list(sampler)

    torch.manual_seed(5)
    first = epoch(0)
    torch.manual_seed(6)
    np.random.seed(9)
    assert epoch(0) == first
    assert epoch(1) != first
    assert epoch(0, seed=2) != first


def test_samples_change_company_from_epoch_to_epoch_and_shapes_do_not() -> None:
    table = some_pairs(300).lengths
    sampler = TokenBatches(table, 60)
    epochs = []
    for number in range(2):
        sampler.set_epoch(number)
        epochs.append(list(sampler))
    shapes = [
        sorted((len(batch), *table[batch].max(axis=0).tolist()) for batch in batches)
        for batches in epochs
    ]
    assert shapes[0] == shapes[1]
    assert {frozenset(batch) for batch in epochs[0]} != {frozenset(batch) for batch in epochs[1]}


def test_nine_tenths_of_the_positions_are_real_on_text_like_a_corpus() -> None:
    random = np.random.default_rng(0)
    source = np.clip(random.lognormal(2.9, 0.55, 20_000).astype(np.int64), 1, 200)
    target = np.clip((source * random.normal(1.1, 0.2, 20_000)).astype(np.int64), 1, 200)
    sampler = TokenBatches(np.stack([source, target], axis=1), 4096)
    share = sampler.padding_share()
    real = source.sum() + target.sum()
    batches = list(sampler)
    padded = sum(len(batch) * (source[batch].max() + target[batch].max()) for batch in batches)
    assert share["both"] == pytest.approx(1 - real / padded)
    assert share["both"] < 0.1
    assert sampler.target_tokens() == pytest.approx(target.sum() / len(batches))


def test_a_sentence_that_no_batch_can_hold_is_named() -> None:
    with pytest.raises(
        ValueError,
        match=r"max_tokens must be at least .* got 16, but sample 1 has 20 tokens \(padded to 24",
    ):
        TokenBatches(np.array([[3, 4], [2, 20]]), 16, multiple=8)
    with pytest.raises(ValueError, match="at least one sample, got none"):
        TokenBatches(np.zeros((0, 2), dtype=np.int64), 16)


# ---- the trainer


def make_trainer(
    folder: Path,
    pairs: Pairs,
    method: Method,
    budget: int = 60,
    dropout: float = 0.1,
    **fields: Any,
) -> TokenBudgetTrainer:
    usual: dict[str, Any] = {
        "num_train_epochs": 3, "learning_rate": 1e-3, "label_smoothing_factor": 0.1, "report_to": "none",
        "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1, "seed": 4, "use_cpu": True,
    }  # fmt: skip
    return TokenBudgetTrainer(
        model=tiny("marian", dropout=dropout),
        args=Seq2SeqTrainingArguments(str(folder), **{**usual, **fields}),
        train_dataset=pairs,
        data_collator=PairCollator(PAD, START),
        batches=TokenBatches(pairs.lengths, budget, seed=4),
        method=method,
    )


def test_both_sides_of_a_pair_stay_together_with_their_id(tmp_path: Path) -> None:
    pairs = some_pairs()
    trainer = make_trainer(tmp_path, pairs, Standard())
    trainer.advreg.samples.identify()
    seen = []
    for batch in trainer.get_train_dataloader():
        for row, number in enumerate(batch[SAMPLE_ID].tolist()):
            source = batch["input_ids"][row][batch["attention_mask"][row].bool()]
            target = batch["labels"][row][batch["labels"][row] != IGNORED]
            assert source.tolist() == pairs[number]["input_ids"].tolist()
            assert target.tolist() == pairs[number]["labels"].tolist()
            seen.append(number)
    assert sorted(seen) == list(range(len(pairs)))


class _Garbage:
    """A cycle, which is freed whenever Python looks for garbage; a file tells in which process that
    was.
    """

    def __init__(self, told: Path) -> None:
        self.told, self.itself = told, self

    def __del__(self) -> None:
        with self.told.open("a") as file:
            file.write(f"{os.getpid()}\n")


class _CollectingPairs(Pairs):
    """Whoever makes a batch of them looks for garbage."""

    def __getitems__(self, indices: Any) -> Any:
        gc.collect()
        return super().__getitems__(indices)


def test_a_worker_does_not_free_what_it_inherited_from_the_training(tmp_path: Path) -> None:
    """Of tensors on a GPU that would be its end."""
    told, pairs = tmp_path / "told", some_pairs(kind=_CollectingPairs)
    trainer = make_trainer(tmp_path, pairs, Standard(), dataloader_num_workers=1)
    trainer.advreg.samples.identify()
    gc.collect()
    gc.disable()
    try:
        _Garbage(told)
        count = sum(1 for _ in trainer.get_train_dataloader())
    finally:
        gc.enable()
    assert count == len(trainer.batches)
    gc.collect()
    assert told.read_text().split() == [str(os.getpid())]


class _Seen(TrainerCallback):
    """Which samples were trained on, update by update."""

    def __init__(self, trainer: TokenBudgetTrainer) -> None:
        self.batches: list[list[int]] = []
        step = trainer.training_step

        def watched(model: Any, inputs: Any, *rest: Any) -> Any:
            self.batches.append(inputs[SAMPLE_ID].tolist())
            return step(model, inputs, *rest)

        trainer.training_step = watched  # type: ignore[method-assign]


def test_each_epoch_trains_on_every_sample_once_in_another_order(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, some_pairs(), Standard())
    seen = _Seen(trainer)
    trainer.train()
    size = len(trainer.batches)
    epochs = [seen.batches[first : first + size] for first in range(0, 3 * size, size)]
    assert all(
        sorted(index for batch in epoch for index in batch) == list(range(40)) for epoch in epochs
    )
    assert epochs[0] != epochs[1] != epochs[2]


def test_accumulated_batches_are_one_update_of_all_their_tokens(tmp_path: Path) -> None:
    pairs = some_pairs(30)
    settled = {
        "num_train_epochs": 1,
        "optim": "sgd",
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
    }
    whole = make_trainer(tmp_path / "a", pairs, Standard(), budget=10_000, dropout=0.0, **settled)
    assert len(whole.batches) == 1
    parts = make_trainer(
        tmp_path / "b", pairs, Standard(), dropout=0.0, gradient_accumulation_steps=100, **settled
    )
    assert len(parts.batches) > 4
    for trainer in (whole, parts):
        trainer.train()
        assert trainer.state.global_step == 1
    for (name, one), other in zip(
        whole.model.named_parameters(), parts.model.parameters(), strict=True
    ):
        assert torch.allclose(one, other, atol=1e-6), name


class _Stop(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = control.should_training_stop = state.global_step == self.step


@pytest.mark.parametrize("stop", [4, pytest.param(2, marks=pytest.mark.slow), 7])
def test_a_run_stopped_in_mid_epoch_goes_on_to_the_same_weights_and_cache(
    tmp_path: Path, stop: int
) -> None:
    pairs = some_pairs()

    def method() -> Arch:
        return Arch(refresh_every=2, cache_fraction=0.5, start="uniform", norm="l2", scope="sample")

    fields = {"gradient_accumulation_steps": 2}
    whole = make_trainer(tmp_path / "whole", pairs, method(), **fields)
    whole.train()
    assert whole.state.global_step == 12  # four an epoch, so that a stop at 4 is between two epochs
    first = make_trainer(tmp_path / "parts", pairs, method(), **fields)
    first.add_callback(_Stop(stop))
    first.train()
    assert first.state.global_step == stop
    checkpoint = last_whole_checkpoint(tmp_path / "parts")
    assert checkpoint is not None
    second = make_trainer(tmp_path / "parts", pairs, method(), **fields)
    second.train(resume_from_checkpoint=str(checkpoint))
    assert second.state.global_step == whole.state.global_step
    for (name, one), other in zip(
        whole.model.named_parameters(), second.model.parameters(), strict=True
    ):
        assert torch.equal(one, other), name
    for name, value in remembered(whole.method).items():
        assert torch.equal(value, remembered(second.method)[name]), name


def test_what_is_cached_of_a_sample_is_on_its_own_tokens_in_any_company(tmp_path: Path) -> None:
    pairs = some_pairs()
    method = Arch(refresh_every=1, cache_fraction=1.0)
    trainer = make_trainer(tmp_path, pairs, method, num_train_epochs=1)
    trainer.train()
    found: dict[tuple[str, int], torch.Tensor] = {}
    for batch in (
        *trainer.get_train_dataloader(),
        trainer.data_collator(trainer.train_dataset.__getitems__(list(range(40)))),
    ):
        like = trainer.task.zeros(batch)
        delta = method.memory.cache.read(batch[SAMPLE_ID], like)
        for stream, values in delta.values.items():
            for row, number in enumerate(batch[SAMPLE_ID].tolist()):
                real = like.masks[stream][row]
                assert torch.equal(values[row].abs().sum(-1) > 0, real)
                before = found.setdefault((stream, number), values[row][real])
                assert torch.equal(before, values[row][real])
    assert len(found) == 80
