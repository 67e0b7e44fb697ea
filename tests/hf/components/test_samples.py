"""The training set of a Trainer, with ids, is used as the stock Trainer uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset
from transformers import BatchEncoding, Trainer, TrainingArguments

from advreg.hf.trainer import AdversarialTrainer
from advreg.methods import create
from observe import Padded, features_of
from tiny_models import tiny, tiny_batch

ROWS = features_of(tiny_batch("bert", batch=8))
ARCH = {"cache_fraction": 0.5, "refresh_every": 2, "ascent_steps": 1, "radius": 0.5}


@dataclass
class Sample:
    """A sample that is no mapping."""

    input_ids: list[int]
    labels: int


class Reading(Padded):
    """A collator for samples of any kind, which notes what it was given."""

    def __init__(self) -> None:
        super().__init__(0)
        self.seen: list[set[str]] = []

    def __call__(self, features: Sequence[Any]) -> dict[str, Tensor]:
        rows = [dict(row) if isinstance(row, Mapping) else vars(row) for row in features]
        self.seen.extend(set(row) for row in rows)
        return super().__call__(
            [
                {n: torch.as_tensor(row[n]).long().tolist() for n in ("input_ids", "labels")}
                for row in rows
            ]
        )


class Own(Dataset[Any]):
    """A data set of a user."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> Any:
        return BatchEncoding(ROWS[index])


def arrow(**column: Any) -> Any:
    return datasets.Dataset.from_list([{**row, **column} for row in ROWS])


DATA: dict[str, Any] = {
    "arrow": arrow(),
    "torch, float32": arrow().with_format("torch", dtype=torch.float32),
    "some columns": arrow(text="a").with_format(columns=["input_ids", "labels"]),
    "transform": arrow().with_transform(dict),
    "torch": Own(),
    "parts": ConcatDataset([arrow().select(range(3)), arrow().select(range(3, 8))]),
    "dataclass": [Sample(**row) for row in ROWS],
    "namespace": [SimpleNamespace(**row) for row in ROWS],
}


def trained(folder: Path, data: Any, method: str | None = "arch", **fields: Any) -> Any:
    torch.manual_seed(0)
    settings = {
        "per_device_train_batch_size": 3, "num_train_epochs": 2, "save_strategy": "no", "logging_steps": 1,
        "report_to": "none", "disable_tqdm": True, "use_cpu": True,
    } | fields  # fmt: skip
    kind = Trainer if method is None else AdversarialTrainer
    options = ARCH if method == "arch" else {}
    trainer: Any = kind(
        model=tiny("bert", dropout=0.1),
        args=TrainingArguments(str(folder), **settings),
        train_dataset=data,
        data_collator=Reading(),
        **({} if method is None else {"method": create(method, **options)}),
    )
    trainer.train()
    return trainer


def weights(trainer: Any) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in trainer.model.named_parameters()}


