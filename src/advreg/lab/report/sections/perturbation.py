"""The perturbation: its size, its share of the loss, its age, and its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from advreg.lab.kinds.registry import kind_of
from advreg.lab.report.compare import Results
from advreg.lab.report.curves import Measure, logged
from advreg.lab.report.groups import RunGroup
from advreg.lab.report.labels import method_name
from advreg.lab.report.page.parts import Heat, Part, Section
from advreg.lab.report.pictures.figures import DASHED, Level, Lines, Look, Series
from advreg.lab.report.score_tables import task_title
from advreg.lab.report.sections.common import lines_of, looks_of, titled
from advreg.records.diagnostics import Histogram, MemoryHealth, TokenNorms

_MOST_SENTENCES = 8


def perturbation_parts(found: Results, task: str) -> list[Part]:
    """The perturbation over training on a task, and the cache at its end."""
    size, age = logged("delta_norm"), logged("cache_staleness")
    share = {label: _share(_weight(found, label)) for label in found.methods}
    levels = _balls(found, task)
    return [
        *lines_of(
            found, task, "size of the perturbation", "‖δ‖₂ per sample, mean", size, levels, True
        ),
        *lines_of(
            found, task, "share of the penalty in the loss", "λ·penalty / loss, percent", share,
            zero=True,
        ),
        *lines_of(found, task, "age of the cached perturbations", "epochs", age, zero=True),
        *_histogram(
            found, task, "how far the ball is filled, at the end",
            "‖δ‖ / ε, by the ball's norm and scope", lambda memory: memory.sizes,
        ),
        *_histogram(
            found, task, "similarity to the neighbours borrowed from",
            "cosine of mean token embeddings", lambda memory: memory.similarity,
        ),
    ]  # fmt: skip


def _weight(found: Results, label: str) -> Any:
    settings = [run.record.method.settings for run in found.contest.labelled(label)]
    return settings[0].get("weight") if settings else None


def _share(weight: Any) -> Measure:
    """100 · λ · penalty / (task loss + λ · penalty)."""

    def measure(line: Mapping[str, Any]) -> float | None:
        penalty, task_loss = line.get("penalty"), line.get("task_loss")
        if penalty is None or task_loss is None or not isinstance(weight, int | float):
            return None
        whole = task_loss + weight * penalty
        return 100 * weight * penalty / whole if whole > 0 else None

    return measure


def _balls(found: Results, task: str) -> list[Level]:
    """ε of each method whose ball compares with ‖δ‖₂ of a sample: l2, per sample, one stream."""
    shown, levels = looks_of(found, task), dict[float, Level]()
    for group in found.contest.on(task):
        record = group.records[0]
        options = record.method.settings
        radius, ball = options.get("radius"), (options.get("norm"), options.get("scope"))
        comparable = ball == ("l2", "sample") and kind_of(record.task).streams == 1
        if comparable and isinstance(radius, int | float):
            look = Look(f"ε = {radius:g}", shown[group.label].colour, DASHED)
            levels.setdefault(float(radius), Level(look, float(radius)))
    return list(levels.values())


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
        healths = [run.health for run in group.runs.values() if run.health is not None]
        taken = [each for health in healths if health.memory for each in take(health.memory)]
        streams = groupby(sorted(taken, key=_stream), key=_stream)
        for number, (stream, histograms) in enumerate(streams):
            look = shown[group.label]
            if len(set(map(_stream, taken))) > 1:
                look = Look(f"{look.label}, {stream}", look.colour, DASHED if number else "")
            series += _bins(look, list(histograms))
    figure = Lines(
        title=titled(found, task, title), x=axis, y="percent", series=series, steps=True, zero=True
    )
    return [figure] if series else []


def _stream(histogram: Histogram) -> str:
    return histogram.stream


def _bins(look: Look, histograms: Sequence[Histogram]) -> list[Series]:
    """The filled bins and one on each side."""
    counts = [sum(column) for column in zip(*(each.counts for each in histograms), strict=True)]
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return []
    low, width = histograms[0].low, (histograms[0].high - histograms[0].low) / len(counts)
    first, last = max(filled[0] - 1, 0), min(filled[-1] + 1, len(counts) - 1)
    places = [low + place * width for place in range(first, last + 2)]
    shares = [100 * count / sum(counts) for count in counts[first : last + 1]]
    return [Series(look, places, [*shares, shares[-1]])]


def token_section(contests: Sequence[Results]) -> Section:
    """A few cached sentences of each label, token by token."""
    parts = []
    for found in contests:
        for group in found.contest.groups:
            where = f"{task_title(found, group.task)}, {method_name(group.label)}"
            for seed, sentences in list(_sentences(group))[:1]:
                parts.append(Heat(f"{where}, seed {seed}", sentences))
    intro = "Where the perturbation is strongest, in a few cached sentences of the training data."
    return Section("tokens", "Token by token", intro, parts)


def _sentences(group: RunGroup) -> Iterator[tuple[int, list[TokenNorms]]]:
    """Sentences with their tokens, by seed."""
    for seed, run in group.runs.items():
        memory = run.health.memory if run.health is not None else None
        named = [entry for entry in memory.tokens if entry.tokens] if memory is not None else []
        if named:
            yield seed, named[:_MOST_SENTENCES]
