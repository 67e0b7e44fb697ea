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
        f"What all runs share: {settings}; batches of like length. {tuned}"
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
    """ARCH's gain over Standard beside the paper's."""
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
    return f"### ARCH minus Standard, beside the paper\n\n{markdown(sheet)}" if rows else ""


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
    ):  # each method has a weight and a dropout of its own
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
    return f"### How strong the penalty was\n\nAs logged, over all seeds.\n\n{markdown(Table('', header, rows))}"


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
        f"Encoders that were trained on {source}, frozen"
        if source
        else "The encoder as it comes, frozen"
    )
    count = len({result.encoder for result in record.results}) // len(labels)
    environment = record.environment
    return (
        f"## Probing, {path.stem.removeprefix('probe-')}\n\n{frozen}; only a head is fitted, "
        f"{record.settings['seeds']} "
        f"times{f' for each of {count} seeds of the encoder' if count > 1 else ''}. "
        "Scores as above, mean ± sd over the heads.\n\n"
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
        f"## What matters, {first['model']}\n\nScore on a fifth of the training data that was held "
        "out, another fifth "
        "for each seed. First row: Standard; below it, points gained over it with the same seeds, "
        "whose number is in "
        f"brackets. {first['epochs']} epochs, learning rate {first['learning_rate']:g}, dropout "
        "0.1 unless it says "
        "otherwise. ARCH: ε = η = 1 for the sentence (l2), S = 1, T_c = 5, p = 100 %, unless it "
        "says otherwise. "
        "With so few seeds only large differences count.\n\n"
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

Generated by `experiments/understanding_page.py` from the records in `results/understanding`;
`experiments/understanding*.toml` hold the settings and the commands of the comparisons,
`experiments/understanding_search.py` the search. RTE, MRPC, STS-B, CoLA and SST-2 are GLUE's, complete; of MNLI a
balanced subset of 34,524 training samples was at hand, so its scores are not those of others. Scores are of GLUE's dev
sets unless it says otherwise, in percent: accuracy (RTE, SST-2; MNLI the mean of matched and mismatched), the mean of
accuracy and F1 (MRPC), Matthews' correlation (CoLA), the mean of Pearson's and Spearman's (STS-B). MiniLM is
`all-MiniLM-L6-v2`: 6 layers, 22.7 M parameters, tuned for sentence embeddings. It is far smaller than the paper's
BERT-base, so compare differences, not scores.
"""

UNEQUAL = """
The encoder's dropout was tuned for each method. Where two methods have different dropout, their difference includes the
effect of the dropout:
"""

EQUAL = """
## STS-B at equal dropout

`minilm-ten` compares methods whose dropout was tuned, Standard with 0.1 and ARCH with 0. The [parameter
study](studies.md#sts-b-minilm) has Standard without the encoder's dropout on the same data with the same seeds, which
separates the two effects; its runs (Standard with dropout 0, ARCH with T_c = 3) are of a later commit with uncommitted
changes, and compiled. Score on dev in percent, mean ± sd; differences paired by seed, with the 95 % confidence interval
of the mean (Student's t, n = 5).
"""

NORMS = """
### Gradient norms

As in the paper's figure; it says that caching makes the norm vary less over training.

![gradient norms over training, and their variance]({picture})
"""

READING = """
## How to read it

- **Dropout explains ARCH's lead on STS-B.** Over ten epochs it is 1.7 above Standard, but tuning gave ARCH no dropout
  in the encoder and Standard 0.1. Without it, Standard gains 1.6 by itself, and ARCH is level with it ("STS-B at equal
  dropout"). What stands is the parameter study's gain of 0.8: there the cache is renewed every third epoch, not every
  fifth, and both are without dropout. SMART and R3F have Standard's dropout: SMART gains 1.2, R3F nothing that five
  seeds show. The single held-out split on which dropouts were chosen prefers 0.1 for Standard, the dev set 0.
- On CoLA ARCH, again without the dropout that Standard has, is ahead within the noise. It takes half of SMART's time.
  The same penalties cost score in five epochs, because the penalised runs were not done.
- The label's own adversary is a stronger medicine. FreeLB and FreeAT lead on STS-B, also over a Standard without
  dropout (1.4 and 1.0), FreeLB on SST-2; with the same ball
  (ε = 0.1) FreeLB learns nothing at all on CoLA, where one word decides, and little of MNLI: its task loss stays where
  guessing puts it. The ball was the reason: with ε = 0.02 (`minilm-freelb`) it learns CoLA, and ends a little below
  Standard. A penalty leaves the clean loss in place, and ruins less.
- On the MNLI subset ARCH gains 0.8 over Standard with every seed, as much as SMART; FreeAT, on the label, gains twice
  that. With three epochs and T_c = 2 two of ARCH's epochs refresh, so it saves little there; on longer runs it does.
  ARCH's three runs there, and two of SMART's, are of later code than Standard's, with uncommitted changes.
- **With MPNet no penalty gains anything.** R3F, SMART and ARCH are level with Standard on every task; the
  largest difference from it is ARCH's on CoLA, 1.9 below, with an interval that has room for zero. The records say
  why: at λ = 1 and ε = 0.2 the penalty is 2 to 15 % of the task loss over the training, and most of it is not
  adversarial. R3F's, which is random noise and two dropout masks, is more than half of SMART's; ARCH's is 1.3 to 1.5
  times R3F's over the training, and in the last epoch, which reuses, no larger than R3F's. Perturbations this small
  do nothing once they are old or a neighbour's.
- Other settings did not change that. On RTE with a fifth held out (last table), λ = 5, balls from 0.2 to 3, the
  embedding block, a cache of all samples and rescaled borrowing all end one to three points below Standard with the
  same seed, and so do R3F and SMART with λ = 5. These are one or two seeds of 500 held-out samples, whose standard
  error is two points: nothing in it says that a stronger penalty would help, and little how much it harms.
- **What is borrowed is small.** With p = 10 % nine samples in ten borrow the mean over a neighbour's tokens (the
  paper's construct-adv equation), and rows that point in many directions have a short mean. In epochs that reuse, ‖δ‖
  is a quarter (RTE) to a half (CoLA) of ε with MPNet, and less than a third with MiniLM on ANLI (tables above; the
  last epoch on SST-2 and MNLI is a refresh). ARCH's ε is so much smaller than SMART's in most of its steps, whatever
  the option says. An option that gave it its size back came after these runs; it gained nothing where it was tried
  (RTE, last table, and the built-in task) and has been removed.
- FreeAT leads with MPNet, on RTE by four points. It updates the weights twice for each batch, so it trains as long as
  the others would in twelve epochs, and its task loss ends at 0.4 (RTE, MRPC) to 0.7 (STS-B, CoLA) of Standard's:
  part of its lead may be that.
- ANLI was written to fool far larger models than this one, and of its training sets only a part of the first round was
  at hand. All methods score what guessing scores, a little more in the first round, and nothing tells them apart; the
  paper's gain over BERT-base (1.7 points on all dev rounds, 0.8 on test) needs a model that learns the task.
- RTE, MRPC and their kind have a few hundred dev samples and move by one to two points from seed to seed. Most
  differences between methods lie inside that, and the intervals say so. On RTE ARCH is ahead of Standard, and its
  interval leaves zero out, but again ARCH is without dropout and Standard with 0.1, and no run tells the two apart; on
  MRPC SMART leads and ARCH is behind Standard, within the noise.
- MiniLM hardly learns RTE: Standard is a few points above chance, so a gain there says little.
- `minilm-cpu` is what a user without a GPU gets from one command: 14 runs, two at a time on two cores, stopped several
  times, by Ctrl-C or with the machine, and gone on with. Other work shared the cores, so its times are upper bounds;
  its three seeds cannot tell the methods apart.
- **Too strong is worse than nothing.** On the raw token embeddings, whose entries are small, a perturbation of ε = 1
  or 3 with λ = 5 keeps the model from fitting: SMART, which renews it at every step, and ARCH with T_c = 1, which
  does nearly the same, fall furthest; ARCH that reuses an old one is hurt less. ε = 0.1, or ε = 1 behind the embedding
  block's LayerNorm (`site="block"`), costs least.
- **With the paper's settings for these tasks, read literally, the effect is dropout's.** The perturbation stays at
  its start of 10⁻⁵ ([measured](../methods/arch.md#the-papers-settings-for-understanding)); what the penalty then sees
  is two passes with different dropout masks, which is R-Drop. R3F with its noise of 10⁻⁵ is the same thing: with
  `dropout="off"` its penalty is zero. `--preset understanding` follows MT-DNN's code since then, and has no run here.
- Projecting or rescaling gives the same here: a step of η = ε from a start on the sphere ends outside the ball.
- The paper finds that caching makes gradient norms vary less than SMART's. Here that is so on STS-B alone; on the other
  tasks SMART's vary less than ARCH's, and FreeLB's least of all, also where it learns nothing. With MPNet ARCH's vary
  least on RTE and CoLA; on MRPC one seed's make the mean.
- Probing does not show what the paper's figure shows. Heads on MiniLM's frozen token means are at chance on RTE and
  near it on CoLA, also with the encoder that saw no SST-2; on MRPC ARCH and SMART are half a point above Standard, on
  STS-B three to four below it. What a method does on SST-2 leaves no mark that helps elsewhere.
- Times are of runs that shared one machine and its processors, so only their ratios count.
"""


if __name__ == "__main__":
    keep(__doc__, PAGE, page(RECORDS), lambda folder: draw(RECORDS, folder))
