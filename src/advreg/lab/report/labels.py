"""Names and numbers as text, the same on every page and in every command."""

from __future__ import annotations

from advreg.lab.catalogue import catalogue, title_of
from advreg.lab.kinds.registry import scale_of
from advreg.lab.report.statistics import Spread
from advreg.records.compare import ComparedTask, in_percent, is_share
from advreg.records.run import RunRecord

NOTHING = "–"
NOT_FINISHED = "not finished; the same command resumes it"
TASK_NAMES = {
    "rte": "RTE", "mrpc": "MRPC", "cola": "CoLA", "sst2": "SST-2", "stsb": "STS-B",
    "qnli": "QNLI", "qqp": "QQP", "mnli": "MNLI", "snli": "SNLI", "mr": "MR",
    "anli": "ANLI", "anli_r1": "ANLI R1", "anli_r2": "ANLI R2", "anli_r3": "ANLI R3",
    "iwslt14-de-en": "IWSLT'14 De-En", "iwslt14-en-de": "IWSLT'14 En-De",
    "iwslt15-en-vi": "IWSLT'15 En-Vi", "iwslt15-vi-en": "IWSLT'15 Vi-En",
    "iwslt16-en-fr": "IWSLT'16 En-Fr", "iwslt16-fr-en": "IWSLT'16 Fr-En",
    "multi30k-en-de": "Multi30k En-De", "multi30k-de-en": "Multi30k De-En",
    "multi30k-en-fr": "Multi30k En-Fr", "multi30k-fr-en": "Multi30k Fr-En",
    "wmt16-en-de": "WMT'16 En-De",
}  # fmt: skip
"""Titles of known tasks."""
_TRANSLATION_SCORES = {"tokenised_bleu": "tokenised BLEU", "bleu": "sacreBLEU", "chrf": "chrF"}
# last words of the names of scores
_SCORES = (
    "accuracy",
    "f1",
    "matthews",
    "pearson",
    "spearman",
    "bleu",
    "chrf",
    "match",
    "perplexity",
)
_REASON_LENGTH = 160


