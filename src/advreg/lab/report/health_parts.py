"""What a report says of the perturbation: its size, its share, its age, whom it is borrowed
from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from advreg.lab.report.curves import Measure, logged
from advreg.lab.report.figures import (
    DASHED,
    Level,
    Lines,
    Look,
    Series,
    rounded,
)
from advreg.lab.report.groups import Contest
from advreg.lab.report.labels import method_name
from advreg.lab.report.parts import Heat, Part, Section
from advreg.lab.report.render import task_title
from advreg.lab.report.score_parts import label_looks
from advreg.lab.report.training_parts import always, line_figure, titled
from advreg.records.diagnostics import Histogram, MemoryHealth

_MOST_SENTENCES = 8


def health_parts(contest: Contest) -> list[Part]:
    """The perturbation over training, and the cache at its end."""
    found: list[Part | None] = []
    weights = _options(contest, "weight")
    for task in contest.results.tasks:
        found += [
            line_figure(
                contest,
                task,
                titled(contest, task, "size of the perturbation"),
                "‖δ‖₂ per sample, mean",
                always(logged("delta_norm")),
                _balls(contest, task),
                zero=True,
            ),
            line_figure(
                contest,
                task,
                titled(contest, task, "share of the penalty in the loss"),
                "λ·penalty / loss, percent",
                lambda label: _share(weights.get(label)),
                zero=True,
            ),
            line_figure(
                contest,
                task,
                titled(contest, task, "age of the cached perturbations"),
                "epochs",
                always(logged("cache_staleness")),
                zero=True,
            ),
            _histogram_figure(
                contest,
                task,
                titled(contest, task, "how far the ball is filled, at the end"),
                "‖δ‖ / ε, by the ball's norm and scope",
                lambda memory: memory.sizes,
            ),
            _histogram_figure(
                contest,
                task,
                titled(contest, task, "similarity to the neighbours borrowed from"),
                "cosine of mean token embeddings",
                lambda memory: memory.similarity,
            ),
        ]
    return [part for part in found if part is not None]


def _options(contest: Contest, name: str) -> dict[str, Any]:
    """An option of each label's method, where it has it."""
    return {
        label: run.record.method.settings[name]
        for (_, label, _), run in contest.runs.items()
        if name in run.record.method.settings
    }


def _share(weight: Any) -> Measure:
    """100 · λ · penalty / (task loss + λ · penalty)."""

    def measure(line: Mapping[str, Any]) -> float | None:
        penalty, task_loss = line.get("penalty"), line.get("task_loss")
        if penalty is None or task_loss is None or not isinstance(weight, int | float):
            return None
        whole = task_loss + weight * penalty
        return 100 * weight * penalty / whole if whole > 0 else None

    return measure


def _balls(contest: Contest, task: str) -> list[Level]:
    """ε of each method whose ball is one that ‖δ‖₂ of a sample can be compared with: l2, per
    sample, one stream.
    """
    shown, found = label_looks(contest), dict[float, Level]()
    for label, runs in contest.of(task).items():
        options, details = runs[0].record.method.settings, runs[0].record.task.details
        radius = options.get("radius")
        comparable = (
            options.get("norm") == "l2"
            and options.get("scope") == "sample"
            and "languages" not in details
        )
        if comparable and isinstance(radius, int | float):
            look = Look(f"ε = {radius:g}", contest.methods[label], shown[label].colour, DASHED)
            found.setdefault(float(radius), Level(look, float(radius)))
    return list(found.values())


def _histogram_figure(
    contest: Contest,
    task: str,
    title: str,
    axis: str,
    take: Callable[[MemoryHealth], Sequence[Histogram]],
) -> Lines | None:
    """Shares of all seeds' counts, a line for each label and stream."""
    shown, series = label_looks(contest), []
    for label, runs in contest.of(task).items():
        memories = [
            run.health.memory
            for run in runs
            if run.health is not None and run.health.memory is not None
        ]
        taken = [histogram for memory in memories for histogram in take(memory)]
        streams = list(dict.fromkeys(histogram.stream for histogram in taken))
        for stream in streams:
            mine = [histogram for histogram in taken if histogram.stream == stream]
            look = shown[label]
            if len(streams) > 1:
                dash = DASHED if stream != streams[0] else ""
                look = Look(f"{look.label}, {stream}", look.method, look.colour, dash)
            series.append(_histogram_series(look, mine))
    series = [each for each in series if each.x]
    return (
        Lines(title=title, x=axis, y="percent", series=series, steps=True, zero=True)
        if series
        else None
    )


def _histogram_series(look: Look, histograms: Sequence[Histogram]) -> Series:
    counts = [
        sum(column) for column in zip(*(histogram.counts for histogram in histograms), strict=True)
    ]
    total = sum(counts)
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return Series(look, [], [])
    low, high = histograms[0].low, histograms[0].high
    first, last = max(filled[0] - 1, 0), min(filled[-1] + 1, len(counts) - 1)
    width = (high - low) / len(counts)
    places = [rounded(low + place * width) for place in range(first, last + 2)]
    shares = [rounded(100 * counts[place] / total) for place in range(first, last + 1)]
    return Series(look, places, [*shares, shares[-1]])


def token_section(groups: Sequence[Contest]) -> Section:
    """A few cached sentences of each label, token by token."""
    parts = []
    for contest in groups:
        for task in contest.results.tasks:
            for label, runs in contest.of(task).items():
                memory = next(
                    (run.health.memory for run in runs if run.health and run.health.memory), None
                )
                named = [entry for entry in (memory.tokens if memory else []) if entry.tokens]
                if named:
                    where = f"{task_title(contest.results, task)}, {method_name(label)}"
                    parts.append(
                        Heat(
                            f"{where}, seed {runs[0].record.training.seed}", named[:_MOST_SENTENCES]
                        )
                    )
    intro = "Where the perturbation is strongest, in a few cached sentences of the training data."
    return Section("tokens", "Token by token", intro, parts)
