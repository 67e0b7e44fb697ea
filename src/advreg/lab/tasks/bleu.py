"""BLEU and chrF by sacrebleu, with the signatures that make a score comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
    """

    bleu: float
    chrf: float
    tokenised_bleu: float | None
    signatures: dict[str, str]

    def metrics(self) -> dict[str, float]:
        """The scores there are, by name."""
        found = {"bleu": self.bleu, "chrf": self.chrf}
        return (
            found
            if self.tokenised_bleu is None
            else {**found, "tokenised_bleu": self.tokenised_bleu}
        )


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
    metrics = _metrics()
    measures: dict[str, Any] = {"bleu": metrics.BLEU(force=tokenised), "chrf": metrics.CHRF()}
    if tokenised:
        measures["tokenised_bleu"] = metrics.BLEU(tokenize="none", force=True)
    values = {
        name: measure.corpus_score(list(translations), [list(references)])
        for name, measure in measures.items()
    }
    return Scores(
        bleu=float(values["bleu"].score),
        chrf=float(values["chrf"].score),
        tokenised_bleu=float(values["tokenised_bleu"].score) if tokenised else None,
        signatures={name: str(measure.get_signature()) for name, measure in measures.items()},
    )


def bleu(translations: Sequence[str], references: Sequence[str], tokenised: bool = False) -> float:
    """BLEU alone, for validation: of tokenised text the tokenised one, else sacreBLEU's."""
    kind = {"tokenize": "none", "force": True} if tokenised else {}
    return float(_metrics().BLEU(**kind).corpus_score(list(translations), [list(references)]).score)


def _metrics() -> Any:
    try:
        from sacrebleu import metrics
    except ImportError as error:
        raise ScoreError("scores need the package sacrebleu; install advreg[mt]") from error
    return metrics
