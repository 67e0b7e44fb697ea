"""docs/results/translation.md and its picture, from the records in results/translation and
results/cost.

python experiments/translation_page.py            # writes them
python experiments/translation_page.py --check    # says whether they are up to date

A part whose records are not there is left out: comparisons (``*/compare.json``), studies
(``neighbours/study.json``, ``dropout/study.json``), single runs of other schedules
(``schedules/*/record.json``) and on a CPU (``cpu/*/record.json``), ``speed.jsonl`` of
translation_speed.py, ``decoding.jsonl`` of decoding_speed.py, ``borrowed.jsonl`` of
borrowed_perturbations.py, and ``attention.jsonl``, whose script and kernels were removed.
Comparisons that train the same model in the same way are one, made in several parts. Times come from
``results/cost/translation*.json``, a bench for each model.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pages import keep, logged_mean
from translation_records import ARCH, BENCHES, RECORDS, SHARED, Compared, Records
from translation_texts import (
    BORROWED,
    CPU,
    DECODING,
    EPOCHS,
    NORMS,
    READING,
    SCHEDULES,
    SHORT,
    SPEED,
    STRENGTH,
    STUDIES,
    TITLE,
)

from advreg.core.schedule import RefreshEvery
from advreg.lab.bench.figures import contender, over_a_run, within_rounds
from advreg.lab.report.compare import results
from advreg.lab.report.curves import curve
from advreg.lab.report.groups import STANDARD
from advreg.lab.report.labels import (
    NOTHING,
    method_name,
    method_order,
    metric_name,
    spread_text,
    task_name,
)
from advreg.lab.report.score_tables import notes, score_tables
from advreg.lab.report.sections.gradients import draw_norms
from advreg.lab.report.statistics import Spread as SeedSpread
from advreg.lab.report.study import findings
from advreg.lab.report.study import to_markdown as study_to_markdown
from advreg.lab.report.tables import Table, markdown
from advreg.records.bench import BenchRecord, Spread
from advreg.records.reading import load_all
from advreg.records.run import RunRecord
from advreg.records.study import STUDY_FILE
from advreg.records.study import load as load_study

PAGE = Path(__file__).resolve().parent.parent / "docs" / "results" / "translation.md"
PICTURE = "translation-norms.svg"

# Zuo et al. 2021, table of the low-resource data sets: BLEU
PAPER = {
    "iwslt15-en-vi": {"standard": 30.3, "r3f": 31.6, "freelb": 31.6, "smart": 31.5, "arch": 32.0},
    "iwslt15-vi-en": {"standard": 28.7, "r3f": 30.0, "freelb": 29.6, "smart": 30.1, "arch": 30.4},
}
METRICS = ("tokenised_bleu", "bleu", "chrf")
REGULARISED = ("smart", "r3f", ARCH)  # of the paper's figure of gradient norms


# ---- the page


def page(folder: Path, benches: Sequence[Path] = BENCHES) -> str:
    """The whole page."""
    found = Records(folder, benches)
    parts = [TITLE, aims(found)]
    parts += [comparison(compared, found.benches) for compared in found.comparisons]
    parts += [schedules(found), on_cpu(found), times(found.benches), norms(found), strength(found)]
    parts += [
        borrowed(found),
        *studies(folder),
        speed(found),
        attention(found),
        decoding(found),
        READING,
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown(Table("", header, rows))


# ---- targets


def aims(found: Records) -> str:
    """Each target and the measurement."""
    body = [row for bench in found.benches.values() for row in time_aims(bench)]
    body += [*speed_aims(found), *decoding_aims(found)]
    return (
        f"## Targets and results\n\n{table(['measure', 'target', 'measured'], body)}"
        if body
        else ""
    )


def time_aims(bench: BenchRecord) -> list[list[str]]:
    rounds, of = (
        rounds_of(bench, bench.settings["epochs"]),
        f"whole schedule, {bench.settings['model']}",
    )
    return [
        [
            f"ARCH / {method_name(other)}, {of}",
            f"≤ {most:.2f}",
            quartiles(within_rounds(rounds[ARCH], rounds[other])),
        ]
        for other, most in TIME_AIMS.items()
        if other in rounds
    ]


TIME_AIMS = {"smart": 0.35, "r3f": 1.10}  # ARCH's time, relative to theirs


def quartiles(values: Sequence[float], digits: int = 3) -> str:
    spread = Spread.of(values)
    if spread is None:
        return NOTHING
    return f"{spread.median:.{digits}f} ({spread.quartile_1:.{digits}f}–{spread.quartile_3:.{digits}f})"


def speed_aims(found: Records) -> list[list[str]]:
    """What was measured last with each model and size of batch."""
    sizes = (
        "task",
        "model",
        "precision",
        "max_tokens",
        "batches_per_update",
        "round_lengths",
        "how",
    )
    last = {tuple(map(line.get, sizes)): line for line in speed_lines(found)}
    return [
        [
            f"trainer / bare loop, target tokens per second, {about_batches(line)}",
            "≥ 0.95",
            shares(line),
        ]
        for line in last.values()
    ]


def decoding_aims(found: Records) -> list[list[str]]:
    body = []
    for line in found.lines("decoding.jsonl"):
        what = f"{line['sentences']:,} sentences, beam {line['beam']}, {task_name(line['task'])}"
        seconds = [order["seconds"] for order in line["orders"]]
        body.append([f"decoding of {what}", "< 60 s", f"{min(seconds):.0f}–{max(seconds):.0f} s"])
        scores = [order["scores"]["bleu"] for order in line["orders"]]
        body.append([f"sacreBLEU in {len(scores)} batch orders, {what}", "the same", reach(scores)])
    return body


def reach(values: Sequence[float]) -> str:
    low, high = (f"{value:.2f}" for value in (min(values), max(values)))
    return low if low == high else f"{low}–{high}"


# ---- scores


def comparison(compared: Compared, benches: Mapping[str, BenchRecord]) -> str:
    """Scores, time and the paper's figures for each task; then the differences, and what a reader
    must know.
    """
    found = results(compared.record, compared.runs)
    models = compared.record.settings["model"]
    parts = [f"## Scores, {models}", about(compared)]
    parts += [
        f"### {task_name(task)}\n\n{scores(compared, task, benches)}" for task in compared.tasks
    ]
    differences = [sheet for sheet in score_tables(found) if " minus each method" in sheet.caption]
    parts += [f"{sheet.caption}\n\n{markdown(sheet)}" for sheet in differences]
    told = notes(found)
    parts += ["Notes:\n\n" + "\n".join(f"- {line}" for line in told)] if told else []
    return "\n\n".join([*parts, made_by(compared.runs.values())])


def about(compared: Compared) -> str:
    """The settings that all runs share."""
    values = {name: compared.settings(name) for name in SHARED}
    told = ", ".join(
        f"{name} {value}"
        for name, (value, *more) in values.items()
        if value is not None and not more
    )
    return f"Shared settings: {told}."


def scores(compared: Compared, task: str, benches: Mapping[str, BenchRecord]) -> str:
    """A row for each method: every score, time, and what the paper has."""
    paper = PAPER.get(task, {})
    methods = compared.methods(task)
    first = next(iter(compared.of(task, methods[0]).values()))
    metrics = [name for name in METRICS if name in first.outcome.metrics]
    rows = []
    for method in methods:
        runs, asked = compared.of(task, method), compared.asked(task, method)
        values = [[run.outcome.metrics[name] for run in runs.values()] for name in metrics]
        finite = [[value for value in each if value is not None] for each in values]
        one = next(iter(runs.values()))
        row = [
            compared.named(task, one),
            *(spread_text(SeedSpread.of(each), asked) for each in finite),
            *cost(one, benches),
        ]
        rows.append(
            [*row, *([f"{paper[method]:.1f}" if method in paper else NOTHING] if paper else [])]
        )
    header = [
        "",
        *map(metric_name, metrics),
        "passes per step",
        "time, × Standard",
        *(["paper"] if paper else []),
    ]
    return f"{table(header, rows)}\n\n{how_scored(first, metrics, compared.own_of(task))}"


def cost(run: RunRecord, benches: Mapping[str, BenchRecord]) -> list[str]:
    """Forward and backward passes of a run's step on average; its whole schedule relative to Standard's
    in a bench.
    """
    passes = " + ".join(f"{run.outcome.passes[kind]:.3g}" for kind in ("forward", "backward"))
    bench = benches.get(run.training.more["model"])
    if bench is None:
        return [passes, NOTHING]
    rounds = rounds_of(
        bench, run.training.epochs, RefreshEvery(run.method.settings.get("refresh_every"))
    )
    return [passes, quartiles(within_rounds(rounds.get(run.method.name, []), rounds[STANDARD]), 2)]


def how_scored(run: RunRecord, metrics: Iterable[str], own: Sequence[str]) -> str:
    """What was trained and scored, and how; ``own`` is what the task's runs share with no
    other's.
    """
    details = run.task.details
    signatures = "; ".join(
        f"{metric_name(name)} `{details['signatures'][name]}`" for name in metrics
    )
    search, sizes = details["decoding"], run.task.sizes
    trained = ", ".join([f"Trained on {sizes['train']:,} pairs", *own])
    return (
        f"{trained}, scored on {details['scored']} ({sizes[details['scored']]:,} sentences), "
        f"beam {search['beam']}, length penalty {search['length_penalty']:g}. {signatures}."
    )


# ---- schedules that were tried


def schedules(found: Records) -> str:
    """Single runs: their length, learning rate and scores."""
    runs = load_all(found.folder, "schedules/*/record.json")
    if not runs:
        return ""
    header = [
        "",
        "epochs",
        "tokens per update",
        "updates",
        "learning rate",
        metric_name(METRICS[0]),
        "paper",
    ]
    return "\n\n".join(
        [SCHEDULES.strip(), table(header, [*map(schedule_row, runs)]), made_by(runs)]
    )


def schedule_row(run: RunRecord) -> list[str]:
    facts, paper = run.training.more, PAPER.get(run.task.name, {}).get(run.method.name)
    return [
        f"{task_name(run.task.name)}, {method_name(run.method.name)}",
        *(
            f"{facts['epochs']}",
            f"{facts['update_tokens']:,}",
            f"{run.outcome.history[-1]['step']:,}",
            f"{facts['learning_rate']:g}",
        ),
        f"{run.outcome.metrics[METRICS[0]]:.1f}",
        NOTHING if paper is None else f"{paper:.1f}",
    ]


# ---- without a GPU


def on_cpu(found: Records) -> str:
    """Runs of small models on a CPU."""
    runs = load_all(found.folder, "cpu/*/record.json")
    if not runs:
        return ""
    header = ["", "weights", "epochs", "updates", metric_name("bleu"), metric_name("chrf")]
    return "\n\n".join([CPU.strip(), table(header, [*map(cpu_row, runs)]), made_by(runs)])


def cpu_row(run: RunRecord) -> list[str]:
    return [
        f"{task_name(run.task.name)}, {run.model.name}, {method_name(run.method.name)}",
        f"{run.model.parameters:,}",
        f"{run.training.epochs}",
        f"{run.outcome.timing['steps']:,.0f}",
        *(f"{run.outcome.metrics[name]:.1f}" for name in ("bleu", "chrf")),
    ]


# ---- wall time


def times(benches: Mapping[str, BenchRecord]) -> str:
    """Time of the steps of each kind of epoch, and of whole schedules: the paper's figure of wall
    time.
    """
    return "\n\n".join([EPOCHS.strip(), *map(time_table, benches.values())]) if benches else ""


def time_table(bench: BenchRecord) -> str:
    measured, epochs = bench.panels[0].rows, bench.settings["epochs"]
    whole = rounds_of(bench, epochs)
    steps = {row.name: within_rounds(row.rounds, whole[STANDARD]) for row in measured}
    rows = {}
    for row, _, _ in over_a_run(measured, epochs):
        kinds = (steps.get(f"{contender(row)}, refresh", []), steps[row.name])
        ratios = (within_rounds(whole[row.method], whole.get(name, [])) for name in AGAINST)
        rows.setdefault(
            row.method,
            [method_name(row.method), *(quartiles(each, 2) for each in (*kinds, *ratios))],
        )
    header = ["", "refresh epoch, × Standard", "other epoch, × Standard"]
    header += [f"whole, × {method_name(name)}" for name in AGAINST]
    schedule = f"{bench.settings['model']}, {epochs} epochs, a refresh every {bench.settings['refresh_every']}"
    return (
        f"{schedule}:\n\n{table(header, [rows[name] for name in sorted(rows, key=method_order)])}"
    )


AGAINST = (STANDARD, "smart", "r3f")


def rounds_of(
    bench: BenchRecord, epochs: int, schedule: RefreshEvery | None = None
) -> dict[str, list[float]]:
    """Mean time of a step of each method over a run, round by round; of variants of a method that
    of the first.
    """
    found: dict[str, list[float]] = {}
    for row, _, rounds in over_a_run(bench.panels[0].rows, epochs, schedule):
        found.setdefault(row.method, rounds)
    return found


# ---- gradient norms


def norms(found: Records) -> str:
    """The variance of the gradient's norm, relative to SMART's; after the warm-up, in which it falls
    whatever the method.
    """
    columns = [
        (compared, task)
        for compared, task in found.pairs
        if set(REGULARISED) & set(compared.methods(task))
    ]
    if not columns:
        return ""
    rows = []
    for method in sorted(REGULARISED, key=method_order):
        row = [variance(compared, task, method) for compared, task in columns]
        base = [variance(compared, task, "smart") for compared, task in columns]
        rows.append(
            [method_name(method), *(against(*pair) for pair in zip(row, base, strict=True))]
        )
    header = [
        "variance of the norm (× SMART)",
        *(compared.title(task) for compared, task in columns),
    ]
    return f"{NORMS.strip()}\n\n{table(header, rows)}\n\n![gradient norms over training]({PICTURE})"


def variance(compared: Compared, task: str, method: str) -> float | None:
    """The variance of the norms logged after the warm-up, mean over seeds."""
    drawn = curve(list(compared.of(task, method).values()), settled=True)
    return statistics.fmean(drawn.variances) if drawn.variances else None


def against(value: float | None, base: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.3g}" + (f" ({value / base:.2f})" if base else "")


def draw(found: Records, path: Path) -> bool:
    """The picture, if there is anything to draw."""
    runs = {
        (f"{compared.name}/{task}", method, seed): run
        for compared, task in found.pairs
        for method in sorted(REGULARISED, key=method_order)
        for seed, run in compared.of(task, method).items()
    }
    if not runs:
        return False
    names = {
        f"{each.name}/{task}": each.title(task) for each in found.comparisons for task in each.tasks
    }
    draw_norms(runs, path, names, settled=True)
    return True


# ---- penalties


def strength(found: Records) -> str:
    """How large the penalties were, and the perturbations they are of."""
    rows = []
    for compared, task in found.pairs:
        for method in (name for name in compared.methods(task) if name in REGULARISED):
            logged = partial(logged_mean, compared.runs, task, method)
            share = logged("penalty") / logged("task_loss")
            last = (logged(name, last=True) for name in ("task_loss", "penalty", "delta_norm"))
            texts = [f"{100 * share:.1f} %", *(f"{value:.3f}" for value in last)]
            named = f"{compared.title(task)}, {method_name(method)}"
            rows.append([named, *(NOTHING if text.startswith("nan") else text for text in texts)])
    header = [
        "",
        "penalty / task loss",
        "task loss, last epoch",
        "penalty, last epoch",
        "‖δ‖, last epoch",
    ]
    return f"{STRENGTH.strip()}\n\n{table(header, rows)}" if rows else ""


# ---- borrowed perturbations, studies, training speed, decoding


def borrowed(found: Records) -> str:
    """How far predictions move by a pair's own perturbation, by a borrowed one, and by dropout."""
    lines = found.lines("borrowed.jsonl")
    if not lines:
        return ""
    parts = [BORROWED.strip()]
    for line in lines:
        masks = line["ways"][MASKS]["moved"]
        rows = [
            [
                name,
                f"{way['norm']:.3f}",
                f"{1000 * way['moved']:.3g}",
                f"{100 * way['moved'] / masks:.2f} %",
                against_random(way.get("more_than_random")),
            ]
            for name, way in line["ways"].items()
        ]
        header = [
            "δ",
            "‖δ‖",
            "1000 KL per token",
            "share of the masks' effect",
            "1000 KL, minus a random neighbour's",
        ]
        parts.append(f"{about_model(line)}\n\n{table(header, rows)}")
    return "\n\n".join(
        [*parts, provenance([made for line in lines for made in (line["trained"], line)])]
    )


