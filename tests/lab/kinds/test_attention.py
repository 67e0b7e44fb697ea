"""Which kernel attention over batches of many shapes may not take, and attention over short
rows.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advreg.core.short_attention import attend
from advreg.hf.patches.compile_layers import compile_layers
from advreg.hf.view.view import HFModelView
from advreg.lab.kinds import attention
from advreg.lab.kinds.attention import for_any_shape, short_attention
from attention_rows import drawn_states
from tiny_models import Side, tiny, tiny_batch


@pytest.fixture(autouse=True)
def flag_as_it_was() -> Iterator[None]:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    yield
    torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize("before", [True, False])
def test_the_kernel_that_plans_for_every_shape_is_out_and_allowed_again_only_if_it_was(
    before: bool,
) -> None:
    torch.backends.cuda.enable_cudnn_sdp(before)
    with pytest.raises(KeyError, match="False"), for_any_shape():
        raise KeyError(torch.backends.cuda.cudnn_sdp_enabled())
    assert torch.backends.cuda.cudnn_sdp_enabled() is before


def test_a_function_in_a_function_does_not_allow_it_too_early() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)

    @for_any_shape()
    def inner() -> bool:
        return torch.backends.cuda.cudnn_sdp_enabled()

    with for_any_shape():
        assert not inner()
        assert not inner()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()


# ---- short rows


def logits_and_slopes(task: HFModelView, batch: dict[str, Any]) -> list[Tensor]:
    """A prediction, and its gradient by the perturbation and by a weight of the attention."""
    delta = task.zeros(batch).leaf()
    found = task.logits(batch, delta)
    weight = next(value for name, value in task.parameters().items() if "q_proj" in name)
    return [found, *torch.autograd.grad(found.square().sum(), [*delta.values.values(), weight])]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["marian", "bart", "m2m100"])
def test_a_model_predicts_and_learns_the_same_with_short_attention(
    family: str, side: Side, monkeypatch: Any
) -> None:
    model, batch = tiny(family, dropout=0.0).double(), tiny_batch(family, side=side)
    task, calls = HFModelView(model), []
    expected = logits_and_slopes(task, batch)
    monkeypatch.setattr(
        attention, "attend", lambda *given: (calls.append(given[4]), attend(*given))[1]
    )
    with short_attention(model):
        found = logits_and_slopes(task, batch)
    torch.testing.assert_close(found, expected)
    assert (
        sorted(calls) == [False] * 4 + [True] * 2
    )  # two layers each: encoder, across, and looking back
    torch.testing.assert_close(logits_and_slopes(task, batch), expected, rtol=0, atol=0)


def test_an_evaluation_attends_as_before(monkeypatch: Any) -> None:
    model, batch = tiny("marian", dropout=0.0).eval(), tiny_batch("marian")
    task = HFModelView(model)
    expected = task.logits(batch)
    monkeypatch.setattr(
        attention, "attend", lambda *given: pytest.fail("short attention in an evaluation")
    )
    with short_attention(model):
        assert torch.equal(task.logits(batch), expected)


def test_a_model_saved_meanwhile_can_be_loaded_by_anybody(tmp_path: Path) -> None:
    model = tiny("marian")
    with short_attention(model):
        model.save_pretrained(tmp_path)
    assert model.config._attn_implementation == "sdpa"
    assert "short" not in (tmp_path / "config.json").read_text()
    assert type(model).from_pretrained(tmp_path).config._attn_implementation == "sdpa"


@pytest.mark.slow
def test_layers_are_compiled_with_short_attention_in_their_graphs() -> None:
    model, batches = (
        tiny("marian", dropout=0.0).double(),
        [tiny_batch("marian", seed=seed) for seed in range(3)],
    )
    task = HFModelView(model)
    expected = [logits_and_slopes(task, batch) for batch in batches]
    compile_layers(model, backend="aot_eager")
    with short_attention(model):
        found = [logits_and_slopes(HFModelView(model), batch) for batch in batches]
    torch.testing.assert_close(found, expected)


def test_a_mask_says_all_of_what_a_query_sees() -> None:
    """Of more keys than queries, as with a prefix, looking back would hide the last ones."""
    q, k, v = (
        states.transpose(1, 2)
        for states in drawn_states(rows=1, queries=2, keys=4, heads=1, width=4)
    )
    module = nn.Module()
    module.is_causal = True
    found, _ = attention._attend(module, q, k, v, torch.ones(1, 1, 2, 4, dtype=torch.bool))
    torch.testing.assert_close(found.transpose(1, 2), F.scaled_dot_product_attention(q, k, v))
    looks_back, _ = attention._attend(module, q, k[:, :, :2], v[:, :, :2], None)
    expected = F.scaled_dot_product_attention(q, k[:, :, :2], v[:, :, :2], is_causal=True)
    torch.testing.assert_close(looks_back.transpose(1, 2), expected)


def test_a_model_that_drops_attention_is_refused() -> None:
    model = tiny("marian")
    model.config.attention_dropout = 0.1
    told = r"short_attention must be off for a model with an attention_dropout of 0\.1: .*; set that to 0"
    with pytest.raises(ValueError, match=told), short_attention(model):
        pass


def test_a_model_whose_attention_cannot_be_replaced_is_refused() -> None:
    model = tiny("marian")
    model._supports_sdpa = False
    with pytest.raises(
        ValueError, match="short_attention must be off for MarianMTModel, whose attention cannot"
    ):
        short_attention(model).__enter__()
