"""What only a GPU can show: run with ``pytest -m gpu``."""

from __future__ import annotations

import copy
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from transformers import TrainerCallback, TrainingArguments

from advreg.core import ball
from advreg.core.ascent import Ascent
from advreg.core.ball import Ball
from advreg.core.divergence import divergence
from advreg.core.perturbation import Perturbation, scatter_real
from advreg.core.schedule import Clock
from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.hf.patches.compile_layers import compile_layers, compiled
from advreg.hf.patches.mask_sync import PADDED, padding_of
from advreg.hf.survey import survey, to_device
from advreg.hf.trainer import AdversarialTrainer
from advreg.hf.view.head import IGNORED, cross_entropy
from advreg.hf.view.inputs import SAMPLE_ID
from advreg.hf.view.view import HFModelView
from advreg.lab.kinds.architectures import build_translator
from advreg.lab.kinds.translation.decoding import Decoding, decode
from advreg.memory.cache import CacheDtype, PerturbationCache
from advreg.memory.tiers import Place, Tier
from advreg.methods import Step, create, registry
from observe import BadGradient, Weights
from tiny_models import tiny, tiny_batch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]

CUDA = torch.device("cuda")
OPTIONS = {"arch": {"cache_fraction": 0.5, "refresh_every": 2}}


def samples(model, count=24):
    drawn = [tiny_batch(model, batch=1, seed=seed, lengths=[6 + seed % 4]) for seed in range(count)]
    return [
        {name: value[0].tolist() for name, value in one.items() if name != "attention_mask"}
        for one in drawn
    ]


def collate(rows):
    width = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows])
    mask = torch.tensor(
        [[1] * len(row["input_ids"]) + [0] * (width - len(row["input_ids"])) for row in rows]
    )
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": torch.tensor([row["labels"] for row in rows]),
    }


def trainer(folder, name, **arguments):
    model = tiny("bert", dropout=0.1)
    fields = {
        "per_device_train_batch_size": 8, "logging_steps": 3, "report_to": "none", "disable_tqdm": True,
        "save_strategy": "epoch", "learning_rate": 1e-3, "num_train_epochs": 4,
    } | arguments  # fmt: skip
    settings = TrainingArguments(str(folder), **fields)
    return AdversarialTrainer(
        model=model, args=settings, train_dataset=samples(model), data_collator=collate,
        method=create(name, **OPTIONS.get(name, {})),
    )  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", list(registry))
def test_every_method_trains_on_the_gpu_in_every_precision(tmp_path, name, precision):
    run = trainer(tmp_path, name, **({} if precision == "fp32" else {precision: True}))
    before = copy.deepcopy(run.model.state_dict())
    run.train()
    logged = "loss" if name == "standard" else "task_loss"
    losses = [line[logged] for line in run.state.log_history if logged in line]
    assert all(torch.isfinite(torch.tensor(losses)))
    assert losses[-1] < losses[0]
    assert any(
        not torch.equal(value.cpu(), before[key].cpu())
        for key, value in run.model.state_dict().items()
    )


@pytest.mark.parametrize("name", list(registry))
def test_a_run_that_is_resumed_on_the_gpu_ends_where_it_would_have(tmp_path, name):
    whole = trainer(tmp_path / "whole", name)
    whole.train()
    again = trainer(tmp_path / "again", name)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[key]), key


@pytest.mark.parametrize("tier", get_args(Tier))
def test_arch_computes_on_the_gpu_what_it_computes_on_the_cpu(monkeypatch, tier):
    rand = torch.rand
    monkeypatch.setattr(
        torch, "rand", lambda *size, device, **kind: rand(*size, **kind).to(device)
    )  # one generator

    def by_token(draw: Any, values: Tensor, mask: Tensor) -> Tensor:
        return scatter_real(draw(int(mask.sum()), values.shape[-1]), mask)

    monkeypatch.setattr(ball, "_drawn", by_token)  # as on the CPU
    losses = {}
    for place in (torch.device("cpu"), CUDA):
        model = tiny("bert", dropout=0.0, dtype=torch.float64).to(place)
        task, data = HFModelView(model), samples(model, 8)
        method = create("arch", cache_fraction=0.5, refresh_every=2, cache_device=tier)
        method.memory.prepare(survey(task, data, collate), seed=0, device=place)
        assert method.memory.cache.device.type == place.type
        batch = to_device({**collate(data), "sample_id": torch.arange(8)}, place)
        torch.manual_seed(0)
        losses[place.type] = [
            float(method.step(task, batch, Step(Clock(epoch, epoch), lambda loss: None)).loss)
            for epoch in range(2)
        ]
    # the cache keeps float32 rows, hence not 1e-12
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-6)


