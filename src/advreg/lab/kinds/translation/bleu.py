"""BLEU and chrF by sacrebleu, with the signatures that make a score comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from advreg.lab.kinds.items import Items

_ORDERS = 4  # BLEU counts n-grams of one to four words
_TOKENISED = "tokenised_bleu"


class ScoreError(ValueError):
    """Translations cannot be scored."""


@dataclass(frozen=True)
class Scores:
    """Scores of a set of translations, 0–100.

    Args:
        bleu: sacreBLEU, with its own tokenisation (13a) of both sides.
        chrf: chrF2.
        tokenised_bleu: BLEU of the words as spaces part them, as multi-bleu computes it; only where
            the text is tokenised, else None: on raw text it would count ``bus.`` as a word.
        signatures: sacrebleu's, by score.
        counts: for each score that is a BLEU, the length of each translation and its reference,
            then the matching and all n-grams of each order. Their sums over sentences give BLEU.
    """

    bleu: float
    chrf: float
    tokenised_bleu: float | None
    signatures: dict[str, str]
    counts: dict[str, list[list[int]]] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """The scores there are, by name."""
        found = {"bleu": self.bleu, "chrf": self.chrf, _TOKENISED: self.tokenised_bleu}
        return {name: value for name, value in found.items() if value is not None}


def score(
    translations: Sequence[str], references: Sequence[str], tokenised: bool = False
) -> Scores:
    """Scores of translations, one reference each.

    Args:
        translations, references: lines, aligned.
        tokenised: is the text tokenised, with spaces between all words and signs?
    """
    if len(translations) != len(references):
        raise ScoreError(
            f"there must be a translation for each reference, got {len(translations)} and "
            f"{len(references)}"
        )
    if not references:
        raise ScoreError("a score needs at least one sentence, got none")
    lines = list(translations), [list(references)]
    metrics = _metrics()
    measures: dict[str, Any] = {"bleu": metrics.BLEU(force=tokenised), "chrf": metrics.CHRF()}
    if tokenised:
        measures[_TOKENISED] = metrics.BLEU(tokenize="none", force=True)
    values = {name: float(each.corpus_score(*lines).score) for name, each in measures.items()}
    return Scores(
        bleu=values["bleu"],
        chrf=values["chrf"],
        tokenised_bleu=values.get(_TOKENISED),
        signatures={name: str(each.get_signature()) for name, each in measures.items()},
        counts={
            name: each._extract_corpus_statistics(*lines)
            for name, each in measures.items()
            if name != "chrf"
        },
    )


def bleu(translations: Sequence[str], references: Sequence[str], tokenised: bool = False) -> float:
    """BLEU alone, for validation: of tokenised text the tokenised one, else sacreBLEU's."""
    kind = {"tokenize": "none", "force": True} if tokenised else {}
    return float(_metrics().BLEU(**kind).corpus_score(list(translations), [list(references)]).score)


def bleu_of(counts: Sequence[Sequence[int]]) -> float:
    """BLEU of a set of sentences from their :attr:`Scores.counts`."""
    translation, reference, *ngrams = (sum(column) for column in zip(*counts, strict=True))
    found = _metrics().BLEU.compute_bleu(
        ngrams[:_ORDERS], ngrams[_ORDERS:], translation, reference, smooth_method="exp"
    )
    return float(found.score)


def rescored(
    items: Items, metrics: Sequence[str], rows: Mapping[str, Sequence[int]]
) -> dict[str, float]:
    """The named BLEU scores of a resample; see :meth:`Description.rescore`."""
    found = {}
    for name, columns in items.sets.items():
        for metric, counts in columns.items():
            if (full := f"{items.prefix(name)}{metric}") in metrics:
                chosen = rows.get(name, range(len(counts)))
                found[full] = bleu_of([counts[row] for row in chosen])
    return found


def _metrics() -> Any:
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise ScoreError("scores need the package sacrebleu; install advreg[mt]") from error
    return metrics
