"""The trainers of sentence-transformers, whose models read texts and have losses of their own."""

from __future__ import annotations

import tempfile
from functools import cache
from typing import Any

import datasets
import torch
import transformers

from works.cases import ByTrainer, Case, Setting
from works.trainer_cases import BERT
from works.trl_cases import sentences, tokenizer

GROUP = "sentence-transformers"


@cache
def saved(head: str, dropout: float, **settings: Any) -> str:
    """A folder with an encoder and its tokenizer."""
    folder = tempfile.mkdtemp()
    torch.manual_seed(0)
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = transformers.BertConfig(**BERT | settings | rates)
    getattr(transformers, f"Bert{head}")(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def bi_encoder(setting: Setting) -> dict[str, Any]:
    from sentence_transformers import SentenceTransformer, losses, models

    words = models.Transformer(saved("Model", setting.dropout))
    model = SentenceTransformer(
        modules=[words, models.Pooling(words.get_word_embedding_dimension())], device="cpu"
    )
    data = {"anchor": sentences(), "positive": sentences(first=4)}
    loss = losses.MultipleNegativesRankingLoss(model)
    return {"model": model, "train_dataset": datasets.Dataset.from_dict(data), "loss": loss}


def cross_encoder(setting: Setting) -> dict[str, Any]:
    from sentence_transformers import CrossEncoder
    from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

    folder = saved("ForSequenceClassification", setting.dropout, num_labels=1)
    model = CrossEncoder(folder, device="cpu", num_labels=1)
    data = {
        "text": sentences(),
        "other": sentences(first=4),
        "label": [row % 2 for row in range(12)],
    }
    return {
        "model": model,
        "train_dataset": datasets.Dataset.from_dict(data),
        "loss": BinaryCrossEntropyLoss(model),
    }


class Lazily:
    """A case whose trainer is imported when it runs; the package takes seconds to import."""

    def __init__(self, name: str, given: Any) -> None:
        self._name, self._given = name, given

    def __call__(self, method: Any, setting: Setting) -> Any:
        import sentence_transformers

        base = getattr(sentence_transformers, f"{self._name}Trainer")
        arguments = getattr(sentence_transformers, f"{self._name}TrainingArguments")
        return ByTrainer(self._given, base, arguments)(method, setting)


def refused(name: str) -> dict[str, str]:
    told = f"{name}.get_input_embeddings() gives no token embeddings to"
    unknown = f"{name} is not a PreTrainedModel, so what it predicts is not known"
    return {
        "perturbation": f"{told} perturb",
        "ids": f"{told} describe samples by",
        "predictions": unknown,
    }


CASES = [
    Case(
        GROUP,
        "SentenceTransformerTrainer",
        Lazily("SentenceTransformer", bi_encoder),
        refused("SentenceTransformer"),
    ),
    Case(
        GROUP, "CrossEncoderTrainer", Lazily("CrossEncoder", cross_encoder), refused("CrossEncoder")
    ),
]
