"""What a report says of studies of one option, and of probing."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from advreg.report.compare import STANDARD
from advreg.report.contests import Contest, Study, studies
from advreg.report.figures import (
    DASHED,
    DOTTED,
    Level,
    Lines,
    Look,
    Rows,
    Series,
    looks,
    rounded,
    violin_of,
)
from advreg.report.gather import Gathered
from advreg.report.parts import Part, Section
from advreg.report.render import Sheet, task_title
from advreg.report.student import Spread
from advreg.report.words import NOTHING, method_name, value_text


def study_parts(contest: Contest) -> list[Part]:
    """A picture for each option that varies."""
    return [_study_figure(contest, study) for study in studies(contest)]


def _study_figure(contest: Contest, study: Study) -> Lines:
    labels = [line.label for line in study.lines]
    lines = looks(labels, [study.method] * len(labels), labels)
    values = list(dict.fromkeys(value for line in study.lines for value in line.scores))
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    numeric = len(numbers) == len(values)
    places = {value: float(value) if numeric else float(place) for place, value in enumerate(values)}
    references = looks(list(study.references), list(study.references), list(map(method_name, study.references)))
    dashes = {"smart": DASHED, STANDARD: DOTTED}
    return Lines(
        title=_study_title(contest, study),
        x=study.option,
        y="score on dev, percent",
        series=[_study_series(lines[line.label], line.scores, places) for line in study.lines],
        levels=[
            Level(_with_dash(references[name], dashes[name]), rounded(statistics.fmean(scores)))
            for name, scores in study.references.items()
        ],
        reach="bars",
        ticks=() if numeric else [value_text(value) for value in values],
        logarithmic=numeric and min(numbers) > 0 and max(numbers) / min(numbers) > 20,
    )


def _study_title(contest: Contest, study: Study) -> str:
    together = f" (with {', '.join(study.with_it)})" if study.with_it else ""
    return f"{task_title(contest.results, study.task)}: {study.option}{together} of {method_name(study.method)}"


def _with_dash(look: Look, dash: str) -> Look:
    return Look(look.label, look.method, look.colour, dash)


def _study_series(look: Look, scores: Mapping[Any, Sequence[float]], places: Mapping[Any, float]) -> Series:
    spreads = {value: Spread.of(each) for value, each in scores.items()}
    known = {value: spread for value, spread in spreads.items() if spread is not None}
    reach = {value: spread.deviation or 0.0 for value, spread in known.items()}
    return Series(
        look,
        [places[value] for value in known],
        [rounded(spread.mean) for spread in known.values()],
        [rounded(spread.mean - reach[value]) for value, spread in known.items()],
        [rounded(spread.mean + reach[value]) for value, spread in known.items()],
    )


# ---- probing


def probing_section(found: Gathered) -> Section:
    """Violins of the heads' scores, and a table of their means."""
    parts: list[Part] = []
    for record in found.probes:
        by_task: dict[str, dict[str, list[float]]] = {}
        for result in record.results:
            by_task.setdefault(result.task, {}).setdefault(result.label, []).extend(result.scores)
        labels = list(dict.fromkeys(result.label for result in record.results))
        shown = looks(labels, labels, list(map(method_name, labels)))
        rows = [
            [method_name(label), *(_spread_text(scores.get(label, [])) for scores in by_task.values())]
            for label in labels
        ]
        sources = sorted({result.trained_on for result in record.results if result.trained_on is not None})
        after = f" after training on {', '.join(sources)}" if sources else ""
        parts.append(Sheet(f"Score in percent, mean ± sd over heads; encoders frozen{after}.", ["", *by_task], rows))
        told = {"value": "median", "interval": "quartiles", "dots": "heads"}
        parts += [
            Rows(
                title=task,
                x="score of the heads, percent",
                rows=[violin_of(shown[label], values) for label, values in methods.items() if values],
                told=told,
            )
            for task, methods in by_task.items()
        ]
    intro = "Encoders are frozen and only a head is fitted on another task: how much do their representations hold?"
    return Section("probing", "Probing", intro, parts)


def _spread_text(values: Sequence[float]) -> str:
    spread = Spread.of(values)
    if spread is None:
        return NOTHING
    return f"{spread.mean:.1f}" + ("" if spread.deviation is None else f" ± {spread.deviation:.1f}")