def close(one: Any, other: Any) -> bool:
    return all(
        torch.allclose(value, weights(other)[name], atol=1e-6)
        for name, value in weights(one).items()
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Trainers that have trained on a list of mappings: ours with ARCH, and the stock one."""
    return {
        str(method): trained(tmp_path_factory.mktemp("plain"), ROWS, method)
        for method in ("arch", None)
    }


@pytest.mark.parametrize(("kind", "workers"), [*((kind, 0) for kind in DATA), ("arrow", 1)])
def test_arch_remembers_samples_of_any_kind_of_data_set(
    kind: str, workers: int, plain: dict[str, Any], tmp_path: Path
) -> None:
    fields = {"remove_unused_columns": kind != "transform", "dataloader_num_workers": workers}
    trainer = trained(tmp_path, DATA[kind], **fields)
    assert bool((trainer.method.memory.state().tensors["cache.written_at"] >= 0).all())
    assert close(trainer, plain["arch"])


@pytest.mark.parametrize("kind", DATA)
def test_standard_training_is_the_stock_trainer_s_on_any_kind_of_data_set(
    kind: str, plain: dict[str, Any], tmp_path: Path
) -> None:
    ours = trained(tmp_path, DATA[kind], "standard", remove_unused_columns=kind != "transform")
    assert close(ours, plain["None"])
    assert ours.data_collator.seen == plain["None"].data_collator.seen


def test_the_user_s_data_set_is_not_changed_and_its_attributes_are_there(tmp_path: Path) -> None:
    data = arrow(text="a text")
    trainer = trained(tmp_path, data)
    assert data.column_names == ["input_ids", "labels", "text"]
    assert trainer.train_dataset.column_names == data.column_names
    assert trainer.train_dataset.features == data.features
    assert trainer.train_dataset[3] == data[3]


@pytest.mark.parametrize(("value", "removing"), [(7, True), ("q-7", False)])
def test_a_column_called_sample_id_is_the_user_s_for_methods_without_a_memory(
    value: Any, removing: bool, tmp_path: Path
) -> None:
    """As in the stock Trainer it is removed, or reaches the collator."""
    for data in (arrow(sample_id=value), [{**row, "sample_id": value} for row in ROWS]):
        stock = trained(tmp_path, data, None, remove_unused_columns=removing)
        ours = trained(tmp_path, data, "standard", remove_unused_columns=removing)
        assert ours.data_collator.seen == stock.data_collator.seen
        assert close(ours, stock)
        with pytest.raises(ValueError, match="must not have a column 'sample_id'; rename it"):
            trained(tmp_path, data, remove_unused_columns=removing)


def test_a_collator_that_is_set_after_the_trainer_was_made_sees_the_same(tmp_path: Path) -> None:
    trainer = trained(tmp_path, ROWS, "r3f")
    trainer.method, trainer.data_collator = create("arch", **ARCH), (late := Reading())
    trainer.train()
    assert len(late.seen) == 8 * 3  # the look at the data before training, and two epochs
    assert bool((trainer.method.memory.state().tensors["cache.written_at"] >= 0).all())


def test_an_evaluation_of_the_training_set_has_no_ids(tmp_path: Path) -> None:
    trainer = trained(tmp_path, arrow())
    seen: list[set[str]] = []
    trainer.prediction_step = lambda model, inputs, *_, **__: (
        seen.append(set(inputs)) or (torch.zeros(()), None, None)
    )
    trainer.evaluate(trainer.train_dataset)
    assert seen == [{"input_ids", "attention_mask", "labels"}]


def test_columns_that_the_model_does_not_take_are_not_read_and_a_set_without_others_is_refused_as_in_stock(
    tmp_path: Path,
) -> None:
    data = arrow(text="a text")
    for method in ("arch", None):
        trainer = trained(tmp_path, data, method)
        assert {frozenset(names) for names in trainer.data_collator.seen} == {
            frozenset({"input_ids", "labels"})
        }
        with pytest.raises(ValueError, match="No columns in the dataset match"):
            trained(tmp_path, data.select_columns(["text"]), method)
    (loaded,) = {
        frozenset(row)
        for row in trained(tmp_path, data).advreg.samples.loaded().__getitems__([0, 3]).samples
    }
    assert loaded == {"input_ids", "labels"}


@pytest.mark.parametrize("column", [None, "length"])
def test_batches_are_grouped_by_length_as_in_the_stock_trainer(
    column: str | None, tmp_path: Path
) -> None:
    data = arrow()
    fields: dict[str, Any] = {
        "train_sampling_strategy": "group_by_length",
        "remove_unused_columns": False,
    }
    if column is not None:
        data = data.add_column(column, [(7 * number) % 8 for number in range(8)])
    for kind in (data, ROWS):
        stock, ours = (trained(tmp_path, kind, method, **fields) for method in (None, "standard"))
        torch.manual_seed(1)
        expected = list(stock._get_train_sampler(stock.train_dataset))
        torch.manual_seed(1)
        assert list(ours._get_train_sampler(ours.train_dataset)) == expected
        assert close(ours, stock)
