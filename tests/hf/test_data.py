"""Sample ids around any collator, and batches that the model cannot take."""

import copy
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import datasets
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset
from transformers import BatchEncoding, BertForTokenClassification

from advreg.hf.data import Ahead, IdCollator, Identified, Limits, identified, in_batches
from observe import Padded, features_of
from padded import few
from tiny_models import ENCODER_DECODERS, FAMILIES, LABELS, POSITIONS, tiny, tiny_batch

ROWS = features_of(tiny_batch("bert", batch=10))


# ---- ids


class Column(list[Any]):
    """A data set with attributes of its own."""

    column_names = ("input_ids", "labels")


class Triple(NamedTuple):
    """A sample that is no mapping."""

    input_ids: list[int]
    labels: int
    weight: float = 1.0


@dataclass
class Sample:
    """Another one."""

    input_ids: list[int]
    labels: int


KINDS: dict[str, Any] = {
    "mapping": ROWS,
    "arrow": datasets.Dataset.from_list(ROWS),
    "torch format": datasets.Dataset.from_list(ROWS).with_format("torch", dtype=torch.float32),
    "some columns": datasets.Dataset.from_list([{**row, "text": "a"} for row in ROWS]).with_format(
        columns=["input_ids", "labels"]
    ),
    "transform": datasets.Dataset.from_list(ROWS).with_transform(dict),
    "batch encoding": [BatchEncoding(row) for row in ROWS],
    "tuple": [Triple(**row) for row in ROWS],
    "dataclass": [Sample(**row) for row in ROWS],
    "parts": ConcatDataset([Column(ROWS[:4]), Column(ROWS[4:])]),
    "a part": Subset(Column([*ROWS, *ROWS]), range(10)),
}


