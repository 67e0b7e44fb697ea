"""Translating with a trained model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from advreg.core.checks import check_count
from advreg.core.options import option
from advreg.lab.kinds.predictor import PREDICTION, Predictor, PredictorOptions, Text
from advreg.lab.kinds.translation.decoding import Decoding
from advreg.lab.kinds.translation.translator import Translator


@dataclass(frozen=True)
class TranslationOptions(PredictorOptions):
    """How to search for translations; what is not given is as the model was exported."""

    beam: int | None = option(None, "beam size; 1 is greedy")
    length_penalty: float | None = option(None, "above 0 favours long translations")
    max_tokens: int | None = option(
        None, "positions of a batch, beams counted; by default what suits the device",
        check=check_count,
    )  # fmt: skip


@dataclass(frozen=True)
class TranslationPredictor(Predictor):
    """A translator; a pair's second text is not used."""

    translator: Translator
    decoding: Decoding
    asked: TranslationOptions

    options = TranslationOptions
    form = "txt"

    @classmethod
    def load(cls, folder: Path, options: TranslationOptions) -> Self:
        translator = Translator.load(folder, options.device)
        wanted = {"beam": options.beam, "length_penalty": options.length_penalty}
        given: dict[str, Any] = {name: each for name, each in wanted.items() if each is not None}
        return cls(translator, dataclasses.replace(translator.decoding, **given), options)

    def predict(
        self, texts: Sequence[Text], advance: Callable[[int], None]
    ) -> list[dict[str, Any]]:
        lines, asked = [text.text for text in texts], self.asked
        found = self.translator.translate(
            lines, self.decoding, asked.max_tokens, asked.precision, advance
        )
        return [{PREDICTION: line} for line in found]


PREDICTOR = TranslationPredictor
