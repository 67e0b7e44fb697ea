"""docs/results/studies.md and its pictures from the existing records in results/studies.

python experiments/studies_page.py            # writes them
python experiments/studies_page.py --check    # says whether they are up to date
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pages import commits_of, keep
from scipy import stats

from advreg.lab.report.labels import (
    NOTHING,
    counted,
    difference_text,
    is_percentage,
    method_name,
    shortened,
    task_name,
    value_text,
)
from advreg.lab.report.sections.studies import draw_study
from advreg.lab.report.statistics import Spread
from advreg.lab.report.study import findings, measure, scores_by_seed, tables
from advreg.lab.report.tables import Table, markdown
from advreg.records import run as records
from advreg.records.study import STUDY_FILE, Panel, StudiedPoint, StudyRecord, load

ROOT = Path(__file__).resolve().parent.parent
RECORDS, PAGE = ROOT / "results" / "studies", ROOT / "docs" / "results" / "studies.md"

Interval = tuple[float, float]


# ---- what the paper says


@dataclass(frozen=True)
class Claim:
    """What Zuo et al. 2021 say of two points of a study, in their section "Parameter Study".

    Args:
        study: name of the panel.
        text: what they say.
        one, other: the points: ``default``, ``least`` or ``most`` of the values, or a label.
        says: that one is better than the other, that they are alike, or that one varies more.
    """

    study: str
    text: str
    one: str
    other: str
    says: Literal["better", "alike", "varies"]


CLAIMS = (
    Claim(
        "ema", "without the moving average about 0.3 BLEU are lost", "default", "least", "better"
    ),
    Claim("ema", "α from 0.01 to 0.1 changes nothing", "most", "default", "alike"),
    Claim(
        "refresh",
        "too frequent refreshes (T_c = 5, not 15) are worse",
        "default",
        "least",
        "better",
    ),
    Claim("refresh", "caching once is worse", "default", "once", "better"),
    Claim("neighbours", "the number of neighbours hardly matters", "most", "least", "alike"),
    Claim("neighbours", "a random neighbour is worse", "default", "random 1", "better"),
    Claim("neighbours", "… and varies far more from seed to seed", "random 1", "default", "varies"),
    Claim("fraction", "1 % cached is nearly as good as 100 %", "least", "most", "alike"),
    Claim("fraction", "10 % cached is as good as 100 %", "default", "most", "alike"),
)
MARGINS = {
    "bleu": 0.3,
    "pearson": 0.4,
}  # BLEU: the smallest difference that the paper makes something of
USUAL_MARGIN = 1.0
ENDS: dict[str, Callable[..., float]] = {"least": min, "most": max}
AGREES, DISAGREES, OPEN = "agrees", "disagrees", "open"


def claims_table(studies: Mapping[str, StudyRecord]) -> str:
    """A row for each claim, a column for each study: what came out there."""
    rows = [
        [claim.text, *(finding(claim, record) for record in studies.values())] for claim in CLAIMS
    ]
    return markdown(Table("", ["the paper", *map(task_of, studies.values())], rows))


def finding(claim: Claim, record: StudyRecord) -> str:
    """The difference between the two points and its interval, and whether that agrees with the
    paper.
    """
    panel = next((panel for panel in record.panels if panel.name == claim.study), None)
    points = [
        None if panel is None else pick(panel, record, which) for which in (claim.one, claim.other)
    ]
    if points[0] is None or points[1] is None or points[0] == points[1]:
        return NOTHING
    (one, mine), (other, theirs) = points[0], points[1]
    if claim.says == "varies":
        ratio = deviation_ratio(list(mine.values()), list(theirs.values()))
        if ratio is None:
            return NOTHING
        value, interval = ratio
        told = f"sd of {one} / sd of {other}: {value:.1f} [{interval[0]:.1f}, {interval[1]:.1f}]"
        return f"{told}; {verdict('better', interval, neutral=1.0)}"
    spread = Spread.paired(mine, theirs)
    if spread is None:
        return NOTHING
    told = f"{one} minus {other}: {difference_text(spread, decimals=2)}"
    return f"{told}; {verdict(claim.says, spread.interval(), margin=margin_of(record))}"


def pick(panel: Panel, record: StudyRecord, which: str) -> tuple[str, dict[int, float]] | None:
    """A point's label and its scores by seed; ``None`` if the panel has no such point."""
    variants = {variant.name: variant for variant in record.variants}
    numbers = [value for point in panel.points if (value := number(point.label)) is not None]

    def is_it(point: StudiedPoint) -> bool:
        if which == "default":
            return not variants[point.variant].changes
        if which in ENDS:
            return number(point.label) == ENDS[which](numbers, default=math.nan)
        return point.label == which

    point = next(filter(is_it, panel.points), None)
    return None if point is None else (point.label, scores_by_seed(variants[point.variant]))


def number(label: str) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None


