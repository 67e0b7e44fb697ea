"""Fused and separate passes, and which model each of them calls."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advreg.hf.counting import PassCount
from advreg.hf.view.view import HFModelView
from observe import noise_of, quiet
from tiny_models import FAMILIES, tiny, tiny_batch

every_family = pytest.mark.parametrize("family", FAMILIES)


def test_a_loss_belongs_to_the_pass_that_made_its_logits() -> None:
    task, batch = HFModelView(quiet("bert")), tiny_batch("bert")
    logits = task.logits(batch)
    for other in (logits.clone(), logits):  # the second time it has been handed out
        with pytest.raises(ValueError, match="the task loss belongs to the last trained pass"):
            task.loss(other, batch)


@every_family
def test_a_fused_pair_is_two_passes(family: str) -> None:
    task, batch = HFModelView(tiny(family, dtype=torch.float64).eval()), tiny_batch(family)
    delta = noise_of(task, batch)
    with torch.no_grad():
        clean, perturbed = task.paired_logits(batch, delta)
        one, other = task.paired_logits(batch, delta, fuse=False)
        assert torch.equal(one, task.bare_logits(batch))
        assert torch.equal(other, task.bare_logits(batch, delta))
    assert torch.allclose(clean, one, atol=1e-5)
    assert torch.allclose(perturbed, other, atol=1e-5)
    assert float((clean - perturbed).abs().max()) > 1e-3


@pytest.mark.parametrize("family", ["bert", "bart", "gpt2"])
def test_the_halves_of_a_fused_pair_have_their_own_dropout(family: str) -> None:
    task, batch = HFModelView(tiny(family, dropout=0.3)), tiny_batch(family)
    clean, perturbed = task.paired_logits(batch, task.zeros(batch))
    assert float((clean - perturbed).detach().abs().max()) > 1e-2


@pytest.mark.parametrize("both_losses", [False, True])
def test_when_the_fused_pass_runs_out_of_memory_there_are_two(
    both_losses: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, batch, rows = quiet("bert"), tiny_batch("bert"), list[int]()

    def limit(module: nn.Module, args: Any, kwargs: dict[str, Tensor]) -> None:
        rows.append(len(kwargs["input_ids"]))
        if rows[-1] > 4:
            raise torch.OutOfMemoryError("out of memory, says the test")

    task = HFModelView(model)
    delta = noise_of(task, batch)
    clean, perturbed = task.paired_logits(batch, delta, fuse=False, both_losses=both_losses)
    expected = task.loss(clean, batch)
    handle = model.register_forward_pre_hook(limit, with_kwargs=True)
    for _ in range(2):
        found = task.paired_logits(batch, delta, both_losses=both_losses)
        assert torch.equal(found[0], clean)
        assert torch.equal(found[1], perturbed)
        assert torch.equal(task.loss(found[0], batch), expected)
    assert rows == [8, 4, 4, 4, 4]
    assert caplog.text.count("out of memory in the fused pass") == 1
    handle.remove()


def test_batch_statistics_and_the_fused_pass_do_not_go_together() -> None:
    model = quiet("bert")
    model.dropout = nn.BatchNorm1d(32)
    task, batch = HFModelView(model), tiny_batch("bert")
    with pytest.raises(
        ValueError,
        match="fuse must be off for this model: 'dropout' takes statistics over the batch",
    ):
        task.paired_logits(batch, task.zeros(batch))
    clean, perturbed = task.paired_logits(batch, task.zeros(batch), fuse=False)
    assert torch.equal(clean, perturbed)


def test_only_the_pass_that_computes_the_loss_goes_through_the_wrapper() -> None:
    model, batch = quiet("bert"), tiny_batch("bert")
    task, rows = HFModelView(model), []
    wrapper = nn.Module()
    wrapper.forward = lambda **inputs: (rows.append(len(inputs["input_ids"])), model(**inputs))[1]  # type: ignore[method-assign]
    task.train_through(wrapper)
    delta = noise_of(task, batch)
    task.paired_logits(batch, delta)
    task.paired_logits(batch, delta, fuse=False)
    task.bare_logits(batch, delta)
    task.loss_at(batch, delta)
    assert rows == [8, 4, 4]


def test_eager_ascent_logits_are_bare_logits_and_count_as_one_pass() -> None:
    task, batch, count = HFModelView(quiet("bert")), tiny_batch("bert"), PassCount()
    task.train_through(nn.Module())  # which has no forward: nothing may go through the wrapper
    delta = noise_of(task, batch)
    expected = task.bare_logits(batch, delta)
    task.count_in(count)
    assert torch.equal(task.ascent_logits(batch, delta), expected)
    assert count == PassCount(forward=1)
    assert not torch.equal(task.ascent_logits(batch, delta), task.bare_logits(batch))


def test_averaged_predicts_with_other_weights_and_changes_none() -> None:
    model, other, batch = quiet("bert"), quiet("bert", seed=5), tiny_batch("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    predicted = HFModelView(model).averaged(batch, dict(other.named_parameters()))
    assert torch.allclose(predicted, other(**batch).logits, atol=1e-6)
    assert not predicted.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_context_is_entered_around_every_pass() -> None:
    entered = []

    class Context:
        def __enter__(self) -> None:
            entered.append(True)

        def __exit__(self, *error: object) -> None:
            pass

    task, batch = HFModelView(quiet("bert"), context=Context), tiny_batch("bert")
    delta = task.zeros(batch)
    for call in (
        lambda: task.bare_logits(batch),
        lambda: task.logits(batch, delta),
        lambda: task.paired_logits(batch, delta),
        lambda: task.averaged(batch, task.parameters()),
        lambda: task.streams.embeddings(batch),
    ):
        entered.clear()
        call()
        assert len(entered) == 1
