"""What was run, and under which conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from advreg.lab.report.compare import Results
from advreg.lab.report.gather import Gathered, Run
from advreg.lab.report.labels import (
    NOTHING,
    commit_text,
    duration,
    method_name,
    method_order,
    value_text,
)
from advreg.lab.report.page.parts import Folded, Part, Section, Tiles
from advreg.lab.report.tables import Table
from advreg.lab.report.variants import settings_of
from advreg.records.compare import seconds_of
from advreg.records.run import RunRecord

_MOST_LISTED = 8


def overview(found: Gathered, contests: Sequence[Results]) -> Section:
    """Counts, code and machines, and the settings of each contest."""
    records = [run.record for run in found.runs]
    parts: list[Part] = [Tiles(_tiles(found)), _conditions(records)] if records else []
    for each in contests:
        parts.append(Folded(f"Settings: {each.contest.title}", [_settings_table(each)]))
    return Section("overview", "What was run", "", parts)


def _tiles(found: Gathered) -> list[tuple[str, str, str]]:
    asked = [run.record for run in found.runs if not run.is_tuning]
    done = [record for record in asked if record.outcome.status == "finished"]
    tuning, failed = len(found.runs) - len(asked), Counter(each.outcome.status for each in asked)
    left = f"{failed['failed']} failed, {len(found.unfinished)} unfinished, {tuning} for tuning"
    methods = sorted({record.method.name for record in done}, key=method_order)
    seeds = sorted({record.training.seed for record in done})
    return [
        ("runs finished", str(len(done)), left),
        _listed("methods", map(method_name, methods)),
        _listed("tasks", (record.task.name for record in done)),
        _listed("seeds", map(str, seeds)),
        ("training time", duration(sum(map(seconds_of, done))), "steps of all finished runs"),
    ]


def _listed(what: str, values: Iterable[str]) -> tuple[str, str, str]:
    distinct = list(dict.fromkeys(values))
    more = " …" if len(distinct) > _MOST_LISTED else ""
    return what, str(len(distinct)), ", ".join(distinct[:_MOST_LISTED]) + more


def _conditions(records: Sequence[RunRecord]) -> Table:
    """A row for each combination of code and machine."""
    counts = Counter(tuple(_condition(record).items()) for record in records)
    rows = [[*dict(condition).values(), str(count)] for condition, count in counts.items()]
    return Table("Code and machines.", [*_condition(records[0]), "runs"], rows)


def _condition(record: RunRecord) -> dict[str, str]:
    about = record.environment
    found = {name: about.get(name) for name in ("advreg", "device", "platform", "python")}
    found |= {name: about.get("packages", {}).get(name) for name in ("torch", "transformers")}
    return {
        "commit": commit_text(record, "unknown"),
        **{name: str(value or NOTHING) for name, value in found.items()},
        "precision": record.training.precision,
    }


def _settings_table(found: Results) -> Table:
    """The values of every option for each label."""
    columns = [_settings(found.contest.labelled(label)) for label in found.methods]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, NOTHING) for column in columns)] for name in names]
    header = ["option", *map(method_name, found.methods)]
    return Table("Every option of the methods and of the training.", header, rows)


def _settings(runs: Iterable[Run]) -> dict[str, str]:
    """The values of each option in these runs."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for name, value in settings_of(run.record).items():
            values.setdefault(name, set()).add(value_text(value))
    return {name: ", ".join(sorted(each)) for name, each in values.items()}