def test_shared_masks_make_the_clean_and_the_unperturbed_pass_equal_on_the_gpu():
    model = tiny("bert", dropout=0.3).to(CUDA)
    task, batch = HFModelView(model), to_device(collate(samples(model, 8)), CUDA)
    with task.dropout("shared"):
        assert torch.equal(task.bare_logits(batch), task.bare_logits(batch, task.zeros(batch)))
    with task.dropout("fresh"):
        assert not torch.equal(task.bare_logits(batch), task.bare_logits(batch))


@pytest.mark.parametrize(
    "noise", [ball.uniform_noise, lambda values, mask: ball.normal_noise(values, mask, 0.5)]
)
def test_noise_drawn_on_the_gpu_follows_the_tokens_from_one_padding_side_to_the_other(noise):
    right = torch.tensor(
        [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]], dtype=torch.bool, device=CUDA
    )
    drawn = []
    for mask in (right, right.flip(1)):
        torch.manual_seed(3)
        zeros = Perturbation.zeros({"tokens": mask}, {"tokens": 64}, torch.float32)
        drawn.append(zeros.map(noise).values["tokens"])
        assert not drawn[-1][~mask].any()
        assert drawn[-1][mask].unique().numel() > 500  # no two tokens share their noise
    assert torch.equal(drawn[0][right], drawn[1][right.flip(1)])


@pytest.mark.parametrize("dtype", get_args(CacheDtype))
def test_every_tier_gives_the_gpu_the_same_bits_with_and_without_foresight(dtype, tmp_path):
    generator = torch.Generator().manual_seed(0)
    size, width, ball_ = 400, 96, Ball(1.0)
    lengths = torch.randint(1, 40, (size,), generator=generator)
    cached = torch.randperm(size, generator=generator)[:200]

    def like(ids):
        mask = torch.arange(40)[None] < lengths[ids][:, None]
        return {"tokens": mask.to(CUDA)}

    caches = [
        PerturbationCache(
            cached,
            size,
            {"tokens": lengths},
            {"tokens": width},
            dtype,
            Place(CUDA, tier, str(tmp_path)),
        )
        for tier in get_args(Tier)
    ]
    for epoch in range(3):
        for ids in torch.randperm(size, generator=generator).split(50):
            zeros = Perturbation.zeros(like(ids), {"tokens": width}, torch.float32)
            found = ball_.rescale(zeros.map(ball.uniform_noise))
            for cache in caches:
                cache.prefetch(ids)
                cache.write(ids.to(CUDA), found, 0.3, ball_, epoch)
        batches = torch.randperm(size, generator=generator).split(50)
        for now, following in zip(batches, [*batches[1:], None], strict=True):
            zeros = Perturbation.zeros(like(now), {"tokens": width}, torch.float32)
            reads = []
            for cache in caches:
                reads.append(cache.read(now.to(CUDA), zeros).values["tokens"])
                if following is not None and epoch > 0:
                    cache.prefetch(following)
                torch.randn(2000, 2000, device=CUDA).matmul(
                    torch.randn(2000, 2000, device=CUDA)
                )  # keep it busy
            assert reads[0].any()
            assert torch.equal(reads[0], reads[1])
            assert torch.equal(reads[0], reads[2])


def test_a_cache_outside_the_device_takes_no_memory_on_it_but_the_means():
    lengths = {"tokens": torch.full((20_000,), 32)}
    taken = {}
    for tier in get_args(Tier):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        cache = PerturbationCache(
            torch.arange(20_000), 20_000, lengths, {"tokens": 256}, "float16", Place(CUDA, tier)
        )
        taken[tier] = torch.cuda.memory_allocated() - before
        del cache
    rows, means = 20_000 * 32 * 256 * 2, 20_000 * 256 * 4
    assert taken["device"] > rows + means
    assert taken["host"] < 1.5 * means
    assert taken["disk"] < 1.5 * means


