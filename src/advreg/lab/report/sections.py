"""What a report says, part by part: tables and pictures made of the records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from advreg.lab.report.gather import Gathered, Run, short_names
from advreg.lab.report.groups import Contest, MainMetrics, contests, settings_of
from advreg.lab.report.health_parts import health_parts, token_section
from advreg.lab.report.labels import NOTHING, duration, method_name, method_order, value_text
from advreg.lab.report.parts import Folded, Heading, Part, Section, Tiles
from advreg.lab.report.render import Sheet
from advreg.lab.report.score_parts import cost_parts, score_parts
from advreg.lab.report.study_parts import probing_section, study_parts
from advreg.lab.report.training_parts import gradient_parts, training_parts
from advreg.records.compare import seconds_of
from advreg.records.run import RunRecord


def sections(
    found: Gathered, main_metrics: MainMetrics, more: Sequence[Section] = ()
) -> list[Section]:
    """Everything there is to say; ``more`` comes after the cost."""
    groups = contests(found, main_metrics)
    finished = [contest for contest in groups if contest.runs]
    made = [
        overview(found, finished),
        Section(
            "scores",
            "Scores",
            "Mean over seeds. Dots are seeds; lines are the 95 % confidence interval of the mean "
            "(Student's t), with "
            "an arrow where it is cut because it is far wider than all scores together.",
            _by_contest(finished, score_parts),
        ),
        Section(
            "cost",
            "Cost",
            "Passes are counted from outside the method, a fused pass as two; time is that of the "
            "training steps.",
            _by_contest(finished, cost_parts),
        ),
        *more,
        Section(
            "training",
            "Training",
            "Mean over seeds, and the range they span.",
            _by_contest(finished, training_parts),
        ),
        Section(
            "gradients",
            "Gradient norms",
            "Norm of the parameters' gradient before clipping, and its variance over training: a "
            "calm gradient is what "
            "reusing perturbations is meant to buy.",
            _by_contest(finished, gradient_parts),
        ),
        Section(
            "studies",
            "Studies",
            "One thing varies and all else is equal. Whiskers are the standard deviation over "
            "seeds; SMART is dashed, "
            "Standard dotted.",
            _by_contest(finished, study_parts),
        ),
        probing_section(found),
        Section(
            "perturbation",
            "The perturbation",
            "Is it large enough to matter, does it fill its ball, how old is it, and whom is it "
            "borrowed from?",
            _by_contest(finished, health_parts),
        ),
        token_section(finished),
        _failures(found),
        _all_runs(found),
    ]
    return [section for section in made if section.parts]


def _by_contest(groups: Sequence[Contest], make: Callable[[Contest], Sequence[Part]]) -> list[Part]:
    """The parts of each contest, under its title if there are several."""
    parts: list[Part] = []
    for contest in groups:
        made = make(contest)
        if made and len(groups) > 1:
            parts.append(Heading(contest.title))
        parts += made
    return parts


# ---- what was run


def overview(found: Gathered, groups: Sequence[Contest]) -> Section:
    """How many of what, and under which conditions."""
    runs = [run for run in found.runs if not run.is_tuning]
    done = [run.record for run in runs if run.record.outcome.status == "finished"]
    tuning = len(found.runs) - len(runs)
    failed = sum(run.record.outcome.status == "failed" for run in runs)
    left = f"{failed} failed, {len(found.unfinished)} unfinished"
    tiles = [
        ("runs finished", str(len(done)), left + (f", {tuning} for tuning" if tuning else "")),
        _listed(
            "methods",
            [
                method_name(name)
                for name in sorted({record.method.name for record in done}, key=method_order)
            ],
        ),
        _listed("tasks", [record.task.name for record in done]),
        _listed(
            "seeds",
            [
                str(record.training.seed)
                for record in sorted(done, key=lambda each: each.training.seed)
            ],
        ),
        _listed("devices", [str(record.environment.get("device") or "unknown") for record in done]),
        ("training time", duration(sum(map(seconds_of, done))), "steps of all finished runs"),
    ]
    parts: list[Part] = [Tiles([tile for tile in tiles if tile[1] not in ("0", "0 s")])]
    if done:
        parts.append(_conditions([run.record for run in found.runs]))
    parts += [Folded(f"Settings: {contest.title}", _settings_sheet(contest)) for contest in groups]
    return Section("overview", "What was run", "", parts)


def _listed(what: str, values: Iterable[str]) -> tuple[str, str, str]:
    distinct = list(dict.fromkeys(values))
    shown = ", ".join(distinct[:8]) + (" …" if len(distinct) > 8 else "")
    return (what if len(distinct) != 1 else what.removesuffix("s")), str(len(distinct)), shown


def _conditions(records: Sequence[RunRecord]) -> Sheet:
    """Where the code and the machine were the same, one row."""
    counts: dict[tuple[str, ...], int] = {}
    for record in records:
        counts[_condition(record)] = counts.get(_condition(record), 0) + 1
    header = [
        "commit",
        "advreg",
        "device",
        "platform",
        "python",
        "torch",
        "transformers",
        "precision",
        "runs",
    ]
    rows = [[*condition, str(count)] for condition, count in counts.items()]
    return Sheet("Code and machines.", header, rows)


def _condition(record: RunRecord) -> tuple[str, ...]:
    environment = record.environment
    git, packages = environment.get("git") or {}, environment.get("packages") or {}
    commit = str(git.get("commit") or "unknown")[:10] + (" + changes" if git.get("dirty") else "")
    named = (
        environment.get(name) or NOTHING for name in ("advreg", "device", "platform", "python")
    )
    versions = (packages.get(name) or NOTHING for name in ("torch", "transformers"))
    return (commit, *map(str, named), *map(str, versions), record.training.precision)


def _settings_sheet(contest: Contest) -> Sheet:
    """Every option of every label, where all of its runs agree on it."""
    columns: dict[str, dict[str, set[str]]] = {label: {} for label in contest.methods}
    for (_, label, _), run in contest.runs.items():
        for name, value in settings_of(run.record).items():
            columns[label].setdefault(name, set()).add(value_text(value))
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [
        [name, *(_agreed(column.get(name, set())) for column in columns.values())] for name in names
    ]
    header = ["option", *map(method_name, columns)]
    return Sheet("Every option of the methods and of the training.", header, rows)


def _agreed(values: set[str]) -> str:
    return ", ".join(sorted(values)) if values else NOTHING


# ---- what went wrong, and all of it


def _failures(found: Gathered) -> Section:
    rows = [
        [
            run.name,
            "tuning" if run.is_tuning else "run",
            "failed",
            run.record.outcome.error or NOTHING,
        ]
        for run in found.runs
        if run.record.outcome.status == "failed"
    ]
    recorded = {run.folder for run in found.runs if run.record.outcome.status == "failed"}
    compared = [
        (folder / run.folder, run.error)
        for folder, made in found.comparisons.items()
        for run in made.runs
    ]
    studied = [
        (folder / run.folder, run.error)
        for folder, made in found.studies.items()
        for variant in made.variants
        for run in variant.runs
    ]
    errors = [(folder, error) for folder, error in (*compared, *studied) if error is not None]
    others = {folder: error for folder, error in errors if folder not in recorded}
    names = short_names(others)
    rows += [[names[folder], "run", "failed", error] for folder, error in others.items()]
    rows += [
        [run.name, "run", "unfinished", "still running, or stopped"] for run in found.unfinished
    ]
    rows += [[each.name, "file", "unreadable", each.reason] for each in found.unreadable]
    sheet = Sheet("Runs without a result, and why.", ["run", "kind", "status", "reason"], rows)
    return Section("failed", "Failed and unfinished", "", [sheet] if rows else [])


def _all_runs(found: Gathered) -> Section:
    rows = [_run_row(run) for run in found.runs]
    header = ["run", "task", "model", "method", "seed", "status", "metrics", "training", "started"]
    sheet = Sheet("Every run that has a record.", header, rows)
    return Section("runs", "All runs", "", [Folded(f"{len(rows)} runs", sheet)] if rows else [])


def _run_row(run: Run) -> list[str]:
    record = run.record
    metrics = ", ".join(
        f"{name} {value:.4g}" for name, value in record.outcome.metrics.items() if value is not None
    )
    return [
        run.name,
        record.task.name,
        record.model.name,
        method_name(record.method.name),
        str(record.training.seed),
        record.outcome.status,
        metrics or NOTHING,
        duration(seconds_of(record)),
        record.started[:16].replace("T", " "),
    ]
