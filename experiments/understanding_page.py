"""docs/results/understanding.md and its pictures, from the records in results/understanding.

python experiments/understanding_page.py            # writes it
python experiments/understanding_page.py --check    # says whether it is up to date
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pages import commits_of, keep, logged_mean

from advreg.lab.report.compare import Results, Runs, read, results
from advreg.lab.report.labels import (
    NOTHING,
    TASK_NAMES,
    difference_text,
    method_name,
    spread_text,
    task_name,
)
from advreg.lab.report.score_tables import to_markdown
from advreg.lab.report.sections.gradients import draw_norms
from advreg.lab.report.sections.probing import by_task, draw_probing
from advreg.lab.report.statistics import Spread
from advreg.lab.report.tables import Table, best_cells, markdown
from advreg.records import run as records
from advreg.records.compare import COMPARE_FILE, CompareRecord, score_of
from advreg.records.probe import ProbeRecord
from advreg.records.run import RunRecord
from advreg.records.sealed import load_as
from advreg.records.study import STUDY_FILE
from advreg.records.study import load as load_study

ROOT = Path(__file__).resolve().parent.parent
RECORDS, PAGE = ROOT / "results" / "understanding", ROOT / "docs" / "results" / "understanding.md"

# Zuo et al. 2021, tb:glue-results: BERT-base and ARCH on dev, main score of each task (a pair of
# metrics: their mean)
PAPER_GAINS = {"rte": 8.7, "mrpc": (3.9 + 2.6) / 2, "cola": 6.4, "sst2": 0.7, "stsb": 1.4}


def page(folder: Path) -> str:
    """The whole page."""
    parts = [TITLE]
    for compared in sorted(path.parent for path in folder.glob(f"*/{COMPARE_FILE}")):
        parts += [
            comparison(compared),
            dropouts(compared),
            anli(results(*read(compared))),
            paper(compared),
        ]
        parts += [strength(compared), NORMS.format(picture=picture_of(compared))]
    parts.append(equal_dropout(folder / "minilm-ten", folder.parent / "studies" / "stsb"))
    parts += [probing(path) for path in probings(folder)]
    for path in sorted(folder.glob("search-*.jsonl")):
        parts.append(search(path))
    return "\n\n".join(part.strip() for part in (*parts, READING) if part) + "\n"


def comparison(folder: Path) -> str:
    """The tables of ``advreg compare`` as they are."""
    record, runs = read(folder)
    return f"## The comparison, {folder.name}\n\n{about(record, runs)}\n\n{to_markdown(results(record, runs)).strip()}"


def picture_of(folder: Path) -> str:
    return f"understanding-{folder.name}.svg"


def draw(folder: Path, into: Path) -> None:
    """The gradient norms of each comparison, and the violins of each probing."""
    for compared in sorted(path.parent for path in folder.glob(f"*/{COMPARE_FILE}")):
        _, runs = read(compared)
        draw_norms(runs, into / picture_of(compared), TASK_NAMES)
    for path in probings(folder):
        draw_probing(load_as(path, ProbeRecord).results, into / violins_of(path))


def about(record: CompareRecord, runs: Runs) -> str:
    environment, shared = record.environment, record.tasks[0].settings
    device = next(iter(runs.values())).environment["device"]
    told = ("epochs", "batch_size", "warmup", "precision", "head_dropout", "site")
    settings = ", ".join(f"{name} {shared[name]}" for name in told)
    tuned = (
        "A tenth of the training data was held out for tuning. "
        if any(choice.candidates for choice in record.choices)
        else ""
    )
    return (
        f"Shared settings: {settings}; batches grouped by length. {tuned}"
        f"{commits_of(runs.values())}, {device}, torch {environment['packages']['torch']}; "
        f"`advreg {' '.join(environment['arguments'])}`."
    )


def dropouts(folder: Path) -> str:
    """The encoder's dropout of each method, where it differs: then it has a part in the
    differences.
    """
    found: dict[str, dict[float, list[str]]] = defaultdict(lambda: defaultdict(list))
    for (task, method), dropout in dropouts_of(read(folder)[1]).items():
        found[task][dropout].append(method_name(method))
    told = [
        f"{task_name(task)}: "
        f"{'; '.join(f'{value:g} for ' + ', '.join(names) for value, names in sorted(by.items()))}"
        for task, by in found.items()
        if len(by) > 1
    ]
    return f"{UNEQUAL.strip()} {'. '.join(told)}." if told else ""


def dropouts_of(runs: Runs) -> dict[tuple[str, str], float]:
    """By task and method; it is the same for all seeds."""
    return {(task, method): dropout_of(run) for (task, method, _), run in runs.items()}


def dropout_of(run: RunRecord) -> float:
    return float(run.training.more["encoder_dropout"])


def paper(folder: Path) -> str:
    """ARCH's gain over Standard and the paper's."""
    record, runs = read(folder)
    found, dropout = results(record, runs), dropouts_of(runs)
    rows = []
    for task in found.tasks:
        spread = found.difference(task, "arch", "standard")
        if task not in PAPER_GAINS or spread is None:
            continue
        gain = f"{spread.mean:+.1f}".replace("-", "−")
        mine, theirs = (dropout[task, method] for method in ("arch", "standard"))
        rows.append(
            [
                task_name(task),
                f"+{PAPER_GAINS[task]:.1f}",
                gain,
                f"{mine:g}, {theirs:g}",
            ]
        )
    sheet = Table(
        "",
        ["", "paper, BERT-base", f"here, {folder.name}", "encoder's dropout here: ARCH, Standard"],
        rows,
    )
    return f"### ARCH minus Standard, compared with the paper\n\n{markdown(sheet)}" if rows else ""


def equal_dropout(compared: Path, studied: Path) -> str:
    """STS-B: each method minus Standard as it was compared, and minus Standard with the same
    dropout.
    """
    if not (compared / COMPARE_FILE).is_file() or not (studied / STUDY_FILE).is_file():
        return ""
    record, runs = read(compared)
    tried = [of_stsb(runs, method) for method in dict.fromkeys(run.method for run in record.runs)]
    tried += [of_study(studied, name) for name in ("standard/default", "arch/default")]
    plain = {
        dropout_of(each[0]): scores(each) for each in tried if each[0].method.name == "standard"
    }
    rows = []
    for each in tried:
        mine, dropout = scores(each), dropout_of(each[0])
        gains = [
            NOTHING if mine == theirs else difference_text(Spread.paired(mine, theirs))
            for theirs in (plain[0.1], plain[dropout])
        ]
        rows.append(
            [
                label(each[0]),
                f"{dropout:g}",
                spread_text(Spread.of(list(mine.values())), len(mine)),
                *gains,
            ]
        )
    header = [
        "",
        "encoder's dropout",
        "score",
        "minus Standard, dropout 0.1",
        "minus Standard, the same dropout",
    ]
    return f"{EQUAL.strip()}\n\n{markdown(Table('', header, rows))}"


def of_stsb(runs: Runs, method: str) -> dict[int, RunRecord]:
    return {
        seed: run for (task, name, seed), run in runs.items() if (task, name) == ("stsb", method)
    }


def of_study(folder: Path, name: str) -> dict[int, RunRecord]:
    """The finished runs of a variant, by seed."""
    (variant,) = (each for each in load_study(folder).variants if each.name == name)
    done = {
        run.seed: folder / run.folder / "record.json"
        for run in variant.runs
        if run.score is not None
    }
    return {seed: records.load(path) for seed, path in done.items()}


def scores(runs: Mapping[int, RunRecord]) -> dict[int, float]:
    """The main score on STS-B, by seed."""
    found = {
        seed: score_of(run.outcome.metrics, ["pearson", "spearman"]) for seed, run in runs.items()
    }
    return {seed: score for seed, score in found.items() if score is not None}


def label(run: RunRecord) -> str:
    every = run.method.settings.get("refresh_every")
    return method_name(run.method.name) + (f", T_c = {every}" if every else "")


PENALISED = ("r3f", "smart", "arch")


def strength(folder: Path) -> str:
    """How large the penalties were and how much of its ball ARCH's perturbation filled, where
    nothing was tuned.
    """
    record, runs = read(folder)
    if any(
        choice.candidates for choice in record.choices
    ):  # weight and dropout differ between methods
        return ""
    rows = []
    for task in (each.name for each in record.tasks):
        logged = partial(logged_mean, runs, task)
        noise, radius = (
            logged("r3f", "penalty", last=True),
            runs[task, "arch", 0].method.settings["radius"],
        )
        shares = [
            100 * logged(method, "penalty") / logged(method, "task_loss") for method in PENALISED
        ]
        ratios = [logged(method, "penalty", last=True) / noise for method in PENALISED[1:]]
        ratios.append(logged("arch", "delta_norm", last=True) / radius)
        ratios.append(
            logged("freeat", "task_loss", last=True) / logged("standard", "task_loss", last=True)
        )
        texts = [*(f"{share:.0f} %" for share in shares), *(f"{ratio:.2f}" for ratio in ratios)]
        rows.append([task_name(task), *(text.replace("nan", "–") for text in texts)])
    header = ["", *(f"{method_name(name)}: penalty / task loss" for name in PENALISED)]
    header += [f"{method_name(name)}'s / R3F's, last epoch" for name in PENALISED[1:]]
    header += ["ARCH: ‖δ‖ / ε, last epoch", "task loss, last epoch: FreeAT's / Standard's"]
    return f"### Strength of the penalty\n\nLogged values, over all seeds.\n\n{markdown(Table('', header, rows))}"


# Zuo et al. 2021, tb:anli: rounds 1 to 3 and all of them, BERT-base
PAPER_ANLI = {
    "dev": {
        "standard": (53.3, 43.0, 44.7, 46.8), "r3f": (53.9, 43.4, 46.3, 47.8),
        "smart": (54.1, 44.4, 45.3, 47.8), "arch": (54.0, 46.1, 46.0, 48.5),
    },
    "test": {
        "standard": (54.1, 44.9, 46.6, 48.4), "r3f": (54.3, 46.2, 46.5, 48.8),
        "smart": (54.3, 46.4, 46.5, 48.9), "arch": (53.8, 46.6, 47.4, 49.2),
    },
}  # fmt: skip
ROUNDS = ("r1", "r2", "r3", "all")


def anli(found: Results) -> str:
    """Every round on dev and test, as in the paper's table, its figures in brackets."""
    if "anli" not in found.tasks:
        return ""
    parts = [
        "### ANLI by rounds\n\nAccuracy; in brackets the paper's, of BERT-base trained on all of "
        "ANLI."
    ]
    for split, paper in PAPER_ANLI.items():
        rows = []
        for method in found.methods:
            cell = found.cells["anli", method]
            names = [
                f"{part}_{split}_accuracy" if (part, split) != ("all", "dev") else "accuracy"
                for part in ROUNDS
            ]
            mine = [spread_text(cell.metrics.get(name), cell.asked, cell.failed) for name in names]
            theirs = [f" ({score:.1f})" for score in paper.get(method, ())] or [""] * len(ROUNDS)
            rows.append([method_name(method), *map("".join, zip(mine, theirs, strict=True))])
        parts.append(markdown(Table("", [split, "R1", "R2", "R3", "all"], rows)))
    return "\n\n".join(parts)


