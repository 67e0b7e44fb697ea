"""What several processes do together in tests: train, so that nothing depends on which of them
trains on what.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accelerate import PartialState
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DistributedType
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import BatchSampler, DataLoader
from transformers import Trainer, TrainingArguments

from advreg.core.shard import Shard
from advreg.hf.checkpoint.saving import CheckpointWriter
from advreg.hf.checkpoint.state import checkpoints, save_method
from advreg.hf.sharding import ShardBatches
from advreg.hf.trainer import AdversarialTrainer
from advreg.methods import Method, create, registry
from observe import Padded, dropping, features_of, known_dropout, remembered
from processes import full_disk
from tiny_models import tiny, tiny_batch

PARTS = 4  # what is dealt to 1, 2 or 4 processes
OPTIONS: dict[str, dict[str, Any]] = {
    "standard": {},
    "r3f": {"noise_scale": 0.1},
    "rdrop": {},
    "simcut": {"cut": 0.3},
    "freelb": {"ascent_steps": 2, "radius": 0.5, "start_scale": 0.5},
    "freeat": {
        "replays": 2,
        "radius": 0.1,
        "step_rule": "normalised",
        "norm": "l2",
        "scope": "sample",
    },
    "smart": {"radius": 0.5, "ascent_steps": 1, "proximal_weight": 0.5, "proximal_momentum": 0.5},
    "temporal": {"weight": 3.0},
    "smart+temporal": {"smart.ascent_steps": 1, "smart.radius": 0.5, "temporal.weight": 2.0},
    "arch": {
        "cache_fraction": 0.4,
        "refresh_every": 2,
        "radius": 0.5,
        "ascent_steps": 2,
        "neighbours": 2,
    },
}


@contextmanager
def fixed_noise() -> Iterator[None]:
    """Random starts and dropout that are the same for every sample, whatever batch it is in."""

    def wave(values: Tensor, mask: Tensor) -> Tensor:
        place, column = torch.arange(values.shape[1]), torch.arange(values.shape[2])
        return torch.sin(3.0 * place[:, None] + column).to(values.dtype) * mask[..., None]

    with ExitStack() as stack:
        known_dropout(stack.enter_context(pytest.MonkeyPatch.context()))
        for module in (
            "core.ball",
            "methods.noise.r3f",
            "methods.adversarial.freelb",
            "methods.consistency.simcut",
        ):
            stack.enter_context(patch(f"advreg.{module}.uniform_noise", wave))
        yield


class DealtBatches(BatchSampler):
    """The batches of ``PARTS`` processes, dealt to as many as there are: the same steps for any
    number of them.
    """

    def __init__(self, size: int, batch_size: int, rank: int, world: int) -> None:
        parts = range(rank, PARTS, world)
        self.samplers = [
            ShardBatches(Shard(size, part, PARTS), batch_size, seed=5) for part in parts
        ]

    def set_epoch(self, epoch: int) -> None:
        for sampler in self.samplers:
            sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.samplers[0])

    def __iter__(self) -> Iterator[list[int]]:
        for batches in zip(*self.samplers, strict=True):
            yield [index for batch in batches for index in batch]


class DealtTrainer(AdversarialTrainer):
    """Trains on the batches that are dealt to this process."""

    def get_train_dataloader(self) -> Any:
        arguments = self.args
        return self.advreg.samples.loader(
            DealtBatches(
                len(self.train_dataset),
                arguments.per_device_train_batch_size,
                arguments.process_index,
                arguments.world_size,
            )
        )


class StockTrainer(Trainer):
    """Trains on the same batches without advreg."""

    def __init__(self, *, method: Method, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.method = method

    def get_train_dataloader(self) -> Any:
        args = self.args
        ranks = args.process_index, args.world_size
        size = args.per_device_train_batch_size
        loader: Any = DataLoader(
            self.train_dataset,
            batch_sampler=DealtBatches(len(self.train_dataset), size, *ranks),
            collate_fn=self.data_collator,
        )
        return prepare_data_loader(
            loader, device=args.device, num_processes=1, process_index=0, put_on_device=True
        )


def dealt(is_stock: bool = False, **settings: Any) -> Any:
    """A trainer on the batches that are dealt to this process: the stock one, or ours."""
    return trainer_of(kind=StockTrainer if is_stock else DealtTrainer, **settings)


def trainer_of(
    name: str,
    folder: str,
    kind: Any = AdversarialTrainer,
    size: int = 13,
    family: str = "bert",
    dropout: float = 0.0,
    momentum: float = 0.0,
    dtype: str = "float64",
    **settings: Any,
) -> Any:
    """A trainer, in double precision unless told; ``settings``: options of the method, fields of
    TrainingArguments.
    """
    options = OPTIONS.get(name, {}) | {
        key: settings.pop(key) for key in list(settings) if key in create(name).options()
    }
    exact = {"dropout": dropout, "dtype": getattr(torch, dtype)}
    model = (
        dropping(family)
        if "dropout" in registry[name].info.needs and dropout == 0
        else tiny(family, **exact)
    )
    fields = {
        "output_dir": folder,
        "per_device_train_batch_size": 2,
        "num_train_epochs": 3,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "lr_scheduler_type": "constant",
    }
    return kind(
        model=model,
        args=TrainingArguments(**fields | settings),
        train_dataset=features_of(tiny_batch(family, batch=size)),
        data_collator=Padded(model.config.pad_token_id),
        method=create(name, **options),
        optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.1, "momentum": momentum}),
    )


def train_dealt(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Weights, logs and cached perturbations after each of the runs, on data dealt to the processes
    there are.
    """
    found = []
    with tempfile.TemporaryDirectory() as folder, fixed_noise():
        for run in runs:
            trainer = dealt(folder=folder, **run)
            trainer.train()
            found.append(outcome(trainer))
    return found


