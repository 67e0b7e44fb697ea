"""docs/results/cost.md and its picture, from the records in results/cost.

python experiments/cost_page.py            # writes them
python experiments/cost_page.py --check    # says whether they are up to date
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trainer_steps
from pages import keep, tree

from advreg.core.schedule import RefreshEvery
from advreg.lab.bench.figures import over_a_run, within_rounds
from advreg.lab.report.sections.bench import draw_benches
from advreg.records.bench import YARDSTICK, BenchRecord, Panel, Row, Spread, load

ROOT = Path(__file__).resolve().parent.parent
RECORDS, PAGE, PICTURE = (
    ROOT / "results" / "cost",
    ROOT / "docs" / "results" / "cost.md",
    "cost.svg",
)

STEPS = ("bert-base.json", "bert-base-shapes.json", "bert-base-large.json")
METHODS = {
    YARDSTICK: "Standard on twice the batch",
    "r3f": "R3F",
    "r3f, two passes": "R3F in two passes",
    "arch, reuse": "**ARCH, reuse** (14 of 15 epochs)",
    "arch, refresh": "ARCH, refresh (1 of 15)",
    "freelb": "FreeLB, S = 2",
    "smart": "SMART, S = 3",
}


STOCK = "AdversarialTrainer, standard"
LONG_RUN = "**ARCH, 150 epochs, T_c = 15**"
SHORT_RUN = "**ARCH, 10 epochs, T_c = 3** (the script above)"
TRAINER_STEPS = "trainer-steps"


def tier(name: str) -> str:
    return f"arch (cache_device={name}, cache_fraction=1.0), reuse"


# ---- records


class Records:
    """The existing records; the page omits figures of missing ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = sorted(path.relative_to(folder) for path in folder.rglob("*.json"))
        self.benches = {
            name.as_posix(): load(folder / name) for name in names if name.parts[0] != TRAINER_STEPS
        }
        self.steps = {
            name.as_posix(): trainer_steps.load(folder / name)
            for name in names
            if name.parts[0] == TRAINER_STEPS
        }

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def panels(self, *names: str) -> list[tuple[BenchRecord, Panel]]:
        return [
            (self.benches[name], panel)
            for name in names
            if name in self.benches
            for panel in self.benches[name].panels
        ]

    def ratio(self, mine: str, theirs: str, *names: str) -> Spread | None:
        """One row over another, within the rounds of all these records."""
        ratios: list[float] = []
        for _, panel in self.panels(*names):
            found = rows(panel)
            if mine in found and theirs in found:
                ratios += within_rounds(found[mine].rounds, found[theirs].rounds)
        return Spread.of(ratios) if ratios else None


def rows(panel: Panel) -> dict[str, Row]:
    return {row.name: row for row in panel.rows}


def text(spread: Spread | None, digits: int = 2) -> str:
    if spread is None:
        return "–"
    return f"{spread.median:.{digits}f} ({spread.quartile_1:.{digits}f}–{spread.quartile_3:.{digits}f})"


