"""What won, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from advreg.lab.kinds.registry import Scale
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
    averaged = _scored(found, None)
    if len(found.tasks) > 1 and len(averaged) > 1:
        yield _sentence(found, None, averaged)
        return
    for task in found.tasks:
        scored = _scored(found, task)
        if len(scored) > 1:
            yield _sentence(found, task, scored)


def _scored(found: Results, task: str | None) -> dict[str, float]:
    """The mean score of each label on a task, or over all tasks."""
    spreads = {label: found.score(task, label) for label in found.methods}
    return {label: spread.mean for label, spread in spreads.items() if spread is not None}


def _sentence(found: Results, task: str | None, means: Mapping[str, float]) -> str:
    """The best method against Standard, or against the second best where Standard is missing."""
    scale = found.contest.scale
    ranked = sorted(means, key=lambda label: means[label], reverse=not scale.lower_is_better)
    plain = [label for label in ranked if found.contest.methods[label] == STANDARD]
    baseline = (plain or ranked[1:])[0]
    best = next(label for label in ranked if label != baseline)
    shown = looks_of(found, task)
    where = f"average of {len(found.tasks)} tasks" if task is None else task_title(found, task)
    scores = " against ".join(f"{means[label]:.{scale.decimals}f}" for label in (best, baseline))
    spread = found.difference(task, best, baseline)
    names, confidence = (shown[best].label, shown[baseline].label), 1 - 0.05 / (len(means) - 1)
    outcome = _outcome(names, scores, spread, confidence, scale)
    return f"{where}: {outcome}."


def _outcome(
    names: tuple[str, str], scores: str, spread: Spread | None, confidence: float, scale: Scale
) -> str:
    best, baseline = names
    interval = None if spread is None else spread.shown_interval(confidence)
    if spread is None or interval is None:
        return f"{best} against {baseline}: {scores}; {_too_few(spread)}"
    difference = f"{difference_text(spread, scale.decimals, confidence=confidence)} points"
    told = f"{difference} ({scores}, {counted(spread.count, 'seed')})"
    low, high = interval if not scale.lower_is_better else (-interval[1], -interval[0])
    if low > 0:
        return f"{best} is ahead of {baseline} by {told}"
    if high < 0:
        return f"{baseline} is ahead of every other method; {best} minus {baseline} is {told}"
    return f"undecided; {best} minus {baseline} is {told}"


def _too_few(spread: Spread | None) -> str:
    if spread is None:
        return "no seed in common, so no interval"
    return "one seed, so no interval" if spread.count == 1 else "all seeds agree, so no interval"
