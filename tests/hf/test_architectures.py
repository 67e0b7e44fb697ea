from __future__ import annotations

import pytest
import torch

from advreg.hf import architectures
from advreg.hf.architectures import PRESETS, build, find_model
from advreg.hf.models import ModelError


def parameters(name: str) -> float:
    """Millions, of a model whose weights are never made."""
    with torch.device("meta"):
        model = build(name)
    return sum(value.numel() for value in model.parameters()) / 1e6


@pytest.mark.parametrize(
    ("name", "millions"),
    [("bert-base", 109.5), ("minilm", 22.7), ("transformer-base", 60.5), ("transformer-iwslt", 36.7), ("small", 0.476)],
)
def test_a_preset_has_the_size_its_name_promises(name: str, millions: float) -> None:
    # transformer-base: 44.1 M in its layers (65 M in the paper, with 37k words), 16.4 M in 32k words
    assert parameters(name) == pytest.approx(millions, rel=0.03)


def test_presets_are_what_there_is() -> None:
    assert set(PRESETS) == {"small", "minilm", "bert-base", "transformer-iwslt", "transformer-base"}


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
    with pytest.raises(ModelError, match=r"model 'bert-huge' is neither .* or one of small, minilm, bert-base"):
        find_model("bert-huge")
