from __future__ import annotations

import pytest
import torch

from advreg.core.schedule import Clock
from advreg.hf.view.inputs import SAMPLE_ID
from advreg.hf.view.view import HFModelView
from advreg.lab.bench.settings import BenchSettings, Shape
from advreg.lab.bench.workload import Workload, draw_lengths, prepare
from advreg.methods import Arch, Step, Temporal
from tiny_models import tiny

CPU = torch.device("cpu")


def drawn(family: str = "bert", shape: str = "4x8", **settings: object) -> Workload:
    chosen = BenchSettings(**({"shapes": (shape,), "samples": 40, "device": "cpu"} | settings))  # type: ignore[arg-type]
    return Workload.draw(HFModelView(tiny(family)), Shape.parse(shape), chosen)


def test_every_sample_is_in_one_batch_at_most_and_batches_have_the_shape() -> None:
    load = drawn(batches=64)
    ids = torch.cat([batch[SAMPLE_ID] for batch in load.batches])
    assert sorted(ids.tolist()) == list(range(40))
    assert {tuple(batch["input_ids"].shape) for batch in load.batches} == {(4, 8)}
    assert all(bool((batch["attention_mask"] == 1).all()) for batch in load.batches)


def test_no_more_batches_are_made_than_asked_for() -> None:
    assert len(drawn(batches=3).batches) == 3


def test_the_ids_on_the_host_are_those_of_the_batches() -> None:
    load = drawn()
    for ids, batch in zip(load.ids, load.batches, strict=True):
        assert torch.equal(ids, batch[SAMPLE_ID].cpu())


@pytest.mark.parametrize("padding", [0.0, 0.25, 0.5, 0.8])
def test_the_share_of_padding_is_the_one_asked_for(padding: float) -> None:
    lengths = draw_lengths(20_000, 100, padding, torch.Generator().manual_seed(0))
    assert float(1 - lengths.float().mean() / 100) == pytest.approx(padding, abs=0.01)
    assert 1 <= int(lengths.min()) <= int(lengths.max()) <= 100


@pytest.mark.parametrize("family", ["bert", "marian", "bart", "gpt2-lm"])
def test_a_batch_has_the_lengths_the_corpus_says(family: str) -> None:
    load = drawn(family, padding=0.4)
    for ids, batch in zip(load.ids, load.batches, strict=True):
        for stream, mask in load.task.masks(batch).items():
            assert torch.equal(mask.sum(1), load.corpus.lengths[stream][ids])


def test_the_cache_is_full_of_perturbations_inside_the_ball_before_the_first_step() -> None:
    load = drawn(padding=0.3)
    method = Arch(radius=0.7, cache_fraction=0.5)
    prepare(method, load, 0, CPU)
    cached = method.memory.cache.ids
    assert len(cached) == 20
    for ids, batch in zip(load.ids, load.batches, strict=True):
        delta = method.memory.cache.read(ids, load.task.zeros(batch))
        known = torch.isin(ids, cached)
        assert torch.allclose(delta.sentence_norm()[known], torch.tensor(0.7))
        assert bool((delta.sentence_norm()[~known] == 0).all())


def test_more_tokens_than_positions_are_refused() -> None:
    with pytest.raises(
        ValueError, match="shape 2x1000 has too many tokens: the model takes at most"
    ):
        drawn(shape="2x1000")


@pytest.mark.parametrize("family", ["bert", "marian", "gpt2-lm"])
def test_a_cache_of_predictions_fits_the_batches(family: str) -> None:
    load = drawn(family, padding=0.4)
    method = Temporal(sketch="whole")
    method.memory.prepare(load.corpus, 0, CPU)
    reports = [
        method.step(load.task, batch, Step(Clock(epoch, 0)))
        for epoch in range(2)
        for batch in load.batches
    ]
    assert all(
        float(report.measures["cache_hits"]) == (at >= len(load.batches))
        for at, report in enumerate(reports)
    )