# ---- probing


def probings(folder: Path) -> list[Path]:
    return sorted(folder.glob("probe-*.json"))


def probing(path: Path) -> str:
    """Frozen encoders: the scores of heads fitted on them."""
    record = load_as(path, ProbeRecord)
    scores = by_task(record.results)
    labels = list(dict.fromkeys(label for methods in scores.values() for label in methods))
    columns = []
    for methods in scores.values():
        spreads = [Spread.of(methods.get(label, [])) for label in labels]
        texts = [spread_text(spread, record.settings["seeds"]) for spread in spreads]
        columns.append(best_cells(texts, spreads))
    rows = [
        [method_name(label), *(column[row] for column in columns)]
        for row, label in enumerate(labels)
    ]
    table = Table("", ["", *(task_name(task) for task in scores)], rows)
    source = ", ".join(
        sorted({task_name(name) for each in record.results if (name := each.trained_on)})
    )
    frozen = (
        f"The encoders were trained on {source} and are frozen"
        if source
        else "The pretrained encoder is frozen"
    )
    count = len({result.encoder for result in record.results}) // len(labels)
    environment = record.environment
    return (
        f"## Probing, {path.stem.removeprefix('probe-')}\n\n{frozen}; only a head is fitted, "
        f"{record.settings['seeds']} "
        f"times{f' for each of {count} seeds of the encoder' if count > 1 else ''}. "
        "Scores are as above, mean ± sd over the heads.\n\n"
        f"{markdown(table)}\n\n![scores of heads on frozen encoders]({violins_of(path)})\n\n"
        f"Commit {(record.commit or 'unknown')[:7]}, {environment['device']}; "
        f"`advreg {' '.join(environment['arguments'])}`."
    )


