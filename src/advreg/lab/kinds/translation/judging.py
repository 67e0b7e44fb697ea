"""Evaluation of a translator: its loss on pairs, and the scores of its translations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from advreg.core.progress import Progress, counting
from advreg.hf.survey import to_device
from advreg.hf.view.head import IGNORED
from advreg.lab.kinds.translation.batching import PairCollator, Pairs, TokenBatches
from advreg.lab.kinds.translation.bleu import Scores, score
from advreg.lab.kinds.translation.parallel import Bitext
from advreg.lab.kinds.translation.translator import Translator
from advreg.records.sealed import write_text


@dataclass(frozen=True)
class TestSet:
    """Sentences to translate, and pairs to take the loss on.

    Args:
        text: sentences with their references.
        pairs: encoded; of a validation set there may be more than sentences.
    """

    __test__ = False  # for pytest: not a test

    text: Bitext
    pairs: Pairs

    @property
    def is_whole(self) -> bool:
        """Whether all sentences of the set are translated."""
        return len(self.text) == len(self.pairs)


@dataclass(frozen=True)
class Judged:
    """Scores and losses of the chosen weights by set."""

    scores: Mapping[str, Scores]
    losses: Mapping[str, float]

    def metrics(self, main: str) -> dict[str, float]:
        """All scores by name; except on the main set, the name begins with the name of the set."""
        found: dict[str, float] = {}
        for name, scores in self.scores.items():
            prefix = "" if name == main else f"{name}_"
            each = {**scores.metrics(), "loss": self.losses[name]}
            found |= {f"{prefix}{score}": value for score, value in each.items()}
        return found


def judge(
    folder: Path,
    sets: Mapping[str, TestSet],
    collator: PairCollator,
    max_tokens: int,
    precision: str = "fp32",
    tokenised: bool = False,
    progress: Progress | None = None,
) -> Judged:
    """Score the exported model of a run on every set, and write its translations.

    Args:
        folder: of the run.
        sets: by name.
        collator, max_tokens: of the batches that the loss is taken on.
        precision: of the decoding.
        tokenised: whether the text is tokenised.
        progress: counts translated sentences.
    """
    translator = Translator.load(folder / "model")
    precision = "bf16" if precision == "bf16" else "fp32"
    advance = counting(progress, "translated", sum(len(each.text) for each in sets.values()))
    scores, losses = {}, {}
    for name, each in sets.items():
        lines = translator.translate(each.text.source, precision=precision, advance=advance)
        if each.is_whole:  # the file is aligned with the source
            write_text(folder / f"{name}.translations.txt", "".join(f"{line}\n" for line in lines))
        scores[name] = score(lines, each.text.target, tokenised)
        losses[name] = pair_loss(translator.model, each.pairs, collator, max_tokens)
    return Judged(scores, losses)


def pair_loss(model: Any, pairs: Pairs, collator: PairCollator, max_tokens: int) -> float:
    """Negative log-likelihood of the targets, per token, without label smoothing."""
    order = TokenBatches(
        pairs.lengths, max(max_tokens, int(pairs.lengths.max()) + collator.multiple)
    )
    total, count = torch.zeros((), dtype=torch.float64), 0
    training = model.training
    model.eval()
    with torch.inference_mode(), torch.compiler.set_stance("force_eager"):
        for indices in order:
            batch = to_device(collator([pairs[index] for index in indices]), model.device)
            labels = batch.pop("labels")
            logits = model(**batch, use_cache=False).logits
            nll = F.cross_entropy(
                logits.float().flatten(0, 1),
                labels.flatten(),
                ignore_index=IGNORED,
                reduction="sum",
            )
            total += nll.double().cpu()
            count += int((labels != IGNORED).sum())
    model.train(training)
    return float(total) / count
