"""What a report says, part by part: tables and pictures made of the records."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from advreg.health import Histogram, MemoryHealth, TokenNorms
from advreg.record import RunRecord
from advreg.report.compare import STANDARD, seconds_of
from advreg.report.contests import Contest, Study, contests, settings_of, studies
from advreg.report.curves import GRADIENT_NORM, Measure, curve, logged, shared_axis
from advreg.report.figures import (
    DASHED,
    DOTTED,
    Figure,
    Level,
    Lines,
    Look,
    Row,
    Rows,
    Series,
    looks,
    rounded,
    row_of,
    series_of,
    violin_of,
)
from advreg.report.gather import Gathered, Run
from advreg.report.render import Sheet, cost_sheet, notes, score_sheets, task_name
from advreg.report.student import Spread
from advreg.report.words import NOTHING, bytes_text, duration, method_name, method_order, value_text

MainMetrics = Callable[[str, Mapping[str, Any]], Sequence[str]]

_MOST_SENTENCES = 8


@dataclass(frozen=True)
class Heading:
    """A title within a section."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of remarks."""

    title: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Tiles:
    """Numbers that stand by themselves, each with what it is and a remark."""

    tiles: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Folded:
    """A table that opens when it is asked for."""

    title: str
    sheet: Sheet


@dataclass(frozen=True)
class Heat:
    """Sentences whose tokens are shaded by the norm of their perturbation."""

    title: str
    sentences: Sequence[TokenNorms]


Part = Heading | Bullets | Tiles | Sheet | Folded | Figure | Heat


@dataclass(frozen=True)
class Section:
    """A part of the page with a name in its list of contents; pictures that follow each other stand side by side."""

    key: str
    title: str
    intro: str
    parts: Sequence[Part]


def sections(found: Gathered, main_metrics: MainMetrics, more: Sequence[Section] = ()) -> list[Section]:
    """Everything there is to say; ``more`` comes after the cost."""
    groups = contests(found, main_metrics)
    finished = [contest for contest in groups if contest.runs]
    made = [
        overview(found, finished),
        Section(
            "scores",
            "Scores",
            "Mean over seeds. Dots are seeds; whiskers are the 95 % confidence interval of the mean (Student's t).",
            _by_contest(finished, _score_parts),
        ),
        Section(
            "cost",
            "Cost",
            "Passes are counted from outside the method, a fused pass as two; time is that of the training steps.",
            _by_contest(finished, _cost_parts),
        ),
        *more,
        Section(
            "training",
            "Training",
            "Mean over seeds, and the range they span.",
            _by_contest(finished, _training_parts),
        ),
        Section(
            "gradients",
            "Gradient norms",
            "Norm of the parameters' gradient before clipping, and its variance over training: a calm gradient is what "
            "reusing perturbations is meant to buy.",
            _by_contest(finished, _gradient_parts),
        ),
        Section(
            "studies",
            "Studies",
            "One option varies and all else is equal. Whiskers are the standard deviation over seeds; SMART is dashed, "
            "Standard dotted.",
            _by_contest(finished, _study_parts),
        ),
        _probing(found),
        Section(
            "perturbation",
            "The perturbation",
            "Is it large enough to matter, does it fill its ball, how old is it, and whom is it borrowed from?",
            _by_contest(finished, _health_parts),
        ),
        _tokens(finished),
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
            "methods", [method_name(name) for name in sorted({record.method.name for record in done}, key=method_order)]
        ),
        _listed("tasks", [record.task.name for record in done]),
        _listed("seeds", [str(record.training.seed) for record in sorted(done, key=lambda each: each.training.seed)]),
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
    header = ["commit", "advreg", "device", "platform", "python", "torch", "transformers", "precision", "runs"]
    rows = [[*condition, str(count)] for condition, count in counts.items()]
    return Sheet("Code and machines.", header, rows)


def _condition(record: RunRecord) -> tuple[str, ...]:
    environment = record.environment
    git, packages = environment.get("git") or {}, environment.get("packages") or {}
    commit = str(git.get("commit") or "unknown")[:10] + (" + changes" if git.get("dirty") else "")
    named = (environment.get(name) or NOTHING for name in ("advreg", "device", "platform", "python"))
    versions = (packages.get(name) or NOTHING for name in ("torch", "transformers"))
    return (commit, *map(str, named), *map(str, versions), record.training.precision)


