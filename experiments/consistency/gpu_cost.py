"""Step times on an otherwise idle GPU, from results/consistency/cost-*.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bootstrap import ROOT
from trainer_steps import Ratio

from advreg.lab.report.tables import Table, markdown
from advreg.records.bench import STANDARD, BenchRecord, Panel, Row, load

FOLDER = ROOT / "results" / "consistency"
BARS = (
    ("temporal", STANDARD, "Cached prediction / Standard", 1.05),
    ("rdrop", "r3f", "R-Drop / R3F", 1.02),
    ("simcut", "r3f", "SimCut / R3F", 1.02),
)
"""Row, row it is compared with, what the table calls it, and what it may be at most."""

_TEXT = """\
## Step times on a GPU

The table shows the median ratio within a round and its 95 % interval, by `advreg bench` on an
otherwise idle H200 in bf16. The targets are {aims}. A median above its target is bold; an interval
that includes the target is inconclusive. Records with fewer rounds than requested were stopped by
their time limit. A step of 32 × 64 or of transformer-iwslt waits for the host, whose speed varies
between rounds. At 256 × 128 the GPU is the limit, and the intervals are narrow.
"""


def section() -> str:
    """A table of all records, the latest first."""
    records = [(path, load(path)) for path in FOLDER.glob("cost-*.json")]
    records.sort(key=lambda pair: pair[1].started, reverse=True)
    header = ["model, batch × tokens", "record", "rounds", "Standard, ms"]
    header += [title for *_, title, _ in BARS] + ["cache, bytes"]
    body = [cells(path, record, panel) for path, record in records for panel in record.panels]
    aims = ", ".join(f"{title} ≤ {most:.2f}" for *_, title, most in BARS)
    return f"{_TEXT.format(aims=aims)}\n{markdown(Table('', header, body))}"


def cells(path: Path, record: BenchRecord, panel: Panel) -> list[str]:
    """A line of the table."""
    rows = {row.name: row for row in panel.rows}
    rounds = rows[STANDARD].rounds
    return [
        f"{record.settings['model']}, {panel.batch} × {panel.tokens}",
        f"[{(record.commit or '')[:7]}](../../results/consistency/{path.name})",
        str(len(rounds)),
        f"{min(rounds):.0f} to {max(rounds):.0f}",
        *(ratio(rows[mine].rounds, rows[theirs].rounds, most) for mine, theirs, _, most in BARS),
        cache(record, panel, rows["temporal"]),
    ]


def ratio(mine: Sequence[float], theirs: Sequence[float], most: float) -> str:
    """The median ratio within a round, and its interval."""
    found = Ratio.of(mine, theirs)
    median = f"{found.median:.3f}" if found.median <= most else f"**{found.median:.3f}**"
    return f"{median} [{found.low:.3f}, {found.high:.3f}]"


def cache(record: BenchRecord, panel: Panel, row: Row) -> str:
    """What the cached prediction keeps, for each predicted item of the bench's data set."""
    samples = record.settings["samples"]
    if record.model["class"].endswith("ForSequenceClassification"):
        return f"{(row.cache_bytes or 0) / samples:.1f} a sample"
    batches = min(record.settings["batches"], samples // panel.batch)
    predicted = batches * panel.batch
    items = predicted * panel.tokens + samples - predicted  # one of each sample in no batch
    return f"{(row.cache_bytes or 0) / items:.1f} a token"
