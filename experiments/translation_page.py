"""docs/results/translation.md and its picture, from the records in results/translation and results/cost.

python experiments/translation_page.py            # writes them
python experiments/translation_page.py --check    # says whether they are up to date

A part whose records are not there is left out: comparisons (``*/compare.json``), studies (``neighbours/study.json``,
``dropout/study.json``), single runs of other schedules (``schedules/*/record.json``), ``speed.jsonl`` of
translation_speed.py, ``decoding.jsonl`` of decoding_speed.py, ``borrowed.jsonl`` of borrowed_perturbations.py.
Comparisons that train the same model in the same way are one, made in several parts. Times come from
``results/cost/translation*.json``, a bench for each model.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pages import keep, logged_mean

from advreg.bench.figures import contender, over_a_run, within_rounds
from advreg.bench.record import BenchRecord, Spread
from advreg.bench.record import load as load_bench
from advreg.core.schedule import RefreshEvery
from advreg.recipes.compare_record import COMPARE_FILE, CompareRecord
from advreg.recipes.study_record import STUDY_FILE
from advreg.recipes.study_record import load as load_study
from advreg.record import RunRecord, load_all
from advreg.report.compare import STANDARD, read, results
from advreg.report.curves import curve, draw_norms
from advreg.report.render import Sheet, markdown_table, notes, score_sheets, spread_text
from advreg.report.student import Spread as SeedSpread
from advreg.report.study import findings
from advreg.report.study import to_markdown as study_to_markdown
from advreg.report.words import NOTHING, method_name, method_order, metric_name, task_name

ROOT = Path(__file__).resolve().parent.parent
RECORDS, PAGE = ROOT / "results" / "translation", ROOT / "docs" / "results" / "translation.md"
BENCHES = tuple(sorted((ROOT / "results" / "cost").glob("translation*.json")))
PICTURE = "translation-norms.svg"

# Zuo et al. 2021, table of the low-resource data sets: BLEU
PAPER = {
    "iwslt15-en-vi": {"standard": 30.3, "r3f": 31.6, "freelb": 31.6, "smart": 31.5, "arch": 32.0},
    "iwslt15-vi-en": {"standard": 28.7, "r3f": 30.0, "freelb": 29.6, "smart": 30.1, "arch": 30.4},
}
ARCH = "arch"
METRICS = ("tokenised_bleu", "bleu", "chrf")
REGULARISED = ("smart", "r3f", ARCH)  # of the paper's figure of gradient norms

Key = tuple[str, str, int]  # task, method, seed


# ---- records


@dataclass(frozen=True)
class Compared:
    """A comparison and its finished runs."""

    name: str
    record: CompareRecord
    runs: Mapping[Key, RunRecord]

    @property
    def tasks(self) -> list[str]:
        """Those that have a finished run."""
        return [task.name for task in self.record.tasks if any(key[0] == task.name for key in self.runs)]

    def methods(self, task: str) -> list[str]:
        """Those that have a finished run on a task, in the order of tables."""
        return sorted({key[1] for key in self.runs if key[0] == task}, key=method_order)

    def of(self, task: str, method: str) -> dict[int, RunRecord]:
        """The runs of a method on a task, by seed."""
        return {seed: run for (name, mine, seed), run in self.runs.items() if (name, mine) == (task, method)}

    def asked(self, task: str, method: str) -> int:
        """How many seeds there were to be."""
        return sum((entry.task, entry.method) == (task, method) for entry in self.record.runs)

    def title(self, task: str) -> str:
        """A task, and the model where several comparisons may have it."""
        return f"{task_name(task)}, {self.record.settings['model']}"

    @property
    def terms(self) -> str:
        """What its runs share whatever the task and the method, which may have a learning rate of its own."""
        return json.dumps({**self.record.tasks[0].settings, "options": None, "learning_rate": None}, sort_keys=True)

    def settings(self, name: str) -> set[Any]:
        """The values that a setting has in its runs."""
        return {run.training.more.get(name) for run in self.runs.values()}

    def named(self, run: RunRecord) -> str:
        """A run's method, and what is its own."""
        own = [f"{name} {run.training.more[name]}" for name in SHARED if len(self.settings(name)) > 1]
        return ", ".join([method_name(run.method.name), *own])

    def joined(self, other: Compared) -> Compared:
        """One comparison of two on the same terms; a run that both were to make is the one that did not fail."""
        mine, theirs = self.record, other.record
        entries = sorted([*mine.runs, *theirs.runs], key=lambda run: run.error is None)  # the last one counts
        runs = {(run.task, run.method, run.seed): run for run in entries}
        record = replace(
            mine,
            status=mine.status if theirs.status == "finished" else theirs.status,
            reference=ARCH if any(run.method == ARCH for run in runs.values()) else mine.reference,
            tasks=list({task.name: task for task in [*mine.tasks, *theirs.tasks]}.values()),
            choices=[*mine.choices, *theirs.choices],
            runs=sorted(runs.values(), key=lambda run: method_order(run.method)),
            notes=list(dict.fromkeys([*mine.notes, *theirs.notes])),
        )
        return Compared(self.name, record, {**other.runs, **self.runs})


