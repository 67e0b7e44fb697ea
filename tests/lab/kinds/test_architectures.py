from __future__ import annotations

from typing import Any

import pytest
import torch

from advreg.lab.kinds import architectures
from advreg.lab.kinds.architectures import PRESETS, TRANSLATORS, build, build_translator, find_model
from advreg.lab.kinds.models import ModelError


def parameters(name: str) -> float:
    """Millions, of a model whose weights are never made."""
    with torch.device("meta"):
        model = build(name)
    return sum(value.numel() for value in model.parameters()) / 1e6


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("bert-base", 109.5),
        ("minilm", 22.7),
        ("small", 0.476),
        ("transformer-iwslt", 36.7),
        ("transformer-base", 60.5),
        ("transformer-big", 209.2),
        ("transformer-small", 1.3),
    ],
)
def test_a_preset_has_the_size_its_name_promises(name: str, millions: float) -> None:
    # transformer-base: 44.1 M in its layers (65 M in the paper, with 37k words), 16.4 M in 32k
    # words
    assert parameters(name) == pytest.approx(millions, rel=0.03)


def test_presets_are_what_there_is() -> None:
    encoders = {"small", "minilm", "bert-base"}
    assert set(PRESETS) == encoders | set(TRANSLATORS)
    sizes = ("iwslt", "base", "big", "small")
    assert set(TRANSLATORS) == {f"transformer-{size}" for size in sizes}


def test_weights_follow_the_seed_and_leave_torchs_generator_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (build("small", seed=seed).classifier.weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_model_has_positions_for_the_tokens_asked_for() -> None:
    assert build("small", positions=700).config.max_position_embeddings == 700
    assert build("small", positions=8).config.max_position_embeddings == 512


def test_a_model_comes_ready_for_training() -> None:
    assert build("small").training


def test_an_unknown_name_lists_the_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModelError(f"model '{name}' is neither a folder here nor reachable on the hub")

    monkeypatch.setattr(architectures, "load_any", missing)
    with pytest.raises(
        ModelError, match=r"model 'bert-huge' is neither .* or one of small, minilm, bert-base"
    ):
        find_model("bert-huge")


# ---- translators


def small(**more: Any) -> Any:
    return build_translator("transformer-small", 100, **more)


def test_a_translator_has_the_vocabulary_and_dropout_it_is_given() -> None:
    model = small(dropout=0.25)
    assert (model.config.vocab_size, model.config.decoder_vocab_size, model.config.dropout) == (
        100,
        100,
        0.25,
    )
    assert (
        model.lm_head.weight
        is model.get_encoder().embed_tokens.weight
        is model.get_decoder().embed_tokens.weight
    )


def test_a_target_vocabulary_of_its_own_has_embeddings_of_its_own() -> None:
    model = small(target_vocabulary=70)
    assert model.get_encoder().embed_tokens.weight.shape[0] == 100
    assert model.get_decoder().embed_tokens.weight.shape[0] == 70
    assert model.lm_head.weight is model.get_decoder().embed_tokens.weight
    inputs = torch.tensor([[5, 99, 2]])
    assert model(input_ids=inputs, decoder_input_ids=inputs[:, :1]).logits.shape == (1, 1, 70)


def test_special_tokens_are_the_subwords_own_and_the_end_starts_the_target() -> None:
    config = small(special={"bos": 7, "pad": 8, "eos": 9}).config
    assert (config.bos_token_id, config.pad_token_id, config.eos_token_id) == (7, 8, 9)
    assert config.decoder_start_token_id == 9
    assert (
        config.forced_eos_token_id is None
    )  # an end that is forced would cost a hypothesis nothing


@pytest.mark.parametrize("target_vocabulary", [None, 400])
def test_scaled_embeddings_start_at_size_one_and_layers_small(
    target_vocabulary: int | None,
) -> None:
    model = build_translator("transformer-iwslt", 500, target_vocabulary)
    for side in (model.get_encoder(), model.get_decoder()):
        assert float((side.embed_tokens.weight * side.embed_scale).detach().std()) == pytest.approx(
            1.0, rel=0.05
        )
        assert not side.embed_tokens.weight[model.config.pad_token_id].any()
        assert float(side.layers[0].fc1.weight.detach().std()) == pytest.approx(
            (512 * 6) ** -0.5, rel=0.05
        )


def test_only_translators_are_built_for_a_vocabulary() -> None:
    with pytest.raises(
        ModelError, match=r"model must be one of transformer-iwslt, .*, got 'bert-base'"
    ):
        build_translator("bert-base", 100)
