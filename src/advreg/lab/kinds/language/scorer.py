"""Runs a language model over samples: the loss of their tokens, and answers that it generates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.hf.survey import to_device
from advreg.hf.view.head import IGNORED
from advreg.lab.kinds.language.encoding import Encoded, Row
from advreg.lab.kinds.language.metrics import Columns

_GENERATED_AT_ONCE = 64


@dataclass(frozen=True)
class Scorer:
    """Runs a model over samples.

    Args:
        model: the trained one.
        tokenizer, collator: of its rows.
        is_bf16: compute in bfloat16, as in training.
    """

    model: Any
    tokenizer: Any
    collator: Any
    is_bf16: bool = False

    def losses(self, encoded: Encoded, count: int) -> Columns:
        """The summed negative log-likelihood of each of ``count`` samples, and its tokens."""
        losses, tokens = [0.0] * count, [0] * count
        for row, (loss, labels) in self._scored(encoded.rows):
            sample = encoded.samples[row]
            losses[sample] += loss
            tokens[sample] += labels
        return {"loss": [round(loss, 4) for loss in losses], "tokens": tokens}

    def _scored(self, rows: Sequence[Row]) -> Iterator[tuple[int, tuple[float, int]]]:
        """Index, summed loss and labels of each row."""
        with self._evaluating():
            for indices in _batches([len(row["input_ids"]) for row in rows], self._room()):
                batch = self.collator([dict(rows[index]) for index in indices])
                batch = to_device(dict(batch), self.model.device)
                labels = batch.pop("labels")[:, 1:]
                logits = self.model(**batch, use_cache=False).logits[:, :-1]
                each = _row_losses(logits, labels).tolist()
                counts = (labels != IGNORED).sum(1).tolist()
                yield from zip(indices, zip(each, counts, strict=True), strict=True)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        longest: int,
        advance: Callable[[int], None] | None = None,
    ) -> list[str]:
        """Greedy answers to prompts, of at most ``longest`` tokens; ``advance`` takes how many more
        are done.
        """
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        answers = [""] * len(prompts)
        with self._evaluating():
            for first in range(0, len(order), _GENERATED_AT_ONCE):
                part = order[first : first + _GENERATED_AT_ONCE]
                texts = self._generated([prompts[index] for index in part], longest)
                for index, text in zip(part, texts, strict=True):
                    answers[index] = text.strip()
                if advance is not None:
                    advance(len(part))
        return answers

    def _generated(self, prompts: Sequence[Sequence[int]], longest: int) -> list[str]:
        rows = [{"input_ids": list(ids)} for ids in prompts]
        batch = self.tokenizer.pad(rows, padding_side="left", return_tensors="pt")
        ids = self.model.generate(
            **batch.to(self.model.device),
            do_sample=False,
            use_cache=True,
            max_new_tokens=longest,
            pad_token_id=self.tokenizer.pad_token_id,
            eos_token_id=self._ends(),
        )
        width = batch["input_ids"].shape[1]
        texts: list[str] = self.tokenizer.batch_decode(ids[:, width:], skip_special_tokens=True)
        return texts

    def _ends(self) -> list[int]:
        """The tokens that end an answer: the model's, and the tokenizer's."""
        given = self.model.generation_config.eos_token_id
        ends = given if isinstance(given, list) else [given]
        return sorted({*ends, self.tokenizer.eos_token_id} - {None})

    def _room(self) -> int:
        """Tokens of a batch, with padding."""
        return 1024 if self.model.device.type == "cpu" else 8192

    def _evaluating(self) -> AbstractContextManager[Any]:
        return _Evaluating(self.model, self.is_bf16)


class _Evaluating(AbstractContextManager[None]):
    """Without gradients or dropout; in bfloat16 where training is."""

    def __init__(self, model: Any, is_bf16: bool) -> None:
        self.model, self.was_training = model, model.training
        precise = torch.autocast(model.device.type, torch.bfloat16) if is_bf16 else nullcontext()
        self.inner = (torch.inference_mode(), precise)

    def __enter__(self) -> None:
        self.model.eval()
        for each in self.inner:
            each.__enter__()

    def __exit__(self, *error: Any) -> None:
        for each in reversed(self.inner):
            each.__exit__(*error)
        self.model.train(self.was_training)


def _batches(lengths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Rows of similar length, the longest first, as many as there is room for; one at least."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    while order:
        count = max(1, room // lengths[order[0]])
        yield order[:count]
        order = order[count:]


def _row_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Σ_t − log p(y_t) of each row, in float64; ignored labels count nothing."""
    real = labels != IGNORED
    each = F.cross_entropy(logits[real].float(), labels[real], reduction="none").double()
    sums = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
    return sums.index_add_(0, real.nonzero()[:, 0], each)
