"""What several processes do together in tests: train by each method, so that numbers do not depend on who trains what."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils.data import BatchSampler

from advreg.core.shard import Shard
from advreg.hf.sharding import ShardBatches
from advreg.hf.trainer import AdversarialTrainer
from advreg.methods import create
from observe import Padded, features_of
from tiny_models import tiny, tiny_batch

PARTS = 4  # what is dealt to 1, 2 or 4 processes
OPTIONS: dict[str, dict[str, Any]] = {
    "standard": {},
    "r3f": {"noise_scale": 0.1},
    "freelb": {"ascent_steps": 2, "radius": 0.5, "start_scale": 0.5},
    "freeat": {"replays": 2, "radius": 0.1, "step_rule": "normalised", "norm": "l2", "scope": "sample"},
    "smart": {"radius": 0.5, "ascent_steps": 1, "proximal_weight": 0.5, "proximal_momentum": 0.5},
    "arch": {"cache_fraction": 0.4, "refresh_every": 2, "radius": 0.5, "ascent_steps": 2, "neighbours": 2},
}


@contextmanager
def fixed_noise() -> Iterator[None]:
    """Random starts that are the same for every sample, whatever batch it is in."""

    def wave(values: Tensor, mask: Tensor) -> Tensor:
        place, column = torch.arange(values.shape[1]), torch.arange(values.shape[2])
        return torch.sin(3.0 * place[:, None] + column).to(values.dtype) * mask[..., None]

    with ExitStack() as stack:
        for module in ("core.ball", "methods.r3f", "methods.freelb"):
            stack.enter_context(patch(f"advreg.{module}.uniform_noise", wave))
        yield


class DealtBatches(BatchSampler):
    """The batches of ``PARTS`` processes, dealt to as many as there are: the same steps for any number of them."""

    def __init__(self, size: int, batch_size: int, rank: int, world: int) -> None:
        parts = range(rank, PARTS, world)
        self.samplers = [ShardBatches(Shard(size, part, PARTS), batch_size, seed=5) for part in parts]

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
        return self._loader(
            DealtBatches(
                len(self.train_dataset),
                arguments.per_device_train_batch_size,
                arguments.process_index,
                arguments.world_size,
            )
        )


def trainer_of(
    name: str, folder: str, kind: Any = AdversarialTrainer, size: int = 13, family: str = "bert", **settings: Any
) -> Any:
    """A trainer in double precision without dropout; ``settings`` are the method's options and arguments."""
    from transformers import TrainingArguments

    options = OPTIONS[name] | {key: settings.pop(key) for key in list(settings) if key in _options_of(name)}
    model = tiny(family, dropout=0.0, dtype=torch.float64)
    fields = {
        "output_dir": folder,
        "per_device_train_batch_size": 2,
        "num_train_epochs": 3,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    return kind(
        model=model,
        args=TrainingArguments(**fields | settings),
        train_dataset=features_of(tiny_batch(family, batch=size)),
        data_collator=Padded(model.config.pad_token_id),
        method=create(name, **options),
        optimizers=(optimizer, schedule),
    )


def _options_of(name: str) -> dict[str, Any]:
    return create(name).options()


def train_dealt(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Weights, logs and cached perturbations after each of the runs, on data dealt to the processes there are."""
    found = []
    with tempfile.TemporaryDirectory() as folder, fixed_noise():
        for run in runs:
            trainer = trainer_of(folder=folder, **{"kind": DealtTrainer} | run)
            trainer.train()
            found.append(outcome(trainer))
    return found


def outcome(trainer: Any) -> dict[str, Any]:
    return {
        "weights": {name: value.detach().clone() for name, value in trainer.model.named_parameters()},
        "logs": [line for line in trainer.state.log_history if "loss" in line],
        "memory": {name: value.clone() for name, value in trainer.method.state().tensors.items()},
        "steps": trainer.state.global_step,
    }
