"""A model as a task: losses, fused passes, masks, gradients and dropout, against the model's own
and naive ones.
"""

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.trainer_pt_utils import LabelSmoother

from advreg.core.perturbation import Perturbation
from advreg.hf.counting import CountingTask, PassCount
from advreg.hf.view.gradient import CheckpointingError
from advreg.hf.view.inputs import decoder_inputs
from advreg.hf.view.trained_pass import prediction_of
from advreg.hf.view.view import HFModelView
from tiny_models import CAUSAL_LMS, ENCODER_DECODERS, FAMILIES, tiny, tiny_batch

every_family = pytest.mark.parametrize("family", FAMILIES)
Batch = dict[str, Tensor]


def quiet(family: str, **settings: Any) -> Any:
    return tiny(family, **{"dropout": 0.0} | settings)


def head(name: str, family: str = "bert", **settings: Any) -> Any:
    """Another head of a family, with its tiny configuration."""
    config = quiet(family, num_labels=3, **settings).config
    torch.manual_seed(0)
    return getattr(transformers, name)(config)


def noise_of(task: HFModelView, batch: Batch, scale: float = 0.1, seed: int = 0) -> Perturbation:
    torch.manual_seed(seed)
    return task.zeros(batch).map(lambda values, _: scale * torch.randn_like(values))


# ---- losses


def word_labels(batch: Batch) -> Batch:
    """A class for each word, and none for the padding and the first word."""
    labels = (batch["input_ids"] % 3).masked_fill(batch["attention_mask"] == 0, -100)
    labels[:, 0] = -100
    return {**batch, "labels": labels}


def with_labels(labels: Tensor) -> Callable[[Batch], Batch]:
    return lambda batch: {**batch, "labels": labels}


SCORES = torch.tensor([0.5, -100.0, 3.0, -1.5])  # −100 is a score like any other
HEADS: dict[str, tuple[Callable[[], Any], Callable[[Batch], Batch]]] = {
    **{family: ((lambda family=family: quiet(family)), dict) for family in FAMILIES},
    "regression": (lambda: quiet("bert", num_labels=1), with_labels(SCORES)),
    "regression, (B, 1)": (lambda: quiet("bert", num_labels=1), with_labels(SCORES[:, None])),
    "regression by name": (
        lambda: quiet("roberta", num_labels=1, problem_type="regression"),
        with_labels(SCORES),
    ),
    "two scores": (
        lambda: quiet("bert", num_labels=2, problem_type="regression"),
        with_labels(torch.randn(4, 2)),
    ),
    "several labels": (
        lambda: quiet("bert"),
        with_labels(torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])),
    ),
    "several labels by name": (
        lambda: quiet("bert", problem_type="multi_label_classification"),
        with_labels(torch.eye(3)[[0, 1, 2, 0]]),
    ),
    "words": (lambda: head("BertForTokenClassification"), word_labels),
    "words, causal": (lambda: head("GPT2ForTokenClassification", "gpt2"), word_labels),
    "masked words": (lambda: head("BertForMaskedLM"), word_labels),
    "one label is ignored": (lambda: quiet("bert"), with_labels(torch.tensor([0, -100, 2, 1]))),
}


@pytest.mark.parametrize("name", HEADS)
def test_the_loss_is_the_model_s_own(name: str) -> None:
    make, relabel = HEADS[name]
    model = make().eval()  # some heads have a dropout that no setting reaches
    batch = relabel(tiny_batch(name if name in FAMILIES else "bert"))
    if "causal" in name:
        batch["input_ids"] = batch["input_ids"].masked_fill(
            batch["attention_mask"] == 0, model.config.pad_token_id
        )
    task = HFModelView(model)
    ours = task.loss(task.logits(batch), batch)
    theirs = model(**batch).loss
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)
    ours.backward()
    mine = {
        n: value.grad.clone() for n, value in model.named_parameters() if value.grad is not None
    }
    model.zero_grad()
    theirs.backward()
    for n, value in model.named_parameters():
        assert value.grad is None or torch.allclose(mine[n], value.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["bert", "marian", "gpt2-lm", "t5"])
def test_label_smoothing_is_the_library_s(family: str) -> None:
    model, batch = quiet(family), tiny_batch(family)
    task = HFModelView(model, label_smoothing=0.2)
    logits = task.logits(batch)
    expected = LabelSmoother(epsilon=0.2)(
        {"logits": logits}, batch["labels"], shift_labels=family == "gpt2-lm"
    )
    assert float(task.loss(logits, batch).detach()) == pytest.approx(
        float(expected.detach()), rel=1e-5
    )
    plain = HFModelView(model).loss_at(batch)
    assert float(plain.detach()) != pytest.approx(float(expected.detach()), rel=1e-3)