def outcome(trainer: Any) -> dict[str, Any]:
    return {
        "weights": {
            name: value.detach().clone() for name, value in trainer.model.named_parameters()
        },
        "logs": [line for line in trainer.state.log_history if "loss" in line],
        "memory": remembered(trainer.method),
        "steps": trainer.state.global_step,
    }


class RecallingTrainer(AdversarialTrainer):
    """Notes what its method remembered when it was resumed."""

    recalled: dict[str, Tensor]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        self.recalled = remembered(self.method)


def train_and_save(folder: str, **settings: Any) -> Any:
    """Four epochs of ARCH with dropout and random starts, saved every third step."""
    saving = {
        "save_strategy": "steps",
        "save_steps": 3,
        "num_train_epochs": 4,
        "seed": 7,
        "dropout": 0.1,
    }
    trainer = trainer_of("arch", folder, RecallingTrainer, **saving | settings)
    trainer.train()
    return trainer


def resumed(folder: str, step: int, **settings: Any) -> Any:
    """The same from a checkpoint on."""
    trainer = trainer_of(
        "arch",
        str(Path(folder) / "again"),
        RecallingTrainer,
        num_train_epochs=4,
        seed=7,
        dropout=0.1,
        **settings,
    )
    trainer.train(resume_from_checkpoint=str(Path(folder) / f"checkpoint-{step}"))
    return trainer


def fail_to_save(folder: str) -> list[str]:
    """The checkpoints there are after a run in which the second process could not write its part of
    the first one.
    """

    def broken(method: Any, place: Path, tally: Any, rank: int, world: int) -> None:
        if rank == 1 and place.name == "checkpoint-3":
            raise OSError("no space left on device")
        save_method(method, place, tally, rank, world)

    with patch("advreg.hf.checkpoint.saving.save_method", broken):
        trainer = train_and_save(folder)
    trainer.accelerator.wait_for_everyone()
    assert trainer.state.global_step == 16
    return sorted(path.name for path in Path(folder).glob("checkpoint-*"))