def violins_of(path: Path) -> str:
    return f"understanding-{path.stem}.svg"


# ---- the search


def search(path: Path) -> str:
    """Held-out score of every point that was tried, against Standard with the same seed."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    done = [line for line in lines if line["error"] is None]
    tasks = sorted({line["task"] for line in done})
    plain = {(line["task"], line["seed"]): line["score"] for line in done if line["point"] == PLAIN}
    gains: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in done:
        gains[wording(line["point"])][line["task"]].append(
            line["score"] - plain[line["task"], line["seed"]]
        )
    base = [
        statistics.mean(score for (name, _), score in plain.items() if name == task)
        for task in tasks
    ]
    body = [[wording(PLAIN), *(f"{score:.1f}" for score in base)]]
    body += [
        [point, *(cell(tried.get(task, [])) for task in tasks)]
        for point, tried in gains.items()
        if point != wording(PLAIN)
    ]
    first = done[0]
    sheet = Table("", ["", *(task_name(task) for task in tasks)], body)
    return (
        f"## Search for settings, {first['model']}\n\nScores are on a fifth of the training data "
        "that was held out, a different fifth for each seed. The first row is Standard's score; "
        "the others are gains over Standard with the same seeds, with their number in brackets. "
        f"Defaults: {first['epochs']} epochs, learning rate {first['learning_rate']:g}, dropout "
        "0.1; for ARCH ε = η = 1 for the sentence (l2), S = 1, T_c = 5, p = 100 %. "
        "With so few seeds only large differences are meaningful.\n\n"
        f"{markdown(sheet)}\n\n"
        f"Commit {first['commit'][:7]}, {first['device']}; "
        f"`{first['command'].split(' --commit')[0]}`."
    )


PLAIN = {"method": "standard", "encoder_dropout": 0.1}
USUAL = {
    "ascent_steps": 1,
    "refresh_every": 5,
    "cache_fraction": 1.0,
    "radius": 1.0,
    "step_size": None,
}
SIGNS = {
    "weight": "λ",
    "radius": "ε",
    "refresh_every": "T_c",
    "cache_fraction": "p",
    "encoder_dropout": "dropout",
}


def wording(point: Mapping[str, Any]) -> str:
    """A point in words: its method, and what is not as usual."""
    own = {name: value for name, value in point.items() if name != "method"}
    if point["method"] in ("arch", "smart"):
        own = {
            name: v for name, v in own.items() if name not in USUAL or USUAL[name] not in (None, v)
        }
    if "dropout" in own:
        own["dropout of both passes"] = own.pop("dropout")
    if "preset" in own:  # the preset was the literal reading then
        own["preset"] = f"{own['preset']} as the paper's text reads"
    told = ", ".join(f"{SIGNS.get(name, name)} {shown(name, value)}" for name, value in own.items())
    return f"{point['method']}, {told}" if told else point["method"]


def shown(name: str, value: Any) -> str:
    if name == "refresh_every":
        return "once" if value is None else str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def cell(gains: Sequence[float]) -> str:
    return f"{statistics.mean(gains):+.1f} ({len(gains)})".replace("-", "−") if gains else "–"


TITLE = """
# Natural language understanding

