"""docs/results/consistency.md and its picture, from results/consistency/runs.jsonl.gz and
bootstrap.json.

python experiments/consistency/bootstrap.py --data DATA     # first, after new runs
python experiments/consistency/page.py                      # writes page and picture
python experiments/consistency/page.py --check              # says whether they are up to date
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

sys.path.append(str(Path(__file__).resolve().parents[1]))  # pages.py

import gpu_cost
import texts
from bootstrap import BOOTSTRAP, ROOT, RUNS, BootstrapRecord
from bootstrap import read as read_bootstrap
from cells import Cell, Records
from contests import CONTESTS, STANDARD, Contest
from inference import PAYS, Gain, differences
from outcomes import TWICE, Entry, Outcome, Verdict, outcomes
from pages import keep
from picture import draw, is_drawn
from provenance import departures, made, missing, tuned
from wording import (
    SCALED,
    answer,
    calibrated,
    effect,
    figure,
    gain_text,
    guide,
    in_text,
    label,
    listed,
    setting,
    task_title,
    unit,
)

from advreg.lab.report.labels import (
    NOTHING,
    difference_text,
    method_order,
    number_text,
    spread_text,
)
from advreg.lab.report.statistics import Spread
from advreg.lab.report.tables import Table, markdown
from advreg.records.log import RecordLog

PAGE = ROOT / "docs" / "results" / "consistency.md"
PICTURE = "consistency.svg"
MEASURES = ("nll", "ece", SCALED, "scaled_ece")


def page(found: Records, bootstrap: BootstrapRecord) -> str:
    """The whole page."""
    judged = all_outcomes(found)
    picture = f"![gain against time]({PICTURE})" if any(map(is_drawn, all_entries(judged))) else ""
    parts = ["# Do consistency methods pay?", answer(judged), summary(judged), texts.RULES, picture]
    parts += [texts.GUIDE, guide(judged)]
    for contest in CONTESTS.values():
        parts += contest_parts(
            contest, [outcome for outcome in judged if outcome.contest == contest], bootstrap
        )
    parts += [
        replaced(judged),
        gpu_cost.section(),
        tuned(found),
        made(found),
        missing(judged, found, bootstrap),
        departures(found),
    ]
    return "\n\n".join(part.strip() for part in (*parts, texts.READING) if part) + "\n"


def all_outcomes(found: Records) -> list[Outcome]:
    return [outcome for contest in CONTESTS.values() for outcome in outcomes(found, contest)]


def all_entries(judged: Sequence[Outcome]) -> list[Entry]:
    return [entry for outcome in judged for entry in outcome.entries.values()]


def has_gains(outcome: Outcome) -> bool:
    return any(entry.gain is not None for entry in outcome.entries.values())


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown(Table("", header, rows))


def summary(judged: Sequence[Outcome]) -> str:
    """A row for each outcome with a verdict, a column for each method; bold: pays for its price."""
    shown = [outcome for outcome in judged if outcome.verdicts]
    names = sorted({name for outcome in shown for name in outcome.methods}, key=method_order)
    rows = [
        [texts.PLACES[outcome.key].title, *(summary_cell(outcome, name) for name in names)]
        for outcome in shown
    ]
    return f"{texts.SUMMARY.strip()}\n\n{table(['', *map(label, names)], rows)}" if rows else ""


def summary_cell(outcome: Outcome, name: str) -> str:
    if name not in outcome.methods:
        return NOTHING
    if name not in outcome.verdicts:
        return "runs missing"
    verdict = outcome.verdicts[name]
    shown = f"{verdict.text}, {gain_text(outcome, outcome.entries[name].gain)}"
    return f"**{shown}**" if verdict.for_price else shown


# ---- a contest


def contest_parts(
    contest: Contest, judged: Sequence[Outcome], bootstrap: BootstrapRecord
) -> list[str]:
    """Gains and verdicts, gains by task where an outcome has several, calibration; nothing before
    there are results.
    """
    judged = [outcome for outcome in judged if any(cell.done for cell in outcome.standard.values())]
    parts = [texts.CONTESTS[contest.name]] if judged else []
    for outcome in judged:
        parts += (
            [f"### {texts.PLACES[outcome.key].title}"]
            if len(contest.tasks) > 1 and not outcome.pooled
            else []
        )
        parts += [
            gains(outcome, bootstrap) if has_gains(outcome) else texts.NO_GAINS,
            over_control(outcome),
        ]
        parts += [by_task(outcome)] if outcome.pooled else []
        parts += [calibration(outcome, task) for task in outcome.tasks]
    return parts


def gains(outcome: Outcome, bootstrap: BootstrapRecord) -> str:
    """The contest's outcome: a row for each contestant, methods first."""
    twice = TWICE in outcome.entries
    header = [
        "",
        *([] if outcome.pooled else ["setting"]),
        f"gain, {unit(outcome)}",
        "p (Holm)",
        "verdict",
    ]
    header += ["for its price", *(["minus twice the epochs"] if twice else [])]
    header += ["time a step, × Standard", "passes", "test samples"]
    ordered = sorted(outcome.entries.values(), key=lambda entry: not entry.is_method)
    rows = [gain_row(outcome, entry, bootstrap, twice) for entry in ordered]
    return f"{about_standard(outcome)}\n\n{table(header, rows)}"