def test_a_beam_search_leaves_the_memory_it_took_to_others():
    model = tiny("marian").to(CUDA)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    decode(model, [[5 + row % 40, 5 + row // 40, 7, 0] for row in range(400)], Decoding(beam=8))
    assert torch.cuda.memory_reserved() < torch.cuda.max_memory_reserved()  # which else only grows


def cache_of_eight() -> PerturbationCache:
    return PerturbationCache(
        torch.arange(4), 8, {"encoder": torch.full((8,), 3)}, {"encoder": 2}, place=Place(CUDA)
    )


def like(length: int) -> Perturbation:
    mask = torch.ones(2, length, dtype=torch.bool, device=CUDA)
    return Perturbation({"encoder": torch.zeros(2, length, 2, device=CUDA)}, {"encoder": mask})


@pytest.mark.parametrize(
    "look", [PerturbationCache.settle, lambda cache: cache.find(torch.tensor([0, 1]), like(3))]
)
def test_a_wrong_batch_is_named_when_the_next_one_comes_or_the_state_is_saved(look):
    cache = cache_of_eight()
    cache.find(torch.tensor([0, 5]), like(4), at_once=False)
    with pytest.raises(ValueError, match="sample id 0 has 4 tokens in stream 'encoder', but had 3"):
        look(cache)
    look(cache)  # told once


def test_a_wrong_batch_is_named_at_once_where_it_would_be_written():
    with pytest.raises(IndexError, match="sample id 9 is not in the data"):
        cache_of_eight().find(torch.tensor([0, 9]), like(3))


def test_the_reuse_step_never_waits_for_the_gpu(tmp_path):
    run = trainer(tmp_path, "arch")
    run.train()
    task, method = run.task, run.method
    batch = to_device({**collate(samples(run.model)[:8]), SAMPLE_ID: torch.arange(8)}, CUDA)
    method.memory.read(task.sample_ids(batch), task.zeros(batch), 1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        method.memory.read(task.sample_ids(batch), task.zeros(batch), 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", ["kl", "symmetric_kl"])
def test_a_compiled_divergence_of_a_vocabulary_is_exact(kind):
    for clean, perturbed in logits_of_several_sizes():
        found = compiled(divergence)(clean, perturbed, kind, "classes", False)
        slopes = torch.autograd.grad(found.sum(), (clean, perturbed))
        exact = divergence(clean.double(), perturbed.double(), kind, "classes")
        assert torch.allclose(found.double(), exact, rtol=1e-4)
        for slope, expected in zip(
            slopes, torch.autograd.grad(exact.sum(), (clean, perturbed)), strict=True
        ):
            assert torch.allclose(slope.float(), expected.float(), rtol=2e-2, atol=1e-6)


@pytest.mark.parametrize("kind", ["kl", "symmetric_kl"])
def test_a_compiled_divergence_of_a_vocabulary_keeps_no_copy_of_the_logits(kind):
    for clean, perturbed in logits_of_several_sizes():
        size = clean.numel() * clean.element_size()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = compiled(divergence)(clean, perturbed, kind, "classes", False)
        kept, forward = (
            count() - before
            for count in (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated)
        )
        slopes = torch.autograd.grad(found.sum(), (clean, perturbed))
        backward = torch.cuda.max_memory_allocated() - before
        del slopes
    assert kept < 0.01 * size
    assert forward < 0.01 * size
    assert backward < 6.1 * size  # the two gradients, each with its float32 copy at most


def logits_of_several_sizes():
    torch.manual_seed(0)
    for rows in (512, 768, 640):  # the third finds graphs for any number of rows
        yield [
            torch.randn(rows, 10_000, device=CUDA, dtype=torch.bfloat16).requires_grad_()
            for _ in range(2)
        ]


def test_a_compiled_cross_entropy_of_a_vocabulary_is_exact():
    torch.manual_seed(0)
    for rows in (512, 768, 640):
        logits = torch.randn(rows, 10_000, device=CUDA, dtype=torch.bfloat16).requires_grad_()
        labels = torch.randint(10_000, (rows,), device=CUDA).masked_fill_(
            torch.rand(rows, device=CUDA) < 0.2, IGNORED
        )
        found = compiled(cross_entropy)(logits, labels, 0.1)
        (slope,) = torch.autograd.grad(found, logits)
        exact = cross_entropy(logits.double(), labels, 0.1)
        (expected,) = torch.autograd.grad(exact, logits)
        assert torch.allclose(found.double(), exact, rtol=1e-4)
        assert torch.allclose(slope.float(), expected.float(), rtol=2e-2, atol=1e-6)


def test_compiled_layers_train_a_translator_in_half_precision_as_it_trains_without():
    """Steps of SMART on batches of several shapes: the loss falls alike."""
    losses = {}
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = build_translator("transformer-small", 2000, dropout=0.0).to(CUDA)
        if is_compiled:
            compile_layers(model)
        task = HFModelView(
            model, label_smoothing=0.1, context=lambda: torch.autocast("cuda", torch.bfloat16)
        )
        method, optimizer = (
            create("smart", radius=0.1, ascent_steps=2),
            torch.optim.Adam(model.parameters(), 1e-3),
        )
        losses[is_compiled] = []
        for number in range(12):
            ids = torch.arange(3, 3 + 8 * (2 + number % 3), device=CUDA).view(8, -1)
            batch = {
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "labels": ids.flip(1),
            }
            losses[is_compiled].append(float(method.step(task, batch, Step(Clock(0, number))).loss))
            optimizer.step()
            optimizer.zero_grad()
    assert losses[True] == pytest.approx(losses[False], rel=2e-2)
    assert losses[True][-1] < 0.8 * losses[True][0]


class QuietAfter(TrainerCallback):
    """After some updates, what makes the host wait for the GPU is an error, until one more was
    made.
    """

    def __init__(self, updates):
        self.updates = updates

    def on_step_end(self, args, state, control, **kwargs):
        torch.cuda.set_sync_debug_mode("error" if state.global_step == self.updates else "default")


@pytest.mark.parametrize(
    "name", [name for name in registry if name != "standard"]
)  # the stock step waits
def test_no_update_waits_for_the_gpu(tmp_path, name):
    near = {
        "accelerator_config": {"non_blocking": True}
    }  # else a batch that is copied waits for all before it
    run = trainer(tmp_path, name, max_steps=6, logging_strategy="no", save_strategy="no", **near)
    run.add_callback(QuietAfter(4))  # ARCH has refreshed its cache
    try:
        run.train()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert run.state.global_step == 6


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("name", ["standard", "r3f", "smart", "freelb"])
def test_no_step_of_a_translator_waits_for_the_gpu(name, is_compiled):
    torch.manual_seed(0)
    model = build_translator("transformer-small", 2000, dropout=0.1).to(CUDA)
    if is_compiled:
        compile_layers(model)
    task = HFModelView(
        model, label_smoothing=0.1, context=lambda: torch.autocast("cuda", torch.bfloat16)
    )
    method = create(name)
    batches = [tiny_batch(model, seed=seed, lengths=[9 + seed, 5, 7]) for seed in range(3)]
    ready = [{**to_device(batch, CUDA), PADDED: padding_of(batch)} for batch in batches]
    for batch in ready * 2:  # compiled for any shape by then
        method.step(task, batch, Step(Clock(0, 0)))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in ready:
            method.step(task, batch, Step(Clock(0, 0)))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["smart", "freelb", "freeat"])
def test_an_ascent_that_is_not_finite_on_the_gpu_stops_the_run_before_it_reaches_a_weight(
    tmp_path, name, monkeypatch
):
    run, weights = trainer(tmp_path, name, logging_strategy="no", save_strategy="no"), Weights()
    direction = Ascent.direction

    def spoilt(ascent, gradient, ball):
        spoils = run.state.global_step == 2
        return direction(
            ascent, gradient.map(lambda values, _: values / 0) if spoils else gradient, ball
        )

    monkeypatch.setattr(Ascent, "direction", spoilt)
    run.add_callback(weights)
    with pytest.raises(NonFiniteLossError, match=r"step 2 \(epoch 0\), sample ids"):
        run.train()
    assert all(bool(torch.isfinite(value).all()) for value in run.model.parameters())
    if name != "freeat":  # which has made a finite update in that step
        assert all(
            torch.equal(value, weights.seen[1][name])
            for name, value in run.model.named_parameters()
        )


def test_a_gradient_that_is_not_finite_on_the_gpu_reaches_no_weight_and_is_named_by_its_step(
    tmp_path,
):
    run, weights = (
        trainer(tmp_path, "standard", logging_strategy="no", save_strategy="no"),
        Weights(),
    )
    for callback in (weights, BadGradient(3)):
        run.add_callback(callback)
    with pytest.raises(
        NonFiniteLossError,
        match=r"the gradient's norm is (inf|nan) at step 2 \(epoch 0\), sample ids",
    ):
        run.train()
    assert all(
        torch.equal(value, weights.seen[1][name]) for name, value in run.model.named_parameters()
    )
