"""Where the figures of the page are from: what was tuned, which runs there are, what is missing,
what departs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import texts
from bootstrap import BootstrapRecord
from cells import Records
from contests import CONTESTS, STANDARD, Contest
from outcomes import Outcome, outcomes
from pages import commits_of
from stages import RESULT, TUNE, choices, planned
from wording import capitalised, in_text, label, listed, setting, task_title

from advreg.lab.report.labels import NOTHING, counted
from advreg.lab.report.tables import Table, markdown
from advreg.records.run import RunRecord

PLAN = Path(__file__).with_name("PLAN.md")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown(Table("", header, rows))


# ---- what was tuned


def tuned(found: Records) -> str:
    """All candidates with their validation scores, a table for each task."""
    parts = [
        f"{capitalised(task_title(task))} (`{contest.name}`, seed {contest.tuning_seed}):\n\n"
        f"{table(['', 'chosen', 'candidates, validation score'], rows)}"
        for contest in CONTESTS.values()
        for task in contest.tasks
        if (rows := tuned_rows(found, contest, task))
    ]
    return "\n\n".join([texts.TUNED.strip(), *parts]) if parts else ""


def tuned_rows(found: Records, contest: Contest, task: str) -> list[list[str]]:
    """A row for each contestant with a finished candidate."""
    chosen = choices(contest, task, found.scores) if contest.follows is None else {}
    tried: dict[str, dict[str, str]] = {}
    for each in planned(contest, found.scores):
        if (each.task, each.stage) == (task, TUNE) and each.key in found.scores:
            tried.setdefault(each.contestant, {})[each.candidate] = score_text(
                found.scores[each.key]
            )
    rows = []
    for name, scores in tried.items():
        candidate, point = chosen.get(name, (None, None))
        told = [
            f"**{each}: {score}**" if each == candidate else f"{each}: {score}"
            for each, score in scores.items()
        ]
        rows.append([label(name), NOTHING if point is None else setting(point), "; ".join(told)])
    return rows


def score_text(score: float) -> str:
    return f"{score:.1f}" if math.isfinite(score) else "diverged"


# ---- which runs there are


def made(found: Records) -> str:
    """Counts, seeds, commits and machines of each contest."""
    rows = [
        made_row(found, contest, runs)
        for contest in CONTESTS.values()
        if (runs := found.of(contest))
    ]
    header = ["contest", "candidates", "results", "seeds", "commit", "machine"]
    return f"## Runs\n\n{table(header, rows)}" if rows else ""


def made_row(found: Records, contest: Contest, runs: Sequence[RunRecord]) -> list[str]:
    counts = [sum(run.name.split("/")[2] == stage for run in runs) for stage in (TUNE, RESULT)]
    tuned_of = sum(
        count for task in contest.tasks for _, count in found.tuned(contest, task).values()
    )
    results_of = sum(outcome.asked for outcome in outcomes(found, contest))
    return [
        f"`{contest.name}`",
        f"{counts[0]} of {tuned_of}" if tuned_of else "taken over",
        f"{counts[1]} of {results_of}",
        f"{contest.seeds[0]}–{contest.seeds[-1]}",
        commits_of(runs).partition(" ")[2],
        "; ".join(machines(runs)),
    ]


def machines(runs: Sequence[RunRecord]) -> list[str]:
    """Device, torch, and how many runs went side by side."""
    found: dict[str, set[str]] = {}
    for run in runs:
        environment = run.environment
        arguments = environment["arguments"]
        jobs = arguments[arguments.index("--jobs") + 1] if "--jobs" in arguments else "2"
        device = f"{environment['device'].replace('cpu', 'CPU')}, {environment['cpu_count']} cores"
        found.setdefault(f"{device}, torch {environment['packages']['torch']}", set()).add(jobs)
    return [
        f"{device}, {' or '.join(sorted(jobs, key=int))} at a time"
        for device, jobs in found.items()
    ]


# ---- what is missing


def missing(judged: Sequence[Outcome], found: Records, bootstrap: BootstrapRecord) -> str:
    """Contests without runs, candidates and results that lack, and intervals over test samples that
    are not made.
    """
    without = [f"`{contest.name}`" for contest in CONTESTS.values() if not found.of(contest)]
    lines = [f"- No runs yet: {listed(without)}."] if without else []
    for contest in CONTESTS.values():
        if found.of(contest):
            lines += candidates_lacking(found, contest)
            lines += [
                line
                for outcome in judged
                if outcome.contest == contest
                for line in results_lacking(outcome)
            ]
    lines += [f"- {line}" for outcome in judged for line in samples_lacking(outcome, bootstrap)]
    return "\n".join(["## What is missing", "", *lines, texts.FURTHER.strip()])


def candidates_lacking(found: Records, contest: Contest) -> Iterator[str]:
    for task in contest.tasks:
        lacking = {
            name: (done, of) for name, (done, of) in found.tuned(contest, task).items() if done < of
        }
        if lacking:
            yield f"- `{contest.name}`, candidates on {task_title(task)}: {counts_text(lacking)}."


def results_lacking(outcome: Outcome) -> Iterator[str]:
    """A line for each task; contestants whose candidate is not chosen have no runs."""
    seeds = len(outcome.contest.seeds)
    for task in outcome.tasks:
        entries = {
            name: each
            for name, each in outcome.entries.items()
            if task not in each.contestant.without
        }
        cells = {
            STANDARD: outcome.standard.get(task),
            **{name: each.cells.get(task) for name, each in entries.items()},
        }
        done = {name: 0 if cell is None else cell.done for name, cell in cells.items()}
        lacking = {name: (count, seeds) for name, count in done.items() if count < seeds}
        if lacking:
            whole = set(lacking.values()) if len(lacking) == len(cells) else set()
            told = (
                "all have {} of {}".format(*whole.pop())
                if len(whole) == 1
                else counts_text(lacking)
            )
            yield f"- `{outcome.contest.name}`, seeds on {task_title(task)}: {told}."


def counts_text(lacking: Mapping[str, tuple[int, int]]) -> str:
    """How many runs contestants have; those with the same count together."""
    groups: dict[tuple[int, int], list[str]] = {}
    for name, count in lacking.items():
        groups.setdefault(count, []).append(in_text(name))
    return "; ".join(f"{done} of {of} of {listed(names)}" for (done, of), names in groups.items())


def samples_lacking(outcome: Outcome, bootstrap: BootstrapRecord) -> Iterator[str]:
    lacking = [
        in_text(name)
        for name, entry in outcome.entries.items()
        if entry.gain is not None and bootstrap.find(outcome, entry) is None
    ]
    if lacking:
        place = texts.PLACES[outcome.key].where
        yield f"Intervals over test samples {place}: {listed(lacking)}; run `bootstrap.py` to make them."


# ---- what departs from the plan


def departures(found: Records) -> str:
    """The plan's own list, and deviations found in the records."""
    written = PLAN.read_text(encoding="utf-8").partition("\n## Departures\n")[2].strip()
    seen = [line for contest in CONTESTS.values() for line in departing(contest, found.of(contest))]
    return "\n\n".join(["## Departures from the plan", "PLAN.md lists:", written, *seen])


def departing(contest: Contest, runs: Sequence[RunRecord]) -> Iterator[str]:
    """The plan asks for one commit without uncommitted changes; one kind of device keeps times
    comparable.
    """
    trees = {(git["commit"], git["dirty"]) for run in runs if (git := run.environment["git"])}
    if len({commit for commit, _ in trees}) > 1:
        yield f"The runs of `{contest.name}` come from {counted(len(trees), 'commit')}."
    if any(dirty is not False for _, dirty in trees):
        yield f"Some runs of `{contest.name}` come from a tree that may have had uncommitted changes."
    devices = sorted({run.environment["device"] for run in runs})
    if len(devices) > 1:
        yield f"The runs of `{contest.name}` are on {listed(devices)}."
