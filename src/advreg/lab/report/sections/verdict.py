"""What won, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from advreg.lab.report.compare import Results
from advreg.lab.report.gains import gain_parts
from advreg.lab.report.groups import STANDARD
from advreg.lab.report.labels import counted, difference_text
from advreg.lab.report.page.parts import Bullets, Folded, Part, Section
from advreg.lab.report.score_tables import task_title
from advreg.lab.report.sections.common import looks_of
from advreg.lab.report.statistics import Spread

_MOST_SENTENCES = 8  # of a contest; more are folded


def verdict(contests: Sequence[Results]) -> Section:
    """A sentence for each contest, or for each task of a contest without averages."""
    parts: list[Part] = []
    for found in contests:
        compared = found.contest.compared
        if compared is not None and compared.gains:
            parts += gain_parts(compared, found)
            continue
        title, sentences = found.contest.title, list(_sentences(found))
        first, others = sentences[:_MOST_SENTENCES], sentences[_MOST_SENTENCES:]
        parts += [Bullets(title, first)] if first else []
        parts += [Folded(f"{len(others)} more", [Bullets(title, others)])] if others else []
    intro = (
        "Differences are paired by seed. Their intervals have 95 % confidence together "
        "(Bonferroni), so that the best of many methods does not win by chance."
    )
    return Section("verdict", "What won", intro, parts)


def _sentences(found: Results) -> Iterator[str]:
    averaged = [label for label, average in found.averages.items() if average is not None]
    if len(found.tasks) > 1 and len(averaged) > 1:
        yield _sentence(found, None, averaged)
        return
    for task in found.tasks:
        labels = [method for method in found.methods if found.cells[task, method].main is not None]
        if len(labels) > 1:
            yield _sentence(found, task, labels)


def _sentence(found: Results, task: str | None, labels: Sequence[str]) -> str:
    """The best method against Standard, or against the second best where Standard is missing."""
    ranked = sorted(labels, key=lambda label: -_mean(found, task, label))
    plain = [label for label in ranked if found.contest.methods[label] == STANDARD]
    baseline = (plain or ranked[1:])[0]
    best = next(label for label in ranked if label != baseline)
    where = f"average of {len(found.tasks)} tasks" if task is None else task_title(found, task)
    return f"{where}: {_outcome(found, task, best, baseline, len(labels) - 1)}."


def _mean(found: Results, task: str | None, label: str) -> float:
    spread = found.averages[label] if task is None else found.cells[task, label].main
    return spread.mean if spread is not None else -math.inf


def _outcome(found: Results, task: str | None, best: str, baseline: str, rivals: int) -> str:
    shown = looks_of(found, task)
    mine, other = shown[best].label, shown[baseline].label
    scores = f"{_mean(found, task, best):.1f} against {_mean(found, task, baseline):.1f}"
    spread = found.difference(task, best, baseline)
    confidence = 1 - 0.05 / rivals
    interval = None if spread is None else spread.shown_interval(confidence)
    if spread is None or interval is None:
        return f"{mine} against {other}: {scores}; {_too_few(spread)}"
    difference = f"{difference_text(spread, confidence=confidence)} points"
    told = f"{difference} ({scores}, {counted(spread.count, 'seed')})"
    if interval[0] > 0:
        return f"{mine} is ahead of {other} by {told}"
    if interval[1] < 0:
        return f"{other} is ahead of every other method; {mine} minus {other} is {told}"
    return f"undecided; {mine} minus {other} is {told}"


def _too_few(spread: Spread | None) -> str:
    if spread is None:
        return "no seed in common, so no interval"
    return "one seed, so no interval" if spread.count == 1 else "all seeds agree, so no interval"
