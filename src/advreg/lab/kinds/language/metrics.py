"""Metrics of evaluated samples: loss per token, perplexity, BLEU of answers, and exact match."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from advreg.lab.kinds.items import Items

Columns = dict[str, list[Any]]


def bleu_counts(answers: Sequence[str], references: Sequence[Sequence[str]]) -> list[list[int]]:
    """The counts of each answer whose sums give :func:`bleu_of`, by sacrebleu; samples may have
    different numbers of references.
    """
    counts: list[list[int]] = bleu_metric()._extract_corpus_statistics(
        list(answers), [list(each) for each in zip_longest(*references)]
    )
    return counts


def bleu_of(counts: Sequence[Sequence[int]]) -> float:
    """BLEU of a set, 0–100, from the counts of its samples."""
    sums = [sum(column) for column in zip(*counts, strict=True)]
    return float(bleu_metric()._compute_score_from_stats(sums).score)


def bleu_signature(references: Sequence[Sequence[str]]) -> str:
    """sacrebleu's signature, which makes a score comparable."""
    metric = bleu_metric()
    lines = [list(each) for each in zip_longest(*references)]
    metric.corpus_score([""] * len(references), lines)  # learns how many references there are
    return str(metric.get_signature())


def bleu_metric() -> Any:
    """sacrebleu's BLEU; an error where the package is missing."""
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise ValueError("BLEU needs the package sacrebleu; install advreg[mt]") from error
    found: Any = metrics
    return found.BLEU()


def found_in(pattern: str, answer: str) -> str | None:
    """What a pattern finds first in an answer: its group, or the whole match without one.

    Example:
        >>> found_in("#### (.*)", "2 + 2 = 4\\n#### 4"), found_in("[0-9]+", "12 apples")
        ('4', '12')
        >>> found_in("#### (.*)", "four")
    """
    match = re.search(pattern, answer)
    return None if match is None else (match[1] if match.re.groups else match[0]).strip()


def is_match(pattern: str, answer: str, references: Sequence[str]) -> bool:
    """Whether a pattern finds the same in an answer as in one of the references; numbers are
    compared as numbers.

    Example:
        >>> is_match("#### (.*)", "#### 1000", ["#### $1,000.00"]), is_match(".*", "yes", ["no"])
        (True, False)
    """
    given = _value(found_in(pattern, answer))
    return given is not None and given in [_value(found_in(pattern, each)) for each in references]


def _value(text: str | None) -> str | float | None:
    """The number that a text spells, or else the text."""
    try:
        return None if text is None else float(text.replace(",", "").replace("$", ""))
    except ValueError:
        return text


def scores_of(columns: Mapping[str, Sequence[Any]]) -> dict[str, float]:
    """The metrics of samples from what was found of each.

    Perplexity is exp(Σ loss / Σ tokens), over all samples.
    """
    loss = math.fsum(columns["loss"]) / max(1, sum(columns["tokens"]))
    found = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    if "bleu" in columns:
        found["bleu"] = bleu_of(columns["bleu"])
    if "right" in columns:
        found["exact_match"] = sum(columns["right"]) / len(columns["right"])
    return found


def rescored(
    items: Items, metrics: Sequence[str], rows: Mapping[str, Sequence[int]]
) -> dict[str, float]:
    """The named metrics of a resample; see :meth:`Description.rescore`."""
    found: dict[str, float] = {}
    for name, columns in items.sets.items():
        chosen = rows.get(name, range(items.sizes[name]))
        drawn = {key: [values[row] for row in chosen] for key, values in columns.items()}
        found |= {f"{items.prefix(name)}{key}": value for key, value in scores_of(drawn).items()}
    return {name: value for name, value in found.items() if name in metrics}