@pytest.mark.parametrize("labels", [SCORES, SCORES[:, None]])
def test_predictions_of_one_column_meet_labels_of_none(labels: Tensor) -> None:
    """(B, 1) minus (B,) would be (B, B)."""
    task, batch = HFModelView(quiet("bert", num_labels=1)), {**tiny_batch("bert"), "labels": labels}
    clean, moved = torch.randn(4, 1), torch.randn(4, 1)
    expected = sum((float(clean[row, 0]) - float(SCORES[row])) ** 2 for row in range(4)) / 4
    assert float(task.prediction_head.loss(clean, labels)) == pytest.approx(expected, rel=1e-5)
    expected = sum((float(clean[row, 0]) - float(moved[row, 0])) ** 2 for row in range(4))
    assert float(task.divergence(clean, moved, batch, "kl")) == pytest.approx(expected, rel=1e-5)


def kl_of(clean: Tensor, perturbed: Tensor) -> float:
    p, q = clean.detach().double().softmax(-1), perturbed.detach().double().softmax(-1)
    return float((p * (p / q).log()).sum())


@pytest.mark.parametrize("family", ["bert", "marian", "t5", "gpt2-lm", "llama-lm"])
def test_the_divergence_counts_the_items_of_the_loss_one_by_one(family: str) -> None:
    """Target tokens that have a label, or samples; the sum over them, and their number beside
    it.
    """
    task, batch = HFModelView(quiet(family)), tiny_batch(family)
    clean, perturbed = task.paired_logits(batch, noise_of(task, batch))
    total, items = 0.0, 0
    for row in range(4):
        if family == "bert":
            total, items = total + kl_of(clean[row], perturbed[row]), items + 1
            continue
        ahead = 1 if family in CAUSAL_LMS else 0
        for at in range(batch["labels"].shape[1] - ahead):
            if batch["labels"][row, at + ahead] != -100:
                total, items = total + kl_of(clean[row, at], perturbed[row, at]), items + 1
    assert float(task.divergence(clean, perturbed, batch, "kl").detach()) == pytest.approx(
        total, rel=1e-4
    )
    assert int(task.items(batch)) == items
    assert total > 1e-5


def test_the_divergence_of_several_labels_is_that_of_coins() -> None:
    task = HFModelView(quiet("bert"))
    batch = {**tiny_batch("bert"), "labels": torch.ones(4, 3)}
    clean, moved = torch.randn(4, 3), torch.randn(4, 3)
    p, q = clean.double().sigmoid(), moved.double().sigmoid()
    expected = (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum()
    assert float(task.divergence(clean, moved, batch, "kl")) == pytest.approx(
        float(expected), rel=1e-5
    )
    assert int(task.items(batch)) == 12


@pytest.mark.parametrize("family", ["bert", "marian", "gpt2-lm"])
def test_a_number_of_items_that_is_given_is_the_denominator(family: str) -> None:
    task, batch = HFModelView(quiet(family)), tiny_batch(family)
    own = int(task.items(batch))
    for given in (100, torch.tensor(100), 12.5):
        wider = {**batch, "num_items_in_batch": given}
        assert float(task.items(wider)) == float(given)
        total = float(task.loss_at(batch).detach()) * own
        assert float(task.loss_at(wider).detach()) * float(given) == pytest.approx(total, rel=1e-5)


def test_a_batch_without_a_single_label_has_no_loss_and_no_division_by_zero() -> None:
    task, batch = HFModelView(quiet("marian")), tiny_batch("marian")
    batch["labels"] = torch.full_like(batch["labels"], -100)
    assert float(task.loss_at(batch).detach()) == 0


def test_a_loss_belongs_to_the_pass_that_made_its_logits() -> None:
    task, batch = HFModelView(quiet("bert")), tiny_batch("bert")
    logits = task.logits(batch)
    for other in (logits.clone(), logits):  # the second time it has been handed out
        with pytest.raises(ValueError, match="the task loss belongs to the last trained pass"):
            task.loss(other, batch)


def test_a_user_s_loss_gets_logits_batch_and_copies() -> None:
    seen = []

    def compute_loss(model: Any, inputs: Any, batch: Batch, copies: int) -> Tensor:
        seen.append((model(**inputs).logits, batch, copies))
        return seen[0][0].sum()

    task = HFModelView(quiet("bert"), compute_loss=compute_loss)
    batch = tiny_batch("bert")
    logits = task.logits(batch)
    assert torch.equal(task.loss(logits, batch), logits.sum())
    assert seen[0][0] is logits
    assert seen[0][1] is batch
    assert seen[0][2] == 1


def test_a_model_without_logits_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"must output `logits`, got BaseModelOutput.* with \['last_hidden_state'"
    ):
        prediction_of(
            quiet("bert").bert(**{k: v for k, v in tiny_batch("bert").items() if k != "labels"})
        )