def verdict(
    says: str, interval: Interval | None, *, margin: float = 0.0, neutral: float = 0.0
) -> str:
    """Whether the interval is consistent with the paper's claim, contradicts it, or neither.

    Better: above ``neutral``. Alike: within ``margin`` of zero. An interval that allows both leaves
    it open, and so does none at all.
    """
    if interval is None:
        return OPEN
    low, high = interval
    if says == "alike":
        holds, fails = -margin <= low and high <= margin, low > margin or high < -margin
    else:
        holds, fails = low > neutral, high < neutral
    return AGREES if holds else DISAGREES if fails else OPEN


def deviation_ratio(
    mine: Sequence[float], theirs: Sequence[float]
) -> tuple[float, Interval] | None:
    """s₁/s₂ and its 95 % interval, by the F distribution of s₁²/s₂² for normal values; ``None`` if
    it has none.
    """
    spreads = Spread.of(mine), Spread.of(theirs)
    if any(spread is None or not spread.deviation for spread in spreads):
        return None
    one, other = (
        (spread.deviation or math.nan, spread.count - 1) for spread in spreads if spread is not None
    )
    ratio = one[0] / other[0]
    low, high = (
        ratio / math.sqrt(stats.f.ppf(share, one[1], other[1])) for share in (0.975, 0.025)
    )
    return ratio, (float(low), float(high))


def margin_of(record: StudyRecord) -> float:
    (first, *_) = record.task.main_metrics
    return MARGINS.get(first.removeprefix("tokenised_"), USUAL_MARGIN)


# ---- the page


def read(folder: Path) -> dict[str, StudyRecord]:
    """The studies with a finished run, by the name of their folder; translation, as in the
    paper, first.
    """
    found = {path.parent.name: load(path.parent) for path in sorted(folder.glob(f"*/{STUDY_FILE}"))}
    begun = {
        name: record for name, record in found.items() if any(map(scores_by_seed, record.variants))
    }
    return dict(sorted(begun.items(), key=lambda item: (not is_translation(item[1]), item[0])))


def is_translation(record: StudyRecord) -> bool:
    return record.task.main_metrics[0].endswith("bleu")


def page(folder: Path) -> str:
    """The whole page; nothing where there are no records."""
    studies = read(folder)
    if not studies:
        return ""
    margins = ", ".join(
        f"{margin_of(record):g} on {task_of(record)}" for record in studies.values()
    )
    summary = CLAIMS_INTRODUCTION.format(margins=margins).strip()
    parts = [TITLE, f"{summary}\n\n{claims_table(studies)}", READING]
    parts += [section(name, record, folder / name) for name, record in studies.items()]
    return "\n\n".join(part.strip() for part in parts if part.strip()) + "\n"


def section(name: str, record: StudyRecord, folder: Path) -> str:
    """A study: what it was made with, its picture, a table for each panel, and what failed."""
    found = findings(record)
    parts = [
        f"## {task_of(record)}",
        about(record, folder),
        f"![{task_of(record)}]({picture_of(name).name})",
    ]
    for (panel, _), sheet in zip(found.panels, tables(found), strict=True):
        parts.append(f"### {task_of(record)}: {panel.title}\n\n{markdown(sheet)}")
    runs = [run for variant in record.variants for run in variant.runs]
    failed = [
        f"- no result: {run.folder}: {shortened(run.error)}"
        for run in runs
        if run.error is not None
    ]
    parts.append("\n".join([*(f"- {note}" for note in record.notes), *failed]))
    return "\n\n".join(part for part in parts if part)


def about(record: StudyRecord, folder: Path) -> str:
    """Its progress, and the settings that all of its runs share."""
    shared = record.task.settings
    options = shared["options"][record.method]
    runs = [run for variant in record.variants for run in variant.runs]
    done = [run for run in runs if run.score is not None]
    so_far = (
        f"{len(done)} of {counted(len(runs), 'run')} are done. " if len(done) < len(runs) else ""
    )
    percent = ", in percent" if is_percentage(record.task) else ""
    common = ", ".join(
        f"{name} {value_text(shared[name])}" for name in SETTINGS if shared.get(name) is not None
    )
    own = ", ".join(
        f"{sign} = {value_text(options[name])}" for name, sign in SIGNS.items() if name in options
    )
    made = [records.load(folder / run.folder / "record.json") for run in done]
    places = [run.environment for run in made]
    devices = sorted({str(place["device"]) for place in places})
    torches = sorted({place["packages"]["torch"] for place in places})
    return (
        f"{so_far}Scores are {measure(record.task)}{percent}. Shared settings: {common}. "
        f"Default settings of {method_name(record.method)}: {own}. "
        f"{commits_of(made)}, {', '.join(devices)}, torch {', '.join(torches)}; "
        f"`advreg {' '.join(record.environment['arguments'])}`."
    )


