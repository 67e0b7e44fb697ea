"""What the host knows of masks: the same predictions as when transformers looks, and nobody
looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import masking_utils

from advreg.hf.patches.mask_sync import PADDED, known_padding, padding_of
from advreg.hf.view.view import HFModelView
from tiny_models import ENCODER_DECODERS, FAMILIES, Side, tiny, tiny_batch

CHECKS = ("_ignore_bidirectional_mask_sdpa", "_ignore_causal_mask_sdpa")
LENGTHS = {"padded": [7, 4, 6], "not padded": [7, 7, 7]}


@contextmanager
def looked_at() -> Iterator[list[Any]]:
    """The masks that transformers looks into."""
    masks: list[Any] = []
    before = {name: getattr(masking_utils, name) for name in CHECKS}

    def noting(ignore: Any) -> Any:
        return lambda mask, *rest: (masks.append(mask), ignore(mask, *rest))[1]

    for name, ignore in before.items():
        setattr(masking_utils, name, noting(ignore))
    try:
        yield masks
    finally:
        for name, ignore in before.items():
            setattr(masking_utils, name, ignore)


def predictions(task: HFModelView, batch: dict[str, Any]) -> list[Any]:
    """Of every kind of pass."""
    delta = task.zeros(batch).map(lambda values, _: torch.full_like(values, 0.1))
    parameters = dict(task.parameters())
    return [
        task.logits(batch), task.logits(batch, delta), task.bare_logits(batch, delta), task.ascent_logits(batch, delta),
        *task.paired_logits(batch, delta), task.averaged(batch, parameters),
    ]  # fmt: skip


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_who_knows_predicts_as_who_looks(family: str, lengths: str, side: Side) -> None:
    task = HFModelView(tiny(family, dropout=0.0))
    batch = tiny_batch(family, lengths=LENGTHS[lengths], side=side)
    for found, expected in zip(
        predictions(task, {**batch, PADDED: padding_of(batch)}),
        predictions(task, batch),
        strict=True,
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_who_knows_looks_into_no_mask(family: str, lengths: str) -> None:
    task = HFModelView(tiny(family, dropout=0.0))
    batch = tiny_batch(family, lengths=LENGTHS[lengths])
    task.widths(batch)  # by a pass of its own, once
    with looked_at() as masks:
        predictions(task, batch)
    looks = sum(mask is not None for mask in masks)
    with looked_at() as masks:
        predictions(task, {**batch, PADDED: padding_of(batch)})
    assert not any(mask is not None for mask in masks)
    assert looks > 0 or family in (
        "t5",
        "deberta-v2",
        "modernbert",
    )  # which make masks in a way of their own


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_who_knows_gives_attention_a_mask_where_who_looks_does(
    family: str, lengths: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, given = HFModelView(tiny(family, dropout=0.0)), list[tuple[bool, bool]]()
    attend = F.scaled_dot_product_attention

    def noting(*args: Any, attn_mask: Any = None, is_causal: bool = False, **more: Any) -> Any:
        given.append((attn_mask is None, is_causal))
        return attend(*args, attn_mask=attn_mask, is_causal=is_causal, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noting)
    batch = tiny_batch(family, lengths=LENGTHS[lengths])
    task.logits(batch)
    looked, given[:] = list(given), []
    task.logits({**batch, PADDED: padding_of(batch)})
    assert given == looked
    assert looked or family in ("deberta-v2", "mpnet")  # which have an attention of their own


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_a_decoder_s_own_mask_counts(family: str) -> None:
    task = HFModelView(tiny(family, dropout=0.0))
    batch: dict[str, Any] = tiny_batch(family)
    batch["decoder_attention_mask"] = (batch["labels"] != -100).long()
    known = {**batch, PADDED: padding_of(batch)}
    assert known[PADDED] == {"attention_mask": True, "decoder_attention_mask": True}
    with looked_at() as masks:
        found = task.logits(known)
    assert not any(mask is not None for mask in masks)
    assert torch.equal(found, task.logits(batch))


def test_a_mask_is_padded_when_it_hides_a_position() -> None:
    ones, ragged = torch.ones(2, 3, dtype=torch.long), torch.tensor([[1, 1, 1], [0, 1, 1]])
    assert padding_of({"attention_mask": ones, "decoder_attention_mask": ragged}) == {
        "attention_mask": False, "decoder_attention_mask": True,
    }  # fmt: skip
    assert (
        padding_of({"attention_mask": ragged[:, None, None], "input_ids": ones, "labels": [1, 2]})
        == {}
    )
    assert padding_of({}) == {}


def test_transformers_looks_again_afterwards() -> None:
    before = [getattr(masking_utils, name) for name in CHECKS]
    known = known_padding({"attention_mask": True}, is_encoder_decoder=False)
    known.__enter__()
    assert all(getattr(masking_utils, name) not in before for name in CHECKS)
    known.__exit__(KeyError, KeyError(), None)  # also where a pass fails
    assert [getattr(masking_utils, name) for name in CHECKS] == before


def test_of_a_mask_that_nobody_spoke_of_transformers_finds_out_itself() -> None:
    before = [getattr(masking_utils, name) for name in CHECKS]
    with known_padding({}, is_encoder_decoder=False):
        assert [getattr(masking_utils, name) for name in CHECKS] == before
