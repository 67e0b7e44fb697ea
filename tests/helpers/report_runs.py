"""Records of runs in folders, made up, for reports to be drawn from."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from advreg.lab.report.gather import gather
from advreg.lab.report.page.parts import Folded, Part, Section
from advreg.lab.report.pictures.figures import Lines
from advreg.lab.report.sections.contents import sections
from advreg.records.diagnostics import HealthRecord, Histogram, MemoryHealth, TokenNorms
from advreg.records.run import MethodInfo, ModelInfo, RunRecord, TaskInfo, TrainingInfo

P = TypeVar("P", bound=Part)

ASCENT = {"weight": 1.0, "radius": 0.3, "step_size": 0.3, "norm": "l2", "scope": "sample"}


def history(method: str, seed: int, count: int = 20, weight: float = 1.0) -> list[dict[str, Any]]:
    """A falling loss, a penalty, norms, and an evaluation at the end."""
    lines: list[dict[str, Any]] = []
    for step in range(1, count + 1):
        task_loss = 2 * math.exp(-step / count) + 0.01 * seed
        line = {
            "step": step,
            "epoch": step / 5,
            "task_loss": task_loss,
            "grad_norm": 1 + math.sin(step + seed) / 2,
        }
        if method != "standard":
            line |= {"penalty": task_loss / 4, "delta_norm": 0.3 * step / count}
            line["loss"] = task_loss * (1 + weight / 4)
        if method == "arch":
            line["cache_staleness"] = float(step // 5 % 2)
        lines.append(line)
    return [*lines, {"step": count, "epoch": count / 5, "eval_accuracy": 0.8, "eval_loss": 0.5}]


def made_up(
    method: str = "arch",
    seed: int = 0,
    accuracy: float = 0.8,
    *,
    task: str = "reviews",
    settings: Mapping[str, Any] | None = None,
    seconds: float = 2.0,
    model: str = "small",
    metrics: Mapping[str, float] | None = None,
    details: Mapping[str, Any] | None = None,
    fingerprint: str = "f00d",
    **training: Any,
) -> RunRecord:
    """A finished run of 20 steps."""
    options = {} if method == "standard" else {**ASCENT, **(settings or {})}
    fields: dict[str, Any] = {
        "epochs": 4,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "precision": "fp32",
        "seed": seed,
    }
    record = RunRecord(
        name=f"{method}-seed{seed}",
        method=MethodInfo(name=method, settings=options),
        task=TaskInfo(
            name=task,
            fingerprint=fingerprint,
            sizes={"train": 40, "dev": 8},
            details=dict(details or {}),
        ),
        model=ModelInfo(name=model, parameters=1000),
        training=TrainingInfo(**fields | training),
        environment={
            "advreg": "0.1.0",
            "git": {"of": "advreg", "commit": "c0ffee" * 6, "dirty": False},
            "python": "3.11.7",
            "packages": {"torch": "2.13.0", "transformers": "5.22.2"},
            "platform": "Linux x86_64",
            "device": "cpu",
        },
        started="2026-01-01T00:00:00+00:00",
    )
    done = record.finish(
        metrics=metrics or {"accuracy": accuracy, "loss": 0.5},
        history=history(method, seed),
        timing={"seconds_per_step": seconds / 20, "steps": 20.0},
        passes={"forward": 2.0, "backward": 1.0},
        cache_bytes=4096 if method == "arch" else 0,
    )
    return dataclasses.replace(done, finished="2026-01-01T00:00:10+00:00")


def health(tokens: list[str] | None = None) -> HealthRecord:
    """That of a small cache."""
    words = tokens or ["[CLS]", "a", "fine", "film", "[SEP]"]
    norms = [0.3 * (place + 1) / len(words) for place in range(len(words))]
    return HealthRecord(
        memory=MemoryHealth(
            sizes=[
                Histogram(stream="tokens", low=0.0, high=1.0, counts=[0] * 35 + [1, 1, 2, 2, 4])
            ],
            written={"2": 10},
            similarity=[
                Histogram(
                    stream="tokens", low=-1.0, high=1.0, counts=[0] * 25 + [3, 9, 6, 2] + [0] * 11
                )
            ],
            tokens=[TokenNorms(sample=3, stream="tokens", norms=norms, tokens=words)],
        )
    )


def save(folder: Path, record: RunRecord, healthy: HealthRecord | None = None) -> Path:
    """Write a run's files to its folder."""
    record.save(folder / "record.json")
    if healthy is not None:
        healthy.save(folder)
    return folder


def sections_of(folder: Path) -> dict[str, Section]:
    """What a report says of the records in a folder, by the section's key."""
    return {section.key: section for section in sections(gather([folder]))}


def reported(folder: Path, records: Sequence[RunRecord]) -> dict[str, Section]:
    """What a report says of these runs."""
    for number, record in enumerate(records):
        save(
            folder / f"run-{number:02}", record, health() if record.method.name == "arch" else None
        )
    return sections_of(folder)


def parts_of(section: Section, kind: type[P]) -> list[P]:
    """The parts of one kind, folded ones too."""
    parts: list[Part] = []
    for part in section.parts:
        parts += [part, *(part.parts if isinstance(part, Folded) else ())]
    return [part for part in parts if isinstance(part, kind)]


def lines_titled(section: Section, title: str) -> Lines:
    """The one picture of this title."""
    (found,) = (part for part in parts_of(section, Lines) if part.title == title)
    return found


FOUR = [
    made_up(method, seed, 0.7 + seed / 10) for method in ("standard", "arch") for seed in (0, 1)
]
