"""The sketch curve on a tiny model, against gradients that are all kept; and the record it
writes.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import sketch_curve
import torch
from sketch_curve import (
    Settings,
    SketchRecord,
    Spread,
    Subject,
    gradient,
    kept,
    load,
    measure,
    row_bytes,
    train,
)
from torch import Tensor

from advreg.core.sketch import Drawn, Lumped
from tiny_models import IGNORED, REAL_TOKENS, tiny

SETTINGS = Settings(tokens=24, batches=6, repeats=40, weight=2.0, seed=0, sizes=(2, 4))


def subject() -> Subject:
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(*REAL_TOKENS, (4 + n % 5,), generator=draw).tolist() for n in range(20)]

    def collate(indices: Any) -> dict[str, Tensor]:
        width = max(len(rows[index]) for index in indices)
        ids = torch.tensor([rows[index] + [0] * (width - len(rows[index])) for index in indices])
        mask = torch.tensor(
            [[1] * len(rows[index]) + [0] * (width - len(rows[index])) for index in indices]
        )
        labels = ids.masked_fill(mask == 0, IGNORED)
        labels[:, 0] = IGNORED
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    counts = [len(row) - 1 for row in rows]
    return Subject("tiny", tiny("llama-lm"), collate, counts, learning_rate=1e-3)


def test_a_batch_has_the_tokens_asked_for_and_every_sample_comes_once_an_epoch() -> None:
    found = subject()
    batches = found.batches(24, 3)
    seen = [next(batches) for _ in range(8)]
    for batch in seen:
        assert int((batch["labels"] != IGNORED).sum()) >= 24
        logits, labels = found.predicted(found.model, batch, 24)
        assert len(logits) == len(labels) == 24
    again = found.batches(24, 3)
    assert all(torch.equal(batch["input_ids"], next(again)["input_ids"]) for batch in seen)


def test_predictions_are_those_of_the_tokens_they_are_for() -> None:
    found = subject()
    batch = found.collate([0, 3])
    logits, labels = found.predicted(found.model, batch, 1000)
    expected = []
    for row in range(2):
        length = int(batch["attention_mask"][row].sum())
        alone = found.model(input_ids=batch["input_ids"][row : row + 1, :length]).logits[0, :-1]
        expected.append((alone, batch["input_ids"][row, 1:length]))
    torch.testing.assert_close(logits, torch.cat([one for one, _ in expected]))
    assert torch.equal(labels, torch.cat([one for _, one in expected]))


def test_spread_is_mean_variance_bias_and_cosine_of_vectors_that_are_all_kept() -> None:
    torch.manual_seed(0)
    vectors, whole = torch.randn(7, 50) + 1, torch.randn(50)
    found = Spread(whole)
    for vector in vectors:
        found.add(vector)
    variance = float(vectors.var(0).sum())
    assert found.variance == pytest.approx(variance, rel=1e-5)
    assert found.bias == pytest.approx(
        math.sqrt(float((vectors.mean(0) - whole).square().sum()) - variance / 7), rel=1e-5
    )
    assert found.cosine == pytest.approx(
        float(torch.cosine_similarity(vectors, whole[None]).mean()), rel=1e-5
    )


@pytest.fixture(scope="module")
def measured() -> tuple[Subject, Any, sketch_curve.Curve]:
    torch.manual_seed(0)
    found = subject()
    earlier = train(found, 10, 10, 24, 0)
    return found, earlier, measure(found, earlier, SETTINGS, (10, 10))


def test_training_moves_the_model_on_from_the_copy_and_lowers_the_loss(measured: Any) -> None:
    found, earlier, _ = measured
    fresh = subject()
    batch = found.collate(list(range(20)))
    losses = [
        float(found.task_loss(*found.predicted(model, batch, 999)).detach())
        for model in (fresh.model, earlier, found.model)
    ]
    assert losses[0] > losses[1] > losses[2]


def test_a_curve_has_a_point_for_each_form_and_its_figures_hang_together(measured: Any) -> None:
    _, _, curve = measured
    assert [(one.sketch, one.top, one.draws) for one in curve.points] == [
        ("lumped", 2, 0), ("lumped", 4, 0),
        ("drawn", 2, 2), ("drawn", 2, 4), ("drawn", 4, 2), ("drawn", 4, 4),
    ]  # fmt: skip
    scale = 2.0**2 * curve.norm**2 / curve.batch_variance
    for one in curve.points:
        assert one.share == pytest.approx(one.variance * scale)
        assert one.bias_share == pytest.approx(one.bias**2 * scale)
        assert 0 < one.cosine < 1
    lumped, drawn = curve.points[:2], curve.points[2:]
    assert all(one.variance == 0 < one.bias for one in lumped)
    assert all(
        one.bias < 0.5 * math.sqrt(one.variance) for one in drawn
    )  # unbiased, up to the number of draws
    assert drawn[1].variance < drawn[0].variance
    assert lumped[1].bias < lumped[0].bias


def test_bias_variance_and_batch_variance_are_those_of_gradients_that_are_all_kept(
    measured: Any,
) -> None:
    found, earlier, curve = measured
    parameters = list(found.model.parameters())
    batches = found.batches(24, SETTINGS.seed + 1)
    every = [next(batches) for _ in range(6)]
    gradients, whole = [], torch.empty(0)
    for number, batch in enumerate(every):
        cached = found.predicted(earlier, batch, 24)[0].detach()
        logits, labels = found.predicted(found.model, batch, 24)
        q = cached.double().softmax(-1)
        kl = (q * (q.log() - logits.double().log_softmax(-1))).sum(-1).mean()
        if number == 0:
            whole = gradient(kl, parameters).double()
            assert curve.penalty == pytest.approx(float(kl.detach()), rel=1e-4)
            bucket = cached.double().softmax(-1).topk(4)
        loss = torch.nn.functional.cross_entropy(logits, labels) + 2.0 * kl
        gradients.append(gradient(loss, parameters).double())
    assert curve.norm == pytest.approx(float(whole.norm()), rel=1e-3)
    assert curve.batch_variance == pytest.approx(
        float(torch.stack(gradients).var(0).sum()), rel=1e-3
    )

    # the lumped sketch with k = 4, by its definition: five outcomes
    logits, _ = found.predicted(found.model, every[0], 24)
    p = logits.double().softmax(-1).gather(-1, bucket.indices)
    now = torch.cat([p, 1 - p.sum(-1, keepdim=True)], -1)
    then = torch.cat([bucket.values, 1 - bucket.values.sum(-1, keepdim=True)], -1)
    lumped = gradient((then * (then.log() - now.log())).sum(-1).mean(), parameters).double()
    point = curve.points[1]
    assert point.bias == pytest.approx(float((lumped - whole).norm() / whole.norm()), rel=1e-2)
    assert point.cosine == pytest.approx(
        float(torch.cosine_similarity(lumped, whole, dim=0)), abs=1e-3
    )


def test_draws_of_a_sketch_are_kept_as_the_cache_keeps_them() -> None:
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    parts = kept(Drawn(50, 4, 2), logits, torch.Generator().manual_seed(1))
    assert {name: part.dtype for name, part in parts.items()} == {
        "entries": torch.int16, "likeliest": torch.float16, "rest": torch.float16, "drawn": torch.int16,
        "entropy": torch.float16,
    }  # fmt: skip
    assert row_bytes(Drawn(50, 4, 2)) == 4 * 2 + 4 * 2 + 2 + 2 * 2 + 2
    assert row_bytes(Lumped(50, 8)) == 34


def test_the_command_writes_a_record_that_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sketch_curve.MODELS, "smollm2", lambda data, seed: subject())
    out = tmp_path / "sketch.json"
    words = f"sketch_curve.py --data {tmp_path} --out {out} --models smollm2 --updates 3 --tokens 24 --batches 2"
    monkeypatch.setattr("sys.argv", [*words.split(), "--repeats", "2", "--sizes", "2"])
    sketch_curve.main()
    record = load(out)
    assert isinstance(record, SketchRecord)
    assert record.environment["device"] == "cpu" or torch.cuda.is_available()
    assert record.environment["git"]["commit"]
    assert "smollm2" in record.environment["arguments"]
    assert (record.curves[0].updates, record.curves[0].later_updates, record.curves[0].seed) == (
        3,
        3,
        500,
    )
    assert json.loads(out.read_text())["kind"] == "sketch-curve"
    assert "drawn" in capsys.readouterr().out


def test_nothing_is_left_in_the_models_by_a_measurement(measured: Any) -> None:
    found, earlier, _ = measured
    before = copy.deepcopy(found.model.state_dict())
    measure(found, earlier, Settings(24, 2, 2, 1.0, 0, (2,)))
    assert all(torch.equal(value, found.model.state_dict()[name]) for name, value in before.items())
    assert all(value.grad is None for value in found.model.parameters())