class Records:
    """The records there are."""

    def __init__(self, folder: Path, benches: Sequence[Path] = BENCHES) -> None:
        self.folder, self._benches = folder, benches

    @cached_property
    def comparisons(self) -> list[Compared]:
        folders = sorted(path.parent for path in self.folder.glob(f"*/{COMPARE_FILE}"))
        alike: dict[str, Compared] = {}
        for each in (Compared(folder.name, *read(folder)) for folder in folders):
            if each.runs:
                alike[each.terms] = alike[each.terms].joined(each) if each.terms in alike else each
        return list(alike.values())

    @cached_property
    def benches(self) -> dict[str, BenchRecord]:
        """The methods' steps timed in turns, by model."""
        return {bench.settings["model"]: bench for bench in map(load_bench, self._benches)}

    @property
    def pairs(self) -> list[tuple[Compared, str]]:
        """Every comparison with each of its tasks."""
        return [(compared, task) for compared in self.comparisons for task in compared.tasks]

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


# ---- the page


def page(folder: Path, benches: Sequence[Path] = BENCHES) -> str:
    """The whole page."""
    found = Records(folder, benches)
    parts = [TITLE, aims(found)]
    parts += [comparison(compared, found.benches) for compared in found.comparisons]
    parts += [schedules(found), times(found.benches), norms(found), strength(found)]
    parts += [borrowed(found), *studies(folder), speed(found), decoding(found), READING]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(Sheet("", header, rows))


# ---- what was aimed at


def aims(found: Records) -> str:
    """Each aim beside what was measured."""
    body = [row for bench in found.benches.values() for row in time_aims(bench)]
    body += [*speed_aims(found), *decoding_aims(found)]
    return f"## What was aimed at\n\n{table(['what', 'aim', 'measured'], body)}" if body else ""