def _settings_sheet(contest: Contest) -> Sheet:
    """Every option of every label, where all of its runs agree on it."""
    columns: dict[str, dict[str, set[str]]] = {label: {} for label in contest.methods}
    for (_, label, _), run in contest.runs.items():
        for name, value in settings_of(run.record).items():
            columns[label].setdefault(name, set()).add(value_text(value))
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[name, *(_agreed(column.get(name, set())) for column in columns.values())] for name in names]
    header = ["option", *map(method_name, columns)]
    return Sheet("Every option of the methods and of the training.", header, rows)


def _agreed(values: set[str]) -> str:
    return ", ".join(sorted(values)) if values else NOTHING


# ---- scores and cost


def _looks(contest: Contest) -> dict[str, Look]:
    labels = list(contest.methods)
    return looks(labels, list(contest.methods.values()), [method_name(label) for label in labels])


def _score_parts(contest: Contest) -> list[Part]:
    sheets = score_sheets(contest.results)
    if contest.has_variants:  # with a row for every variant, differences from one of them say little
        sheets = [sheet for sheet in sheets if " minus each method" not in sheet.caption]
    parts: list[Part] = [sheets[0]]
    for task in contest.results.tasks:
        rows = _score_rows(contest, task)
        if rows:
            told = {"value": "mean", "interval": "95 % interval of the mean", "dots": "seeds"}
            title = task_name(contest.results, task)
            parts.append(Rows(title=title, x="score on dev, percent", rows=rows, told=told))
    remarks = [note for note in notes(contest.results) if ": no result: " not in note and ": candidate" not in note]
    return [*parts, *sheets[1:], *([Bullets("Notes", remarks)] if remarks else [])]


def _score_rows(contest: Contest, task: str) -> list[Row]:
    shown, found = _looks(contest), []
    for label, runs in contest.of(task).items():
        scores = [score for run in runs if (score := contest.score(task, run)) is not None]
        spread = Spread.of(scores)
        if spread is not None:
            found.append(row_of(shown[label], scores, spread))
    return found


def _cost_parts(contest: Contest) -> list[Part]:
    parts: list[Part] = [_cost_table(contest)]
    figure = _cost_figure(contest)
    if figure.rows:
        parts.append(figure)
    if any(cost.candidates for cost in contest.results.costs):
        parts.append(cost_sheet(contest.results))
    return parts


def _cost_table(contest: Contest) -> Sheet:
    header = ["", "forward", "backward", "ms per step", "× Standard", "training", "whole run", "cache", "GPU memory"]
    rows = []
    for cost in contest.results.costs:
        mine = [run for (_, label, _), run in contest.runs.items() if label == cost.method]
        if not mine:
            continue
        passes = [_mean([run.record.outcome.passes.get(kind) for run in mine]) for kind in ("forward", "backward")]
        step = _mean([run.record.outcome.timing.get("seconds_per_step") for run in mine])
        peaks = [run.health.peak_bytes for run in mine if run.health is not None and run.health.peak_bytes]
        rows.append(
            [
                method_name(cost.method),
                *(_text(each, "{:.2f}") for each in passes),
                _text(None if step is None else 1000 * step, "{:.1f}"),
                _text(cost.relative, "{:.2f}"),
                NOTHING if cost.seconds is None else duration(cost.seconds),
                duration(statistics.fmean(_wall_seconds(run.record) for run in mine)),
                bytes_text(max(run.record.outcome.cache_bytes or 0 for run in mine)),
                bytes_text(max(peaks, default=None)),
            ]
        )
    caption = (
        "Means over runs. × Standard: time of the steps, relative to Standard's run of the same task and seed; whole "
        "run: by the clock, with evaluation and saving."
    )
    return Sheet(caption, header, rows)