MASKS = "none, other dropout masks"


def against_random(more: Mapping[str, Any] | None) -> str:
    if more is None:
        return NOTHING
    mean, low, high = (f"{1000 * value:+.2g}" for value in (more["mean"], *more["interval"]))
    return f"{mean} [{low}, {high}]"


def about_model(line: Mapping[str, Any]) -> str:
    return (
        f"{task_name(line['task'])}, {line['model']}, {method_name(line['method'])} for "
        f"{line['epochs']} epochs "
        f"(sacreBLEU {line['bleu']:.1f}), dropout {line['dropout']:g}, ε {line['radius']:g}; "
        f"{line['cached']:,} pairs are cached, {line['pairs']:,} others were measured:"
    )


def studies(folder: Path) -> list[str]:
    """The tables of the existing studies, unchanged."""
    there = {name: text for name, text in STUDIES.items() if (folder / name / STUDY_FILE).is_file()}
    return [
        f"{text.strip()}\n\n{study_to_markdown(findings(load_study(folder / name)))}"
        for name, text in there.items()
    ]


def speed(found: Records) -> str:
    lines = speed_lines(found)
    if not lines:
        return ""
    rows = [
        [
            about_batches(line),
            *(f"{statistics.median(line[name]):,.0f}" for name in RATES),
            shares(line),
        ]
        for line in lines
    ]
    header = ["", "bare loop", "trainer", "trainer / bare loop"]
    return f"{SPEED.strip()}\n\n{table(header, rows)}\n\n{provenance(lines)}"


