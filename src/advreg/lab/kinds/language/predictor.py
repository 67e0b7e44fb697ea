"""Answering prompts with a trained language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from advreg.core.checks import check_count
from advreg.core.options import option
from advreg.lab.kinds.language.encoding import Encoder, collator, prepared_tokenizer
from advreg.lab.kinds.language.samples import USER
from advreg.lab.kinds.language.scorer import Scorer
from advreg.lab.kinds.models import ModelError, load_any, load_tokenizer
from advreg.lab.kinds.predictor import (
    PREDICTION,
    Predictor,
    PredictorOptions,
    Text,
    usable_device,
)


@dataclass(frozen=True)
class LanguageOptions(PredictorOptions):
    """How answers are generated."""

    answer_length: int = option(256, "tokens of an answer at most", check=check_count)


@dataclass(frozen=True)
class LanguagePredictor(Predictor):
    """A language model that answers prompts greedily; a pair's second text is not used."""

    encoder: Encoder
    scorer: Scorer
    longest: int

    options = LanguageOptions
    form = "jsonl"

    @classmethod
    def load(cls, folder: Path, options: LanguageOptions) -> Self:
        tokenizer = prepared_tokenizer(load_tokenizer(str(folder), [], 0, False))
        model = _trained(folder).to(usable_device(options.device)).eval()
        scorer = Scorer(model, tokenizer, collator(tokenizer, 1), options.precision == "bf16")
        return cls(Encoder(tokenizer), scorer, options.answer_length)

    def predict(
        self, texts: Sequence[Text], advance: Callable[[int], None]
    ) -> list[dict[str, Any]]:
        prompts = [self.encoder.turn_ids([(USER, text.text)]) for text in texts]
        answers = self.scorer.generate(prompts, self.longest, advance)
        return [{PREDICTION: answer} for answer in answers]


def _trained(folder: Path) -> Any:
    """The model, or adapters on the model that they were trained for."""
    if not (folder / "adapter_config.json").is_file():
        return load_any(str(folder))
    try:
        from peft import AutoPeftModelForCausalLM
    except ImportError as error:
        raise ModelError("this model has adapters; install advreg[peft]") from error
    return AutoPeftModelForCausalLM.from_pretrained(str(folder))


PREDICTOR = LanguagePredictor
