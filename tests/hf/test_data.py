"""Sample ids around any collator, and batches that the model cannot take."""

from collections.abc import Sequence
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import BertForTokenClassification

from advreg.hf.data import IdCollator, Identified, Limits, in_batches
from observe import Padded, features_of
from tiny_models import ENCODER_DECODERS, FAMILIES, LABELS, POSITIONS, tiny, tiny_batch

ROWS = features_of(tiny_batch("bert", batch=10))


# ---- ids


@pytest.mark.parametrize("data", [ROWS, datasets.Dataset.from_list(ROWS)])
def test_items_carry_their_index_and_the_data_stays_as_it_was(data: Any) -> None:
    found = Identified(data)
    assert len(found) == 10
    assert [found[index] for index in range(10)] == [{**row, "sample_id": index} for index, row in enumerate(ROWS)]
    assert "sample_id" not in data[3]


def test_a_column_of_that_name_is_refused() -> None:
    with pytest.raises(ValueError, match="must not have a column 'sample_id' of its own; rename it"):
        Identified([{"input_ids": [5], "sample_id": 3}])[0]


def test_ids_survive_shuffling() -> None:
    torch.manual_seed(0)
    loader = DataLoader(Identified(ROWS), batch_size=4, shuffle=True, collate_fn=IdCollator(Padded(0)))  # type: ignore[arg-type]
    seen: list[int] = []
    for batch in loader:
        for index, tokens, mask in zip(
            batch["sample_id"].tolist(), batch["input_ids"], batch["attention_mask"], strict=True
        ):
            assert tokens[mask == 1].tolist() == ROWS[index]["input_ids"]
            seen.append(index)
    assert seen != sorted(seen)
    assert sorted(seen) == list(range(10))


def test_a_collator_never_sees_the_ids_nor_does_it_change_the_samples() -> None:
    seen: list[set[str]] = []

    def collator(features: list[dict[str, Any]]) -> dict[str, Tensor]:
        seen.extend(set(feature) for feature in features)
        for feature in features:
            feature.pop("labels")  # a collator may take its rows apart
        return {"input_ids": torch.zeros(len(features), 3)}

    samples = [{"input_ids": [5], "labels": 1, "sample_id": index} for index in (7, 2)]
    batch = IdCollator(collator)(samples)
    assert seen == [{"input_ids", "labels"}] * 2
    assert batch["sample_id"].tolist() == [7, 2]
    assert batch["sample_id"].dtype == torch.int64
    assert samples == [{"input_ids": [5], "labels": 1, "sample_id": index} for index in (7, 2)]


def test_samples_without_ids_make_a_batch_without() -> None:
    assert "sample_id" not in IdCollator(Padded(0))(ROWS[:2])


@pytest.mark.parametrize("size", [1, 3, 10, 50])
def test_in_batches_gives_every_sample_in_order(size: int) -> None:
    batches: list[Sequence[Any]] = list(in_batches(ROWS, lambda rows: rows, size))  # type: ignore[arg-type, return-value]
    assert [row for batch in batches for row in batch] == ROWS
    assert all(len(batch) == size for batch in batches[:-1])


# ---- labels


def labelled(labels: Any, ids: Sequence[int] | None = (30, 31, 32)) -> dict[str, Any]:
    return {"labels": torch.tensor(labels)} | ({} if ids is None else {"sample_id": torch.tensor(ids)})


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            [0, 3, 4],
            r"^sample id 31 has the label 3, but the model has 3 classes \(0–2\); load .* num_labels=5 or mend",
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


@pytest.mark.parametrize("labels", [[0, 1, 2], [-100, 0, 2], [[0, -100], [2, 1], [-100, -100]], [0.5, -7.0, 99.0]])
def test_good_labels_pass_ignored_ones_and_scores_too(labels: Any) -> None:
    Limits(3, None).check(labelled(labels))


def test_the_collator_checks_what_it_made() -> None:
    rows = [{**ROWS[0], "labels": 5, "sample_id": 4}]
    with pytest.raises(ValueError, match="sample id 4 has the label 5"):
        IdCollator(Padded(0), Limits(3, None))(rows)


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
def test_classes_are_those_of_a_classification_head(settings: dict[str, Any], classes: int | None) -> None:
    assert Limits.of(tiny("bert", **settings)).classes == classes


def test_word_classifiers_have_classes_and_language_models_have_none() -> None:
    assert Limits.of(BertForTokenClassification(tiny("bert").config)).classes == LABELS
    assert {Limits.of(tiny(family)).classes for family in (*ENCODER_DECODERS, "gpt2-lm", "llama-lm")} == {None}


# ---- lengths

UNLIMITED = ("deberta-v2", "modernbert", "t5", "m2m100", "llama", "qwen", "llama-lm")  # no table of positions


@pytest.mark.parametrize("family", FAMILIES)
def test_the_longest_text_that_is_allowed_passes_through_the_model_and_the_next_does_not(family: str) -> None:
    """RoBERTa, MPNet and BART lose rows of their table to an offset: 66 rows are 64 positions."""
    model = tiny(family).eval()
    limits = Limits.of(model)
    assert limits.positions == (None if family in UNLIMITED else POSITIONS)
    batch = tiny_batch(family, lengths=[POSITIONS, 3])
    limits.check(batch)
    assert bool(torch.isfinite(model(**batch).loss))
    if limits.positions is not None:
        longer = {name: torch.cat([batch[name], batch[name][:, -1:]], 1) for name in ("input_ids", "attention_mask")}
        with pytest.raises(ValueError, match="takes at most 64"):
            limits.check(longer)
        with pytest.raises((IndexError, RuntimeError)):
            model(**longer | ({"labels": batch["labels"]} if family in ENCODER_DECODERS else {}))


def test_a_text_that_is_too_long_names_sample_length_and_remedy() -> None:
    batch = {**tiny_batch("bert", lengths=[3, 9, 5]), "sample_id": torch.tensor([4, 5, 6])}
    Limits(None, 9).check(batch)
    message = (
        r"sample id 5 has 9 tokens \(padded to 9\), but the model takes at most 8; .* truncation=True, max_length=8"
    )
    with pytest.raises(ValueError, match=message):
        Limits(None, 8).check(batch)
    batch.pop("attention_mask")
    with pytest.raises(ValueError, match=r"takes at most 8"):
        Limits(None, 8).check(batch)


def test_a_target_that_is_too_long_is_named_too_but_many_labels_at_once_are_not() -> None:
    batch = {**tiny_batch("marian", lengths=[3, 5]), "sample_id": torch.tensor([4, 5])}
    batch["labels"] = torch.tensor([[7] * 9, [7] * 6 + [-100] * 3])
    with pytest.raises(ValueError, match=r"sample id 4 has 9 target tokens \(padded to 9\), but .* at most 8"):
        Limits(None, 8).check(batch)
    batch["labels"] = torch.rand(2, 9)  # several labels at once, one column each
    Limits(None, 8).check(batch)
