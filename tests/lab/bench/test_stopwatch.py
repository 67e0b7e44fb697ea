from __future__ import annotations

from typing import Any

import pytest
import torch

from advreg.lab.bench import stopwatch
from advreg.lab.bench.stopwatch import TrainerJob, laps_of
from advreg.methods import R3F, Method, Standard, create
from tiny_models import tiny, tiny_batch


def samples(count: int) -> list[dict[str, torch.Tensor]]:
    batch = tiny_batch("bert", lengths=[6] * count)
    return [{name: value[row] for name, value in batch.items()} for row in range(count)]


def job(method: Method | None = None, **changes: Any) -> TrainerJob:
    return TrainerJob(
        **(
            {
                "model": tiny("bert"),
                "samples": samples(12),
                "batch": 2,
                "cpu": True,
                "method": method,
            }
            | changes
        )
    )


@pytest.mark.parametrize(
    "method", [None, Standard(), create("arch", cache_fraction=0.5, refresh_every=2)]
)
def test_each_epoch_has_its_time(method: Method | None) -> None:
    laps = laps_of(job(method, epochs=2), warmup=2, steps=3)
    assert len(laps) == 2
    assert all(lap.milliseconds > 0 and lap.peak_bytes is None for lap in laps)


def test_the_steps_after_the_warm_up_are_timed_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    ticks = iter(
        [100.0, 100.0, 1.0, 2.0, 3.0, 100.0] * 2
    )  # seconds of each step; 6 batches, 2 epochs
    whole = R3F.objective

    def objective(self: Any, *args: Any) -> Any:
        nonlocal now
        now += next(ticks)
        return whole(self, *args)

    monkeypatch.setattr(R3F, "objective", objective)
    monkeypatch.setattr(stopwatch, "_now", lambda device: now)
    laps = laps_of(job(R3F(), epochs=2), warmup=2, steps=3)
    assert [lap.milliseconds for lap in laps] == pytest.approx([2000.0, 2000.0])


def test_arch_refreshes_in_the_first_epoch_and_reuses_in_the_second() -> None:
    arch = create("arch", cache_fraction=1.0, refresh_every=2, ascent_steps=2)
    seen: list[int] = []
    model = tiny("bert")
    model.register_forward_hook(lambda *_: seen.append(1))
    laps_of(job(arch, model=model, epochs=2), warmup=0, steps=6)
    # per refresh step: clean, two ascents, perturbed; per reuse step: one fused pass; and a look at
    # the embeddings
    assert len(seen) - (6 * 4 + 6) in (0, 1)


@pytest.mark.parametrize("method", [None, Standard()])
def test_every_training_of_a_model_runs_in_the_precision_asked_for(method: Method | None) -> None:
    one = job(method, precision="bf16")
    before = set(vars(one.model))
    for _ in range(2):
        seen: set[torch.dtype] = set()
        layer = one.model.bert.encoder.layer[0].output.dense
        handle = layer.register_forward_hook(
            lambda module, inputs, output, seen=seen: seen.add(output.dtype)
        )
        laps_of(one, warmup=0, steps=1)
        handle.remove()
        assert seen == {torch.bfloat16}
        assert set(vars(one.model)) == before


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"samples must fill 5 \+ 2 batches of 2 samples, got 12 samples"
    ):
        laps_of(job(), warmup=5, steps=2)
