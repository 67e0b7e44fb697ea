"""What only a GPU can show: run with ``pytest -m gpu``."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import TrainingArguments

from advreg.core.schedule import Clock
from advreg.hf.survey import survey, to_device
from advreg.hf.task import ModelTask
from advreg.hf.trainer import AdversarialTrainer
from advreg.methods import create, registry
from tiny_models import tiny, tiny_batch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

CUDA = torch.device("cuda")
OPTIONS = {"arch": {"cache_fraction": 0.5, "refresh_every": 2}}


def samples(model, count=24):
    drawn = [tiny_batch(model, batch=1, seed=seed, lengths=[6 + seed % 4]) for seed in range(count)]
    return [{name: value[0].tolist() for name, value in one.items() if name != "attention_mask"} for one in drawn]


def collate(rows):
    width = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (width - len(row["input_ids"])) for row in rows])
    mask = torch.tensor([[1] * len(row["input_ids"]) + [0] * (width - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([row["labels"] for row in rows])}


def trainer(folder, name, **arguments):
    model = tiny("bert", dropout=0.1)
    settings = TrainingArguments(
        str(folder), per_device_train_batch_size=8, logging_steps=3, report_to="none", disable_tqdm=True,
        save_strategy="epoch", learning_rate=1e-3, num_train_epochs=4, **arguments,
    )  # fmt: skip
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
    losses = [line["task_loss"] for line in run.state.log_history if "task_loss" in line]
    assert all(torch.isfinite(torch.tensor(losses)))
    assert losses[-1] < losses[0]
    assert any(not torch.equal(value.cpu(), before[key].cpu()) for key, value in run.model.state_dict().items())


@pytest.mark.parametrize("name", list(registry))
def test_a_run_that_is_resumed_on_the_gpu_ends_where_it_would_have(tmp_path, name):
    whole = trainer(tmp_path / "whole", name)
    whole.train()
    again = trainer(tmp_path / "again", name)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-6"))
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[key]), key


@pytest.mark.parametrize("device", ["model", "host"])
def test_arch_computes_on_the_gpu_what_it_computes_on_the_cpu(monkeypatch, device):
    draw = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *size, device, **kind: draw(*size, **kind).to(device))  # one generator
    losses = {}
    for place in (torch.device("cpu"), CUDA):
        model = tiny("bert", dropout=0.0, dtype=torch.float64).to(place)
        task, data = ModelTask(model), samples(model, 8)
        method = create("arch", cache_fraction=0.5, refresh_every=2, cache_device=device)
        method.prepare(survey(task, data, collate), seed=0, device=place)
        assert method.cache.device.type == (place.type if device == "model" else "cpu")
        batch = to_device({**collate(data), "sample_id": torch.arange(8)}, place)
        torch.manual_seed(0)
        losses[place.type] = [
            float(method.step(task, batch, Clock(epoch, epoch), lambda loss: None).loss) for epoch in range(2)
        ]
    # the cache keeps float32 rows, hence not 1e-12
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-6)


def test_shared_masks_make_the_clean_and_the_unperturbed_pass_equal_on_the_gpu():
    model = tiny("bert", dropout=0.3).to(CUDA)
    task, batch = ModelTask(model), to_device(collate(samples(model, 8)), CUDA)
    with task.dropout("shared"):
        assert torch.equal(task.peek(batch), task.peek(batch, task.zeros(batch)))
    with task.dropout("fresh"):
        assert not torch.equal(task.peek(batch), task.peek(batch))