def _cost_figure(contest: Contest) -> Rows:
    shown = _looks(contest)
    plain = {(task, seed): run.record for (task, label, seed), run in contest.runs.items() if label == STANDARD}
    rows = []
    for label, look in shown.items():
        ratios = [
            seconds_of(run.record) / seconds_of(plain[task, seed])
            for (task, mine, seed), run in contest.runs.items()
            if mine == label and (task, seed) in plain and seconds_of(plain[task, seed]) > 0
        ]
        cost = next((each for each in contest.results.costs if each.method == label), None)
        if ratios and cost is not None and cost.relative is not None:
            rows.append(Row(look, cost.relative, dots=[rounded(ratio) for ratio in ratios]))
    told = {"value": "mean", "dots": "runs"}
    return Rows(title="Time of training", x="× Standard", rows=rows, bars=True, base=1.0, told=told)


def _wall_seconds(record: RunRecord) -> float:
    if record.finished is None:
        return 0.0
    return (datetime.fromisoformat(record.finished) - datetime.fromisoformat(record.started)).total_seconds()


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _text(value: float | None, form: str) -> str:
    return NOTHING if value is None else form.format(value)


# ---- over training


def _line_figure(
    contest: Contest,
    task: str,
    title: str,
    unit: str,
    measure: Callable[[str], Measure],
    levels: Sequence[Level] = (),
    zero: bool = False,
) -> Lines | None:
    """What was logged over training on a task; ``measure`` gives what to take of a label's logs."""
    shown, runs = _looks(contest), contest.of(task)
    axis = shared_axis(run.record for mine in runs.values() for run in mine)
    curves = {label: curve(label, [run.record for run in mine], axis, measure(label)) for label, mine in runs.items()}
    series = [series_of(shown[label], each) for label, each in curves.items() if each is not None and each.places]
    if not series:
        return None
    return Lines(title=title, x=axis, y=unit, series=series, levels=levels, zero=zero)


def _named(contest: Contest, task: str, what: str) -> str:
    return f"{task_name(contest.results, task)}: {what}" if len(contest.results.tasks) > 1 else what.capitalize()


def _training_parts(contest: Contest) -> list[Part]:
    found: list[Part | None] = []
    for task in contest.record.tasks:
        found.append(
            _line_figure(
                contest, task.name, _named(contest, task.name, "task loss"), "loss", lambda _: logged("task_loss")
            )
        )
        for metric in task.main_metrics:
            title = _named(contest, task.name, f"dev {metric}")
            key = f"eval_{metric}"
            found.append(_line_figure(contest, task.name, title, metric, lambda _, key=key: logged(key)))  # type: ignore[misc]
    return [part for part in found if part is not None]


def _gradient_parts(contest: Contest) -> list[Part]:
    parts: list[Part] = []
    shown = _looks(contest)
    for task in contest.results.tasks:
        title = _named(contest, task, "gradient norm")
        lines = _line_figure(contest, task, title, "norm", lambda _: GRADIENT_NORM, zero=True)
        if lines is None:
            continue
        parts.append(lines)
        rows = []
        for label, runs in contest.of(task).items():
            each = curve(label, [run.record for run in runs], lines.x)
            if each is not None and each.variances:
                dots = [rounded(value) for value in each.variances]
                rows.append(Row(shown[label], statistics.fmean(each.variances), dots=dots))
        if rows:
            told = {"value": "mean over seeds", "dots": "seeds"}
            title = _named(contest, task, "variance of the gradient norm")
            parts.append(Rows(title=title, x="variance over training", rows=rows, bars=True, told=told))
    return parts


# ---- studies


def _study_parts(contest: Contest) -> list[Part]:
    return [_study_figure(contest, study) for study in studies(contest)]