def about_standard(outcome: Outcome) -> str:
    told = [
        f"{f'{task_title(task)} ' if outcome.pooled else ''}{score_text(cell, len(outcome.contest.seeds))} "
        f"({setting(cell.point)})"
        for task, cell in outcome.standard.items()
    ]
    return f"Standard, mean ± sd over {len(outcome.contest.seeds)} seeds: {'; '.join(told)}."


def score_text(cell: Cell, asked: int) -> str:
    return spread_text(Spread.of(list(cell.scores.values())), asked)


def gain_row(outcome: Outcome, entry: Entry, bootstrap: BootstrapRecord, twice: bool) -> list[str]:
    settings = (
        []
        if outcome.pooled
        else [*(setting(cell.point) for cell in entry.cells.values())] or [NOTHING]
    )
    if entry.gain is None:
        return [
            label(entry.contestant.name),
            *settings,
            seeds_text(entry),
            *[NOTHING] * (6 + twice),
        ]
    samples, diverged = (
        bootstrap.find(outcome, entry),
        f" ({entry.diverged} diverged)" if entry.diverged else "",
    )
    return [
        label(entry.contestant.name),
        *settings,
        gain_text(outcome, entry.gain) + diverged,
        *verdict_cells(outcome, outcome.verdicts.get(entry.contestant.name), twice),
        number_text(entry.step_time, 2),
        " + ".join(f"{entry.passes(kind):.3g}" for kind in ("forward", "backward")),
        NOTHING if samples is None else interval_text(samples.low, samples.high, outcome.decimals),
    ]


def verdict_cells(outcome: Outcome, verdict: Verdict | None, twice: bool) -> list[str]:
    """Corrected p, verdict, whether it pays for its price, and the gain over Standard with twice
    the epochs.
    """
    if verdict is None:
        return [NOTHING, "control", NOTHING, *[NOTHING] * twice]
    price = {True: "yes", False: "no" if verdict.text == PAYS else NOTHING, None: "not tested"}[
        verdict.for_price
    ]
    return [
        p_text(verdict.corrected),
        verdict.text,
        price,
        *[gain_text(outcome, verdict.over_twice)] * twice,
    ]


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def interval_text(low: float, high: float, decimals: int) -> str:
    """As difference_text writes it, without the mean."""
    return (
        "["
        + ", ".join(difference_text(Spread(value, None, 1), decimals) for value in (low, high))
        + "]"
    )


def seeds_text(entry: Entry) -> str:
    """How many seeds a contestant has that has not all."""
    done = [cell.done for cell in entry.cells.values()]
    return f"{sum(done)} of {entry.asked} runs"


