"""The training samples of a trainer: their ids, its data loader and the pass over them before the
first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from accelerate.data_loader import prepare_data_loader
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from advreg.core.checks import check_choice
from advreg.core.progress import Progress, counting
from advreg.core.shard import Shard
from advreg.hf.components.component import Component, is_stock
from advreg.hf.data import (
    Collator,
    IdCollator,
    Identified,
    Limits,
    Sized,
    identified,
    leave_inherited,
)
from advreg.hf.sharding import ShardBatches
from advreg.hf.survey import survey
from advreg.memory.corpus import Corpus

_STRATEGIES = ("random", "sequential", "group_by_length")


@dataclass(eq=False)
class Samples(Component):
    """Gives training batches the ids of their samples; see :mod:`advreg.hf.data`."""

    hooks: ClassVar[tuple[str, ...]] = (
        "get_train_dataloader",
        "_get_dataloader",
        "_get_train_sampler",
        "_get_collator_with_removed_columns",
    )

    batches: BatchSampler | None = None  # replaces the sampler of the trainer
    # replaces the sentence vectors of the survey
    vectors: Callable[[Corpus], Mapping[str, Tensor]] | None = None

    # ---- ids

    def wrap_collator(self) -> None:
        """Make the collator put ids into the batch."""
        trainer = self.trainer
        if not isinstance(trainer.data_collator, IdCollator):
            limits = Limits.of(trainer.model) if self.method.info.needs else None
            trainer.data_collator = IdCollator(trainer.data_collator, limits)

    def identify(self) -> None:
        """Give every training sample its index as a stable id.

        An overridden loader may not accept data with ids, so it gets the data as given unless ids
        are needed.
        """
        is_required = "ids" in self.method.info.needs
        if is_required or is_stock(self.own.get_train_dataloader) or self.batches is not None:
            self.wrap_collator()  # the collator may have been replaced since
            self.trainer.train_dataset = identified(self.trainer.train_dataset, is_required)

    def unwrap(self) -> None:
        """Give the trainer back its data set and its collator."""
        trainer = self.trainer
        if isinstance(trainer.data_collator, IdCollator):
            trainer.data_collator = trainer.data_collator.collator
        if isinstance(trainer.train_dataset, Identified):
            trainer.train_dataset = trainer.train_dataset.samples

    # ---- before the first step

    def survey(self, progress: Progress) -> Corpus:
        """Pass over this process's training samples once."""
        shard = self.shard()
        advance = counting(progress, "surveying the data", len(shard))
        size = self.trainer.args.train_batch_size
        samples, collator = self.loaded(), self.collator()
        corpus = survey(self.view, samples, collator, advance, shard, size)
        return corpus if self.vectors is None else replace(corpus, vectors=self.vectors(corpus))

    def shard(self) -> Shard:
        """The training samples of this process."""
        args = self.trainer.args
        return Shard(len(self.trainer.train_dataset), args.process_index, args.world_size)

    def loaded(self) -> Sized:
        """The training set without the columns that the trainer removes."""
        data: Sized = self.trainer.train_dataset
        # no datasets.Dataset
        if not isinstance(data, Identified) or not hasattr(data, "add_column"):
            return data
        if data.format["type"] == "custom":  # only its transform determines its columns
            return data
        return Identified(
            self.trainer._remove_unused_columns(data.samples, description="training"),
            data.required,
        )

    def collator(self) -> Collator:
        """The collator for training samples."""
        collator: Collator = self.trainer._get_collator_with_removed_columns(
            self.trainer.data_collator
        )
        return collator

    # ---- the data loader

    def get_train_dataloader(self) -> object:
        """The trainer's own; with several processes, a stock loader gives way to one that keeps
        each sample in one process.
        """
        if self.batches is not None:
            return self.loader(self.batches)
        if (
            not self.method.info.needs
            or self.trainer.args.world_size == 1
            or isinstance(self.trainer.train_dataset, IterableDataset)
            or not is_stock(self.own.get_train_dataloader)
        ):
            return self.own.get_train_dataloader()
        return self.loader(self.shard_batches())

    def shard_batches(self) -> ShardBatches:
        """Batches of this process's samples, in the order that the arguments ask for."""
        args = self.trainer.args
        strategy = str(getattr(args.train_sampling_strategy, "value", args.train_sampling_strategy))
        check_choice("train_sampling_strategy with several processes", strategy, _STRATEGIES)
        shard = self.shard()
        return ShardBatches(
            shard,
            args.train_batch_size,
            args.seed if args.data_seed is None else args.data_seed,
            shuffle=strategy != "sequential",
            drop_last=args.dataloader_drop_last,
            lengths=self._lengths(shard) if strategy == "group_by_length" else None,
        )

    def _lengths(self, shard: Shard) -> NDArray[np.int64]:
        """Tokens of each sample of a shard."""
        data, column = self.trainer.train_dataset, self.trainer.args.length_column_name
        if column in (getattr(data, "column_names", None) or ()):
            return np.asarray(data[column][shard.rank :: shard.world], dtype=np.int64)
        return np.array([len(data[index]["input_ids"]) for index in shard.ids], dtype=np.int64)

    def loader(self, batches: BatchSampler) -> object:
        """The stock loader, with batches from a sampler that handles processes and epochs."""
        args = self.trainer.args
        data: Any = self.loaded()
        loader: DataLoader[object] = DataLoader(
            data,
            batch_sampler=batches,
            collate_fn=self.collator(),
            num_workers=args.dataloader_num_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            pin_memory=args.dataloader_pin_memory,
            persistent_workers=args.dataloader_persistent_workers,
            worker_init_fn=leave_inherited,
        )
        return prepare_data_loader(
            loader, device=args.device, num_processes=1, process_index=0, put_on_device=True,
            # else the host waits until the GPU has nothing left to do
            non_blocking=args.dataloader_pin_memory,
        )  # fmt: skip

    # ---- hooks of the stock loader

    def _get_dataloader(
        self, dataset: Sized, *args: object, is_training: bool = False, **kwargs: object
    ) -> object:
        """The stock loader; an evaluation of the training set has no ids."""
        if isinstance(dataset, Identified):
            dataset = self.loaded() if is_training else dataset.samples
        return self.own._get_dataloader(dataset, *args, is_training=is_training, **kwargs)

    def _get_train_sampler(self, train_dataset: object = None) -> object:
        """The stock sampler, which tests whether a dataset is an Arrow table."""
        data = self.trainer.train_dataset if train_dataset is None else train_dataset
        return self.own._get_train_sampler(data.samples if isinstance(data, Identified) else data)

    def _get_collator_with_removed_columns(
        self, data_collator: Collator, *args: object, **kwargs: object
    ) -> object:
        """The stock wrapper, put around the user's collator: ids are no columns."""
        stock = self.own._get_collator_with_removed_columns
        if not isinstance(data_collator, IdCollator):
            return stock(data_collator, *args, **kwargs)
        return replace(data_collator, collator=stock(data_collator.collator, *args, **kwargs))
