"""The perturbation: its size, its share of the loss, its age, and its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from advreg.lab.report.compare import Results
from advreg.lab.report.curves import logged
from advreg.lab.report.groups import RunGroup, split_by
from advreg.lab.report.page.parts import Part
from advreg.lab.report.pictures.figures import DASHED, Lines, Look, Series
from advreg.lab.report.sections.common import lines_of, looks_of, titled
from advreg.records.diagnostics import Histogram, MemoryHealth


def perturbation_parts(found: Results, task: str) -> list[Part]:
    """The perturbation over training on a task, and the cache at its end."""
    size, age = logged("delta_norm"), logged("cache_staleness")
    share, percent = "share of the penalty in the loss", "λ·penalty / loss, percent"
    filled, radii = (
        "how far the ball is filled, at the end",
        "‖δ‖ / ε, by the ball's norm and scope",
    )
    alike, cosine = "similarity to the neighbours borrowed from", "cosine of mean token embeddings"
    return [
        *lines_of(found, task, "size of the perturbation", "‖δ‖₂ per sample, mean", size, True),
        *lines_of(found, task, share, percent, penalty_share, True),
        *lines_of(found, task, "age of the cached perturbations", "epochs", age, True),
        *_histogram(found, task, filled, radii, lambda memory: memory.sizes),
        *_histogram(found, task, alike, cosine, lambda memory: memory.similarity),
    ]


def penalty_share(line: Mapping[str, Any]) -> float | None:
    """100 · (loss − task loss) / loss, where a penalty was logged."""
    if "penalty" not in line or not line.get("loss"):
        return None
    return 100 * (1 - float(line["task_loss"]) / float(line["loss"]))


def _histogram(
    found: Results,
    task: str,
    title: str,
    axis: str,
    take: Callable[[MemoryHealth], Sequence[Histogram]],
) -> list[Lines]:
    """Shares of the counts of all seeds, a line for each label and stream."""
    shown, series = looks_of(found, task), []
    for group in found.contest.on(task):
        series += _distributions(shown[group.label], _by_stream(group, take))
    title = titled(found, task, title)
    return [Lines(title=title, x=axis, y="percent", marks=series, zero=True)] if series else []


def _by_stream(
    group: RunGroup, take: Callable[[MemoryHealth], Sequence[Histogram]]
) -> dict[str, list[Histogram]]:
    """The histograms of all seeds."""
    memories = [run.memory for run in group.runs.values() if run.memory is not None]
    return split_by(lambda each: each.stream, chain(*map(take, memories)))


def _distributions(look: Look, streams: Mapping[str, Sequence[Histogram]]) -> list[Series]:
    """A line for each stream; of several, the first is solid."""
    if len(streams) == 1:
        return [_distribution(look, histograms) for histograms in streams.values()]
    return [
        _distribution(Look(f"{look.label}, {name}", look.colour, DASHED if number else ""), each)
        for number, (name, each) in enumerate(sorted(streams.items()))
    ]


def _distribution(look: Look, histograms: Sequence[Histogram]) -> Series:
    """The percentage of each bin over its middle."""
    counts = [sum(column) for column in zip(*(each.counts for each in histograms), strict=True)]
    low, high = histograms[0].low, histograms[0].high
    width, whole = (high - low) / len(counts), sum(counts) or 1
    places = [low + (place + 0.5) * width for place in range(len(counts))]
    return Series(look, places, [100 * count / whole for count in counts])