At equal dropout, ARCH gains 0.8 points over Standard with MiniLM on STS-B (with a refresh every
third epoch) and on a subset of MNLI, level with SMART. Most other differences lie within the noise
between seeds, and with MPNet no penalty gains anything. Part of the leads in the tables below comes
from different dropout, not from the method; [how to read it](#how-to-read-it) separates the two.

This page is generated by `experiments/understanding_page.py` from the records in
`results/understanding`. `experiments/understanding*.toml` hold the settings and commands of the
comparisons, and `experiments/understanding_search.py` has the search. RTE, MRPC, STS-B, CoLA and
SST-2 are GLUE's complete sets. Only a balanced subset of 34,524 training samples of MNLI was
available, so its scores are not comparable with published ones.

Unless stated otherwise, scores are on GLUE's dev sets in percent: accuracy (RTE, SST-2; for MNLI
the mean of matched and mismatched), the mean of accuracy and F1 (MRPC), Matthews' correlation
(CoLA), the mean of Pearson's and Spearman's correlation (STS-B). MiniLM is `all-MiniLM-L6-v2`: 6
layers, 22.7 M parameters, tuned for sentence embeddings. It is far smaller than the paper's
BERT-base, so compare differences, not scores.
"""

UNEQUAL = """
The encoder's dropout was tuned for each method. Where two methods have different dropout, their difference includes the
effect of the dropout:
"""

EQUAL = """
## STS-B at equal dropout

