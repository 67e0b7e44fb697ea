from dataclasses import replace
from functools import partial
from typing import get_args

import pytest
import torch
from torch import Tensor

from advreg.core.shard import Shard
from advreg.core.sketch import sketch_for
from advreg.memory.corpus import Corpus
from advreg.memory.predictions import PredictionMemory, PredictionRows, label_keys
from advreg.memory.tiers import Place, Tier

FORM = partial(sketch_for, "auto", top=8, draws=4)
FIELDS = {"row": (2, torch.float16)}
COUNTS = torch.tensor([3, 1, 2, 2])


def store_of(tier: Tier = "device", counts: Tensor = COUNTS) -> PredictionRows:
    return PredictionRows(counts, FIELDS, Shard(len(counts)), Place(tier=tier))


def batch_of(ids: list[int], side: str = "right", width: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, labels 10 · id + place, and the mask of the items."""
    labels, mask = (
        torch.full((len(ids), width), -100),
        torch.zeros(len(ids), width, dtype=torch.bool),
    )
    for row, i in enumerate(ids):
        count = int(COUNTS[i])
        places = slice(width - count, None) if side == "left" else slice(count)
        labels[row, places], mask[row, places] = 10 * i + torch.arange(count), True
    return torch.tensor(ids), labels, mask


def rows_of(ids: list[int], mask: Tensor, plus: float = 0.0) -> dict[str, Tensor]:
    """A row for each place of the batch, told by the sample and the item; NaN where there is
    none.
    """
    values = torch.full((*mask.shape, 2), torch.nan)
    for row, i in enumerate(ids):
        items = torch.arange(float(COUNTS[i]))
        values[row][mask[row]] = torch.stack([torch.full_like(items, i + plus), items], -1)
    return {"row": values.flatten(0, 1)}


def remembered(store: PredictionRows, ids: list[int], **ways: object) -> list[list[list[float]]]:
    numbers, labels, mask = batch_of(ids, **ways)  # type: ignore[arg-type]
    found = store.find(numbers, labels, mask)
    values = store.read(found)["row"].view(*mask.shape, 2)
    return [values[row][mask[row]].tolist() for row in range(len(ids))]


def put(store: PredictionRows, ids: list[int], plus: float = 0.0, **ways: object) -> None:
    numbers, labels, mask = batch_of(ids, **ways)  # type: ignore[arg-type]
    store.write(store.find(numbers, labels, mask), rows_of(ids, mask, plus))


def known(store: PredictionRows, ids: list[int]) -> list[bool]:
    return store.find(*batch_of(ids)).known.tolist()


def test_rows_follow_their_sample_whatever_the_order_the_side_and_the_width_of_the_padding() -> (
    None
):
    store = store_of()
    assert known(store, [0, 1, 2, 3]) == [False] * 4
    put(store, [2, 0], side="left")
    put(store, [3], width=7)
    assert known(store, [0, 1, 2, 3]) == [True, False, True, True]
    expected = {i: [[float(i), float(item)] for item in range(int(COUNTS[i]))] for i in (0, 2, 3)}
    for ids in ([0, 2, 3], [3, 0, 2], [2]):
        for ways in ({}, {"side": "left", "width": 5}):
            assert remembered(store, ids, **ways) == [expected[i] for i in ids]


def test_what_is_no_item_reads_zeros_and_is_never_written() -> None:
    store = store_of()
    put(store, [1, 2])
    ids, labels, mask = batch_of([1, 2])
    values = store.read(store.find(ids, labels, mask))["row"].view(2, 3, 2)
    assert not bool(values[~mask].any())
    assert not bool(store.state_dict()["items.row"].isnan().any())


@pytest.mark.parametrize("change", ["another label", "another order", "one label less"])
def test_a_sample_whose_labels_changed_is_not_known_until_it_was_seen_again(change: str) -> None:
    store = store_of()
    put(store, [0, 2])
    ids, labels, mask = batch_of([0, 2])
    if change == "another label":
        labels[0, 1] += 1
    elif change == "another order":
        labels[0, :3] = labels[0, :3].flip(0)
    else:
        mask[0, 2], labels[0, 2] = False, -100
    found = store.find(ids, labels, mask)
    assert found.known.tolist() == [False, True]
    assert found.changed.tolist() == [True, False]
    store.write(
        found,
        rows_of([0, 2], mask, plus=5.0)
        if change != "one label less"
        else {"row": torch.ones(6, 2)},
    )
    again = store.find(ids, labels, mask)
    assert again.known.tolist() == [
        change != "one label less",
        True,
    ]  # there are rows for three labels, not for two
    assert again.changed.tolist() == [change == "one label less", False]


def test_padding_changes_no_key_and_every_label_does() -> None:
    _, short, mask = batch_of([0, 1, 2])
    _, wide, wide_mask = batch_of([0, 1, 2], side="left", width=9)
    keys = label_keys(short, mask)
    assert torch.equal(keys, label_keys(wide, wide_mask))
    assert len(set(keys.tolist())) == 3


def test_scores_and_several_labels_have_keys_too() -> None:
    mask = torch.ones(3, dtype=torch.bool)
    scores = torch.tensor([0.5, 0.25, 0.5])
    several = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    for labels in (scores, scores[:, None], several):
        first, second, third = label_keys(labels, mask).tolist()
        assert first == third != second


def test_of_a_sample_that_comes_twice_in_a_batch_the_last_prediction_is_kept() -> None:
    store = store_of()
    ids, labels, mask = batch_of([0, 2, 0])
    rows = rows_of([0, 2, 0], mask)
    rows["row"].view(3, 3, 2)[2] += 100
    store.write(store.find(ids, labels, mask), rows)
    assert [row[0] for row in remembered(store, [0])[0]] == [100.0, 100.0, 100.0]
    assert int(store.state_dict()["visits"][0]) == 1


def test_a_prediction_that_is_not_finite_leaves_the_one_before() -> None:
    store = store_of()
    put(store, [0, 2])
    ids, labels, mask = batch_of([0, 2])
    rows = rows_of([0, 2], mask, plus=50.0)
    rows["row"][1] = torch.inf
    store.write(store.find(ids, labels, mask), rows)
    assert remembered(store, [0, 2]) == [
        [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]],
        [[52.0, 0.0], [52.0, 1.0]],
    ]


def test_a_saved_store_comes_back_as_it_was() -> None:
    store, other = store_of(), store_of()
    put(store, [0, 3])
    other.load_state_dict({name: value.clone() for name, value in store.state_dict().items()})
    put(store, [0, 1], plus=9.0)
    assert known(other, [0, 1, 2, 3]) == [True, False, False, True]
    assert remembered(other, [3]) == [[[3.0, 0.0], [3.0, 1.0]]]
    assert other.nbytes == store.nbytes == 9 * 4 + 5 * 12  # rows; visits and keys; a spare of each


def test_a_store_of_other_samples_is_refused() -> None:
    other = store_of(counts=torch.tensor([3, 1, 2, 1]))
    with pytest.raises(ValueError, match=r"the saved cache's items.*; resume with the"):
        store_of().load_state_dict(other.state_dict())


@pytest.mark.parametrize("foresight", [False, True])
def test_every_tier_gives_the_same_bits(foresight: bool) -> None:
    stores = [store_of(tier) for tier in get_args(Tier)]
    for plus, ids in enumerate(([0, 2], [3, 2, 1], [2, 0, 3])):
        for store in stores:
            if foresight:
                store.prefetch(torch.tensor([0, 1, 2, 3]))
                store.prefetch(torch.tensor(ids))
            put(store, ids, plus=float(plus))
        near, *others = (remembered(store, [0, 1, 2, 3]) for store in stores)
        assert all(other == near for other in others)
    for store in stores[1:]:
        assert all(
            torch.equal(value, store.state_dict()[name])
            for name, value in stores[0].state_dict().items()
        )


def test_a_sample_of_another_process_is_refused_naming_both() -> None:
    store = PredictionRows(COUNTS[1::2], FIELDS, Shard(4, 1, 2), Place())
    put(store, [1, 3])
    assert known(store, [3, 1]) == [True, True]
    with pytest.raises(IndexError, match="sample id 2 belongs to process 0 of 2, but came to"):
        known(store, [2])


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (3, 2)])
def test_no_prediction_is_lost_when_the_number_of_processes_changes(
    before: int, after: int
) -> None:
    corpus = Corpus({"tokens": COUNTS}, {"tokens": 2}, {}, "print", checksum="sum", items=COUNTS)

    def memory_of(rank: int, world: int) -> PredictionMemory:
        memory, part = PredictionMemory(FORM), Shard(len(COUNTS), rank, world)
        own = {"lengths": {"tokens": COUNTS[rank::world]}, "items": COUNTS[rank::world]}
        memory.prepare(
            replace(corpus, **own, part=part, fingerprint=f"{rank}/{world}"), 0, torch.device("cpu")
        )
        return memory

    saved = []
    for rank in range(before):
        memory = memory_of(rank, before)
        store = memory.open(FIELDS)
        for i in (0, 1, 3):
            if i % before == rank:
                put(store, [i])
        saved.append(memory.state())
    found: dict[int, list[list[float]]] = {}
    for rank in range(after):
        memory = memory_of(rank, after)
        memory.load(iter(saved))
        mine = [i for i in (0, 1, 2, 3) if i % after == rank]
        store = memory.open(FIELDS)
        assert known(store, mine) == [i != 2 for i in mine]
        found |= dict(zip(mine, remembered(store, mine), strict=True))
    assert {i: rows[0][0] for i, rows in found.items()} == {0: 0.0, 1: 1.0, 2: 0.0, 3: 3.0}
    other = memory_of(0, after)
    wrong = [replace(saved[0], facts={**saved[0].facts, "checksum": "x", "world": "9"})]
    with pytest.raises(ValueError, match=r"training data differs .* \(its checksum changed\)"):
        other.load(wrong)


def test_draws_depend_on_seed_sample_visit_and_item_alone() -> None:
    """So one process draws what two draw, in whatever order."""
    whole, half = store_of(), PredictionRows(COUNTS[0::2], FIELDS, Shard(4, 0, 2), Place())
    (one, labels, mask), (two, its, items) = batch_of([2, 1, 0]), batch_of([0, 2], width=5)
    mine = whole.uniforms(whole.find(one, labels, mask), 7, 3).view(3, 3, 3)
    theirs = half.uniforms(half.find(two, its, items), 7, 3).view(2, 5, 3)
    assert torch.equal(mine[2][mask[2]], theirs[0][items[0]])
    assert torch.equal(mine[0][mask[0]], theirs[1][items[1]])
    assert not torch.equal(
        mine[2][mask[2]],
        whole.uniforms(whole.find(one, labels, mask), 8, 3).view(3, 3, 3)[2][mask[2]],
    )