def time_aims(bench: BenchRecord) -> list[list[str]]:
    rounds, of = rounds_of(bench, bench.settings["epochs"]), f"whole schedule, {bench.settings['model']}"
    return [
        [f"ARCH / {method_name(other)}, {of}", f"≤ {most:.2f}", quartiles(within_rounds(rounds[ARCH], rounds[other]))]
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
    return [
        [f"trainer / bare loop, target tokens a second, {about_batches(line)}", "≥ 0.95", shares(line)]
        for line in speed_lines(found)
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
    """Scores, time and the paper's figures for each task; then the differences, and what a reader must know."""
    found = results(compared.record, compared.runs)
    models = compared.record.settings["model"]
    parts = [f"## Scores, {models}", about(compared)]
    parts += [f"### {task_name(task)}\n\n{scores(compared, task, benches)}" for task in compared.tasks]
    differences = [sheet for sheet in score_sheets(found) if " minus each method" in sheet.caption]
    parts += [f"{sheet.caption}\n\n{markdown_table(sheet)}" for sheet in differences]
    told = notes(found)
    return "\n\n".join([*parts, *(["Notes:\n\n" + "\n".join(f"- {line}" for line in told)] if told else [])])


def about(compared: Compared) -> str:
    """What all runs share, and how to repeat them."""
    values = {name: compared.settings(name) for name in SHARED}
    told = ", ".join(f"{name} {value}" for name, (value, *more) in values.items() if value is not None and not more)
    return f"What all runs share: {told}. {made_by(compared.runs.values())}"


SHARED = (
    *("epochs", "vocabulary", "max_tokens", "update_tokens", "learning_rate", "warmup_steps", "model_dropout"),
    *("label_smoothing", "precision", "weights", "judge"),
)


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
        row = [compared.named(one), *(spread_text(SeedSpread.of(each), asked) for each in finite), *cost(one, benches)]
        rows.append([*row, *([f"{paper[method]:.1f}" if method in paper else NOTHING] if paper else [])])
    header = ["", *map(metric_name, metrics), "passes a step", "time, × Standard", *(["paper"] if paper else [])]
    return f"{table(header, rows)}\n\n{how_scored(first, metrics)}"


def cost(run: RunRecord, benches: Mapping[str, BenchRecord]) -> list[str]:
    """Forward and backward passes of a run's step on average; its whole schedule beside Standard's in a bench."""
    passes = " + ".join(f"{run.outcome.passes[kind]:.3g}" for kind in ("forward", "backward"))
    bench = benches.get(run.training.more["model"])
    if bench is None:
        return [passes, NOTHING]
    rounds = rounds_of(bench, run.training.epochs, RefreshEvery(run.method.settings.get("refresh_every")))
    return [passes, quartiles(within_rounds(rounds.get(run.method.name, []), rounds[STANDARD]), 2)]


def how_scored(run: RunRecord, metrics: Iterable[str]) -> str:
    details = run.task.details
    signatures = "; ".join(f"{metric_name(name)} `{details['signatures'][name]}`" for name in metrics)
    search, sizes = details["decoding"], run.task.sizes
    return (
        f"Trained on {sizes['train']:,} pairs, scored on {details['scored']} ({sizes[details['scored']]:,} sentences), "
        f"beam {search['beam']}, length penalty {search['length_penalty']:g}. {signatures}."
    )


# ---- schedules that were tried


def schedules(found: Records) -> str:
    """Runs that stand for themselves: how long and how fast they learned, and where that led."""
    runs = load_all(found.folder, "schedules/*/record.json")
    if not runs:
        return ""
    header = ["", "epochs", "tokens an update", "updates", "learning rate", metric_name(METRICS[0]), "paper"]
    return "\n\n".join([SCHEDULES.strip(), table(header, [*map(schedule_row, runs)]), made_by(runs)])


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


# ---- wall time


def times(benches: Mapping[str, BenchRecord]) -> str:
    """Time of the steps of each kind of epoch, and of whole schedules: the paper's figure of wall time."""
    return "\n\n".join([EPOCHS.strip(), *map(time_table, benches.values())]) if benches else ""


def time_table(bench: BenchRecord) -> str:
    measured, epochs = bench.panels[0].rows, bench.settings["epochs"]
    whole = rounds_of(bench, epochs)
    steps = {row.name: within_rounds(row.rounds, whole[STANDARD]) for row in measured}
    rows = {}
    for row, _, _ in over_a_run(measured, epochs):
        kinds = (steps.get(f"{contender(row)}, refresh", []), steps[row.name])
        ratios = (within_rounds(whole[row.method], whole.get(name, [])) for name in AGAINST)
        rows.setdefault(row.method, [method_name(row.method), *(quartiles(each, 2) for each in (*kinds, *ratios))])
    header = ["", "refresh epoch, × Standard", "other epoch, × Standard"]
    header += [f"whole, × {method_name(name)}" for name in AGAINST]
    schedule = f"{bench.settings['model']}, {epochs} epochs, a refresh every {bench.settings['refresh_every']}"
    return f"{schedule}:\n\n{table(header, [rows[name] for name in sorted(rows, key=method_order)])}"


AGAINST = (STANDARD, "smart", "r3f")


def rounds_of(bench: BenchRecord, epochs: int, schedule: RefreshEvery | None = None) -> dict[str, list[float]]:
    """Mean time of a step of each method over a run, round by round; of variants of a method that of the first."""
    found: dict[str, list[float]] = {}
    for row, _, rounds in over_a_run(bench.panels[0].rows, epochs, schedule):
        found.setdefault(row.method, rounds)
    return found


# ---- gradient norms


def norms(found: Records) -> str:
    """How much the gradient's norm varies, beside SMART's; after the warm-up, in which it falls whatever the method."""
    columns = [(compared, task) for compared, task in found.pairs if set(REGULARISED) & set(compared.methods(task))]
    if not columns:
        return ""
    rows = []
    for method in sorted(REGULARISED, key=method_order):
        row = [variance(compared, task, method) for compared, task in columns]
        base = [variance(compared, task, "smart") for compared, task in columns]
        rows.append([method_name(method), *(against(*pair) for pair in zip(row, base, strict=True))])
    header = ["variance of the norm (× SMART)", *(compared.title(task) for compared, task in columns)]
    return f"{NORMS.strip()}\n\n{table(header, rows)}\n\n![gradient norms over training]({PICTURE})"


def variance(compared: Compared, task: str, method: str) -> float | None:
    """Of the norms logged after the warm-up, mean over seeds."""
    drawn = curve(method, compared.of(task, method).values(), settled=True)
    return statistics.fmean(drawn.variances) if drawn is not None and drawn.variances else None


def against(value: float | None, base: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.3g}" + (f" ({value / base:.2f})" if base else "")


def draw(found: Records, path: Path) -> bool:
    """The picture, if there is anything to draw."""
    runs = {
        (f"{compared.name}/{task}", method, seed): run
        for compared in found.comparisons
        for (task, method, seed), run in compared.runs.items()
        if method in REGULARISED
    }
    if not runs:
        return False
    names = {f"{each.name}/{task}": each.title(task) for each in found.comparisons for task in each.tasks}
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
    header = ["", "penalty / task loss", "task loss, last epoch", "penalty, last epoch", "‖δ‖, last epoch"]
    return f"{STRENGTH.strip()}\n\n{table(header, rows)}" if rows else ""


# ---- borrowed perturbations, studies, training speed, decoding


def borrowed(found: Records) -> str:
    """How far predictions move by a pair's own perturbation, by a borrowed one, and by dropout."""
    lines = found.lines("borrowed.jsonl")
    parts = []
    for line in lines:
        masks = line["ways"][MASKS]["moved"]
        rows = [
            [
                name,
                f"{way['norm']:.3f}",
                f"{way['moved']:.2g}",
                f"{way['moved'] / masks:.1%}",
                against_random(way.get("more_than_random")),
            ]
            for name, way in line["ways"].items()
        ]
        header = ["δ", "‖δ‖", "KL a token", "of what masks do", "KL, minus a random neighbour's"]
        parts.append(f"{about_model(line)}\n\n{table(header, rows)}")
    return (
        "\n\n".join(
            [BORROWED.strip(), *parts, provenance([part for line in lines for part in (line["trained"], line)])]
        )
        if parts
        else ""
    )


MASKS = "none, other dropout masks"


def against_random(more: Mapping[str, Any] | None) -> str:
    if more is None:
        return NOTHING
    low, high = more["interval"]
    return f"{more['mean']:+.1g} [{low:+.1g}, {high:+.1g}]"


def about_model(line: Mapping[str, Any]) -> str:
    return (
        f"{task_name(line['task'])}, {line['model']}, {method_name(line['method'])} for {line['epochs']} epochs "
        f"(sacreBLEU {line['bleu']:.1f}), dropout {line['dropout']:g}, ε {line['radius']:g}; "
        f"{line['cached']:,} pairs are cached, {line['pairs']:,} others were measured:"
    )


def studies(folder: Path) -> list[str]:
    """The tables of the studies there are, as they are."""
    there = {name: text for name, text in STUDIES.items() if (folder / name / STUDY_FILE).is_file()}
    return [
        f"{text.strip()}\n\n{study_to_markdown(findings(load_study(folder / name)))}" for name, text in there.items()
    ]


def speed(found: Records) -> str:
    lines = speed_lines(found)
    if not lines:
        return ""
    rows = [
        [about_batches(line), *(f"{statistics.median(line[name]):,.0f}" for name in RATES), shares(line)]
        for line in lines
    ]
    header = ["", "bare loop", "trainer", "trainer / bare loop"]
    return f"{SPEED.strip()}\n\n{table(header, rows)}\n\n{provenance(lines)}"


COMPILED = {"layers": "compiled layers", "whole": "compiled as a whole"}
RATES = ("bare_tokens_per_second", "our_tokens_per_second")


def speed_lines(found: Records) -> list[Mapping[str, Any]]:
    """What was measured, and after it the same under torch.compile where that was measured too."""
    lines = []
    for line in found.lines("speed.jsonl"):
        compiled = line.get("compiled", {}).items()
        lines += [line, *({**line, **facts, "how": f", {COMPILED[what]}"} for what, facts in compiled)]
    return lines


def about_batches(line: Mapping[str, Any]) -> str:
    task = task_name(line["task"])
    each = f"{line['max_tokens']:,} tokens × {line['batches_per_update']} an update"
    widths = f", widths of {line['round_lengths']}" if line.get("round_lengths", 1) > 1 else ""
    widths += ", made by a worker" if line.get("workers") else ""
    return f"{task}, {line['model']}, {line['precision']}, {each}{widths}{line.get('how', '')}"


def shares(line: Mapping[str, Any]) -> str:
    share = line["share"]
    return f"{share['median']:.3f} ({share['least']:.3f}–{share['most']:.3f})"


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
        header = ["order of the lines", "tokens a batch", "s", *map(metric_name, names), "lines that differ"]
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
    made = dict.fromkeys(f"Commit {line['commit'][:7]}, {line['device']}; `{line['command']}`." for line in lines)
    return " ".join(made)


TITLE = """
# Machine translation

Generated by `experiments/translation_page.py` from the records in `results/translation` and
[results/cost/translation.json](../../results/cost/translation.json); `experiments/translation-*.toml` hold the
settings and the commands. Models start from nothing, on the training set alone.
"""

SCHEDULES = """
## Schedules that were tried

One seed each, with the other settings of `experiments/translation-iwslt15.toml`, to find a schedule with which Standard
reaches the paper's Transformer.
"""

EPOCHS = """
## Wall time

Time of the steps of an epoch in which ARCH refreshes its cache, and of the others, by `advreg bench`, where methods
take turns on a GPU of their own; [what it costs](cost.md#a-whole-run) tells how. Median over rounds, quartiles in
brackets. The comparisons above ran side by side on one GPU, so their own times say nothing.
"""

NORMS = """
## Gradient norms

The norm of the gradient at the steps that were logged: over the whole training, and its variance after the warm-up,
mean over seeds.
"""

STRENGTH = """
## How strong the penalty was

As logged, over all seeds. ‖δ‖ is that of a pair of sentences, each of which has a ball of its own. Predictions of two
passes differ by their dropout masks too, so a penalty is there without any δ.
"""

BORROWED = """
## What a borrowed perturbation does

A trained model, and perturbations as ARCH makes them: its ascent for a tenth of the training pairs, which are cached;
other pairs borrow from a neighbour. KL(f(x) ‖ f(x+δ)) with dropout off, so that δ alone moves the prediction; in the
last row there is no δ, and two passes have different dropout masks. Means over pairs; in brackets the 95 % confidence
interval of a difference, pair by pair.
"""

NEIGHBOURS = """
## Whose perturbation is borrowed

ARCH finds neighbours by the token embeddings the model has before training, which are random when it starts from
nothing. Beside that: neighbours by the embeddings of a model that was trained on the same text
(`--neighbour-embeddings`), and random ones.
"""

DROPOUT = """
## What is left without dropout

ARCH with the same dropout masks in both passes, so that the penalty sees the perturbation alone; beside it fresh masks,
as everywhere else.
"""

STUDIES = {"neighbours": NEIGHBOURS, "dropout": DROPOUT}  # by folder

SPEED = """
## Training speed

Standard in our trainer beside a bare PyTorch loop over the same batches, data loading included, in turns; target tokens
a second, padding not counted, medians over rounds. In brackets: least and most. Widths of 8: those of a batch are
rounded up to a multiple of it. Compiled: both under `torch.compile`, after all shapes of an epoch were seen.
"""

DECODING = """
## Decoding

A trained model translates the test set with its lines in several orders and its batches of several sizes; each
translation is put back in its place and compared with the first.
"""

READING = """
## How to read it

- The paper's figures are BLEU after its own preprocessing; compare differences between methods, not scores.
- Every method trains for the same number of epochs, so the time is part of the result.
- **Most of the penalty is dropout.** On Multi30k R3F's perturbation is a sixtieth of ARCH's, next to nothing; its
  penalty in the last epoch is as large, and so is its score. What both penalise is that two passes with different masks
  predict differently, which is what R-Drop does without any perturbation. SMART's perturbation, the longest, adds a
  seventh to the penalty and half a point, within chance. On IWSLT'15 En-Vi its perturbation is 2.6 times as long as
  ARCH's and its penalty 4 % larger. The [parameter study](studies.md) on Multi30k, where no setting of the cache
  mattered, says the same; so do the norms of the gradient, which hardly differ.
- FreeLB and FreeAT train on perturbed text alone. With the ε = 0.1 of the others FreeLB learnt nothing of the source:
  on IWSLT'15 En-Vi a validation BLEU of 0.5 after 5 epochs and of 0.0 after 10, where Standard had 12.3 and 24.4
  (commit ed8ed4a; stopped there, so there is no record). With ε = 0.03, which `--preset translation` now gives it, it
  learns: 34 to 35 on Multi30k's validation set after 10 epochs, where Standard had 36 (commit 80b0976; stopped there,
  for the time). FreeAT in its own ball, 0.01 for each entry of a token, had 2 and less after 15 epochs; now the preset
  gives it FreeLB's.
- **At 32,768 tokens the trainer loses a fifth to the bare loop.** It waited once an update to see whether the gradient
  is finite, and fetched the next batches after that, with nothing for the GPU to do; the loop fetches them while it
  computes. That a worker makes the batches did not help. Since then no update waits; that is still to be measured.
  At 8,192 tokens its figure is 2 % too high: the last update of an epoch is shorter, so that 88 batches were trained on
  and 90 counted; now the tokens are counted.
- Lines that differ in another order: batches were composed by length and then by order, and bf16 rounds differently in
  other company. Since then they are composed by what the sentences are, and the order changes nothing.
- One seed says nothing of chance. Where there are several, ± is the standard deviation over them, and differences have
  a confidence interval.
"""


if __name__ == "__main__":
    keep(__doc__, PAGE, page(RECORDS), lambda folder: draw(Records(RECORDS), folder / PICTURE))