# ---- passes


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
    assert torch.equal(
        CountingTask(task, count).ascent_logits(batch, delta), task.bare_logits(batch, delta)
    )
    assert not torch.equal(task.ascent_logits(batch, delta), task.bare_logits(batch))
    assert count == PassCount(forward=1)


def test_neither_labels_nor_ids_reach_the_model_and_nothing_is_kept_for_generation() -> None:
    seen: list[dict[str, Any]] = []
    for family in ("gpt2-lm", "marian", "bert"):
        model, batch = (
            quiet(family),
            {**tiny_batch(family), "sample_id": torch.arange(4), "num_items_in_batch": 4},
        )
        model.register_forward_hook(
            lambda module, args, kwargs, output: seen.append(kwargs), with_kwargs=True
        )
        task = HFModelView(model)
        task.paired_logits(batch, task.zeros(batch))
        names = {"input_ids", "attention_mask"} | (
            {"decoder_input_ids"} if family == "marian" else set()
        )
        for inputs in seen:
            assert set(inputs) - {"use_cache"} == names
            assert inputs.get("use_cache", False) is False
            assert ("use_cache" in inputs) == (family != "bert")
        seen.clear()


def test_averaged_predicts_with_other_weights_and_changes_none() -> None:
    model, other, batch = quiet("bert"), quiet("bert", seed=5), tiny_batch("bert")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    predicted = HFModelView(model).averaged(batch, dict(other.named_parameters()))
    assert torch.allclose(predicted, other(**batch).logits, atol=1e-6)
    assert not predicted.requires_grad
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ---- decoders


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_the_decoder_reads_the_start_token_and_then_the_labels(family: str) -> None:
    model, batch = quiet(family), tiny_batch(family)
    start, pad = model.config.decoder_start_token_id, model.config.pad_token_id
    read = decoder_inputs(model, batch["labels"])
    for row, labels in zip(read.tolist(), batch["labels"].tolist(), strict=True):
        assert row == [start, *(pad if label == -100 else label for label in labels[:-1])]


@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_a_decoder_position_is_real_where_it_has_a_label(family: str) -> None:
    """Marian's and T5's start token is their padding token, and a real token all the same."""
    task, batch = HFModelView(quiet(family)), tiny_batch(family)
    expected = batch["labels"] != -100
    assert torch.equal(task.masks(batch)["decoder"], expected)
    assert torch.equal(task.masks(batch)["encoder"], batch["attention_mask"] == 1)
    prepared = {**batch, "decoder_input_ids": decoder_inputs(task.model, batch["labels"])}
    assert torch.equal(task.masks(prepared)["decoder"], expected)
    without = {name: value for name, value in prepared.items() if name != "labels"}
    shifted = task.masks(without)[
        "decoder"
    ]  # told from the ids alone: the last label is never read
    assert bool(shifted[:, 0].all())
    assert torch.equal(shifted[:, 1:], expected[:, :-1])
    given = {**prepared, "decoder_attention_mask": torch.ones_like(batch["labels"])}
    assert bool(task.masks(given)["decoder"].all())


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_without_a_mask_padding_is_known_by_its_token(family: str) -> None:
    task, batch = HFModelView(quiet(family)), tiny_batch(family)
    mask = batch.pop("attention_mask")
    stream = "encoder" if family == "t5" else "tokens"
    assert torch.equal(task.masks(batch)[stream], mask == 1)


def test_a_classifier_with_a_decoder_reads_the_text_twice() -> None:
    model = head("BartForSequenceClassification", "bart").eval()
    batch = tiny_batch("bart", lengths=[6, 4])
    batch["labels"] = torch.tensor([0, 2])
    for row, length in enumerate((6, 4)):
        batch["input_ids"][row, length - 1] = model.config.eos_token_id
    task = HFModelView(model)
    assert torch.equal(task.logits(batch), model(**batch).logits)
    assert task.masks(batch)["decoder"].sum(1).tolist() == [6, 4]


# ---- perturbations and gradients


