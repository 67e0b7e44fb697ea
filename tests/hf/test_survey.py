"""The pass over the data before training: sentence vectors, lengths, a fingerprint, and no
trace.
"""

import hashlib
import random
import struct
from typing import Any
from unittest.mock import patch

import numpy as np
import peft
import pytest
import torch
from torch import Tensor

from advreg.core.shard import Shard
from advreg.hf import survey as module
from advreg.hf.data import IdCollator, Identified
from advreg.hf.survey import mean_rows, survey, table_of, token_checksum
from advreg.hf.view.inputs import decoder_inputs
from advreg.hf.view.view import HFModelView
from observe import Padded, features_of
from tiny_models import FAMILIES, tiny, tiny_batch


def surveyed(family: str, rows: Any, side: str = "right") -> Any:
    model = tiny(family)
    return survey(HFModelView(model), rows, Padded(model.config.pad_token_id, side))  # type: ignore[arg-type]


def rows_of(family: str, size: int = 7) -> list[dict[str, Any]]:
    return features_of(tiny_batch(family, batch=size))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("at_once", [3, 256])
def test_a_sentence_is_the_mean_of_its_words_and_nothing_else(
    family: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No padding, but every real token: also a repeated one, and one in the place of a special
    token.
    """
    monkeypatch.setattr(module, "_SAMPLES_AT_ONCE", at_once)
    model, rows = tiny(family), rows_of(family)
    corpus = surveyed(family, rows)
    encoder_decoder = model.config.is_encoder_decoder
    tables = {"tokens": model.get_input_embeddings().weight}
    if encoder_decoder:
        tables = {
            name: getattr(model, f"get_{name}")().get_input_embeddings().weight
            for name in ("encoder", "decoder")
        }
    assert set(corpus.vectors) == set(tables)
    assert len(corpus) == 7
    for stream, table in tables.items():
        for index, row in enumerate(rows):
            tokens = row["input_ids"]
            if stream == "decoder":
                tokens = decoder_inputs(model, torch.tensor([row["labels"]]))[0].tolist()
            expected = sum(table[token].detach() for token in tokens) / len(tokens)
            assert torch.allclose(corpus.vectors[stream][index], expected, atol=1e-6)
            assert int(corpus.lengths[stream][index]) == len(tokens)
        assert corpus.widths[stream] == table.shape[1]


def test_sentence_vectors_of_special_tokens_and_of_nothing() -> None:
    table = torch.randn(6, 4)
    found = mean_rows(table, torch.tensor([0, 1, 1, 2, 3, 0, 0]), torch.tensor([3, 0, 4]))
    assert torch.allclose(found[0], (table[0] + 2 * table[1]) / 3, atol=1e-6)
    assert torch.equal(found[1], torch.zeros(4))  # a zero, and no division by it
    assert torch.allclose(found[2], (table[2] + table[3] + 2 * table[0]) / 4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_sentence_vectors_of_any_table_are_averaged_and_kept_in_float32(dtype: torch.dtype) -> None:
    model, rows = tiny("bert").to(dtype), rows_of("bert")
    found = survey(HFModelView(model), rows, Padded(model.config.pad_token_id)).vectors["tokens"]  # type: ignore[arg-type]
    table = model.get_input_embeddings().weight.detach().double()
    assert found.dtype == torch.float32
    for vector, row in zip(found, rows, strict=True):
        assert torch.allclose(
            vector, table[torch.tensor(row["input_ids"])].mean(0).float(), atol=1e-6
        )


def test_a_gap_inside_a_sentence_is_left_out() -> None:
    model = tiny("bert")
    gap = [{"input_ids": [1, 5, 2], "attention_mask": [1, 0, 1]}]
    found = survey(
        HFModelView(model),
        gap,
        lambda rows: {name: torch.tensor([rows[0][name]]) for name in rows[0]},
    )
    table = model.get_input_embeddings().weight.detach()
    assert torch.allclose(found.vectors["tokens"][0], (table[1] + table[2]) / 2, atol=1e-6)


def test_what_a_survey_keeps_is_on_the_host_and_one_row_per_sample() -> None:
    corpus = surveyed("marian", rows_of("marian"))
    for stream in ("encoder", "decoder"):
        assert corpus.lengths[stream].dtype == torch.int64
        assert corpus.vectors[stream].dtype == torch.float32
        assert corpus.vectors[stream].device.type == corpus.lengths[stream].device.type == "cpu"
        assert not corpus.vectors[stream].requires_grad
        assert len(corpus.vectors[stream]) == len(corpus.lengths[stream]) == 7


def test_a_collator_that_splits_samples_is_refused() -> None:
    def split(features: Any) -> dict[str, Tensor]:
        return {name: torch.cat([value, value]) for name, value in Padded(0)(features).items()}

    with pytest.raises(
        ValueError, match="must make one row of each sample, got 14 rows of 7 samples; split long"
    ):
        survey(HFModelView(tiny("bert")), rows_of("bert"), split)


# ---- fingerprint


def test_the_fingerprint_is_the_one_checkpoints_hold() -> None:
    """A hash of the hashes of lengths, tokens and labels: written down here, for other versions to
    resume.
    """
    rows = [
        {"input_ids": [5, 6, 7], "labels": 0},
        {"input_ids": [8], "labels": 1},
        {"input_ids": [9, 5], "labels": 0},
    ]

    def hashed(numbers: list[int]) -> bytes:
        return hashlib.sha256(b"".join(number.to_bytes(8, "little") for number in numbers)).digest()

    found = surveyed("bert", rows).fingerprint
    labels = hashlib.sha256(struct.pack("<3d", 0, 1, 0)).digest()
    assert (
        found == hashlib.sha256(hashed([3, 1, 2]) + hashed([5, 6, 7, 8, 9, 5]) + labels).hexdigest()
    )
    assert found == "ac02a1c2b87474cd5b12da825d89aeccde14986b26838e2055feca9da8a9102f"


@pytest.mark.parametrize("labels", [[0, 1, 0], [0.25, 1.0, 0.5]])
def test_the_fingerprint_changes_with_a_label(labels: list[float]) -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": label} for label in labels]
    changed = [*rows[:2], {**rows[2], "labels": rows[2]["labels"] + 1}]
    assert surveyed("bert", rows).fingerprint != surveyed("bert", changed).fingerprint


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_the_fingerprint_changes_with_any_token_and_with_the_order(family: str) -> None:
    known = {surveyed(family, rows_of(family)).fingerprint}
    assert surveyed(family, rows_of(family)).fingerprint in known
    for index, place in ((0, 0), (0, -1), (3, 1), (6, 2)):
        rows = rows_of(family)
        rows[index]["input_ids"][place] += 1
        known.add(surveyed(family, rows).fingerprint)
    if family == "marian":
        rows = rows_of(family)
        rows[2]["labels"][0] += 1
        known.add(surveyed(family, rows).fingerprint)
    known.add(surveyed(family, rows_of(family)[::-1]).fingerprint)
    known.add(surveyed(family, rows_of(family)[:-1]).fingerprint)
    rows = rows_of(family)
    rows[1]["input_ids"].insert(0, rows[0]["input_ids"].pop())  # the same tokens, cut elsewhere
    known.add(surveyed(family, rows).fingerprint)
    assert len(known) == (9 if family == "marian" else 8)


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_the_fingerprint_does_not_change_with_padding_or_ids(family: str) -> None:
    rows = rows_of(family)
    model = tiny(family, seed=4)  # nor with the weights
    pad = model.config.pad_token_id

    def wide(features: Any) -> dict[str, Tensor]:
        long = {"input_ids": [7] * 40, "labels": [7] * 40 if family == "marian" else 0}
        return {name: value[:-1] for name, value in Padded(pad)([*features, long]).items()}

    found = {
        surveyed(family, rows).fingerprint,
        surveyed(family, rows, "left").fingerprint,
        survey(HFModelView(model), Identified(rows), IdCollator(Padded(pad))).fingerprint,
        survey(HFModelView(model), rows, wide).fingerprint,
    }
    assert len(found) == 1


@pytest.mark.parametrize("at_once", [1, 3, 256])
def test_the_fingerprint_does_not_change_with_the_samples_read_at_once(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    whole = surveyed("marian", rows_of("marian")).fingerprint
    monkeypatch.setattr("advreg.hf.survey._SAMPLES_AT_ONCE", at_once)
    assert surveyed("marian", rows_of("marian")).fingerprint == whole


# ---- no trace


class Dicey(Padded):
    """A collator that draws from every generator, as one that masks words does."""

    def __call__(self, features: Any) -> dict[str, Tensor]:
        batch = super().__call__(features)
        change = random.randrange(3) + np.random.randint(3) + int(torch.randint(3, ()))
        batch["input_ids"] = 5 + (batch["input_ids"] + change) % 40
        return batch


def test_no_generator_is_touched_and_random_collators_do_the_same_each_time() -> None:
    task, rows = HFModelView(tiny("bert")), rows_of("bert")
    found = []
    for seed in (0, 1):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        expected = (random.random(), np.random.rand(), float(torch.rand(())))
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        found.append(survey(task, rows, Dicey(0)).fingerprint)
        assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected
    assert found[0] == found[1]


def test_generators_are_given_back_when_the_collator_raises() -> None:
    def broken(features: Any) -> Any:
        random.random(), np.random.rand(), torch.rand(())
        raise ZeroDivisionError

    states = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())  # type: ignore[union-attr]
    with pytest.raises(ZeroDivisionError):
        survey(HFModelView(tiny("bert")), rows_of("bert"), broken)
    assert states == (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    )  # type: ignore[union-attr]


def test_an_empty_training_set_is_refused() -> None:
    with pytest.raises(
        ValueError, match="the training set must have at least one sample, got none"
    ):
        surveyed("bert", [])


def test_progress_is_told() -> None:
    done: list[int] = []
    survey(HFModelView(tiny("bert")), rows_of("bert"), Padded(0), done.append)
    assert sum(done) == 7


@pytest.mark.parametrize(
    "settings", [{"target_modules": ["word_embeddings"]}, {"modules_to_save": ["word_embeddings"]}]
)
def test_the_table_is_found_inside_peft_s_wrapper(settings: dict[str, Any]) -> None:
    plain = tiny("bert")
    wrapped = peft.get_peft_model(
        tiny("bert"), peft.LoraConfig(**{"target_modules": ["query"]} | settings)
    )
    table = table_of(wrapped.get_base_model().get_input_embeddings())
    assert torch.equal(table, plain.get_input_embeddings().weight)
    assert not table.requires_grad


# ---- many processes


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_the_checksum_of_one_process_is_the_sum_over_many_and_changes_with_any_token(
    family: str,
) -> None:
    def summed_over(world: int, rows: Any) -> int:
        total = 0
        for rank in range(world):
            part = Shard(len(rows), rank, world)
            with patch(
                "advreg.hf.survey.summed", lambda value, device, world: value
            ):  # each its own part alone
                model = tiny(family)
                found = survey(
                    HFModelView(model), rows, Padded(model.config.pad_token_id), shard=part
                )
            total += int(found.checksum, 16)
        return total % 2**64

    whole = int(surveyed(family, rows_of(family)).checksum, 16)
    assert {summed_over(world, rows_of(family)) for world in (1, 2, 3)} == {whole}
    known = {whole}
    for index, place in ((0, 0), (0, -1), (3, 1), (6, 2)):
        rows = rows_of(family)
        rows[index]["input_ids"][place] += 1
        known.add(summed_over(2, rows))
    rows = rows_of(family)
    rows[0], rows[2] = rows[2], rows[0]  # both of the first process of two
    known.add(summed_over(2, rows))
    rows = rows_of(family)
    rows[1]["input_ids"].insert(0, rows[0]["input_ids"].pop())
    known.add(summed_over(2, rows))
    assert len(known) == 7


def test_streams_and_tokens_that_change_places_change_the_checksum() -> None:
    ids, counts, tokens = range(2), torch.tensor([1, 2]), torch.tensor([5, 6, 7])
    found = {token_checksum(stream, ids, counts, tokens) for stream in (0, 1)}
    assert len(found | {token_checksum(0, ids, counts, tokens[[0, 2, 1]])}) == 3


def test_a_process_sees_its_own_samples_in_the_order_of_their_ids() -> None:
    whole, part = surveyed("bert", rows_of("bert")), Shard(7, 1, 3)
    with patch("advreg.hf.survey.summed", lambda value, device, world: value):
        mine = survey(HFModelView(tiny("bert")), rows_of("bert"), Padded(0), shard=part)
    assert torch.equal(mine.lengths["tokens"], whole.lengths["tokens"][1::3])
    assert torch.equal(mine.vectors["tokens"], whole.vectors["tokens"][1::3])
    assert mine.shard == part
    assert len(mine) == 2


def test_fewer_samples_than_processes_are_refused_in_all_of_them() -> None:
    for rank in range(3):
        with pytest.raises(
            ValueError, match="must have a sample for each of 3 processes, got 2; start fewer"
        ):
            survey(
                HFModelView(tiny("bert")), rows_of("bert")[:2], Padded(0), shard=Shard(2, rank, 3)
            )


# ---- batches


class Bounded(Padded):
    """A collator that takes no more rows than a training batch has."""

    most = 3

    def __call__(self, features: Any) -> dict[str, Tensor]:
        assert 0 < len(features) <= self.most
        return super().__call__(features)


@pytest.mark.parametrize("family", ["bert", "marian"])
@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 256])
def test_a_collator_is_given_no_more_rows_than_a_training_batch_and_finds_the_same(
    family: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many samples are then summed up together."""
    expected = surveyed(family, rows_of(family, 11))
    monkeypatch.setattr(module, "_SAMPLES_AT_ONCE", at_once)
    model, done = tiny(family), list[int]()
    collator = Bounded(model.config.pad_token_id)
    found = survey(HFModelView(model), rows_of(family, 11), collator, done.append, batch_size=3)  # type: ignore[arg-type]
    assert (found.fingerprint, found.checksum) == (expected.fingerprint, expected.checksum)
    assert found.widths == expected.widths
    for stream, vectors in expected.vectors.items():
        assert torch.equal(found.lengths[stream], expected.lengths[stream])
        assert torch.equal(found.vectors[stream], vectors)
    assert sum(done) == 11


def test_a_batch_size_that_is_no_number_of_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be a whole number of 1 or more, got 0"):
        survey(HFModelView(tiny("bert")), rows_of("bert"), Padded(0), batch_size=0)
