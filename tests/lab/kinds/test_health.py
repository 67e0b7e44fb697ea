"""What a run leaves of its method's memory, beside the record."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from advreg.lab.kinds.classification.encode import encode, padding_collator
from advreg.lab.kinds.classification.job import ClassificationJob
from advreg.lab.kinds.training import train
from advreg.lab.kinds.wordpieces import train_tokenizer
from advreg.methods import create
from advreg.records.diagnostics import load
from little_tables import sentiment

ROWS = sentiment(16)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_tokenizer([row["text"] for row in ROWS], max_length=16)


def job(folder: Path, tokenizer: Any, method: Any) -> ClassificationJob:
    size = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "intermediate_size": 8,
    }
    model = BertForSequenceClassification(
        BertConfig(vocab_size=len(tokenizer), num_labels=2, **size)
    )
    samples = encode(
        tokenizer, [row["text"] for row in ROWS], None, [row["label"] == "pos" for row in ROWS], 16
    )
    fields = {
        "num_train_epochs": 3, "per_device_train_batch_size": 8, "report_to": "none", "disable_tqdm": True,
        "use_cpu": True, "save_strategy": "no",
    }  # fmt: skip
    rows = [{**sample, "labels": int(sample["labels"])} for sample in samples.samples]
    return ClassificationJob(
        model=model, tokenizer=tokenizer, collator=padding_collator(tokenizer), train=rows, dev=rows[:2],
        metrics=lambda *_: {}, method=method, folder=folder, fields=fields,
    )  # fmt: skip


def test_tokens_bear_their_texts_and_the_norms_that_are_in_the_cache(
    tokenizer: Any, tmp_path: Path
) -> None:
    method: Any = create("arch", cache_fraction=0.5, refresh_every=2, neighbours=2)
    train(job(tmp_path, tokenizer, method))
    found = load(tmp_path)
    assert found is not None
    assert found.memory is not None
    assert found.memory.written == {"2": 8}
    assert sum(found.memory.similarity[0].counts) == 8 * 2
    assert {entry.sample for entry in found.memory.tokens} == set(method.memory.cache.ids.tolist())
    for entry in found.memory.tokens:
        assert entry.tokens == ["[CLS]", *tokenizer.tokenize(ROWS[entry.sample]["text"]), "[SEP]"]
        row = method.memory.cache.recall(torch.tensor([entry.sample])).values["tokens"][0]
        assert entry.norms == pytest.approx(row.norm(dim=1).tolist())
    assert any(max(entry.norms) > 0 for entry in found.memory.tokens)


def test_a_method_without_memory_has_none(tokenizer: Any, tmp_path: Path) -> None:
    train(job(tmp_path, tokenizer, create("standard")))
    found = load(tmp_path)
    assert found is not None
    assert dataclasses.asdict(found) == {
        "schema": 1,
        "kind": "health",
        "peak_bytes": None,
        "memory": None,
    }
