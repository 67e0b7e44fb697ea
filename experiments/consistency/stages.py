"""Which runs a contest can make now: candidates first, then what they decide, chosen from records
by rule alone.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contests import BEST, CONTESTS, STANDARD, Candidate, Contest, Contestant, Variant

TUNE, RESULT = "tune", "result"
LEAST_DROPOUT = 0.1  # of a method that needs some
_DROPOUTS = ("encoder_dropout", "head_dropout", "dropout")


@dataclass(frozen=True)
class Point:
    """A subject of a run: a method with options, and settings in addition to the contest's."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The same for points that are the same."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Planned:
    """One run of a contest."""

    contest: str
    task: str
    stage: str
    contestant: str
    candidate: str
    seed: int
    point: Point

    @property
    def key(self) -> str:
        """The name of its record."""
        return "/".join(
            (
                self.contest,
                self.task,
                self.stage,
                self.contestant,
                self.candidate,
                f"seed-{self.seed}",
            )
        )


Scores = Mapping[str, float]
"""The validation score of every run that is done, by its key; −∞ of one that diverged."""


def planned(contest: Contest, scores: Scores) -> Iterator[Planned]:
    """The runs that can be made after the finished ones, including those."""
    for task in contest.tasks:
        for name, points in _candidates(contest, task, scores).items():
            if len(points) > 1:
                yield from (
                    Planned(contest.name, task, TUNE, name, candidate, contest.tuning_seed, point)
                    for candidate, point in points.items()
                )
    decided = {task: finalists(contest, task, scores) for task in contest.tasks}
    for seed in contest.seeds:
        for task, chosen in decided.items():
            for name, (candidate, point) in chosen.items():
                yield Planned(contest.name, task, RESULT, name, candidate, seed, point)


def finalists(contest: Contest, task: str, scores: Scores) -> dict[str, tuple[str, Point]]:
    """The choices that have results: of the tuned methods only the best, where a contest says how
    many.
    """
    chosen = choices(contest, task, scores)
    leader = contest if contest.follows is None else CONTESTS[contest.follows]
    if leader.finalists is None:
        return chosen
    tuned = [each.name for each in leader.contestants if len(each.variants) > 1]
    if any(name not in chosen for name in tuned):
        return {name: choice for name, choice in chosen.items() if name == STANDARD}
    where = leader.tasks[0]
    best = {name: max(_tuning_scores(leader, where, name, scores)) for name in tuned}
    out = sorted(tuned, key=lambda name: -best[name])[leader.finalists :]
    return {name: choice for name, choice in chosen.items() if name not in out}


def _tuning_scores(contest: Contest, task: str, name: str, scores: Scores) -> list[float]:
    start = "/".join((contest.name, task, TUNE, name, ""))
    return [score for key, score in scores.items() if key.startswith(start)]


def choices(contest: Contest, task: str, scores: Scores) -> dict[str, tuple[str, Point]]:
    """The candidate of each contestant that the tuning chose, as far as it is done."""
    if contest.follows is not None:
        return _most_frequent(CONTESTS[contest.follows], scores)
    candidates = _candidates(contest, task, scores)
    return {
        name: (ranked[0], candidates[name][ranked[0]])
        for name, ranked in _rankings(contest, task, scores).items()
    }


def _most_frequent(contest: Contest, scores: Scores) -> dict[str, tuple[str, Point]]:
    """What won on most tasks, once all are decided; of equals what has the best mean rank, then
    what comes first.

    A method's candidate is taken with the regularisations of Standard that won so.
    """
    tables = {task: _rankings(contest, task, scores) for task in contest.tasks}
    if any(STANDARD not in table for table in tables.values()):
        return {}
    by_name = {each.name: each for each in contest.standard}
    order = [by_name[name] for name in _by_wins([table[STANDARD] for table in tables.values()])]
    found = {STANDARD: (order[0].name, Point(STANDARD, {}, order[0].settings))}
    for each in contest.contestants:
        mine = [table for task, table in tables.items() if task not in each.without]
        if all(each.name in table for table in mine):
            winner = _by_wins([table[each.name] for table in mine])[0]
            found[each.name] = winner, _points(contest, each, order)[winner]
    return found


