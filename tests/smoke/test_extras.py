"""Each optional package does what it is installed for."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import datasets
import pandas
import peft
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from advreg.lab.kinds.classification.tables import load_tables
from advreg.lab.kinds.sources import HubSplit, load_split, require_columns
from advreg.lab.kinds.translation.bleu import score
from advreg.lab.kinds.translation.subwords import Subwords, learn_subwords
from advreg.methods import create
from little_tables import sentiment, write_table
from number_words import in_digits, in_words
from observe import features_of
from tiny_models import lora_targets, tiny, tiny_batch
from tiny_runs import ARCH, end_of, same_end, tiny_trainer

pytestmark = pytest.mark.smoke


def test_a_table_of_datasets_trains_as_a_list_of_rows(tmp_path: Path) -> None:
    rows = features_of(tiny_batch("bert", batch=8))
    ends = []
    for data in (rows, datasets.Dataset.from_list(rows)):
        trainer = tiny_trainer(tmp_path, create("arch", **ARCH), save_strategy="no")
        trainer.train_dataset = data
        trainer.train()
        ends.append(end_of(trainer))
    assert same_end(*ends)


def test_a_split_is_loaded_as_from_the_hub(tmp_path: Path) -> None:
    write_table(tmp_path / "train.csv", sentiment())
    where = HubSplit(str(tmp_path), None, "train")
    split = load_split("sentiment", where)
    require_columns(split, ["text", "label"], where, "train")
    assert split.to_list() == sentiment()


def test_parquet_holds_the_same_table_as_csv(tmp_path: Path) -> None:
    pandas.DataFrame(sentiment()).to_parquet(tmp_path / "table.parquet")
    with write_table(tmp_path / "table.csv", sentiment()).open() as file:
        assert list(csv.DictReader(file)) == sentiment()
    one, other = (load_tables(tmp_path / f"table.{kind}") for kind in ("csv", "parquet"))
    assert (one.train, one.dev, one.labels) == (other.train, other.dev, other.labels)


def test_lora_moves_its_adapters_and_the_head_alone(tmp_path: Path) -> None:
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=lora_targets("bert"))
    model = peft.get_peft_model(tiny("bert", dropout=0.1), config)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    fields: dict[str, Any] = {"save_strategy": "no", "learning_rate": 1e-2}
    trainer = tiny_trainer(tmp_path, create("arch", **ARCH), model=model, **fields)
    trainer.train()
    moved = {
        name for name, value in model.named_parameters() if not torch.equal(value, before[name])
    }
    assert moved == {name for name in before if "lora_" in name or "modules_to_save" in name}
    assert all(line["penalty"] > 0 for line in trainer.state.log_history if "loss" in line)


def test_tensorboard_shows_the_penalty(tmp_path: Path) -> None:
    trainer = tiny_trainer(
        tmp_path, create("arch", **ARCH), save_strategy="no", report_to="tensorboard"
    )
    trainer.train()
    (folder,) = {path.parent for path in tmp_path.rglob("events.out.tfevents*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    shown = [event.value for event in events.Scalars("train/penalty")]
    assert shown == pytest.approx(
        [line["penalty"] for line in trainer.state.log_history if "penalty" in line]
    )


def test_text_comes_back_from_its_subwords_and_scores_a_hundred(tmp_path: Path) -> None:
    words, digits = zip(
        *((in_words(number), in_digits(number)) for number in range(1000, 1200)), strict=True
    )
    learn_subwords(words, digits, 60).save(tmp_path)
    pieces = Subwords.load(tmp_path).target
    found = pieces.decode(pieces.encode(digits))
    assert score(found, digits, tokenised=True).metrics() == pytest.approx(
        {"bleu": 100.0, "chrf": 100.0, "tokenised_bleu": 100.0}
    )