COMPILED = {
    "layers": "compiled layers",
    "short": "compiled layers, short attention",  # of kernels that were removed
    "whole": "compiled as a whole",
}
RATES = ("bare_tokens_per_second", "our_tokens_per_second")


def speed_lines(found: Records) -> list[Mapping[str, Any]]:
    """What was measured, and after it the same under torch.compile where that was measured too."""
    lines = []
    for line in found.lines("speed.jsonl"):
        compiled = line.get("compiled", {}).items()
        lines += [
            line,
            *({**line, **facts, "how": f", {COMPILED[what]}"} for what, facts in compiled),
        ]
    return lines


def about_batches(line: Mapping[str, Any]) -> str:
    task = task_name(line["task"])
    each = f"{line['max_tokens']:,} tokens × {line['batches_per_update']} per update"
    widths = f", widths of {line['round_lengths']}" if line.get("round_lengths", 1) > 1 else ""
    widths += ", made by a worker" if line.get("workers") else ""
    return f"{task}, {line['model']}, {line['precision']}, {each}{widths}{line.get('how', '')} ({line['commit'][:7]})"


def shares(line: Mapping[str, Any]) -> str:
    share = line["share"]
    return f"{share['median']:.3f} ({share['least']:.3f}–{share['most']:.3f})"