def _by_wins(rankings: Sequence[Sequence[str]]) -> list[str]:
    """Candidates by how often they come first, then by their mean rank; last where a task cannot
    train one.
    """
    wins = Counter(ranking[0] for ranking in rankings)
    names = max(rankings, key=len)
    ranks = {name: sum([*ranking, name].index(name) for ranking in rankings) for name in names}
    return sorted(names, key=lambda name: (-wins[name], ranks[name]))


def _rankings(contest: Contest, task: str, scores: Scores) -> dict[str, list[str]]:
    """The candidates of each contestant that is tuned, the best first."""
    candidates = _candidates(contest, task, scores)
    found = {
        name: _ranking(contest, task, name, points, scores) for name, points in candidates.items()
    }
    return {name: ranked for name, ranked in found.items() if ranked is not None}


def _candidates(contest: Contest, task: str, scores: Scores) -> dict[str, dict[str, Point]]:
    """The points of each contestant; points of methods only after Standard's are ranked."""
    if contest.follows is not None:
        return {}
    own = {
        each.name: Point(STANDARD, {}, each.settings)
        for each in contest.standard
        if task not in each.without
    }
    ranked = _ranking(contest, task, STANDARD, own, scores)
    if ranked is None:
        return {STANDARD: own}
    by_name = {each.name: each for each in contest.standard}
    order = [by_name[name] for name in ranked]
    able = [each for each in contest.contestants if task not in each.without]
    return {STANDARD: own, **{each.name: _points(contest, each, order) for each in able}}


def _ranking(
    contest: Contest, task: str, name: str, points: Mapping[str, Point], scores: Scores
) -> list[str] | None:
    """Candidates by falling validation score, of equals the earlier one first; none while one is
    not done.
    """
    if len(points) == 1:
        return list(points)
    keys = {
        candidate: Planned(
            contest.name, task, TUNE, name, candidate, contest.tuning_seed, point
        ).key
        for candidate, point in points.items()
    }
    if any(key not in scores for key in keys.values()):
        return None
    return sorted(points, key=lambda candidate: -scores[keys[candidate]])


def _points(
    contest: Contest, contestant: Contestant, ranked: Sequence[Candidate]
) -> dict[str, Point]:
    regularisations = regularised(contest, ranked, contestant.needs_dropout)
    return {
        variant.name: _point(contest, contestant, variant, regularisations)
        for variant in contestant.variants
    }


def _point(
    contest: Contest,
    contestant: Contestant,
    variant: Variant,
    regularisations: Sequence[Mapping[str, Any]],
) -> Point:
    settings = {**regularisations[variant.regularisation], **variant.settings}
    if "epochs_factor" in settings:
        settings["epochs"] = settings.pop("epochs_factor") * settings.get(
            "epochs", contest.base["epochs"]
        )
    return Point(contestant.method, variant.options, settings)


def regularised(
    contest: Contest, ranked: Sequence[Candidate], needs_dropout: bool
) -> list[dict[str, Any]]:
    """Standard's best settings and its second best of the same length, with dropout where a method
    needs it.

    Where the second is the first again, or there is none of that length, dropout is doubled (from 0
    to 0.1).
    """
    length = _epochs(contest, ranked[BEST])
    alike = [dict(each.settings) for each in ranked if _epochs(contest, each) == length]
    if needs_dropout:
        alike = [_with_dropout(contest, settings) for settings in alike]
    best = alike[0]
    second = next(
        (settings for settings in alike if settings != best), _more_dropout(contest, best)
    )
    return [best, second]


def _epochs(contest: Contest, candidate: Candidate) -> int:
    return int(candidate.settings.get("epochs", contest.base["epochs"]))


def _dropouts(contest: Contest, settings: Mapping[str, Any]) -> dict[str, float]:
    """The dropouts that are set, or 0.1 of the small model, which has no other setting of its
    own.
    """
    found = {**contest.base, **settings}
    named = {name: found[name] for name in _DROPOUTS if name in found}
    return named or {"encoder_dropout": LEAST_DROPOUT, "head_dropout": LEAST_DROPOUT}


def _with_dropout(contest: Contest, settings: dict[str, Any]) -> dict[str, Any]:
    raised = {
        name: max(value, LEAST_DROPOUT) for name, value in _dropouts(contest, settings).items()
    }
    changed = {name: value for name, value in raised.items() if settings.get(name, value) != value}
    return {**settings, **changed}


def _more_dropout(contest: Contest, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        **settings,
        **{name: max(2 * v, LEAST_DROPOUT) for name, v in _dropouts(contest, settings).items()},
    }
