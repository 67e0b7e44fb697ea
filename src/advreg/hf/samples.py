"""The training samples of a Trainer: with their ids, in its data loader, its samplers and before
its first step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from advreg.hf.data import IdCollator, Identified, Limits, identified

_Any: Any = object  # to the type checker: whatever Trainer it is mixed into


class SamplesMixin(_Any):  # type: ignore[misc]
    """A Trainer whose training batches have ids; see :mod:`advreg.hf.data`."""

    train_dataset: Any
    data_collator: Any

    def _identify(self) -> None:
        """Give every training sample its index as a stable id, and the collator what takes it to
        the batch.

        A loader that is not stock's may not take the result; it gets the data as given, unless ids
        are needed.
        """
        is_required = "ids" in self.method.info.needs
        if not (is_required or self._loads_as_stock()):
            return
        if not isinstance(self.data_collator, IdCollator):  # another one since the Trainer was made
            self.data_collator = IdCollator(
                self.data_collator, Limits.of(self.model) if self.method.info.needs else None
            )
        self.train_dataset = identified(self.train_dataset, is_required)

    def _loads_as_stock(self) -> bool:
        """Whether training batches come from a loader of transformers."""
        kinds = (kind for kind in type(self).__mro__ if "get_train_dataloader" in vars(kind))
        modules = (kind.__module__ for kind in kinds)
        return next(name for name in modules if not name.startswith("advreg.")).startswith(
            "transformers."
        )

    def _samples(self) -> Any:
        """The training set without the columns that the Trainer removes."""
        data = self.train_dataset
        if not (
            isinstance(data, Identified) and hasattr(data, "add_column")
        ):  # no datasets.Dataset
            return data
        if data.format["type"] == "custom":  # its columns are known to its transform alone
            return data
        return Identified(
            self._remove_unused_columns(data.samples, description="training"), data.required
        )

    def _collator(self) -> Any:
        """The collator for training samples."""
        if (
            isinstance(self.train_dataset, Identified) and self.train_dataset.gathers
        ):  # nothing to remove
            return self.data_collator
        return self._get_collator_with_removed_columns(self.data_collator)

    # ---- what the stock Trainer asks for

    def _get_dataloader(
        self, dataset: Any, *args: Any, is_training: bool = False, **kwargs: Any
    ) -> Any:
        """The stock one; ids are for training, and an evaluation of the training set has none."""
        if isinstance(dataset, Identified):
            dataset = self._samples() if is_training else dataset.samples
        return super()._get_dataloader(dataset, *args, is_training=is_training, **kwargs)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """The stock one, which asks whether a dataset is an Arrow table."""
        data = self.train_dataset if train_dataset is None else train_dataset
        return super()._get_train_sampler(data.samples if isinstance(data, Identified) else data)

    def _get_collator_with_removed_columns(
        self, data_collator: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """The stock one around the user's collator; ids are no columns and stay outside."""
        stock = super()._get_collator_with_removed_columns
        if not isinstance(data_collator, IdCollator):
            return stock(data_collator, *args, **kwargs)
        return replace(data_collator, collator=stock(data_collator.collator, *args, **kwargs))
