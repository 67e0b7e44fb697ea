from typing import Any

import pytest
import torch
from torch import Tensor

import naive
from advreg.core.schedule import Clock
from advreg.hf.view.view import HFModelView
from advreg.methods import SimCut, create
from observe import batch_of, close, exact, gradients, step, watched
from tiny_models import tiny, tiny_batch

CLOCK = Clock(0, 0)

VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {},
    "both directions": {"divergence": "symmetric_kl"},
    "clean side detached": {"detach_clean": True},
    "two passes": {"fuse": False},
}


def agree(
    family: str, variant: dict[str, Any], labels: Tensor | None = None, **model_settings: Any
) -> None:
    settings = {"weight": 3.0, "cut": 0.4, **variant}
    model, reference = exact(family, **model_settings), exact(family, **model_settings)
    batch = batch_of(family) | ({} if labels is None else {"labels": labels})
    report = step(create("simcut", **settings), HFModelView(model), batch)
    torch.manual_seed(0)
    expected = naive.simcut(
        reference,
        batch,
        3.0,
        0.4,
        settings.get("divergence", "kl"),
        settings.get("detach_clean", False),
    )
    assert float(report.loss) == pytest.approx(expected.loss, abs=1e-6)
    assert float(report.task_loss) == pytest.approx(expected.task_loss, abs=1e-6)
    assert float(report.penalty) == pytest.approx(expected.penalty, abs=1e-6)
    assert expected.penalty > 1e-3
    assert close(gradients(model), gradients(reference))


@pytest.mark.parametrize("family", ["bert", "marian", "llama", "gpt2"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_simcut_agrees_with_its_reference(family: str, variant: str) -> None:
    agree(family, VARIANTS[variant])


def test_simcut_regularises_a_regression_by_the_squared_difference() -> None:
    agree("bert", {}, torch.tensor([0.3, -1.2, 2.0, 0.0], dtype=torch.float64), num_labels=1)


def test_a_model_without_dropout_is_trained_in_one_pass_of_double_size() -> None:
    model, batch = exact("marian"), batch_of("marian")
    task = HFModelView(model)
    task.widths(batch)  # the silent pass that measures the widths is no pass of a step
    with watched(model) as passes:
        report = step(create("simcut", cut=0.3), task, batch)
    assert [one.rows for one in passes] == [8]
    assert float(report.penalty) > 1e-3


def test_what_is_cut_is_the_whole_embedding_of_real_tokens_in_the_second_copy() -> None:
    model, batch = exact("marian"), batch_of("marian", 4)
    task = HFModelView(model)
    task.widths(batch)
    with watched(model) as passes:
        step(create("simcut", cut=0.5), task, batch)
    one = passes[0].second_half()
    one.samples(task, batch)  # padding was left alone
    for stream, module in naive.sites(model).items():
        ids, _ = task.tokens(batch)[stream]
        with torch.no_grad():
            embedded = module(ids)
        gone = one.deltas[stream].any(-1)
        assert 0 < int(gone.sum()) < gone.numel()
        assert torch.allclose(one.deltas[stream][gone], -embedded[gone])


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_last_real_token_of_a_row_is_spared_on_either_side(side: str) -> None:
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], dtype=torch.bool)
    mask = mask.flip(1) if side == "left" else mask
    often = torch.stack([SimCut(cut=0.9).draw(mask) for _ in range(200)]).any(0)
    last = [4, 4, 4] if side == "left" else [2, 4, 0]
    for row, spared in enumerate(last):
        assert not bool(often[row, spared])
    assert torch.equal(often.sum(1), mask.sum(1) - 1)


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_first_real_token_of_a_row_is_spared_where_it_sees_itself_alone(side: str) -> None:
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], dtype=torch.bool)
    mask = mask.flip(1) if side == "left" else mask
    often = torch.stack([SimCut(cut=0.9).draw(mask, spare_first=True) for _ in range(200)]).any(0)
    kept = [(2, 4), (0, 4), (4, 4)] if side == "left" else [(0, 2), (0, 4), (0, 0)]
    for row, (first, last) in enumerate(kept):
        assert not bool(often[row, first] | often[row, last])
        assert int(often[row].sum()) == max(0, int(mask[row].sum()) - 2)


@pytest.mark.parametrize(
    ("family", "causal"),
    [
        ("bert", False),
        ("modernbert", False),
        ("distilbert", False),
        ("marian", False),
        ("t5", False),
    ]
    + [(family, True) for family in ("llama", "qwen", "gpt2", "gpt2-lm", "llama-lm")],
)
def test_a_task_says_whether_its_tokens_see_only_earlier_ones(family: str, causal: bool) -> None:
    assert HFModelView(tiny(family)).is_causal() is causal


def test_gradients_of_a_deep_decoder_are_finite_whatever_is_cut() -> None:
    """A first token of zeros stays zero in all layers, and each RMSNorm multiplies its gradient by
    ε^(−1/2).
    """
    model = tiny("llama-lm", num_hidden_layers=40)
    for seed in range(4):
        torch.manual_seed(seed)
        model.zero_grad()
        report = create("simcut", cut=0.9).objective(
            HFModelView(model), batch_of("llama-lm"), CLOCK, None
        )
        report.loss.backward()
        assert all(bool(value.isfinite().all()) for value in gradients(model).values())


def test_tokens_are_cut_with_the_probability_asked_for() -> None:
    torch.manual_seed(0)
    mask = torch.ones(200, 51, dtype=torch.bool)
    assert float(SimCut(cut=0.2).draw(mask).float().mean()) == pytest.approx(
        0.2 * 50 / 51, abs=0.01
    )


def test_a_batch_without_a_mask_cuts_all_but_the_last_position() -> None:
    task, batch = HFModelView(exact("gpt2-lm")), tiny_batch("gpt2-lm", lengths=[6, 6])
    report = step(
        create("simcut", cut=0.5),
        task,
        {n: value for n, value in batch.items() if n != "attention_mask"},
    )
    assert float(report.penalty) > 0


@pytest.mark.parametrize(("value", "message"), [(1.0, "got 1"), (-0.1, "got -0.1")])
def test_simcut_refuses_a_probability_that_is_none(value: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"cut must be at least 0 and below 1, {message}"):
        create("simcut", cut=value)