def task_of(record: StudyRecord) -> str:
    """The task and the model, as people write them."""
    return f"{task_name(record.task.name, record.task.title)}, {str(record.task.settings['model']).rpartition('/')[2]}"


def picture_of(name: str) -> Path:
    return PAGE.with_name(f"studies-{name}.svg")


def draw(folder: Path, into: Path) -> list[Path]:
    """The picture of each study; the files."""
    drawn = {into / picture_of(name).name: record for name, record in read(folder).items()}
    for path, record in drawn.items():
        draw_study(findings(record), path)
    return list(drawn)


SETTINGS = ("epochs", "batch_size", "update_tokens", "learning_rate", "precision", "site")
SIGNS = {
    **{"radius": "ε", "step_size": "η", "ascent_steps": "S", "weight": "λ"},
    **{"refresh_every": "T_c", "ema": "α", "cache_fraction": "p", "neighbours": "K"},
}

TITLE = """
# Parameter studies

In translation from scratch, no setting of ARCH's cache makes a difference that three seeds can
detect. On STS-B with a pretrained encoder, the perturbations must be refreshed: cached once they
gain nothing, refreshed every third epoch they gain as much as SMART's. The choice and the number of
neighbours hardly matter on either task.

This page is generated by `experiments/studies_page.py` from the records in `results/studies`.
`experiments/studies-*.toml` hold the settings and the commands. One option of ARCH is varied at a
time and compared with SMART and Standard, as in section "Parameter Study" of [Zuo et al.
2021](https://arxiv.org/abs/2109.07048), which uses IWSLT'14 De-En. Tables have means and standard
deviations over seeds (with their number, if some are missing) and the best point in bold.
Differences from the default settings are paired by seed, with the 95 % confidence interval of their
mean (Student's t). Times are of training steps that shared the machine with other runs.
"""

CLAIMS_INTRODUCTION = """
## The paper's claims and our results

Differences are in points of score, paired by seed, with the 95 % confidence interval of the mean.
Variation between seeds is compared by the ratio of standard deviations (F distribution).

- "Agrees": every value in the interval is consistent with the paper's claim.
- "Disagrees": no value in the interval is consistent with it.
- "Open": some values are.

Scores count as equal within a margin: 0.3 BLEU, the smallest difference that the paper discusses;
0.4 on STS-B, half of ARCH's gain there; one point elsewhere. Here:
{margins}.
"""

READING = """
## How to read it

Translation, from scratch and with dropout 0.3:

- ARCH gains 1.5 BLEU over Standard. Each of its 27 runs, with any settings, is above Standard with
  the same seed, by 0.2 to 2.5. SMART gains 2.0, in nearly three times the time of ARCH.
- **No setting of the cache makes a difference that three seeds can detect.** All nine lie between
  38.4 and 38.9, no further apart than the seeds. Perturbations that are computed once and kept for
  twenty epochs do as well as refreshed ones. A random sentence's perturbation does as well as the
  nearest one's, and caching a hundredth of the samples as well as caching all.
- This points to what the settings have in common: the penalty compares two passes with different
  dropout, with any δ. That alone achieves the same: R3F, whose perturbation is close to nothing,
  has 38.7 with the same settings ([translation](translation.md)).
- The paper's 0.3 BLEU for the moving average and against frequent refreshes (T_c = 2) appear as
  differences of means, but well within their intervals. The scored weights had the best BLEU on 500
  sentences of the validation set. In six of 33 runs these were the weights of epoch 15, not 20,
  which adds to the noise.

STS-B, pretrained and without dropout in the encoder, so that only the perturbation and the head's
dropout contribute to the penalty:

- ARCH gains 0.8 over Standard, with every seed, and is level with SMART. All of them have the same
  dropout, which matters: [dropout alone changes Standard's score by twice as
  much](understanding.md#sts-b-at-equal-dropout).
- **Perturbations must be refreshed.** Computed once and kept for ten epochs they gain nothing.
  Refreshed every third epoch they gain as much as with a refresh in every epoch. The paper's
  finding that frequent refreshes harm does not appear here.
- The choice of neighbours matters little: a random sample's perturbation costs a tenth of a point
  compared with the nearest neighbour's, and five or ten neighbours are no better than one. The
  moving average has no effect here.
- Caching a hundredth of the samples may be slightly worse than caching all; the interval is
  inconclusive.
- ε = 0.03 is too small, and gains a third; values from 0.1 to 1 make no difference.

The runs shared one busy GPU, those on STS-B as replayed CUDA graphs. Their times do not measure the
cost of a method; see [what it costs](cost.md).
"""


if __name__ == "__main__":
    if not (fresh := page(RECORDS)):
        sys.exit(
            f"no run of a study has finished in {RECORDS.relative_to(ROOT)}; "
            "experiments/studies-*.toml say how"
        )
    keep(__doc__, PAGE, fresh, lambda folder: draw(RECORDS, folder))
