"""Compiled layers: the same numbers, a graph for each kind of layer, however many layers and shapes
there are.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advreg.core.divergence import divergence
from advreg.hf.patches.compile_layers import compile_layers, compiled, layers_of
from advreg.hf.view import head as heads
from advreg.hf.view.calls import constant_parameters
from advreg.hf.view.head import cross_entropy
from advreg.hf.view.injection import is_compiled
from advreg.hf.view.view import HFModelView
from advreg.lab.kinds.translation.decoding import Decoding, decode
from advreg.methods import create
from observe import batch_of, close, exact, gradients, smoothed_view, step
from tiny_models import tiny

slowly = partial(pytest.param, marks=pytest.mark.slow)
GRAPHS = {
    "bert": 3,
    "marian": 6,
}  # of each kind of layer: to look, to train, and with constant weights


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5", "marian"])
def test_the_layers_are_those_of_all_stacks(family: str) -> None:
    model = tiny(family)
    config = model.config
    count = config.num_hidden_layers + (
        getattr(config, "decoder_layers", 0) or getattr(config, "num_decoder_layers", 0)
    )
    found = list(layers_of(model))
    assert len(found) == count
    assert all(
        "Layer" in type(layer).__name__ or "Block" in type(layer).__name__ for layer in found
    )


def test_layers_in_a_layer_are_not_compiled_by_themselves() -> None:
    inner = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))])
    outer = nn.Module()
    outer.inner = inner
    heads = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model = nn.ModuleDict({"stack": nn.ModuleList([outer]), "heads": heads})
    assert list(layers_of(model)) == [outer]


def smart_step(task: HFModelView, length: int) -> dict[str, Tensor]:
    """The gradients of a step that makes passes of every kind: clean, perturbed, and with constant
    weights.
    """
    task.model.zero_grad()
    method = create("smart", radius=0.5, ascent_steps=2, step_size=0.4)
    step(method, task, batch_of(task.model.config.model_type, pad_to=length))
    return gradients(task.model)


@pytest.mark.parametrize("family", ["bert", slowly("marian")])
def test_compiled_layers_give_the_same_gradients_in_few_graphs(family: str, graphs: Any) -> None:
    eager, model = HFModelView(exact(family)), exact(family)
    compile_layers(model, backend="aot_eager")
    task = HFModelView(model)
    assert is_compiled(task.calls.trained)
    for length in (10, 12, 11):
        assert close(smart_step(task, length), smart_step(eager, length), 1e-9)
    seen = graphs["stats"]["unique_graphs"]
    smart_step(task, 14)
    assert graphs["stats"]["unique_graphs"] == seen <= GRAPHS[family]
    assert not graphs["graph_break"]


@pytest.mark.parametrize("family", [slowly("t5"), "marian"])
def test_losses_of_a_vocabulary_are_compiled_beside_the_layers_and_stay_the_same(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    def watched(function: Any) -> Any:
        seen.add(function)
        return torch.compile(function, backend="aot_eager")

    eager, model = smoothed_view(exact(family), 0.1), exact(family)
    monkeypatch.setattr(heads, "_VOCABULARY", 8)
    monkeypatch.setattr(heads, "compiled", watched)
    compile_layers(model, backend="eager")
    task = smoothed_view(model, 0.1)
    for length in (10, 12):
        assert close(smart_step(task, length), smart_step(eager, length), 1e-9)
    assert seen == {divergence, cross_entropy}


@pytest.mark.slow
def test_of_logits_nothing_else_of_their_size_is_kept_by_a_compiled_loss() -> None:
    clean, perturbed = (
        torch.randn(6, 2000, dtype=torch.bfloat16).requires_grad_() for _ in range(2)
    )
    labels, kept = torch.tensor([0, 5, -100, 3, 1999, 7]), list[Tensor]()
    losses = {
        divergence: (clean, perturbed, "symmetric_kl", "classes", False),
        cross_entropy: (clean, labels, 0.1),
    }
    for function, inputs in losses.items():
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda saved: kept.append(saved) or saved, lambda saved: saved
        ):
            found = compiled(function)(*inputs)
        large = {saved.data_ptr() for saved in kept if saved.numel() >= clean.numel()}
        assert large <= {clean.data_ptr(), perturbed.data_ptr()}
        assert torch.allclose(found, function(*inputs), rtol=1e-4)
        slopes = (
            torch.autograd.grad(found.sum(), clean),
            torch.autograd.grad(function(*inputs).sum(), clean),
        )
        assert torch.allclose(*(slope.float() for (slope,) in slopes), rtol=1e-2, atol=1e-5)


def test_constant_parameters_have_no_gradient_stay_tied_and_come_back() -> None:
    model = tiny("marian")
    before, shared = dict(model.named_parameters()), model.get_input_embeddings()
    with suppress(KeyboardInterrupt), constant_parameters(model):
        inside = [
            value
            for module in model.modules()
            for value in module._parameters.values()
            if value is not None
        ]
        assert not any(value.requires_grad for value in inside)
        assert model.lm_head.weight is shared.weight
        assert shared.weight.data_ptr() == before["model.shared.weight"].data_ptr()
        raise KeyboardInterrupt
    after = dict(model.named_parameters())
    assert all(after[name] is value for name, value in before.items())
    assert model.lm_head.weight is shared.weight


@pytest.mark.parametrize("layers", [slowly(2), 5])
def test_more_layers_are_not_more_graphs(layers: int, graphs: Any) -> None:
    task = HFModelView(exact("bert", num_hidden_layers=layers))
    compile_layers(task.model, backend="aot_eager")
    smart_step(HFModelView(task.model), 10)
    assert graphs["stats"]["unique_graphs"] == GRAPHS["bert"]


def test_names_of_parameters_stay() -> None:
    model = tiny("bert")
    before = list(model.state_dict())
    compile_layers(model)
    assert list(model.state_dict()) == before


def test_beam_search_is_not_compiled(graphs: Any) -> None:
    model = tiny("marian", dropout=0.0)
    rows = [[5, 6, 7, 2], [8, 9, 2]]
    expected = decode(model, rows, Decoding(2, extra=3))
    compile_layers(model, backend="aot_eager")
    assert decode(model, rows, Decoding(2, extra=3)) == expected
    assert not graphs["stats"]


def test_a_model_without_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="compile_layers must be off for Linear, which has no stack of like layers"
    ):
        compile_layers(nn.Linear(2, 2))