def plain(sample: Any) -> dict[str, Any]:
    """The tokens and the label of a sample of any kind."""
    fields = (
        sample
        if isinstance(sample, Mapping)
        else {n: getattr(sample, n) for n in ("input_ids", "labels")}
    )
    return {name: torch.as_tensor(value).long().tolist() for name, value in fields.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_any_kind_reach_the_collator_as_they_are_with_their_index_beside_them(
    kind: str, workers: int
) -> None:
    data = KINDS[kind]

    def collate(rows: Sequence[Any]) -> dict[str, Any]:
        kinds = {type(row) for row in rows}
        assert kinds == {type(data[0])}
        assert not any(
            "sample_id" in (row if isinstance(row, Mapping) else vars(Sample)) for row in rows
        )
        return {"rows": torch.tensor([plain(row)["input_ids"][0] for row in rows])}

    loader: Any = DataLoader(
        Identified(data),
        batch_size=4,
        shuffle=True,
        collate_fn=IdCollator(collate),
        num_workers=workers,
    )
    found = {
        int(number): int(row)
        for batch in loader
        for number, row in zip(batch["sample_id"], batch["rows"], strict=True)
    }
    assert found == {number: row["input_ids"][0] for number, row in enumerate(ROWS)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_dataset_with_ids_is_otherwise_the_dataset(kind: str) -> None:
    data, found = KINDS[kind], Identified(KINDS[kind])
    assert len(found) == 10
    assert [plain(found[number]) for number in range(10)] == ROWS
    assert type(found[3]) is type(data[3])
    assert [plain(row) for row in found] == ROWS
    for name in ("column_names", "features", "datasets", "indices"):
        assert getattr(found, name, "none") == getattr(data, name, "none")
    assert not hasattr(found, "no_such_thing")
    assert [plain(row) for row in pickle.loads(pickle.dumps(found))] == ROWS


def test_a_column_of_a_dataset_with_ids_is_the_dataset_s() -> None:
    found = Identified(datasets.Dataset.from_list(ROWS))
    assert list(found["labels"]) == [row["labels"] for row in ROWS]
    assert found[2:4]["labels"] == [row["labels"] for row in ROWS[2:4]]


def test_samples_are_taken_together_where_the_dataset_gives_them_together() -> None:
    data = datasets.Dataset.from_list(ROWS)
    with patch.object(data, "__getitems__", wraps=data.__getitems__, create=True) as together:
        list(in_batches(Identified(data), IdCollator(Padded(0)), 5))
    assert [call.args for call in together.call_args_list] == [
        ([0, 1, 2, 3, 4],),
        ([5, 6, 7, 8, 9],),
    ]


@pytest.mark.parametrize(
    "data", [[{"input_ids": [5], "sample_id": 3}], [{"input_ids": [5], "sample_id": "q"}]]
)
def test_a_column_of_that_name_is_refused_by_methods_with_a_memory_alone(data: list[Any]) -> None:
    for kind in (data, datasets.Dataset.from_list(data)):
        with pytest.raises(ValueError, match="must not have a column 'sample_id'; rename it"):
            identified(kind, required=True).__getitems__([0])
        assert identified(kind).__getitems__([0]) == data
    with pytest.raises(ValueError, match="must not have a column 'sample_id'; rename it"):
        Identified(data).__getitems__([0])
    assert IdCollator(lambda rows: {"ids": rows[0]["sample_id"]})(data) == {
        "ids": data[0]["sample_id"]
    }


def test_a_dataset_gets_its_ids_once_and_one_without_a_length_gets_none() -> None:
    whole = identified(ROWS, required=True)
    assert identified(whole, required=True).samples is ROWS
    assert identified(whole).samples is ROWS
    stream = datasets.Dataset.from_list(ROWS).to_iterable_dataset()
    for data in (stream, iter(ROWS), None):
        assert identified(data) is data


def test_ids_survive_shuffling() -> None:
    torch.manual_seed(0)
    loader = DataLoader(
        Identified(ROWS), batch_size=4, shuffle=True, collate_fn=IdCollator(Padded(0))
    )  # type: ignore[arg-type]
    seen: list[int] = []
    for batch in loader:
        for index, tokens, mask in zip(
            batch["sample_id"].tolist(), batch["input_ids"], batch["attention_mask"], strict=True
        ):
            assert tokens[mask == 1].tolist() == ROWS[index]["input_ids"]
            seen.append(index)
    assert seen != sorted(seen)
    assert sorted(seen) == list(range(10))


@pytest.mark.parametrize("kind", [dict, BatchEncoding])
def test_a_collator_never_sees_the_ids_nor_does_it_change_the_samples(kind: Any) -> None:
    seen: list[Any] = []

    def collator(features: list[Any]) -> dict[str, Tensor]:
        for feature in features:
            seen.append((type(feature), set(feature)))
            feature.pop("labels")  # a collator may take its rows apart
        return {"input_ids": torch.zeros(len(features), 3)}

    samples = [kind({"input_ids": [5], "labels": 1}) for _ in range(8)]
    batch = IdCollator(collator)(Identified(samples).__getitems__([7, 2]))
    assert seen == [(kind, {"input_ids", "labels"})] * 2
    assert batch["sample_id"].tolist() == [7, 2]
    assert batch["sample_id"].dtype == torch.int64
    assert samples == [kind({"input_ids": [5], "labels": 1}) for _ in range(8)]


def test_a_batch_keeps_its_type_and_the_collator_its_batch() -> None:
    made = BatchEncoding({"input_ids": torch.zeros(2, 3)})
    batch = IdCollator(lambda rows: made)(Identified(ROWS).__getitems__([0, 1]))
    assert type(batch) is BatchEncoding
    assert "sample_id" in batch
    assert "sample_id" not in made
    for other in ((torch.zeros(2), torch.ones(2)), [made]):
        assert (
            IdCollator(lambda rows, other=other: other)(Identified(ROWS).__getitems__([0])) is other
        )  # type: ignore[misc]


@dataclass
class Masking(Padded):
    """A collator with settings."""

    tokenizer: str = "a tokenizer"
    share: float = 0.15

    def describe(self) -> str:
        return f"{self.tokenizer}, {self.share}"


def test_the_settings_of_a_collator_can_be_read_and_set_through_the_ids() -> None:
    inner = Masking(0)
    collator: Any = IdCollator(inner, Limits(3, None))
    assert collator.tokenizer == "a tokenizer"
    assert not hasattr(collator, "no_such_thing")
    collator.share = 0.3
    assert inner.share == 0.3
    assert collator.describe() == "a tokenizer, 0.3"
    assert (collator.collator, collator.limits) == (inner, Limits(3, None))
    for again in (
        copy.copy(collator),
        copy.deepcopy(collator),
        pickle.loads(pickle.dumps(collator)),
    ):
        assert again.describe() == "a tokenizer, 0.3"
        assert again(ROWS[:2])["input_ids"].shape[0] == 2
    loader: Any = DataLoader(
        Identified(ROWS),
        batch_size=5,
        collate_fn=collator,
        num_workers=1,
        multiprocessing_context="spawn",
    )
    assert [batch["sample_id"].tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_samples_without_ids_make_a_batch_without() -> None:
    assert "sample_id" not in IdCollator(Padded(0))(ROWS[:2])


@pytest.mark.parametrize("size", [1, 3, 10, 50])
def test_in_batches_gives_every_sample_in_order(size: int) -> None:
    batches: list[Sequence[Any]] = list(in_batches(ROWS, lambda rows: rows, size))  # type: ignore[arg-type, return-value]
    assert [row for batch in batches for row in batch] == ROWS
    assert all(len(batch) == size for batch in batches[:-1])


# ---- labels


def labelled(labels: Any, ids: Sequence[int] | None = (30, 31, 32)) -> dict[str, Any]:
    return {"labels": torch.tensor(labels)} | (
        {} if ids is None else {"sample_id": torch.tensor(ids)}
    )


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            [0, 3, 4],
            r"^sample id 31 has the label 3, but the model has 3 classes \(0–2\); load .* num_labels=5 or correct",
        ),
        ([0, 1, -1], r"^sample id 32 has the label -1, but the model has 3 classes"),
        ([[0, -100], [1, 1], [-100, 7]], r"^sample id 32 has the label 7, .* num_labels=8"),
    ],
)
def test_a_label_without_a_class_names_sample_classes_and_remedy(labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits(3, None).check(labelled(labels))


def test_without_ids_the_row_is_named() -> None:
    with pytest.raises(ValueError, match=r"^sample 1 of a batch has the label 9"):
        Limits(3, None).check(labelled([0, 9, 0], None))


@pytest.mark.parametrize(
    "labels", [[0, 1, 2], [-100, 0, 2], [[0, -100], [2, 1], [-100, -100]], [0.5, -7.0, 99.0]]
)
def test_good_labels_pass_ignored_ones_and_scores_too(labels: Any) -> None:
    Limits(3, None).check(labelled(labels))


def test_the_collator_checks_what_it_made() -> None:
    rows = [*ROWS[:4], {**ROWS[0], "labels": 5}]
    with pytest.raises(ValueError, match="sample id 4 has the label 5"):
        IdCollator(Padded(0), Limits(3, None))(Identified(rows).__getitems__([2, 4]))


@pytest.mark.parametrize(
    ("settings", "classes"),
    [
        ({}, LABELS),
        ({"problem_type": "single_label_classification"}, LABELS),
        ({"problem_type": "multi_label_classification"}, None),
        ({"problem_type": "regression"}, None),
        ({"num_labels": 1}, None),
    ],
)
def test_classes_are_those_of_a_classification_head(
    settings: dict[str, Any], classes: int | None
) -> None:
    assert Limits.of(tiny("bert", **settings)).classes == classes


def test_word_classifiers_have_classes_and_language_models_have_none() -> None:
    assert Limits.of(BertForTokenClassification(tiny("bert").config)).classes == LABELS
    assert {
        Limits.of(tiny(family)).classes for family in (*ENCODER_DECODERS, "gpt2-lm", "llama-lm")
    } == {None}


def test_a_model_without_a_config_has_no_limits() -> None:
    """A module of a user's own around an encoder, whatever its name."""

    class WordClassification(torch.nn.Module):
        pass

    assert Limits.of(WordClassification()) == Limits(None, None)
    named = WordClassification()
    named.config = SimpleNamespace(hidden_size=8)  # type: ignore[assignment]
    assert Limits.of(named) == Limits(None, None)


@pytest.mark.parametrize("ids", [torch.tensor([30, 31]), ["q-30", "q-31"], [30, 31]])
def test_a_sample_is_named_by_whatever_ids_a_batch_has(ids: Any) -> None:
    with pytest.raises(ValueError, match=r"^sample id (q-)?31 has the label 9"):
        Limits(3, None).check({"labels": torch.tensor([0, 9]), "sample_id": ids})


# ---- lengths

UNLIMITED = (
    "deberta-v2",
    "modernbert",
    "t5",
    "m2m100",
    "llama",
    "qwen",
    "llama-lm",
)  # no table of positions


@pytest.mark.parametrize("family", FAMILIES)
def test_the_longest_text_that_is_allowed_passes_through_the_model_and_the_next_does_not(
    family: str,
) -> None:
    """RoBERTa, MPNet and BART lose rows of their table to an offset: 66 rows are 64 positions."""
    model = tiny(family).eval()
    limits = Limits.of(model)
    assert limits.positions == (None if family in UNLIMITED else POSITIONS)
    batch = tiny_batch(family, lengths=[POSITIONS, 3])
    limits.check(batch)
    assert bool(torch.isfinite(model(**batch).loss))
    if limits.positions is not None:
        longer = {
            name: torch.cat([batch[name], batch[name][:, -1:]], 1)
            for name in ("input_ids", "attention_mask")
        }
        with pytest.raises(ValueError, match="takes at most 64"):
            limits.check(longer)
        with pytest.raises((IndexError, RuntimeError)):
            model(**longer | ({"labels": batch["labels"]} if family in ENCODER_DECODERS else {}))


def test_a_text_that_is_too_long_names_sample_length_and_remedy() -> None:
    batch = {**tiny_batch("bert", lengths=[3, 9, 5]), "sample_id": torch.tensor([4, 5, 6])}
    Limits(None, 9).check(batch)
    message = r"sample id 5 has 9 tokens \(padded to 9\), but the model takes at most 8; .* truncation=True, max_length=8"
    with pytest.raises(ValueError, match=message):
        Limits(None, 8).check(batch)
    batch.pop("attention_mask")
    with pytest.raises(ValueError, match=r"takes at most 8"):
        Limits(None, 8).check(batch)


def test_a_target_that_is_too_long_is_named_too_but_many_labels_at_once_are_not() -> None:
    batch = {**tiny_batch("marian", lengths=[3, 5]), "sample_id": torch.tensor([4, 5])}
    batch["labels"] = torch.tensor([[7] * 9, [7] * 6 + [-100] * 3])
    with pytest.raises(
        ValueError, match=r"sample id 4 has 9 target tokens \(padded to 9\), but .* at most 8"
    ):
        Limits(None, 8).check(batch)
    batch["labels"] = torch.rand(2, 9)  # several labels at once, one column each
    Limits(None, 8).check(batch)


# ---- a look ahead


asks = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=8)


