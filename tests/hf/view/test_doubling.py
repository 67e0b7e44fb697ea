"""When a batch may be doubled, and which half of an output is the clean one."""

import re
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from advreg.hf.view.doubling import first_half, is_packed, reason_against, twice

IDS = torch.arange(6).view(2, 3)


def test_what_has_a_row_for_each_sample_is_doubled_and_nothing_else() -> None:
    doubled = twice(
        {"input_ids": IDS, "token_type_ids": IDS, "use_cache": False, "scale": torch.tensor(2.0)}
    )
    assert torch.equal(doubled["input_ids"], torch.cat([IDS, IDS]))
    assert doubled["use_cache"] is False
    assert doubled["scale"].dim() == 0


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, None),
        ({"attention_mask": torch.ones(2, 3)}, None),
        ({"position_ids": torch.tensor([[0, 1, 2], [0, 1, 2]])}, None),
        ({"position_ids": torch.tensor([[0, 1, 0], [0, 1, 2]])}, r"packed \(position_ids\)"),
        ({"cu_seq_lens_q": torch.tensor([0, 2, 3])}, r"packed \(cu_seq_lens_q\)"),
        ({"pixel_values": torch.ones(16, 8)}, "'pixel_values' has 16 entries for 2 rows"),
        ({"image_sizes": [(3, 3), (4, 4)]}, "'image_sizes' is a list"),
    ],
)
def test_a_batch_that_would_not_be_one_of_its_kind_is_not_doubled(
    more: dict[str, Any], reason: str | None
) -> None:
    found = reason_against({"input_ids": IDS, **more})
    assert found is None if reason is None else re.search(reason, str(found))


def test_positions_that_begin_again_under_a_mask_are_padding_and_no_packing() -> None:
    positions = torch.tensor([[0, 0, 1], [0, 1, 2]])
    assert is_packed({"input_ids": IDS, "position_ids": positions})
    assert not is_packed(
        {"input_ids": IDS, "position_ids": positions, "attention_mask": torch.ones(2, 3)}
    )


def test_the_first_half_of_an_output_is_what_the_clean_copy_gives() -> None:
    output = CausalLMOutputWithPast(
        loss=torch.tensor(1.0),
        logits=torch.randn(4, 3, 5),
        hidden_states=(torch.randn(4, 3, 2), torch.randn(12, 2)),
    )
    logits, hidden = output.logits, output.hidden_states
    half = first_half(output, 4)
    assert type(half) is CausalLMOutputWithPast
    assert torch.equal(half.logits, logits[:2])
    assert [len(part) for part in half.hidden_states] == [2, 6]
    assert torch.equal(half.hidden_states[1], hidden[1][:6])
    assert half.loss.dim() == 0
