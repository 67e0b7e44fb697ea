"""Records of comparisons, made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advreg.records.compare import Candidate, Choice, ComparedRun, ComparedTask, CompareRecord
from advreg.records.run import MethodInfo, ModelInfo, Outcome, RunRecord, TaskInfo, TrainingInfo

Runs = dict[tuple[str, str, int], RunRecord]


def run_record(
    method: str,
    seed: int,
    metrics: Mapping[str, float | None],
    seconds: float = 1.0,
    norms: list[float] | None = None,
) -> RunRecord:
    """A finished run of 10 steps."""
    history = [
        {"step": step, "epoch": step / 5, "grad_norm": norm}
        for step, norm in enumerate(norms or [], start=1)
    ]
    return RunRecord(
        name=f"{method}-seed{seed}",
        method=MethodInfo(name=method),
        task=TaskInfo(name="reviews"),
        model=ModelInfo(name="small"),
        training=TrainingInfo(
            epochs=1, batch_size=8, learning_rate=1e-3, precision="fp32", seed=seed
        ),
        environment={},
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:01:00+00:00",
        outcome=Outcome(
            status="finished",
            metrics=dict(metrics),
            history=history,
            timing={"seconds_per_step": seconds / 10, "steps": 10.0},
        ),
    )


def comparison(
    tasks: Mapping[str, list[str]],
    methods: list[str],
    seeds: list[int],
    errors: Mapping[tuple[str, str, int], str] | None = None,
    tuning: Mapping[tuple[str, str], list[Candidate]] | None = None,
    **changes: Any,
) -> CompareRecord:
    """A comparison of tasks, each with its main metrics."""
    tuning, errors = tuning or {}, errors or {}
    fields: dict[str, Any] = {
        "status": "finished",
        "settings": {"methods": methods, "seeds": seeds, "model": "small"},
        "grid": {},
        "search": {"budget": 0},
        "reference": "arch",
        "tasks": [
            ComparedTask(name=name, title=f"{name} data", main_metrics=main, fingerprint="")
            for name, main in tasks.items()
        ],
        "choices": [
            Choice(
                task=task,
                method=method,
                grid_size=9,
                candidates=tuning.get((task, method), []),
                chosen=None,
            )
            for task in tasks
            for method in methods
        ],
        "runs": [
            ComparedRun(
                task=task,
                method=method,
                seed=seed,
                folder=f"{task}/{method}/seed-{seed}",
                error=errors.get((task, method, seed)),
            )
            for task in tasks
            for method in methods
            for seed in seeds
        ],
        "notes": [],
        "environment": {},
        "started": "2026-01-01T00:00:00+00:00",
        "finished": "2026-01-01T00:00:00+00:00",
    }
    return CompareRecord(**{**fields, **changes})


def candidate(
    seconds: float | None = None, score: float | None = 50.0, error: str | None = None
) -> Candidate:
    return Candidate(
        settings={"learning_rate": 1e-3, "radius": 0.5},
        seed=1000,
        folder="a/arch/candidate-0",
        score=score,
        seconds=seconds,
        error=error,
    )