`minilm-ten` compares methods whose dropout was tuned: 0.1 for Standard, 0 for ARCH. The [parameter
study](studies.md#sts-b-minilm) has Standard without the encoder's dropout on the same data with the
same seeds, which separates the two effects. Its runs (Standard with dropout 0, ARCH with T_c = 3)
come from a later commit with uncommitted changes, and are compiled. Scores on dev are in percent,
mean ± sd; differences are paired by seed, with the 95 % confidence interval of the mean (Student's
t, n = 5).
"""

NORMS = """
### Gradient norms

The figure follows the paper, which reports that caching makes the norm vary less during training.

![gradient norms over training, and their variance]({picture})
"""

READING = """
## How to read it

- **Dropout explains ARCH's lead on STS-B.** Over ten epochs ARCH is 1.7 above Standard, but tuning
  gave ARCH no dropout in the encoder and Standard 0.1. Without dropout, Standard alone gains 1.6,
  and ARCH is level with it ("STS-B at equal dropout"). The parameter study's gain of 0.8 remains:
  there the cache is refreshed every third epoch, not every fifth, and both methods are without
  dropout. SMART and R3F have the same dropout as Standard: SMART gains 1.2, and R3F gains nothing
  that five seeds can detect. The single held-out split on which dropout was chosen prefers 0.1 for
  Standard; the dev set prefers 0.
- On CoLA, ARCH is ahead within the noise, again without the dropout that Standard has. It takes
  half of SMART's time. The same penalties lower the scores in five epochs, because the penalised
  runs had not converged.
- Training on the perturbed label loss has larger effects in both directions. FreeLB and FreeAT lead
  on STS-B, also over a Standard without dropout (1.4 and 1.0), and FreeLB leads on SST-2. With the
  same ball (ε = 0.1) FreeLB learns nothing at all on CoLA, where one word decides, and little of
  MNLI: its task loss stays at the level of guessing. The ball was the reason: with ε = 0.02
  (`minilm-freelb`) it learns CoLA, and ends a little below Standard. A penalty keeps the clean loss
  in the objective, and so does less damage.
- On the MNLI subset ARCH gains 0.8 over Standard with every seed, as much as SMART; FreeAT, on the
  label, gains twice that. With three epochs and T_c = 2, two of ARCH's epochs refresh, so it saves
  little time there; longer runs save more. ARCH's three runs there, and two of SMART's, come from
  later code than Standard's, with uncommitted changes.
- **With MPNet no penalty gains anything.** R3F, SMART and ARCH are level with Standard on every
  task. The largest difference is ARCH's on CoLA, 1.9 below Standard, with an interval that includes
  zero. The records show why: at λ = 1 and ε = 0.2 the penalty is 2 to 15 % of the task loss over
  the training, and most of it is not adversarial. R3F's penalty, from random noise and two dropout
  masks, is more than half of SMART's. ARCH's is 1.3 to 1.5 times R3F's over the training. In the
  last epoch, a reuse epoch, it is no larger than R3F's. Perturbations this small have no effect
  once they are old or borrowed from a neighbour.
- Other settings did not change that. On RTE with a fifth held out (last table), λ = 5, balls from
  0.2 to 3, the embedding block, a cache of all samples and rescaled borrowing all end one to three
  points below Standard with the same seed. So do R3F and SMART with λ = 5. These are one or two
  seeds of 500 held-out samples, whose standard error is two points. They give no sign that a
  stronger penalty would help, and say little about how much it harms.
- **Borrowed perturbations are small.** With p = 10 %, nine samples in ten borrow the mean over a
  neighbour's tokens (the paper's construct-adv equation), and the mean of rows that point in many
  directions has a small norm. In reuse epochs ‖δ‖ is a quarter (RTE) to a half (CoLA) of ε with
  MPNet, and less than a third with MiniLM on ANLI (tables above; the last epoch on SST-2 and MNLI
  is a refresh). In most of its steps ARCH's effective ε is therefore much smaller than SMART's,
  regardless of the option. An option that rescaled borrowed perturbations was added after these
  runs. It gained nothing where it was tried (RTE, last table, and the built-in task) and has been
  removed.