@every_family
def test_nothing_is_perturbed_by_zeros_of_the_embeddings_shape(family: str) -> None:
    task, batch = HFModelView(quiet(family)), tiny_batch(family)
    zeros, seen = task.zeros(batch), task.streams.embeddings(batch)
    assert set(zeros.values) == set(seen)
    for stream, value in zeros.values.items():
        assert value.shape == seen[stream].shape
        assert not bool(value.any())


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_perturbations_are_at_least_single_precision(dtype: torch.dtype, wide: torch.dtype) -> None:
    task = HFModelView(quiet("bert", dtype=dtype))
    assert task.zeros(tiny_batch("bert")).values["tokens"].dtype == wide


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_the_gradient_is_a_difference_quotient_and_touches_no_parameter(family: str) -> None:
    model, batch = quiet(family, dtype=torch.float64), tiny_batch(family)
    for name, value in model.named_parameters():
        value.requires_grad_("layer" not in name)  # frozen in the middle
    task = HFModelView(model)
    target, point = task.bare_logits(batch).detach(), noise_of(task, batch, 0.3).leaf()

    def objective(delta: Perturbation) -> Tensor:
        return task.divergence(target, task.bare_logits(batch, delta), batch, "kl")

    gradient = task.gradient(objective(point), point)
    assert all(value.grad is None for value in model.parameters())
    direction = noise_of(task, batch, 1.0, seed=1)
    slope = sum(float((gradient.values[s] * direction.values[s]).sum()) for s in gradient.values)
    ahead, behind = (objective(point.detach().plus(direction, step)) for step in (1e-5, -1e-5))
    assert slope == pytest.approx(float((ahead - behind).detach()) / 2e-5, rel=1e-4)


def test_the_gradient_passes_through_lora_and_a_frozen_model() -> None:
    batch = tiny_batch("bert")
    plain = quiet("bert")
    adapted = peft.get_peft_model(
        quiet("bert"), peft.LoraConfig(target_modules=["query"])
    )  # starts as the same function
    frozen = quiet("bert").requires_grad_(False)
    found = []
    for model in (plain, adapted, frozen):
        task = HFModelView(model)
        point = noise_of(task, batch).leaf()
        objective = task.divergence(
            task.bare_logits(batch).detach(), task.bare_logits(batch, point), batch, "kl"
        )
        found.append(task.gradient(objective, point).values["tokens"])
    assert torch.allclose(found[1], found[0], atol=1e-7)
    assert torch.allclose(found[2], found[0], atol=1e-7)
    assert float(found[0].abs().max()) > 1e-5


