"""The norm of the gradient over training, and its variance: "caching reduces gradient norm
variance".
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from advreg.lab.report.compare import Results, Runs
from advreg.lab.report.curves import Curve, curve, shared_axis
from advreg.lab.report.labels import method_name
from advreg.lab.report.page.parts import Part
from advreg.lab.report.pictures.figures import Figure, Lines, Look, Row, Rows, looks, series_of
from advreg.lab.report.pictures.svg import save
from advreg.lab.report.sections.common import looks_of, titled
from advreg.records.run import RunRecord

_TITLES = ("gradient norm", "variance of the gradient norm")


def gradient_parts(found: Results, task: str) -> list[Part]:
    """Both figures for a task."""
    runs = {group.label: group.records for group in found.contest.on(task)}
    norm, variance = (titled(found, task, text) for text in _TITLES)
    return [*_figures(runs, looks_of(found, task), (norm, variance))]


def draw_norms(runs: Runs, path: Path, titles: Mapping[str, str], settled: bool = False) -> None:
    """Write both figures of each task to a file.

    Args:
        runs: records by task, method and seed.
        path: of the file, as .svg.
        titles: of the tasks.
        settled: whether variances leave out the warm-up.
    """
    figures: list[Figure] = []
    for task in dict.fromkeys(key[0] for key in runs):
        by_method: dict[str, list[RunRecord]] = {}
        for (name, method, _), run in runs.items():
            if name == task:
                by_method.setdefault(method, []).append(run)
        shown = looks({method: method_name(method) for method in by_method})
        title = titles.get(task, task)
        norm, variance = (f"{title}: {text}" for text in _TITLES)
        figures += _figures(by_method, shown, (norm, variance), settled)
    save(figures, path, columns=len(_TITLES))


def _figures(
    runs: Mapping[str, list[RunRecord]],
    shown: Mapping[str, Look],
    titles: tuple[str, str],
    settled: bool = False,
) -> Iterator[Figure]:
    """The curves of each label with their range over seeds, and the variances of the seeds."""
    axis = shared_axis(run for mine in runs.values() for run in mine)
    found = {label: curve(label, mine, axis, settled=settled) for label, mine in runs.items()}
    curves = {label: each for label, each in found.items() if each is not None and each.places}
    yield from _curves(curves, shown, titles[0], axis)
    yield from _variances(curves, shown, titles[1], settled)


def _curves(
    curves: Mapping[str, Curve], shown: Mapping[str, Look], title: str, axis: str
) -> Iterator[Lines]:
    series = [series_of(shown[label], each) for label, each in curves.items()]
    if series:
        yield Lines(title=title, x=axis, y="norm", series=series, zero=True)


def _variances(
    curves: Mapping[str, Curve], shown: Mapping[str, Look], title: str, settled: bool
) -> Iterator[Rows]:
    rows = [
        Row(shown[label], statistics.fmean(each.variances), dots=each.variances)
        for label, each in curves.items()
        if each.variances
    ]
    if rows:
        when = f"variance {'after warm-up' if settled else 'over training'}; dots: seeds"
        yield Rows(title=title, x=when, rows=rows, bars=True)
