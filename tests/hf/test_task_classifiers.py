"""Classifiers whose decoder reads the text again, and encoders with an embedding that the forward
pass leaves out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import TrainingArguments

from advreg.hf.trainer import AdversarialTrainer
from advreg.hf.view.view import HFModelView
from advreg.methods import create
from observe import Padded
from tiny_models import LABELS, WIDTH, Side, tiny

LENGTHS = (9, 4, 6)  # the first one has no padding
READ_TWICE = ("bart", "mbart", "plbart", "mvp", "t5")
_BART = {
    "decoder_ffn_dim": 64,
    "encoder_ffn_dim": 64,
    "decoder_attention_heads": 2,
    "encoder_attention_heads": 2,
}
_SIZES = {"d_model": WIDTH, "encoder_layers": 1, "decoder_layers": 1, "init_std": 0.2, **_BART}
_NAMES = {"mbart": "MBart", "plbart": "PLBart", "mvp": "Mvp"}


def classifier(family: str) -> Any:
    """A sequence classifier of the family; the token 2 (T5: 1) ends a text."""
    if family in ("bart", "t5"):
        config = tiny(family, dropout=0.0, num_labels=LABELS).config
    else:
        sizes = _SIZES | {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
        config = getattr(transformers, f"{_NAMES[family]}Config")(
            vocab_size=50,
            max_position_embeddings=64,
            pad_token_id=1,
            eos_token_id=2,
            num_labels=LABELS,
            **sizes,
        )
    torch.manual_seed(0)
    kind = type(config).__name__.replace("Config", "ForSequenceClassification")
    return getattr(transformers, kind)(config)


def rows(model: Any) -> list[dict[str, Any]]:
    """Texts that end as the family's do."""
    drawn = torch.randint(
        5, 45, (len(LENGTHS), 12), generator=torch.Generator().manual_seed(1)
    ).tolist()
    end = model.config.eos_token_id
    return [
        {"input_ids": [*row[: length - 1], end], "labels": number % LABELS}
        for number, (row, length) in enumerate(zip(drawn, LENGTHS, strict=True))
    ]


def batch_of(model: Any, side: Side, which: tuple[int, ...] = (0, 1, 2)) -> dict[str, Tensor]:
    found = rows(model)
    return Padded(model.config.pad_token_id, side)([found[number] for number in which])


@pytest.mark.parametrize("family", READ_TWICE)
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_decoder_that_reads_the_text_has_as_many_tokens_of_a_sample_in_every_batch(
    family: str, side: Side
) -> None:
    """The longest sample of a batch has no room for its last token behind the start token, and a
    padded one has.
    """
    task = HFModelView(model := classifier(family))
    together = task.tokens(batch_of(model, side))["decoder"]
    for number, length in enumerate(LENGTHS):
        ids, real = (value[number] for value in together)
        alone, whole = (
            value[0] for value in task.tokens(batch_of(model, side, (number,)))["decoder"]
        )
        assert ids[real].tolist() == alone[whole].tolist()
        assert int(real.sum()) == length
        assert ids[real][1:].tolist() == rows(model)[number]["input_ids"][:-1]


@pytest.mark.parametrize("family", READ_TWICE)
def test_its_predictions_are_those_of_the_model_alone(family: str) -> None:
    model = classifier(family).eval()
    batch = batch_of(model, "right")
    expected = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert torch.allclose(HFModelView(model).logits(batch), expected, atol=1e-6)


@pytest.mark.parametrize("family", READ_TWICE)
def test_every_real_position_of_the_decoder_moves_the_prediction_and_no_other_has_a_perturbation(
    family: str,
) -> None:
    """The token that is left out comes after the place which the head reads, so that nothing would
    come of its δ.
    """
    task = HFModelView(model := classifier(family).eval())
    batch = batch_of(model, "right")
    delta = task.zeros(batch).leaf()
    found = task.gradient(task.logits(batch, delta).square().sum(), delta)
    moved = found.values["decoder"].abs().sum(-1) > 0
    assert torch.equal(moved, delta.masks["decoder"])


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_arch_trains_it_on_batches_that_are_padded_to_their_longest_sample(
    family: str, tmp_path: Path
) -> None:
    model = classifier(family)
    data = [row for _ in range(3) for row in rows(model)]
    method = create("arch", cache_fraction=0.5, refresh_every=2, ascent_steps=1, radius=0.5)
    fields = {
        "per_device_train_batch_size": 2,
        "num_train_epochs": 2,
        "logging_steps": 1,
        "save_strategy": "no",
    }
    arguments = TrainingArguments(
        str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, **fields
    )
    collator = Padded(model.config.pad_token_id)
    trainer = AdversarialTrainer(model, arguments, collator, data, method=method)
    trainer.train()
    assert all(line["penalty"] > 0 for line in trainer.state.log_history if "penalty" in line)


# ---- an encoder and an embedding that is not called


@pytest.mark.parametrize("family", ["T5", "MT5", "UMT5"])
def test_the_perturbation_enters_the_embedding_that_an_encoder_calls_and_not_the_one_it_shares(
    family: str,
) -> None:
    sizes = {
        "d_model": WIDTH,
        "d_kv": 16,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 2,
        "vocab_size": 50,
    }
    config = getattr(transformers, f"{family}Config")(**sizes, dropout_rate=0.0, num_labels=LABELS)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForTokenClassification")(config).eval()
    task = HFModelView(model)
    batch = batch_of(model, "right")
    batch["labels"] = batch["input_ids"] % LABELS
    delta = task.zeros(batch).map(lambda values, mask: torch.randn_like(values) * mask[..., None])
    inside = {name: batch[name] for name in ("input_ids", "attention_mask")}
    embedded = embedding_called_by(model, inside)(batch["input_ids"])
    expected = model(
        inputs_embeds=embedded + delta.values["tokens"], attention_mask=batch["attention_mask"]
    ).logits
    assert torch.allclose(task.logits(batch, delta), expected, atol=1e-5)
    assert not torch.allclose(task.logits(batch), expected, atol=1e-2)


def embedding_called_by(model: nn.Module, inputs: dict[str, Tensor]) -> nn.Module:
    """The one embedding of words that a pass calls."""
    called: list[nn.Module] = []
    handles = [
        module.register_forward_hook(lambda module, *_: called.append(module))
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.num_embeddings == 50
    ]
    model(**inputs)
    for handle in handles:
        handle.remove()
    (only,) = called
    return only