@few
@given(size=st.integers(0, 15), history=asks)
def test_looking_ahead_never_changes_what_is_taken(
    size: int, history: list[tuple[int, int]]
) -> None:
    ahead, iterator, plain = Ahead(), iter(range(size)), list(range(size))
    for count, further in history:
        expected, plain = plain[:count], plain[count:]
        assert ahead.take(iterator, count) == expected
        assert ahead.glimpse(further) == plain[:further]


def test_what_was_held_of_one_epoch_is_not_given_to_the_next() -> None:
    ahead, first, second = Ahead(), iter("abcdef"), iter("uvwxyz")
    assert ahead.take(first, 2) == ["a", "b"]
    assert ahead.glimpse(2) == ["c", "d"]
    assert ahead.take(second, 2) == ["u", "v"]
    assert ahead.glimpse(1) == ["w"]


def test_nothing_is_read_that_was_not_asked_for() -> None:
    seen: list[int] = []
    iterator = (seen.append(number) or number for number in range(10))
    ahead = Ahead()
    ahead.take(iterator, 2)
    assert seen == [0, 1]
    ahead.glimpse(2)
    ahead.glimpse(1)
    assert seen == [0, 1, 2, 3]


def test_there_is_nothing_to_see_before_anything_was_taken() -> None:
    assert Ahead().glimpse(3) == []