def everything(folder: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """All that the fast tests need of two processes, which take long to start."""
    two = str(Path(folder) / "two")
    whole = outcome(train_and_save(two))
    again = resumed(two, 6)
    return {
        "dealt": train_dealt(runs),
        "whole": whole,
        "resumed": outcome(again),
        "recalled": again.recalled,
        "checkpoints": fail_to_save(str(Path(folder) / "full")),
        "of one": resumed(str(Path(folder) / "one"), 9).recalled,
    }


def train_fifty(batch_size: int) -> list[dict[str, Any]]:
    """Fifty steps of every method, with dropout and random starts."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in OPTIONS:
            trainer = trainer_of(
                name,
                folder,
                size=16,
                dropout=0.1,
                max_steps=50,
                per_device_train_batch_size=batch_size,
            )
            trainer.train()
            found.append(outcome(trainer))
    return found


@contextmanager
def fsdp_on_cpu() -> Iterator[None]:
    """accelerate shards weights over GPUs only, and says nothing on CPUs; torch can do both."""
    setup = TrainingArguments.__post_init__

    def pretend(self: TrainingArguments) -> None:
        setup(self)
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU

    with patch.object(TrainingArguments, "__post_init__", pretend):
        yield


def train_sharded(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """As :func:`train_dealt`, the weights spread over the processes; and what is refused there."""
    config = {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]}
    sharded = {"fsdp": True, "fsdp_config": config}
    found, refused = [], []
    with tempfile.TemporaryDirectory() as folder, fixed_noise(), fsdp_on_cpu():
        for run in runs:
            trainer = dealt(folder=folder, **sharded | run)
            trainer.train()
            parts = {
                name: value
                for name, value in trainer.model.named_parameters()
                if isinstance(value, DTensor)
            }
            whole = {name: value.full_tensor().detach().clone() for name, value in parts.items()}
            found.append(
                {
                    "weights": whole,
                    "sharded": sum(value.to_local().numel() for value in parts.values()),
                }
            )
        try:
            dealt(folder=folder, **sharded, name="smart").train()
        except ValueError as error:
            refused.append(str(error))
    return {"found": found, "refused": refused}


def resume_sharded(folder: str) -> dict[str, Any]:
    """Whole weights and memory after a run whose weights are spread over the processes, and after a
    resumed one.
    """
    found: dict[str, Any] = {}
    for kind in ("SHARDED_STATE_DICT", "FULL_STATE_DICT"):
        config = {
            "version": 2,
            "transformer_layer_cls_to_wrap": ["BertLayer"],
            "state_dict_type": kind,
        }
        with fsdp_on_cpu():
            place, sharded = (
                str(Path(folder) / kind),
                {"fsdp": True, "fsdp_config": config, "momentum": 0.5},
            )
            runs = {
                "whole": train_and_save(place, **sharded),
                "resumed": resumed(place, 6, **sharded),
            }
            filled = {rank: fill_disk(f"{place}-{rank}", rank, **sharded) for rank in range(2)}
        found[kind] = {name: whole_outcome(trainer) for name, trainer in runs.items()} | {
            "filled": filled
        }
    return found


def fill_disk(folder: str, rank: int, **settings: Any) -> list[int]:
    """The steps that were saved when the disk of one process was full at the first of them."""

    def write(self: Any, *rest: Any) -> None:
        with (
            full_disk()
            if (self.trainer.state.global_step, self.trainer.args.process_index) == (3, rank)
            else nullcontext()
        ):
            whole(self, *rest)

    whole = CheckpointWriter.write
    with patch.object(CheckpointWriter, "write", write):
        trainer = train_and_save(folder, **settings)
    trainer.accelerator.wait_for_everyone()
    return sorted(checkpoints(Path(folder)))


def whole_outcome(trainer: Any) -> dict[str, Any]:
    return {
        "weights": {
            name: value.full_tensor().detach().clone()
            for name, value in trainer.model.named_parameters()
        },
        "memory": remembered(trainer.method),
        "steps": trainer.state.global_step,
    }
