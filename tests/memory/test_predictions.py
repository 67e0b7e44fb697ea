import pytest
import torch
from torch import Tensor

from advreg.memory.predictions import PredictionStore, label_keys

FIELDS = {"row": (2, torch.float16)}
COUNTS = torch.tensor([3, 1, 2, 2])
CPU = torch.device("cpu")


def store_of() -> PredictionStore:
    return PredictionStore(COUNTS, FIELDS, CPU)


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


def remembered(store: PredictionStore, ids: list[int], **ways: object) -> list[list[list[float]]]:
    numbers, labels, mask = batch_of(ids, **ways)  # type: ignore[arg-type]
    found = store.find(numbers, labels, mask)
    values = store.read(found)["row"].view(*mask.shape, 2)
    return [values[row][mask[row]].tolist() for row in range(len(ids))]


def put(store: PredictionStore, ids: list[int], plus: float = 0.0, **ways: object) -> None:
    numbers, labels, mask = batch_of(ids, **ways)  # type: ignore[arg-type]
    store.write(store.find(numbers, labels, mask), rows_of(ids, mask, plus))


def known(store: PredictionStore, ids: list[int]) -> list[bool]:
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
    assert not bool(store.rows["row"].isnan().any())


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
    assert int(store.visits[0]) == 1


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
    store = store_of()
    put(store, [0, 3])
    state = {name: value.clone() for name, value in store.state().items()}
    other = PredictionStore.restored(state, COUNTS, CPU)
    put(store, [0, 1], plus=9.0)
    assert known(other, [0, 1, 2, 3]) == [True, False, False, True]
    assert remembered(other, [3]) == [[[3.0, 0.0], [3.0, 1.0]]]
    assert other.nbytes == store.nbytes == 9 * 4 + 5 * 12 + 4 * 8


def test_a_store_of_other_samples_is_refused() -> None:
    with pytest.raises(
        ValueError, match="other numbers of labels than this run's; resume with the same data"
    ):
        PredictionStore.restored(store_of().state(), torch.tensor([3, 1, 2, 1]), CPU)