def attention(found: Records) -> str:
    """Removed kernels of attention over short rows and PyTorch's: time on the GPU, and time of
    calls from the host.
    """
    lines = found.lines("attention.jsonl")
    parts = []
    for line in lines:
        rows = [
            [
                f"{each['length']}, {kind}",
                *(f"{each[kind][way][time]:.2f}" for time in ATTENTION for way in KERNELS),
            ]
            for each in line["lengths"]
            for kind in ("padded", "causal")
        ]
        header = [
            "tokens per row",
            *(f"{told}, {way}" for told in ATTENTION.values() for way in KERNELS.values()),
        ]
        what = (
            f"{line['positions']:,} positions, {line['heads']} heads of width {line['width']}, bf16"
        )
        parts.append(f"{what}, ms forward and backward:\n\n{table(header, rows)}")
    return "\n\n".join([SHORT.strip(), *parts, provenance(lines)]) if parts else ""


ATTENTION = {"kernels_ms": "GPU", "wall_ms": "call by call"}
KERNELS = {"usual": "PyTorch", "short": "short"}


def decoding(found: Records) -> str:
    lines = found.lines("decoding.jsonl")
    parts = []
    for line in lines:
        names = [name for name in METRICS if name in line["orders"][0]["scores"]]
        rows = [
            [
                order["order"],
                f"{order['max_tokens']:,}" if order["max_tokens"] else "as usual",
                f"{order['seconds']:.1f}",
                *(f"{order['scores'][name]:.2f}" for name in names),
                f"{order['differing']}",
            ]
            for order in line["orders"]
        ]
        header = [
            "order of the lines",
            "tokens per batch",
            "s",
            *map(metric_name, names),
            "lines that differ",
        ]
        what = f"{task_name(line['task'])}, {line['model']}, {line['sentences']:,} sentences, beam "
        parts.append(f"{what}{line['beam']}, {line['precision']}:\n\n{table(header, rows)}")
    return "\n\n".join([DECODING.strip(), *parts, provenance(lines)]) if parts else ""


def made_by(runs: Iterable[RunRecord]) -> str:
    """Commit, machine and command of each run, once."""
    return provenance(
        [
            {
                "commit": run.environment["git"]["commit"],
                "device": f"{run.environment['device']}, torch {run.environment['packages']['torch']}",
                "command": f"advreg {' '.join(run.environment['arguments'])}",
            }
            for run in runs
        ]
    )


def provenance(lines: Sequence[Mapping[str, Any]]) -> str:
    """How to repeat what was measured, each command once."""
    made = dict.fromkeys(
        f"- commit {line['commit'][:7]}, {line['device']}: `{line['command']}`" for line in lines
    )
    return "\n".join(["Commits and commands:", "", *made])


if __name__ == "__main__":
    keep(__doc__, PAGE, page(RECORDS), lambda folder: draw(Records(RECORDS), folder / PICTURE))