def over_control(outcome: Outcome) -> str:
    """Which methods are above the best of the controls, once all of them have their seeds."""
    controls = [entry for entry in outcome.entries.values() if not entry.is_method]
    if not controls or any(entry.gain is None for entry in controls):
        return ""
    best = max(controls, key=lambda entry: entry.mean)
    over = {
        name: Gain.of(differences(entry.gains, best.gains))
        for name, entry in outcome.methods.items()
        if entry.gain is not None
    }
    above = [
        f"{in_text(name)} ({gain_text(outcome, gain)})"
        for name, gain in over.items()
        if gain and gain.low > 0
    ]
    told = (
        f"the interval is above it for {listed(above)}"
        if above
        else "no method's interval is above it"
    )
    which = "The best control" if len(controls) > 1 else "The control"
    return f"{which} is {in_text(best.contestant.name)} ({figure(outcome, best)}); {told}."


def by_task(outcome: Outcome) -> str:
    """Gains in points on each task; they have no verdicts."""
    rows = [
        [label(name), *(task_gain(entry, task) for task in outcome.tasks)]
        for name, entry in outcome.entries.items()
    ]
    if not any("[" in cell for row in rows for cell in row):
        return ""
    return f"Gain by task, in points:\n\n{table(['', *map(task_title, outcome.tasks)], rows)}"


def task_gain(entry: Entry, task: str) -> str:
    alone = entry.on(task)
    if alone is None:
        return NOTHING
    return difference_text(alone.gain.spread) if alone.gain else seeds_text(alone)


def calibration(outcome: Outcome, task: str) -> str:
    """Score, likelihood and calibration error of all contestants that have all seeds of a task."""
    standard = outcome.standard.get(task)
    if standard is None or not standard.calibration(SCALED):
        return ""
    rows = [[label(STANDARD), *calibration_cells(standard), NOTHING, NOTHING]]
    for name, entry in outcome.entries.items():
        alone = entry.on(task)
        if alone is not None and alone.gain is not None:
            (changed,) = calibrated(alone).values()
            rows.append(
                [
                    label(name),
                    *calibration_cells(alone.cells[task]),
                    difference_text(changed.spread, 3),
                    effect(changed),
                ]
            )
    if len(rows) == 1:
        return ""
    header = [
        "",
        "score",
        "NLL",
        "ECE, %",
        "NLL, scaled",
        "ECE, %, scaled",
        "scaled NLL minus Standard's",
        "calibration",
    ]
    of = f" on {task_title(task)}" if outcome.pooled else ""
    return f"Likelihood and calibration{of}, mean over seeds:\n\n{table(header, rows)}"


def calibration_cells(cell: Cell) -> list[str]:
    found = [fmean(cell.calibration(name).values()) for name in MEASURES]
    shown = [
        f"{100 * value:.1f}" if "ece" in name else f"{value:.3f}"
        for name, value in zip(MEASURES, found, strict=True)
    ]
    return [f"{fmean(cell.scores.values()):.1f}", *shown]


# ---- one pass instead of two


def replaced(judged: Sequence[Outcome]) -> str:
    """A row for each pair, a column for each outcome."""
    by_outcome = {outcome.key: outcome.replaced() for outcome in judged}
    shown = [outcome for outcome in judged if by_outcome[outcome.key]]
    if not shown:
        return ""
    pairs = list(dict.fromkeys(pair for outcome in shown for pair in by_outcome[outcome.key]))
    rows = []
    for one, other in pairs:
        found = [
            replaced_text(outcome, by_outcome[outcome.key].get((one, other))) for outcome in shown
        ]
        rows.append([f"{label(one)} for {in_text(other)}", *found])
    header = ["", *(f"{texts.PLACES[outcome.key].title}, {unit(outcome)}" for outcome in shown)]
    return f"{texts.REPLACES.strip()}\n\n{table(header, rows)}"


def replaced_text(outcome: Outcome, gain: Gain | None) -> str:
    shown = gain_text(outcome, gain)
    return f"**{shown}**" if gain is not None and gain.low > 0 else shown


if __name__ == "__main__":
    records, intervals = Records(RecordLog(RUNS).records()), read_bootstrap(BOOTSTRAP)
    keep(
        __doc__,
        PAGE,
        page(records, intervals),
        lambda folder: draw(all_outcomes(records), folder / PICTURE),
    )