class Half(torch.autograd.Function):
    """y = scale · x, whose backward pass is held in float16, as a float16 model's is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return scale * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (grad.to(torch.float16) * ctx.scale).to(torch.float16).float(), None


def half_gradient(scale: float, half: bool) -> tuple[Tensor, HFModelView]:
    task, batch = HFModelView(quiet("bert"), half=half), tiny_batch("bert")
    point = task.zeros(batch).map(lambda values, _: torch.ones_like(values)).leaf()
    objective = Half.apply(point.values["tokens"], scale).sum()
    return task.gradient(objective, point).values["tokens"][0, 0], task


def test_a_gradient_below_float16_survives_by_scaling_the_objective() -> None:
    """Trap 29: 1e-9 is zero in float16."""
    assert not bool(half_gradient(1e-9, half=False)[0].any())
    found, _ = half_gradient(1e-9, half=True)
    assert torch.allclose(found, torch.full_like(found, 1e-9), rtol=2e-2)


def test_a_scale_that_overflows_backs_off_and_stays_lower() -> None:
    """2¹⁶ is infinite in float16, and so is 2¹² · 30; 2⁸ · 30 is not."""
    found, task = half_gradient(30.0, half=True)
    assert torch.equal(found, torch.full_like(found, 30.0))
    assert task.gradient.scale == 2.0**8
    found, task = half_gradient(
        float("inf"), half=True
    )  # no scale helps: it is handed on, not looped over for ever
    assert not bool(torch.isfinite(found).any())
    assert task.gradient.scale <= 1


def test_in_full_precision_the_objective_is_not_scaled() -> None:
    found, task = half_gradient(30.0, half=False)
    assert torch.equal(found, torch.full_like(found, 30.0))
    assert task.gradient.scale == 2.0**16


def test_reentrant_checkpointing_that_starts_later_is_explained_when_it_fails() -> None:
    model, batch = quiet("bert"), tiny_batch("bert")
    task = HFModelView(model)
    point = noise_of(task, batch).leaf()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(
        CheckpointingError, match="reentrant gradient checkpointing cannot be differentiated"
    ):
        task.gradient(task.bare_logits(batch, point).sum(), point)
    with pytest.raises(CheckpointingError, match="reentrant"):
        HFModelView(model)


def test_a_missing_sample_id_is_explained() -> None:
    with pytest.raises(
        KeyError,
        match=r"no 'sample_id'.*advreg\.Identified .* advreg\.IdCollator, or use Adversarial",
    ):
        HFModelView(quiet("bert")).sample_ids(tiny_batch("bert"))


# ---- dropout, flags, random states


def test_dropout_modes() -> None:
    model, batch = tiny("bert", dropout=0.3), tiny_batch("bert")
    task = HFModelView(model)
    with task.dropout("fresh"):
        assert not torch.equal(task.bare_logits(batch), task.bare_logits(batch))
    with task.dropout("shared"):
        first, second, third = (
            task.bare_logits(batch),
            task.logits(batch),
            task.averaged(batch, task.parameters()),
        )
    assert torch.equal(first, second)
    assert torch.equal(first, third)
    with task.dropout("off"):
        off = task.bare_logits(batch)
        assert torch.equal(off, task.bare_logits(batch))
    assert model.training
    assert torch.equal(off, model.eval()(**batch).logits)
    assert not torch.equal(first, off)
    model.train()
    assert not torch.equal(
        task.bare_logits(batch), task.bare_logits(batch)
    )  # nothing of "shared" or "off" is left


def test_shared_masks_are_new_ones_at_the_next_step() -> None:
    task, batch = HFModelView(tiny("bert", dropout=0.3)), tiny_batch("bert")
    found = []
    for _ in range(2):
        with task.dropout("shared"):
            found.append(task.bare_logits(batch))
    assert not torch.equal(*found)


def test_an_error_inside_leaves_no_dropout_mode_behind() -> None:
    task, batch = HFModelView(tiny("bert", dropout=0.3)), tiny_batch("bert")
    for mode in ("shared", "off"):
        with pytest.raises(ZeroDivisionError), task.dropout(mode):
            raise ZeroDivisionError
        assert task.model.training
        assert not torch.equal(task.bare_logits(batch), task.bare_logits(batch))


def test_evaluating_gives_mixed_training_flags_back() -> None:
    model = tiny("bart")
    model.get_encoder().eval()
    model.get_encoder().layers[0].train()
    flags = [module.training for module in model.modules()]
    task = HFModelView(model)
    with task.modes.evaluating():
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == flags
    with pytest.raises(ZeroDivisionError), task.modes.evaluating():
        raise ZeroDivisionError
    assert [module.training for module in model.modules()] == flags


@every_family
def test_reading_embeddings_leaves_no_trace(family: str) -> None:
    model, batch = tiny(family), tiny_batch(family)
    model.base_model.eval()
    task = HFModelView(model)

    def state() -> list[Any]:
        flags = [module.training for module in model.modules()]
        hooks = [len(module._forward_hooks) for module in model.modules()]
        return [
            torch.get_rng_state().tolist(),
            flags,
            hooks,
            [value.grad for value in model.parameters()],
        ]

    before = state()
    seen = task.streams.embeddings(batch)
    assert state() == before
    assert all(value.dim() == 3 and not value.requires_grad for value in seen.values())


def test_reading_embeddings_gives_back_the_random_numbers_that_a_model_draws() -> None:
    model, batch = quiet("bert"), tiny_batch("bert")
    model.classifier.register_forward_hook(
        lambda module, inputs, output: output + torch.rand_like(output)
    )
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    HFModelView(model).streams.embeddings(batch)
    assert torch.equal(torch.rand(()), expected)


def test_the_head_is_the_last_layer_and_never_the_embeddings() -> None:
    bert, roberta, gpt2 = quiet("bert"), quiet("roberta"), quiet("gpt2")
    assert HFModelView(bert).head() is bert.classifier
    assert HFModelView(roberta).head() is roberta.classifier.out_proj
    assert HFModelView(gpt2).head() is gpt2.score
    with pytest.raises(
        ValueError, match="spectral must be off for MarianMTModel: its head is tied"
    ):
        HFModelView(quiet("marian")).head()


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


def test_cross_entropy_of_half_precision_logits_is_taken_in_single() -> None:
    task, batch = HFModelView(quiet("bert")), tiny_batch("bert")
    logits = (8 * torch.randn(4, 3, generator=torch.Generator().manual_seed(0))).half()
    expected = F.cross_entropy(logits.double(), batch["labels"])
    assert float(task.prediction_head.loss(logits, batch["labels"])) == pytest.approx(
        float(expected), rel=1e-6
    )
