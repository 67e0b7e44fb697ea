"""The norm of the gradient over training, and its variance: "caching reduces gradient norm
variance".
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from advreg.lab.report.compare import Results, Runs
from advreg.lab.report.curves import Curve, curve, shared_axis
from advreg.lab.report.labels import method_name
from advreg.lab.report.page.parts import Part
from advreg.lab.report.pictures.figures import Figure, Lines, Look, Row, Rows, looks, series_of
from advreg.lab.report.pictures.svg import save
from advreg.lab.report.sections.common import looks_of, titled
from advreg.records.run import RunRecord

_TITLES = ("gradient norm", "norm variance")


def gradient_parts(found: Results, task: str) -> list[Part]:
    """Both figures for a task."""
    runs = {group.label: group.records for group in found.contest.on(task)}
    titles = [titled(found, task, text) for text in _TITLES]
    return [*_figures(runs, looks_of(found, task), titles)]


def draw_norms(runs: Runs, path: Path, titles: Mapping[str, str], settled: bool = False) -> None:
    """Write both figures of each task to a file.

    Args:
        runs: records by task, method and seed.
        path: of the file, as .svg.
        titles: of the tasks.
        settled: whether variances leave out the warm-up.
    """
    by_task: dict[str, dict[str, list[RunRecord]]] = {}
    for (task, method, _), run in runs.items():
        by_task.setdefault(task, {}).setdefault(method, []).append(run)
    figures: list[Figure] = []
    for task, by_method in by_task.items():
        shown = looks({method: method_name(method) for method in by_method})
        told = [f"{titles.get(task, task)}: {text}" for text in _TITLES]
        figures += _figures(by_method, shown, told, settled)
    save(figures, path, columns=len(_TITLES))


def _figures(
    runs: Mapping[str, list[RunRecord]],
    shown: Mapping[str, Look],
    titles: list[str],
    settled: bool = False,
) -> list[Figure]:
    """The curves of each label with their range over seeds, and the variances of the seeds."""
    axis = shared_axis(list(chain(*runs.values())))
    curves = {shown[label]: curve(mine, axis, settled=settled) for label, mine in runs.items()}
    series = [series_of(look, each) for look, each in curves.items() if each.places]
    rows = [_variance(look, each) for look, each in curves.items() if each.variances]
    when = "after warm-up" if settled else "over training"
    norms = Lines(title=titles[0], x=axis, y="norm", marks=series, zero=True)
    variances = Rows(title=titles[1], x=f"variance {when}; dots: seeds", marks=rows, zero=True)
    return [*([norms] if series else []), *([variances] if rows else [])]


def _variance(look: Look, found: Curve) -> Row:
    return Row(look, statistics.fmean(found.variances), dots=found.variances)