def table(header: list[str], body: list[list[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *body)]
    return "\n".join(lines)


# ---- the page


def page(folder: Path) -> str:
    """The whole page."""
    found = Records(folder)
    parts = [
        TITLE,
        steps(found),
        bars(found),
        whole(found),
        compiled(found),
        graphs(found),
        tiers(found),
        sizes(found),
    ]
    parts += [trainers(found), reading(found), provenance(found)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def summary(folder: Path) -> str:
    """The table of the README: a step and a whole run, relative to Standard."""
    found = Records(folder)
    panels = [panel for _, panel in found.panels("bert-base.json", "bert-base-large.json")]
    body = []
    for name, label in {"r3f": "R3F", "arch, reuse": "ARCH, reuse", "arch": LONG_RUN}.items():
        body.append([label, *(median(panel, name) for panel in panels)])
    body.append([SHORT_RUN, *(f"{short_run(panel).median:.2f}" for panel in panels)])
    for name, label in {"freelb": "FreeLB, S = 2", "smart": "SMART, S = 3"}.items():
        body.append([label, *(median(panel, name) for panel in panels)])
    return table(
        ["time, × Standard", *(f"{panel.batch} × {panel.tokens} tokens" for panel in panels)], body
    )


def short_run(panel: Panel) -> Spread:
    """ARCH's time over ten epochs, a refresh every three, relative to Standard's."""
    runs = over_a_run(panel.rows, 10, RefreshEvery(3))
    (mine,) = (mine for row, _, mine in runs if row.name == "arch, reuse")
    spread = Spread.of(within_rounds(mine, rows(panel)["standard"].rounds))
    assert spread is not None
    return spread


def median(panel: Panel, name: str) -> str:
    """The ratio of a row or of a whole run as text."""
    spreads = {run.name: run.to_standard for run in panel.whole} | {
        row.name: row.ratio for row in panel.rows
    }
    spread = spreads.get(name)
    return "–" if spread is None else f"{spread.median:.2f}"


def steps(found: Records) -> str:
    shapes = sorted(
        found.panels(*STEPS), key=lambda pair: (pair[1].batch * pair[1].tokens, pair[1].batch)
    )
    header = [
        "time of a step, × Standard",
        "by arithmetic",
        *(f"{p.batch} × {p.tokens}" for _, p in shapes),
    ]
    body = []
    for name, label in METHODS.items():
        cells = [rows(panel).get(name) for _, panel in shapes]
        sums = [row.arithmetic for row in cells if row is not None and row.arithmetic is not None]
        if sums:
            body.append(
                [label, f"{sums[0]:.2f}", *(text(row.ratio) if row else "–" for row in cells)]
            )
    times = [rows(panel)["standard"].time for _, panel in shapes]
    body.append(
        ["*Standard, ms*", "", *(f"*{time.median:.1f}*" if time else "–" for time in times)]
    )
    return (
        "## A step\n\nBERT-base, bf16, batch × tokens.\n\n"
        + table(header, body)
        + f"\n\n![cost of a step]({PICTURE})\n\n{unclean(found)}"
    ).strip()


def unclean(found: Records) -> str:
    """The records whose code is not known, and what clean ones before them say of a step."""
    doubtful = [
        name for name, record in found.benches.items() if is_dirty(record) and "/" not in name
    ]
    if not doubtful:
        return ""
    told = "; ".join(f"`{name}`, {commit_of(found.benches[name])}" for name in doubtful)
    earlier = (f"{before}{SMALL[0]}" for before in ONCE)
    clean = [
        name for name in earlier if name in found.benches and not is_dirty(found.benches[name])
    ]
    labels = {"r3f": "R3F", "arch, reuse": "ARCH's reuse step", "smart": "SMART"}
    steps = ", ".join(
        f"{label} {text(found.ratio(row, 'standard', *clean))}" for row, label in labels.items()
    )
    return UNCLEAN.format(records=told, steps=steps).strip()


def is_dirty(record: BenchRecord) -> bool:
    return bool(record.environment["git"]["dirty"])


def commit_of(record: BenchRecord) -> str:
    """The commit of a record; where the tree had another one, its source and the tree's commit."""
    git, arguments = record.environment["git"], record.environment["arguments"]
    if record.commit == git["commit"] and not git["dirty"]:
        return tree(git)
    source = (
        "given on the command line" if record.commit in arguments else "entered by hand afterwards"
    )
    return f"commit {(record.commit or 'unknown')[:7]} {source}, tree {tree(git)}"


PEERS, SMALL = ("peers.json",), ("bert-base.json",)
ONCE = (
    "earlier/",
    "earlier/second-",
    "earlier/third-",
)  # measured before the Trainer and the look-up were made faster
SIZES = ("earlier/second-dataset-size.json", "dataset-size.json")
AIMS = (
    # what, at most, row, other row, records
    (
        "`AdversarialTrainer(method=Standard())` / stock Trainer, 32 × 64",
        1.02,
        STOCK,
        "Trainer",
        PEERS,
    ),
    ("ARCH reuse / Standard, 32 × 64", 1.12, "arch, reuse", "standard", (*SMALL, *PEERS)),
    ("the same, 256 × 128", 1.92, "arch, reuse", "standard", ("bert-base-large.json",)),
    (
        "cache in host memory / on the GPU, 32 × 64",
        1.03,
        tier("host"),
        tier("device"),
        ("tiers.json",),
    ),
    ("the same, 256 × 128", 1.03, tier("host"), tier("device"), ("tiers-large.json",)),
    ("cache on disk / on the GPU, 32 × 64", 1.10, tier("disk"), tier("device"), ("tiers.json",)),
    ("the same, 256 × 128", 1.10, tier("disk"), tier("device"), ("tiers-large.json",)),
    ("ARCH reuse / R3F, 32 × 64", 1.03, "arch, reuse", "r3f", SMALL),
    ("the same, by torch.compile", 1.03, "arch, reuse", "r3f", ("compiled.json",)),
    ("the same, MiniLM, CUDA graphs", 1.03, "arch, reuse", "r3f", ("graphs.json",)),
    ("ARCH reuse / R3F, 256 × 128", 1.03, "arch, reuse", "r3f", ("bert-base-large.json",)),
    (
        "ARCH reuse / smart-pytorch, one ascent step",
        0.5,
        "arch, reuse",
        "smart-pytorch, S=1",
        PEERS,
    ),
)


def bars(found: Records) -> str:
    """Each target and the measurement."""
    measured = [
        (what, most, found.ratio(mine, theirs, *names)) for what, most, mine, theirs, names in AIMS
    ]
    whole_run = "whole ARCH run / whole SMART run, Transformer-base, 8k tokens a step"
    measured.append((whole_run, 0.35, whole_ratio(found, "translation.json", "arch")))
    body = [
        [what, f"≤ {most:.2f}", text(spread)]
        for what, most, spread in measured
        if spread is not None
    ]
    body += (
        memory_bar(found, "bert-base-large.json")
        + compiled_bar(found)
        + size_bar(found)
        + search_bars(found)
    )
    return (
        "## Targets and results\n\nFor the Trainer, ARCH and R3F at 32 × 64, only the latest "
        "measurement counts, made after they became faster; earlier ones are in `earlier`. "
        "The size of the data set was measured twice, and all rounds count together. "
        "The last table on this page has the commit of every record.\n\n"
        + table(["measure", "target", "measured"], body)
    )


def memory_bar(found: Records, name: str) -> list[list[str]]:
    for _, panel in found.panels(name):
        arch, double = rows(panel)["arch, reuse"], rows(panel)[YARDSTICK]
        if arch.peak_bytes and double.peak_bytes and arch.cache_bytes is not None:
            share = (arch.peak_bytes - arch.cache_bytes) / double.peak_bytes
            return [
                [
                    "peak memory of ARCH without its cache / Standard on 2B, 256 × 128",
                    "≤ 1.05",
                    f"{share:.2f}",
                ]
            ]
    return []


def compiled_bar(found: Records) -> list[list[str]]:
    spread = found.ratio("arch, reuse", "standard", "compiled.json")
    return (
        []
        if spread is None
        else [["ARCH reuse / Standard, 32 × 64, both by torch.compile", "given", text(spread)]]
    )


def size_bar(found: Records) -> list[list[str]]:
    """The reuse step of a large data set relative to a small one."""
    row = "arch (cache_device=device), reuse, {:,} samples"
    spreads = [
        (size, found.ratio(row.format(size), row.format(10_000), *SIZES))
        for size in (100_000, 1_000_000)
    ]
    what = "reuse step with {:,} samples / with 10,000, 32 × 64"
    return [
        [what.format(size), "≤ 1.03", text(spread)]
        for size, spread in spreads
        if spread is not None
    ]


def search_bars(found: Records) -> list[list[str]]:
    body = []
    for line in found.lines("neighbours.jsonl"):
        what = f"exact neighbours, {line['queries'] / 1e6:g} M × {line['anchors'] / 1e3:g} k × {line['width']}, H200"
        body.append([what, "≤ 90 s", f"{line['seconds']['exact']:.0f} s"])
    for line in found.lines("neighbours-cpu.jsonl"):
        size = f"{line['queries'] / 1e3:g} k × {line['anchors'] / 1e3:g} k × {line['width']}"
        took, hits = line["seconds"], line["recall"]["faiss-ivf"]
        others = f"faiss flat {took['faiss-flat']:.1f} s, faiss IVF {took['faiss-ivf']:.1f} s at recall {hits:.3f}"
        body.append(
            [
                f"exact neighbours, {size}, two CPU cores",
                "given",
                f"{took['exact']:.1f} s ({others})",
            ]
        )
    return body


def whole_ratio(found: Records, name: str, method: str) -> Spread | None:
    runs = {run.name: run for _, panel in found.panels(name) for run in panel.whole}
    return runs[method].to_smart if method in runs else None


def whole(found: Records) -> str:
    panels = found.panels("translation.json")
    if not panels:
        return ""
    record, panel = panels[0]
    body = [[f"`{run.name}`", text(run.to_standard), text(run.to_smart)] for run in panel.whole]
    tokens = panel.batch * panel.tokens
    return (
        f"## A whole run\n\nTransformer-base, {panel.batch} × {panel.tokens} = {tokens:,} target "
        "tokens per step, "
        f"{record.settings['epochs']} epochs, a refresh every {record.settings['refresh_every']}, "
        "S = 3, p = 10 %. "
        "In the paper, ARCH takes 0.30 of SMART's time.\n\n"
        + table(["method", "× Standard", "× SMART"], body)
        + "\n\n`share_last_pass` and `refresh=sweep` departed from the paper and have been removed."
    )


def compiled(found: Records) -> str:
    """The same steps by torch.compile."""
    if not {"bert-base.json", "compiled.json"} <= set(found.benches):
        return ""
    eager, fast = (rows(panel) for _, panel in found.panels("bert-base.json", "compiled.json"))
    body = [
        [
            label,
            *(text(rows[name].ratio) for rows in (eager, fast)),
            *(milliseconds(rows[name]) for rows in (eager, fast)),
        ]
        for name, label in METHODS.items()
        if name in eager and name in fast
    ]
    body.append(
        ["*Standard*", "", "", milliseconds(eager["standard"]), milliseconds(fast["standard"])]
    )
    head = [
        "BERT-base, 32 × 64",
        "eager, × Standard",
        "compiled, × Standard",
        "eager, ms",
        "compiled, ms",
    ]
    return f"## With torch.compile\n\n{table(head, body)}\n\n{COMPILED.strip()}"


GRAPHS = {
    "graphs-eager.json": "eager",
    "graphs-default.json": "compiled",
    "graphs.json": "compiled, CUDA graphs",
}


def graphs(found: Records) -> str:
    """What CUDA graphs do for a small model."""
    if not set(GRAPHS) <= set(found.benches):
        return ""
    panels = [rows(panel) for _, panel in found.panels(*GRAPHS)]
    body = [
        [label, *(f"{milliseconds(panel[name])} ms, {text(panel[name].ratio)}" for panel in panels)]
        for name, label in {"standard": "Standard", **METHODS}.items()
        if all(name in panel for panel in panels)
    ]
    head = ["MiniLM, 32 × 64; time of a step, × Standard", *GRAPHS.values()]
    return f"## With CUDA graphs\n\n{table(head, body)}\n\n{CUDA_GRAPHS.strip()}"


def milliseconds(row: Row) -> str:
    return "–" if row.time is None else f"{row.time.median:.1f}"


def tiers(found: Records) -> str:
    panels = found.panels("tiers.json", "tiers-large.json")
    header = [
        "all samples cached, float32; time of a reuse step, × Standard",
        *(f"{p.batch} × {p.tokens}" for _, p in panels),
    ]
    body = [
        [label, *(text(rows(panel)[tier(name)].ratio) for _, panel in panels)]
        for name, label in {
            "device": "on the GPU",
            "host": "host memory, prefetched",
            "disk": "mapped file, prefetched",
        }.items()
    ]
    return "## Where the cache lives\n\n" + table(header, body) if panels else ""


def sizes(found: Records) -> str:
    lines = found.lines("cache-size.jsonl")
    if not lines:
        return ""
    dtypes = list(lines[0]["bytes"])
    body = [
        [
            f"{100 * line['fraction']:g} %",
            *(f"{line['bytes'][dtype] / 1e9:.1f} GB" for dtype in dtypes),
        ]
        for line in lines
    ]
    about = lines[0]
    return (
        f"## Size of the cache\n\nRows and means for {about['pairs'] / 1e6:g} M sentence pairs of "
        f"width {about['width']}. Lengths are log-normal with mean {about['mean_length']:g} and "
        f"standard deviation {about['sd_length']:g} on both sides, close to WMT'16 "
        "English–German in 32k subwords:\n\n"
        + table(["cached", *dtypes], body)
        + f"\n\n{WMT.strip()}"
    )


COLUMNS = {
    ("standard", "stock"): "Standard / stock Trainer",
    ("standard", "old"): "Standard",
    ("r3f", "old"): "R3F",
    ("arch, reuse", "old"): "ARCH, reuse",
    ("arch, refresh", "old"): "ARCH, refresh",
}
UNDECIDED = 0.1  # an interval that is wider does not tell whether an aim is met
UNDECIDED_TEXT = (
    "The rounds vary too much here to decide the targets: some intervals are wider than 0.1."
)
COMPILED_PARTS = {"eager": "nothing", "layers": "the layers", "whole": "the model"}


def trainers(found: Records) -> str:
    """Steps of the Trainer at two commits, a table for each record."""
    parts = []
    for record in found.steps.values():
        each = {
            (one.workload, one.mode, one.method, one.against): one
            for one in trainer_steps.comparisons(record)
        }
        columns = [column for column in COLUMNS if any(key[2:] == column for key in each)]
        body = []
        for name, mode in dict.fromkeys(key[:2] for key in each):
            about = record.workloads[name]
            cells = [compared(each.get((name, mode, *column))) for column in columns]
            body.append(
                [f"{name}, {about['batch']} × {about['tokens']}", COMPILED_PARTS[mode], *cells]
            )
        old, new = (f"`{(tree.commit or 'unknown')[:7]}`" for tree in record.trees)
        head = ["model, batch × tokens", "compiled", *(COLUMNS[column] for column in columns)]
        parts.append(f"{record.hardware['device']}, {new} / {old}:\n\n{table(head, body)}")
        if any(one.time.high - one.time.low > UNDECIDED for one in each.values()):
            parts.append(UNDECIDED_TEXT)
    return "\n\n".join([TRAINERS.strip(), *parts]) if parts else ""


def compared(one: trainer_steps.Comparison | None) -> str:
    """The ratio of the times, its interval, and the ratio of the peaks."""
    if one is None:
        return "–"
    memory = "" if one.memory is None else f"; memory {one.memory:.2f}"
    return f"{one.time.median:.3f} [{one.time.low:.3f}, {one.time.high:.3f}]{memory}"


def reading(found: Records) -> str:
    """What it says, with the ratios of before."""
    peers, small = (
        [f"{before}{name}" for before in ONCE for name in names] for names in (PEERS, SMALL)
    )
    ratios = {
        "trainer": found.ratio(STOCK, "Trainer", *peers),
        "reuse": found.ratio("arch, reuse", "standard", *small, *peers),
        "r3f": found.ratio("arch, reuse", "r3f", *small),
    }
    return READING.format(
        **{name: "–" if ratio is None else f"{ratio.median:.2f}" for name, ratio in ratios.items()}
    )


def provenance(found: Records) -> str:
    body = []
    for name, record in found.benches.items():
        command = " ".join(record.environment.get("arguments", []))
        told = f"{record.hardware['device']}, torch {record.environment['packages']['torch']}"
        body.append(
            [f"[{name}](../../results/cost/{name})", commit_of(record), told, f"`{command}`"]
        )
    for name, steps in found.steps.items():
        commit = " / ".join((one.commit or "")[:7] for one in reversed(steps.trees))
        told = f"{steps.hardware['device']}, torch {steps.workers['new']['torch']}"
        command = " ".join(steps.environment["arguments"])
        body.append(
            [
                f"[{name}](../../results/cost/{name})",
                commit,
                told,
                f"`experiments/trainer_steps.py {command}`",
            ]
        )
    for path in sorted(found.folder.glob("*.jsonl")):
        for line in found.lines(path.name):
            told = line.get("hardware", "arithmetic")
            name = f"[{path.name}](../../results/cost/{path.name})"
            body.append([name, line["commit"][:7], told, f"`{line['command']}`"])
            break
    return "## Records\n\n" + table(["record", "commit", "hardware", "command"], body)


TRAINERS = """
## Steps of the Trainer, commit against commit

The tables compare steps of the whole Trainer, including its work between steps, before and after a
change: the Trainer now takes the task loss from its own `compute_loss`.
`experiments/trainer_steps.py` trains with both versions in separate processes, which alternate (A B
B A). A ratio is taken within a round; in brackets is the 95 % confidence interval of the median. On
the CPU the time is process time in one thread. The targets are at most 1.03 for R3F and ARCH's
reuse step, 1.02 for their peak memory, and 1.01 for Standard against the stock Trainer.

On a GPU a step at 32 × 64 waits for the host, whose speed varies by a third between rounds.
`57f8fc4` set the mode of every module again at each step; since `3bc614d` only modules whose mode
has changed are reset.
"""

TITLE = """
# What it costs

At typical fine-tuning batch sizes (32 × 64 tokens), a reuse step of ARCH costs a few per cent more
than a Standard step. With large batches (256 × 128) it costs nearly twice as much. FreeLB costs
nearly three times a Standard step; SMART and ARCH's refresh steps cost about four times as much.
Standard is always the cheapest, followed by R3F and ARCH's reuse step, then FreeLB and SMART.

This page is generated by `experiments/cost_page.py` from the records in `results/cost`, from which
every figure can be recomputed. `experiments/cost.py` holds the commands. Times are medians over
rounds in which all methods alternate on one model; a ratio is taken within a round, and its
quartiles are in brackets.
"""

UNCLEAN = """
**The code of some records is not certain**, since their trees had uncommitted changes: {records}.
Step records at 32 × 64 from clean trees are older (in `earlier`, before the reuse step was made
faster): {steps}.
"""

COMPILED = """
Compiling saves about a third of every step, for ARCH as well as for Standard. When both are
compiled, the reuse step costs the same as the Standard step within the noise. The first steps take
a minute or more, once per method and shape.
"""

CUDA_GRAPHS = """
`--compile-mode reduce-overhead` replays a step as one CUDA graph when shapes repeat
(`pad_to_multiple_of` and few buckets). Launch-bound models gain most: a Standard step of MiniLM
takes less than a quarter of its eager time. ARCH's reuse step gains nearly as much in absolute
terms. Its ratio rises, because only arithmetic remains of the Standard step, while the lookup of δ,
its checks and the penalty stay outside the graph. The mode is off by default, since every new size
would be captured again. With torch 2.11 it was also unstable: in a study of 69 runs that shared a
GPU, six ended in an assertion inside torch, and translation crashed in a compiled backward pass.
"""

WMT = """
The paper states about 100 GB for all samples. The target was 6 GB for a tenth in int8, which would
be 25 tokens per pair. With 58 tokens of 512 bytes each, plus a scale, the target cannot be met:
even 4 bits take more. Since no record showed a gain from int8 and int4, both were removed. The 1 %
that the paper finds nearly as good as all stays below 6 GB in any precision. `cache_device="auto"`
puts a cache that does not fit on the GPU into host memory, and one that does not fit there into a
mapped file.
"""

READING = """
## How to read it

At typical fine-tuning batch sizes, a step of BERT-base is limited by kernel launches, not by
arithmetic. The doubled batch takes hardly longer, so ARCH's reuse step costs a few per cent more
instead of twice as much. With 256 × 128 tokens the GPU is busy, and the arithmetic estimate is
nearly right. Launch-bound step times vary with the load of the host's CPU: between rounds Standard
itself varies by ten per cent, so the second digit of a ratio at 32 × 64 is not certain. The order
is certain in both regimes: Standard, then R3F and ARCH's reuse, then FreeLB and SMART.

Translation also pays for the penalty over a vocabulary of 32,000, which the doubled batch alone
does not show. When the GPU is busy, a refresh takes longer than the arithmetic suggests: computing
only the gradient of δ saves the products for the weight gradients, but not the rest of the memory
traffic.

The target for the size of the int8 cache was missed (see above). At earlier commits the Trainer
took {trainer} of the stock Trainer's time, and ARCH's reuse step {reuse} of Standard's and {r3f} of
R3F's (the records in `earlier`, all rounds together). There were three reasons. The Trainer waited
for the GPU twice per update to check that loss and gradient are finite, where the stock one waits
once. It counted parameters and walked modules at each step. The lookup of δ launched more
operations. The quartiles are as wide as the differences discussed here, so a single run of the
bench may fall on the other side of a target. Since then a refresh waits for the GPU less often;
this has not been measured yet.
"""


if __name__ == "__main__":
    benches = Records(RECORDS).benches
    drawn = [benches[name] for name in STEPS if name in benches]
    keep(__doc__, PAGE, page(RECORDS), lambda folder: draw_benches(drawn, folder / PICTURE))