- FreeAT leads with MPNet, on RTE by four points. It updates the weights twice for each batch, so it
  trains as long as the others would in twelve epochs. Its task loss ends at 0.4 (RTE, MRPC) to 0.7
  (STS-B, CoLA) of Standard's. The longer training may explain part of its lead.
- ANLI was written to fool far larger models than this one, and only a part of the first round's
  training set was available. All methods score at the level of guessing, a little more in the first
  round, and no difference between them is visible. The paper's gain over BERT-base (1.7 points on
  all dev rounds, 0.8 on test) needs a model that learns the task.
- RTE, MRPC and similar tasks have a few hundred dev samples, and their scores vary by one to two
  points between seeds. Most differences between methods are smaller than that, as the intervals
  show. On RTE ARCH is ahead of Standard, and its interval excludes zero. But again ARCH is without
  dropout and Standard has 0.1, and no run separates the two effects. On MRPC SMART leads and ARCH
  is behind Standard, within the noise.
- MiniLM hardly learns RTE: Standard is a few points above chance, so a gain there says little.
- `minilm-cpu` is the result of one command on a machine without a GPU: 14 runs, two at a time on
  two cores. They were stopped several times, by Ctrl-C or with the machine, and resumed. Other work
  shared the cores, so the times are upper bounds. Its three seeds cannot separate the methods.
- **A perturbation that is too strong is worse than none.** On the raw token embeddings, whose
  entries are small, a perturbation of ε = 1 or 3 with λ = 5 keeps the model from fitting. SMART,
  which searches at every step, and ARCH with T_c = 1, which does nearly the same, lose most; ARCH
  that reuses old perturbations loses less. ε = 0.1, or ε = 1 after the embedding block's LayerNorm
  (`site="block"`), costs least.
- **With the paper's settings for these tasks, taken literally, the effect comes from dropout.** The
  perturbation stays at its start of 10⁻⁵
  ([measured](../methods/arch.md#the-papers-settings-for-understanding)). The penalty then compares
  two passes with different dropout masks, which is R-Drop. R3F with its noise of 10⁻⁵ is the same
  thing: with `dropout="off"` its penalty is zero. `--preset understanding` now follows MT-DNN's
  code, and has no run here.
- Projecting and rescaling give the same result here: a step of η = ε from a start on the sphere
  ends outside the ball.
- The paper finds that with caching, gradient norms vary less than with SMART. Here that is true
  only on STS-B. On the other tasks SMART's vary less than ARCH's, and FreeLB's vary least of all,
  even where it learns nothing. With MPNet ARCH's vary least on RTE and CoLA; on MRPC a single seed
  dominates the mean.
- Probing does not reproduce the paper's figure. Heads on MiniLM's frozen token means are at chance
  on RTE and near it on CoLA, even with the encoder that was not trained on SST-2. On MRPC ARCH and
  SMART are half a point above Standard, on STS-B three to four below it. The methods' training on
  SST-2 has no benefit that transfers.
- The runs shared one machine and its processors, so only the ratios of their times are meaningful.
"""


if __name__ == "__main__":
    keep(__doc__, PAGE, page(RECORDS), lambda folder: draw(RECORDS, folder))
