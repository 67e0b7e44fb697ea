"""The consistency methods through the trainers, with every head that the library trains."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from advreg.hf.trainer import AdversarialSeq2SeqTrainer, AdversarialTrainer
from advreg.methods import create
from observe import Batch, Padded, batch_of, features_of
from tiny_models import tiny

OPTIONS: dict[str, dict[str, Any]] = {
    "rdrop": {},
    "simcut": {"cut": 0.3},
    "temporal": {},
    "temporal, lumped": {"sketch": "lumped", "top": 2},
    "temporal, drawn": {"sketch": "drawn", "top": 2, "draws": 3},
    "ols": {},
}
HEADS = ["classes", "labels", "values", "words", "translation", "language"]


def model_and_data(head: str) -> tuple[Any, Batch]:
    family = {"translation": "marian", "language": "gpt2-lm"}.get(head, "bert")
    batch = batch_of(family, 8)
    if head == "values":
        return tiny("bert", num_labels=1), {**batch, "labels": batch["labels"].float() - 0.7}
    if head == "labels":
        labels = torch.nn.functional.one_hot(batch["labels"], 3).float()
        return tiny("bert", problem_type="multi_label_classification"), {**batch, "labels": labels}
    if head == "words":
        config = tiny("bert").config
        labels = (batch["input_ids"] % 3).masked_fill(batch["attention_mask"] == 0, -100)
        labels[:, 0] = -100  # a mark that has no label
        torch.manual_seed(0)
        return transformers.BertForTokenClassification(config).train(), {**batch, "labels": labels}
    if head == "language":
        labels = batch["labels"].clone()
        labels[:, :2] = -100  # a prompt that is not trained on
        return tiny(family), {**batch, "labels": labels}
    return tiny(family), batch


def rows_of(head: str, batch: Batch) -> list[dict[str, Any]]:
    if head not in ("words", "language", "labels"):
        return features_of(batch)
    found = []
    for row, mask in enumerate(batch["attention_mask"]):
        labels = batch["labels"][row] if head == "labels" else batch["labels"][row][mask == 1]
        found.append(
            {"input_ids": batch["input_ids"][row][mask == 1].tolist(), "labels": labels.tolist()}
        )
    return found


class Several(Padded):
    """Labels of several classes at once are numbers, not tokens."""

    def __call__(self, features: Any) -> Batch:
        labels = torch.tensor([feature["labels"] for feature in features])
        return {
            **super().__call__([{**feature, "labels": 0} for feature in features]),
            "labels": labels,
        }


def train(method: str, head: str, folder: Path) -> Any:
    model, batch = model_and_data(head)
    kind, arguments = AdversarialTrainer, TrainingArguments
    if head == "translation":
        kind, arguments = AdversarialSeq2SeqTrainer, Seq2SeqTrainingArguments
    collator = (Several if head == "labels" else Padded)(model.config.pad_token_id)
    trainer = kind(
        model=model,
        args=arguments(
            str(folder), per_device_train_batch_size=4, num_train_epochs=3, logging_strategy="epoch", report_to="none",
            save_strategy="no", disable_tqdm=True, use_cpu=True, learning_rate=1e-3,
        ),
        train_dataset=rows_of(head, batch),
        data_collator=collator,
        method=create(method.split(",")[0], **OPTIONS[method]),
    )  # fmt: skip
    trainer.train()
    return trainer


REFUSED = {
    ("values", "ols"): "ols needs one class for each prediction, got a regression",
    ("labels", "ols"): "ols needs one class for each prediction, got several labels at once",
    ("labels", "temporal, lumped"): "sketch must be whole for several labels at once, got 'lumped'",
    ("labels", "temporal, drawn"): "sketch must be whole for several labels at once, got 'drawn'",
}


@pytest.mark.parametrize(("head", "method"), REFUSED)
def test_what_a_method_cannot_do_with_a_head_it_says(
    head: str, method: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=REFUSED[head, method]):
        train(method, head, tmp_path)


@pytest.mark.parametrize(
    ("head", "method"), [pair for pair in product(HEADS, OPTIONS) if pair not in REFUSED]
)
def test_every_head_is_trained_at_the_cost_the_method_says(
    head: str, method: str, tmp_path: Path
) -> None:
    trainer = train(method, head, tmp_path)
    penalties = [line["penalty"] for line in trainer.state.log_history if "penalty" in line]
    assert len(penalties) == 3
    assert penalties[-1] > 0
    assert (penalties[0] == 0) == method.startswith(("temporal", "ols"))
    assert trainer.passes.per_step() == {
        "forward": trainer.method.passes().forward,
        "backward": 1.0,
    }
    weights: list[Tensor] = list(trainer.model.parameters())
    assert all(bool(weight.isfinite().all()) for weight in weights)


@pytest.mark.parametrize(("head", "rows"), [("classes", 8), ("values", 8)])
def test_a_cache_of_predictions_has_a_row_for_each_labelled_item(
    head: str, rows: int, tmp_path: Path
) -> None:
    store = train("temporal", head, tmp_path).method.memory.held.state_dict()
    (kept,) = (store[name] for name in store if name in ("items.probabilities", "items.values"))
    assert len(kept) == rows + 1


@pytest.mark.parametrize(("head", "lost"), [("words", 1), ("language", 2)])
def test_neither_prompts_nor_marks_take_room_in_the_cache(
    head: str, lost: int, tmp_path: Path
) -> None:
    """A label that is ignored has no row; of a language model the first token is no target
    either.
    """
    _, batch = model_and_data(head)
    labels = batch["labels"][:, 1:] if head == "language" else batch["labels"]
    store = train("temporal", head, tmp_path).method.memory.held.state_dict()
    assert len(store["items.probabilities"]) == int((labels != -100).sum()) + 1
    assert store["items.lengths"].tolist() == [
        length - lost for length in batch["attention_mask"].sum(1).tolist()
    ]
