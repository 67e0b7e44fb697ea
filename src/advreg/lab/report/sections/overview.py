"""What was run, and under which conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from advreg.lab.report.compare import Results
from advreg.lab.report.gather import Gathered
from advreg.lab.report.labels import NOTHING, duration, method_name, method_order, value_text
from advreg.lab.report.page.parts import Folded, Part, Section, Tiles
from advreg.lab.report.tables import Table
from advreg.lab.report.variants import settings_of
from advreg.records.compare import seconds_of
from advreg.records.run import RunRecord

_MOST_LISTED = 8


def overview(found: Gathered, contests: Sequence[Results]) -> Section:
    """Counts, code and machines, and the settings of each contest."""
    records = [run.record for run in found.runs if not run.is_tuning]
    done = [record for record in records if record.outcome.status == "finished"]
    parts: list[Part] = [Tiles(_tiles(found, records, done))]
    if done:
        parts.append(_conditions([run.record for run in found.runs]))
    parts += [
        Folded(f"Settings: {each.contest.title}", [_settings_table(each)]) for each in contests
    ]
    return Section("overview", "What was run", "", parts)


def _tiles(
    found: Gathered, records: Sequence[RunRecord], done: Sequence[RunRecord]
) -> list[tuple[str, str, str]]:
    tuning = len(found.runs) - len(records)
    failed = sum(record.outcome.status == "failed" for record in records)
    left = f"{failed} failed, {len(found.unfinished)} unfinished"
    methods = sorted({record.method.name for record in done}, key=method_order)
    seeds = sorted({record.training.seed for record in done})
    tiles = [
        ("runs finished", str(len(done)), left + (f", {tuning} for tuning" if tuning else "")),
        _listed("methods", map(method_name, methods)),
        _listed("tasks", (record.task.name for record in done)),
        _listed("seeds", map(str, seeds)),
        _listed("devices", (str(record.environment.get("device") or "unknown") for record in done)),
        ("training time", duration(sum(map(seconds_of, done))), "steps of all finished runs"),
    ]
    return [tile for tile in tiles if tile[1] not in ("0", "0 s")]


def _listed(what: str, values: Iterable[str]) -> tuple[str, str, str]:
    distinct = list(dict.fromkeys(values))
    more = " …" if len(distinct) > _MOST_LISTED else ""
    name = what if len(distinct) != 1 else what.removesuffix("s")
    return name, str(len(distinct)), ", ".join(distinct[:_MOST_LISTED]) + more


def _conditions(records: Sequence[RunRecord]) -> Table:
    """A row for each combination of code and machine."""
    header = ["commit", "advreg", "device", "platform", "python", "torch", "transformers"]
    header += ["precision", "runs"]
    rows = [[*cells, str(count)] for cells, count in Counter(map(_condition, records)).items()]
    return Table("Code and machines.", header, rows)


def _condition(record: RunRecord) -> tuple[str, ...]:
    environment = record.environment
    git, packages = environment.get("git") or {}, environment.get("packages") or {}
    commit = str(git.get("commit") or "unknown")[:10] + (" + changes" if git.get("dirty") else "")
    named = [environment.get(name) for name in ("advreg", "device", "platform", "python")]
    named += [packages.get(name) for name in ("torch", "transformers")]
    return commit, *(str(each or NOTHING) for each in named), record.training.precision


def _settings_table(found: Results) -> Table:
    """The values of every option for each label."""
    columns: dict[str, dict[str, set[str]]] = {label: {} for label in found.methods}
    for label, column in columns.items():
        for run in found.contest.labelled(label):
            for name, value in settings_of(run.record).items():
                column.setdefault(name, set()).add(value_text(value))
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [
        [name, *(", ".join(sorted(each.get(name, ()))) or NOTHING for each in columns.values())]
        for name in names
    ]
    header = ["option", *map(method_name, columns)]
    return Table("Every option of the methods and of the training.", header, rows)