def _study_figure(contest: Contest, study: Study) -> Lines:
    labels = [line.label for line in study.lines]
    lines = looks(labels, [study.method] * len(labels), labels)
    values = list(dict.fromkeys(value for line in study.lines for value in line.scores))
    numbers = [float(value) for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    numeric = len(numbers) == len(values)
    places = {value: float(value) if numeric else float(place) for place, value in enumerate(values)}
    references = looks(list(study.references), list(study.references), list(map(method_name, study.references)))
    dashes = {"smart": DASHED, STANDARD: DOTTED}
    return Lines(
        title=_study_title(contest, study),
        x=study.option,
        y="score on dev, percent",
        series=[_study_series(lines[line.label], line.scores, places) for line in study.lines],
        levels=[
            Level(_with_dash(references[name], dashes[name]), rounded(statistics.fmean(scores)))
            for name, scores in study.references.items()
        ],
        reach="bars",
        ticks=() if numeric else [value_text(value) for value in values],
        logarithmic=numeric and min(numbers) > 0 and max(numbers) / min(numbers) > 20,
    )


def _study_title(contest: Contest, study: Study) -> str:
    together = f" (with {', '.join(study.with_it)})" if study.with_it else ""
    return f"{task_name(contest.results, study.task)}: {study.option}{together} of {method_name(study.method)}"


def _with_dash(look: Look, dash: str) -> Look:
    return Look(look.label, look.method, look.colour, dash)


def _study_series(look: Look, scores: Mapping[Any, Sequence[float]], places: Mapping[Any, float]) -> Series:
    spreads = {value: Spread.of(each) for value, each in scores.items()}
    known = {value: spread for value, spread in spreads.items() if spread is not None}
    reach = {value: spread.deviation or 0.0 for value, spread in known.items()}
    return Series(
        look,
        [places[value] for value in known],
        [rounded(spread.mean) for spread in known.values()],
        [rounded(spread.mean - reach[value]) for value, spread in known.items()],
        [rounded(spread.mean + reach[value]) for value, spread in known.items()],
    )


# ---- probing


def _probing(found: Gathered) -> Section:
    """Violins of the heads' scores, and a table of their means."""
    parts: list[Part] = []
    for record in found.probes:
        by_task: dict[str, dict[str, list[float]]] = {}
        for result in record.results:
            by_task.setdefault(result.task, {}).setdefault(result.label, []).extend(result.scores)
        labels = list(dict.fromkeys(result.label for result in record.results))
        shown = looks(labels, labels, list(map(method_name, labels)))
        rows = [
            [method_name(label), *(_spread_text(scores.get(label, [])) for scores in by_task.values())]
            for label in labels
        ]
        sources = sorted({result.trained_on for result in record.results if result.trained_on is not None})
        after = f" after training on {', '.join(sources)}" if sources else ""
        parts.append(Sheet(f"Score in percent, mean ± sd over heads; encoders frozen{after}.", ["", *by_task], rows))
        told = {"value": "median", "interval": "quartiles", "dots": "heads"}
        parts += [
            Rows(
                title=task,
                x="score of the heads, percent",
                rows=[violin_of(shown[label], values) for label, values in methods.items() if values],
                told=told,
            )
            for task, methods in by_task.items()
        ]
    intro = "Encoders are frozen and only a head is fitted on another task: how much do their representations hold?"
    return Section("probing", "Probing", intro, parts)


def _spread_text(values: Sequence[float]) -> str:
    spread = Spread.of(values)
    if spread is None:
        return NOTHING
    return f"{spread.mean:.1f}" + ("" if spread.deviation is None else f" ± {spread.deviation:.1f}")


# ---- the perturbation


def _health_parts(contest: Contest) -> list[Part]:
    found: list[Part | None] = []
    weights = _options(contest, "weight")
    for task in contest.results.tasks:
        found += [
            _line_figure(
                contest,
                task,
                _named(contest, task, "size of the perturbation"),
                "‖δ‖₂ per sample, mean",
                lambda _: logged("delta_norm"),
                _balls(contest, task),
                zero=True,
            ),
            _line_figure(
                contest,
                task,
                _named(contest, task, "share of the penalty in the loss"),
                "λ·penalty / loss, percent",
                lambda label: _share(weights.get(label)),
                zero=True,
            ),
            _line_figure(
                contest,
                task,
                _named(contest, task, "age of the cached perturbations"),
                "epochs",
                lambda _: logged("cache_staleness"),
                zero=True,
            ),
            _histogram_figure(
                contest,
                task,
                _named(contest, task, "how far the ball is filled, at the end"),
                "‖δ‖ / ε, by the ball's norm and scope",
                lambda memory: memory.sizes,
            ),
            _histogram_figure(
                contest,
                task,
                _named(contest, task, "similarity to the neighbours borrowed from"),
                "cosine of mean token embeddings",
                lambda memory: memory.similarity,
            ),
        ]
    return [part for part in found if part is not None]


def _options(contest: Contest, name: str) -> dict[str, Any]:
    """An option of each label's method, where it has it."""
    return {
        label: run.record.method.settings[name]
        for (_, label, _), run in contest.runs.items()
        if name in run.record.method.settings
    }


def _share(weight: Any) -> Measure:
    """100 · λ · penalty / (task loss + λ · penalty)."""

    def measure(line: Mapping[str, Any]) -> float | None:
        penalty, task_loss = line.get("penalty"), line.get("task_loss")
        if penalty is None or task_loss is None or not isinstance(weight, int | float):
            return None
        whole = task_loss + weight * penalty
        return 100 * weight * penalty / whole if whole > 0 else None

    return measure


def _balls(contest: Contest, task: str) -> list[Level]:
    """ε of each method whose ball is one that ‖δ‖₂ of a sample can be compared with: l2, per sample, one stream."""
    shown, found = _looks(contest), dict[float, Level]()
    for label, runs in contest.of(task).items():
        options, details = runs[0].record.method.settings, runs[0].record.task.details
        radius = options.get("radius")
        comparable = options.get("norm") == "l2" and options.get("scope") == "sample" and "languages" not in details
        if comparable and isinstance(radius, int | float):
            look = Look(f"ε = {radius:g}", contest.methods[label], shown[label].colour, DASHED)
            found.setdefault(float(radius), Level(look, float(radius)))
    return list(found.values())


def _histogram_figure(
    contest: Contest, task: str, title: str, axis: str, take: Callable[[MemoryHealth], Sequence[Histogram]]
) -> Lines | None:
    """Shares of all seeds' counts, a line for each label and stream."""
    shown, series = _looks(contest), []
    for label, runs in contest.of(task).items():
        memories = [run.health.memory for run in runs if run.health is not None and run.health.memory is not None]
        taken = [histogram for memory in memories for histogram in take(memory)]
        streams = list(dict.fromkeys(histogram.stream for histogram in taken))
        for stream in streams:
            mine = [histogram for histogram in taken if histogram.stream == stream]
            look = shown[label]
            if len(streams) > 1:
                dash = DASHED if stream != streams[0] else ""
                look = Look(f"{look.label}, {stream}", look.method, look.colour, dash)
            series.append(_histogram_series(look, mine))
    series = [each for each in series if each.x]
    return Lines(title=title, x=axis, y="percent", series=series, steps=True, zero=True) if series else None


def _histogram_series(look: Look, histograms: Sequence[Histogram]) -> Series:
    counts = [sum(column) for column in zip(*(histogram.counts for histogram in histograms), strict=True)]
    total = sum(counts)
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return Series(look, [], [])
    low, high = histograms[0].low, histograms[0].high
    first, last = max(filled[0] - 1, 0), min(filled[-1] + 1, len(counts) - 1)
    width = (high - low) / len(counts)
    places = [rounded(low + place * width) for place in range(first, last + 2)]
    shares = [rounded(100 * counts[place] / total) for place in range(first, last + 1)]
    return Series(look, places, [*shares, shares[-1]])


def _tokens(groups: Sequence[Contest]) -> Section:
    parts = []
    for contest in groups:
        for task in contest.results.tasks:
            for label, runs in contest.of(task).items():
                memory = next((run.health.memory for run in runs if run.health and run.health.memory), None)
                named = [entry for entry in (memory.tokens if memory else []) if entry.tokens]
                if named:
                    where = f"{task_name(contest.results, task)}, {method_name(label)}"
                    parts.append(Heat(f"{where}, seed {runs[0].record.training.seed}", named[:_MOST_SENTENCES]))
    intro = "Where the perturbation is strongest, in a few cached sentences of the training data."
    return Section("tokens", "Token by token", intro, parts)


# ---- what went wrong, and all of it


def _failures(found: Gathered) -> Section:
    rows = [
        [run.name, "tuning" if run.is_tuning else "run", "failed", run.record.outcome.error or NOTHING]
        for run in found.runs
        if run.record.outcome.status == "failed"
    ]
    recorded = {run.folder for run in found.runs if run.record.outcome.status == "failed"}
    for folder, record in found.comparisons.items():
        rows += [
            ["/".join((folder / entry.folder).parts[-3:]), "run", "failed", entry.error]
            for entry in record.runs
            if entry.error is not None and folder / entry.folder not in recorded
        ]
    rows += [[run.name, "run", "unfinished", "still running, or stopped"] for run in found.unfinished]
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
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in record.outcome.metrics.items() if value is not None)
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
