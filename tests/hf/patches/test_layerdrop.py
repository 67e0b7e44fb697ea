from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from advreg.hf.patches.layerdrop import has_disabled_layerdrop, layers_kept
from advreg.hf.view.view import HFModelView
from observe import batch_of, exact

pytestmark = pytest.mark.usefixtures("graphs")


def test_only_the_draw_of_a_layer_is_answered() -> None:
    torch.manual_seed(0)
    expected = torch.rand([3]), torch.rand(2, dtype=torch.float64)
    torch.manual_seed(0)
    with layers_kept():
        assert torch.rand([]) == 1.0  # and draws nothing: the next numbers are the first
        found = torch.rand([3]), torch.rand(2, dtype=torch.float64)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_training_pass_of_marian_is_one_graph() -> None:
    model, batch = exact("marian").train(), batch_of("marian")
    task = HFModelView(torch.compile(model, backend="eager"))
    found = task.logits(batch)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert torch.allclose(found, HFModelView(model).logits(batch), atol=1e-9)


def test_layers_are_dropped_where_a_model_asks_for_it() -> None:
    model, batch = exact("marian").train(), batch_of("marian")
    model.model.decoder.layerdrop = 1.0
    assert not has_disabled_layerdrop(model)
    assert not has_disabled_layerdrop(exact("bert"))  # it draws nothing
    assert has_disabled_layerdrop(exact("marian"))
    whole = HFModelView(exact("marian").train()).logits(batch)
    found = HFModelView(torch.compile(model, backend="eager")).logits(batch)
    assert torch.allclose(found, HFModelView(model).logits(batch), atol=1e-9)
    assert not torch.allclose(found, whole, atol=1e-3)


def test_a_model_that_is_not_compiled_draws_as_ever() -> None:
    """A run that is repeated must find the random numbers it found before."""
    model, batch = exact("marian").train(), batch_of("marian")
    task, after = HFModelView(model), []
    for call in (lambda: task.logits(batch), lambda: model(**task.inputs.without_labels(batch))):
        torch.manual_seed(0)
        call()
        after.append(torch.rand(()))
    torch.manual_seed(0)
    assert after[0] == after[1] != torch.rand(())
