"""Records of studies, made up."""

from __future__ import annotations

from advreg.records.compare import ComparedTask
from advreg.records.study import Panel, StudiedPoint, StudiedRun, StudiedVariant, StudyRecord

Scores = list[float | None]


def variant(name: str, scores: Scores) -> StudiedVariant:
    method, _, point = name.partition("/")
    option, _, value = point.partition("=")
    runs = [
        StudiedRun(
            seed=seed,
            folder=f"{name}/seed-{seed}",
            score=score,
            seconds=2.0 if score is not None else None,
            error=None if score is not None else "NonFiniteLossError: nan",
        )
        for seed, score in enumerate(scores)
    ]
    return StudiedVariant(
        name=name, method=method, changes={option: value} if value else {}, runs=runs
    )


def study_record(usual: Scores, other: Scores, smart: Scores) -> StudyRecord:
    """One panel with the default point and another, beside SMART."""
    return StudyRecord(
        status="finished",
        method="arch",
        seeds=list(range(len(usual))),
        task=ComparedTask(
            name="rte",
            title="rte",
            main_metrics=["accuracy"],
            fingerprint="",
            settings={"model": "…/tiny"},
        ),
        panels=[
            Panel(
                name="refresh",
                title="T_c, epochs",
                points=[
                    StudiedPoint(label="15", variant="arch/default"),
                    StudiedPoint(label="once", variant="arch/refresh_every=none"),
                ],
            )
        ],
        baselines=["smart/default"],
        variants=[
            variant("smart/default", smart),
            variant("arch/default", usual),
            variant("arch/refresh_every=none", other),
        ],
        notes=["a note"],
        environment={},
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:00:00+00:00",
    )