def value_text(value: object) -> str:
    """A setting as text.

    Example:
        >>> value_text(0.10), value_text(None), value_text("block")
        ('0.1', 'none', 'block')
    """
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A number of things.

    Example:
        >>> counted(1, "run"), counted(2, "run"), counted(0, "study", "studies")
        ('1 run', '2 runs', '0 studies')
    """
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def over_seeds(count: int) -> str:
    """What the cells of a table hold, as "mean ± sd over 3 seeds"."""
    return "one seed" if count == 1 else f"mean ± sd over {count} seeds"


def method_name(name: str) -> str:
    """The title of a method; other names are unchanged."""
    return title_of(name) or name


def method_order(name: str) -> int:
    """The place of a method in tables; other names come last."""
    known = list(catalogue())
    return known.index(name) if name in known else len(known)


def task_name(name: str, title: str | None = None) -> str:
    """The title of a task; an unknown task has the title of its data.

    Example:
        >>> task_name("stsb"), task_name("iwslt15-en-vi")
        ('STS-B', "IWSLT'15 En-Vi")
        >>> task_name("mine"), task_name("mine", "My reviews")
        ('mine', 'My reviews')
    """
    return TASK_NAMES.get(name, name if title is None else title)


def metric_name(name: str) -> str:
    """The title of a metric.

    Example:
        >>> metric_name("tokenised_bleu"), metric_name("valid_bleu"), metric_name("accuracy")
        ('tokenised BLEU', 'valid sacreBLEU', 'accuracy')
    """
    for score, title in _TRANSLATION_SCORES.items():
        if name == score or name.endswith(f"_{score}"):
            return name.removesuffix(score).replace("_", " ") + title
    return name.replace("_", " ")


def bytes_text(count: int | None) -> str:
    """A number of bytes with its unit.

    Example:
        >>> bytes_text(None), bytes_text(8_192), bytes_text(2_500_000), bytes_text(12_300_000_000)
        ('–', '8.2 kB', '2.5 MB', '12.3 GB')
    """
    if not count:
        return NOTHING
    size, unit = next(
        pair for pair in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")) if count >= pair[0]
    )
    return f"{count / size:.1f} {unit}"


def duration(seconds: float) -> str:
    """A number of seconds with its units.

    Example:
        >>> duration(4.2), duration(90), duration(7300)
        ('4 s', '1 min 30 s', '2 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def model_name(name: str) -> str:
    """The last part of a model's name or path."""
    return name.rstrip("/").rpartition("/")[2] or "a model"


def commit_text(record: RunRecord, unknown: str = "") -> str:
    """The commit that a run was made with, and whether its tree had changes."""
    git = record.environment.get("git") or {}
    commit = git.get("commit") or unknown
    return commit[:10] + (" with changes" if git.get("dirty") else "")


def shortened(reason: str) -> str:
    """A reason on one line, cut where it is too long for a note."""
    line = " ".join(reason.split())
    return line if len(line) <= _REASON_LENGTH else line[: _REASON_LENGTH - 1] + "…"


# ---- scores


def metric_text(name: str, value: float | None) -> str:
    """A metric as every command and page shows it.

    Scores are out of 100 and have one decimal: shares in percent, correlations times 100 (as in
    the tables of GLUE), BLEU and chrF unchanged. Perplexity has three decimals. Losses, errors and
    the like are not scores and have four significant digits.

    Example:
        >>> metric_text("accuracy", 0.535), metric_text("pearson", 0.019)
        ('53.5', '1.9')
        >>> metric_text("eval_bleu", 31.46), metric_text("loss", 0.41237), metric_text("f1", None)
        ('31.5', '0.4124', '–')
    """
    if value is None:
        return NOTHING
    decimals = scale_of([name.rpartition("_")[2]]).decimals
    return f"{in_percent(name, value):.{decimals}f}" if is_score(name) else f"{value:.4g}"


def is_score(name: str) -> bool:
    """Whether tables show a metric: a score out of 100 or a perplexity, not a loss or an error."""
    return name.rpartition("_")[2] in _SCORES


def is_percentage(task: ComparedTask) -> bool:
    """Whether the main score of a task is a percentage."""
    return all(map(is_share, task.main_metrics))


def score_name(task: ComparedTask) -> str:
    """The name of a task's main score: BLEU has its own, a mean of shares is a score."""
    return "score" if is_percentage(task) else " and ".join(map(metric_name, task.main_metrics))


def number_text(value: float | None, decimals: int) -> str:
    return NOTHING if value is None else f"{value:.{decimals}f}"


def spread_text(
    spread: Spread | None, asked: int = 0, failed: bool = False, decimals: int = 1
) -> str:
    """Mean ± deviation, and the number of seeds if some of them are missing.

    Example:
        >>> spread_text(Spread(71.24, 0.55, 3), 3), spread_text(Spread(71.24, None, 1), 3)
        ('71.2 ± 0.6', '71.2 (1 of 3)')
        >>> spread_text(None, 3), spread_text(None, 3, failed=True)
        ('–', 'failed')
    """
    if spread is None:
        return "failed" if failed else NOTHING
    deviation = "" if spread.deviation is None else f" ± {spread.deviation:.{decimals}f}"
    missing = "" if spread.count >= asked else f" ({spread.count} of {asked})"
    return f"{spread.mean:.{decimals}f}{deviation}{missing}"


def difference_text(
    spread: Spread | None, decimals: int = 1, with_count: bool = False, confidence: float = 0.95
) -> str:
    """The mean of a difference and its confidence interval, if it has one.

    Example:
        >>> difference_text(Spread(0.5, 0.2, 3)), difference_text(Spread(0.0, 0.0, 2))
        ('+0.5 [0.0, +1.0]', '0.0 (all equal)')
        >>> difference_text(Spread(-0.25, None, 1), 2, with_count=True)
        '−0.25 (n=1)'
    """
    if spread is None:
        return NOTHING
    parts = [signed(spread.mean, decimals)]
    interval = spread.shown_interval(confidence)
    if interval is not None:
        parts.append(f"[{', '.join(signed(value, decimals) for value in interval)}]")
    elif spread.count > 1:
        parts.append("(all equal)")
    return " ".join([*parts, f"(n={spread.count})"] if with_count else parts)


def signed(value: float, decimals: int = 1) -> str:
    """A number with its sign, and a minus as wide as the plus.

    Example:
        >>> signed(0.04), signed(-1.25), signed(2.0, 2)
        ('0.0', '−1.2', '+2.00')
    """
    rounded = round(value, decimals)
    return f"{rounded:+.{decimals}f}".replace("-", "−") if rounded else f"{0:.{decimals}f}"
