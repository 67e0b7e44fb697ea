"""A method's objective inside another trainer's step: the trainer's own ``compute_loss`` gives the
clean part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.trainer_pt_utils import LabelSmoother

from advreg.hf.counting import CountingTask, PassCount
from advreg.hf.guards.nonfinite import REPLAY, NonFiniteLossError, Update, Withholding
from advreg.hf.lookahead import Ahead
from advreg.hf.patches.mask_sync import PADDED
from advreg.hf.view.doubling import rows_of
from advreg.hf.view.inputs import ITEMS, SAMPLE_ID
from advreg.hf.view.view import HFModelView
from advreg.methods.base import Batch, ModelView, Step, StepReport

_Any: Any = object  # to the type checker: whatever Trainer it is mixed into


class SteppingMixin(_Any):  # type: ignore[misc]
    """A Trainer whose step minimises a method's objective.

    For the length of a step the instance's ``compute_loss`` is shadowed by one that asks the method
    for its objective; the method's passes call the trainer's own ``compute_loss``, overridden or
    not. Everything else of the step stays the trainer's: its contexts, its scaling, its backward
    pass.
    """

    compute_loss: Any
    label_smoother: Any

    def _reset_steps(self) -> None:
        self.passes = PassCount()
        self._ahead = Ahead()
        self._group = 1  # micro-batches of this update
        self._group_items: Tensor | None = None  # loss items of this update, per process
        self._stock_items: Any = None  # the same as the stock trainer counts them
        self._update = Update()
        self._passes_before = PassCount()  # this update
        self._withholding: Withholding | None = None
        self._own_compute_loss: Any = None  # what a step shadows
        self._walked: nn.Module | None = None  # the model whose modules these are
        self._modules: list[nn.Module] = []

    # ---- the step

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        self._stock_items = num_items_in_batch
        self._update.taken.append(inputs)
        if not self.method.info.needs:
            return self._stock_step(model, inputs, num_items_in_batch)
        self.task.train_through(model)
        try:
            with self._kept_in_training_mode(model):
                return self._method_step(model, inputs, num_items_in_batch)
        except NonFiniteLossError:  # says where already
            raise
        except FloatingPointError as error:
            if self.on_non_finite == "stop":
                raise NonFiniteLossError(f"{error} ({self._update.place(inputs)})") from error
            self._update.spoilt = True
            return torch.full((), math.nan, device=self.args.device)

    def _stock_step(self, model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        """The step of the trainer underneath, to the bit."""
        known = {name: value for name, value in inputs.items() if name not in (SAMPLE_ID, PADDED)}
        loss: Tensor = super().training_step(model, known, items)
        self.passes = PassCount(
            self.passes.forward + 1, self.passes.backward + 1, self.passes.steps + 1
        )
        self._update.reports.append((inputs, StepReport(loss, loss)))
        return loss

    @contextmanager
    def _kept_in_training_mode(self, model: nn.Module) -> Iterator[None]:
        """Within, ``model.train()``, which every stock step calls, skips a model whose modules are all in that mode.

        Setting the mode of each module again takes several per cent of a step that waits for the host.
        """
        if self._walked is not model:
            self._walked, self._modules = model, list(model.modules())
        if not all(module.training for module in self._modules):
            yield
            return
        vars(model)["train"] = lambda mode=True: model if mode else type(model).train(model, mode)
        try:
            yield
        finally:
            vars(model).pop("train", None)

    def _method_step(self, model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        """The method's step; again, in two passes, if the fused pass needed too much memory."""
        try:
            return self._single_step(model, inputs, items)
        except torch.OutOfMemoryError:
            if (
                self.args.world_size > 1 or not self.task.unfuse()
            ):  # the other processes cannot follow
                raise
        # The backward pass may have added a part of its gradients, which cannot be told from what
        # was there before.
        self.model.zero_grad()
        self.passes = replace(self._passes_before)
        for earlier in self._update.taken[:-1]:
            self._single_step(model, earlier, items)
        return self._single_step(model, inputs, items)

    def _single_step(self, model: nn.Module, inputs: dict[str, Any], items: Any) -> Tensor:
        with self._objective_for_loss():
            loss: Tensor = super().training_step(model, inputs, items)
        self.passes.backward += 1
        self.passes.steps += 1
        return loss

    @contextmanager
    def _objective_for_loss(self) -> Iterator[None]:
        """Within, ``self.compute_loss`` returns the method's objective."""
        own = self.compute_loss
        kept = vars(self).get("compute_loss")
        self.compute_loss = partial(self._objective, own)
        try:
            yield
        finally:
            del self.compute_loss
            if kept is not None:
                self.compute_loss = kept

    def _objective(
        self, own: Any, model: nn.Module, inputs: dict[str, Any], *_: Any, **__: Any
    ) -> Tensor:
        """What stands in for ``compute_loss``: the objective, scaled so that the stock step leaves
        it as it is.
        """
        batch = {name: value for name, value in inputs.items() if name != ITEMS}
        if self._group_items is not None:
            batch[ITEMS] = self._group_items
        self._own_compute_loss = own
        clock = self._clock(bool(self.accelerator.sync_gradients))
        counter = CountingTask(self.task, self.passes, rows_of(batch))
        backward = counter.counted(self._backward)
        step = Step(clock, backward, self._inner_update, self.optimizer)
        report = self.method.objective(cast(ModelView, counter), batch, step)
        self._update.reports.append((batch, replace(report, loss=report.loss.detach())))
        loss: Tensor = report.loss * self._stock_divisor()
        return loss if loss.requires_grad else loss.requires_grad_()

    def _backward(self, loss: Tensor) -> None:
        """For points before the last: as the stock trainer does with a loss that needs no more
        scaling.
        """
        self.accelerator.backward(
            loss, **({"scale_wrt_gas": False} if self.is_deepspeed_enabled else {})
        )

    # ---- the task loss, by the trainer's own compute_loss

    def _task_loss(
        self, model: nn.Module, inputs: dict[str, Any], batch: Batch, copies: int = 1
    ) -> Tensor:
        """L(θ) of a batch, or the mean of its copies', divided by the items of its accumulation
        group.
        """
        items = None if self._stock_items is None else self._stock_items * copies
        smoother = self.label_smoother
        if self._may_smooth_compiled():
            self.label_smoother = self._smoothed_loss
        try:
            compute_loss = self._own_compute_loss or self.compute_loss
            loss: Tensor = compute_loss(model, inputs, num_items_in_batch=items)
        finally:
            self.label_smoother = smoother
        scaled: Tensor = loss * self._scale_of_loss(batch)
        return scaled

    def _may_smooth_compiled(self) -> bool:
        return (
            type(self.label_smoother) is LabelSmoother
            and self.task.prediction_head.compiles
            and self.task.means
        )

    def _smoothed_loss(
        self, outputs: Any, labels: Tensor, *_: Any, num_items_in_batch: Any = None, **__: Any
    ) -> Tensor:
        """What the stock label smoother computes, compiled."""
        task: HFModelView = self.task
        return task.prediction_head.loss(
            outputs.logits, labels, num_items_in_batch, self.args.label_smoothing_factor
        )

    def _scale_of_loss(self, batch: Batch) -> Tensor | float:
        """What makes the loss that ``compute_loss`` returned a part of a mean over the accumulation
        group.

        A loss that was divided by the group's items is such a part. The mean over a micro-batch
        becomes one by its share of the items. A user's own ``compute_loss`` may return either, and
        without labels there are no items, so these are taken as the stock step takes them.
        """
        if self._overrides_loss() or self._group_items is None:
            return 1 / self._stock_divisor()
        if self._divides_by_items(batch):
            return 1.0
        share: Tensor = self.task.count(batch) / (self._group_items * self._loss_multiplier())
        return share

    def _overrides_loss(self) -> bool:
        """Whether ``compute_loss`` is not transformers' own."""
        shadowed = vars(self).get("compute_loss")
        on_instance = shadowed is not None and getattr(shadowed, "func", None) != self._objective
        return on_instance or not type(self).compute_loss.__module__.startswith("transformers.")

    def _divides_by_items(self, batch: Batch) -> bool:
        if self._stock_items is None:
            return False
        if self.compute_loss_func is not None or self.label_smoother is not None:
            return True
        return bool(self.model_accepts_loss_kwargs) and self.task.honours_items(batch)

    def _stock_divisor(self) -> int:
        """What the stock step divides the loss by: the number of micro-batches, or 1. Outside a
        training it is 1.
        """
        return (
            int(getattr(self, "current_gradient_accumulation_steps", 1))
            if self._stock_divides()
            else 1
        )

    def _stock_divides(self) -> bool:
        """Whether the stock step divides the loss by the number of micro-batches."""
        scaled = getattr(self, "loss_is_scaled_for_ga", None)
        if scaled is None:
            by_items = self.model_accepts_loss_kwargs and self._stock_items is not None
            scaled = by_items or self.compute_loss_func is not None
        return not scaled

    def _loss_multiplier(self) -> int:
        """What the stock ``compute_loss`` multiplies a loss by that is divided by the items of all
        processes.
        """
        counted = self._stock_items is not None and self.args.average_tokens_across_devices
        by_items = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        return int(self.accelerator.num_processes) if counted and by_items else 1

    # ---- the batches of an update

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, *args: Any, **kwargs: Any
    ) -> tuple[list[Any], Any]:
        """The batches of an accumulation group and its loss items; a memory begins to prefetch for
        the next group.
        """
        if not self.method.info.needs:
            batches, items = super().get_batch_samples(epoch_iterator, num_batches, *args, **kwargs)
            self._group = max(1, len(batches))
            return batches, items
        batches = self._ahead.take(epoch_iterator, num_batches)
        self._group = max(1, len(batches))
        memory = self.method.memory
        if memory is not None and memory.prefetches:
            for batch in self._ahead.glimpse(num_batches):
                memory.prefetch(batch[SAMPLE_ID].cpu())
        items = self._get_num_items_in_batch(batches, self.args.device)
        self._group_items = self._items_of(batches, items)
        return batches, items

    def _items_of(self, batches: list[Any], stock: Any) -> Tensor | None:
        """The loss items of an accumulation group; per process, since DDP averages gradients."""
        if not batches or "labels" not in batches[0]:
            return None
        if stock is not None:
            self._stock_items = stock
            return torch.as_tensor(stock, device=self.args.device) / self._loss_multiplier()
        count = torch.stack(
            [self.task.count(batch).to(self.args.device) for batch in batches]
        ).sum()
        if self.args.world_size > 1:
            count = self.accelerator.gather(count).sum() / self.args.world_size
        return count

    def _inner_update(self) -> None:
        """The optimizer step between two of FreeAT's replays: clipped as the outer one, the
        schedule left alone.
        """
        most = self.args.max_grad_norm if self.args.max_grad_norm > 0 else math.inf
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), most)
        if self._withholding is not None:
            self._withholding.put_replay(self._update, norm)
        elif not self.args.fp16 and not math.isfinite(norm):
            raise FloatingPointError(REPLAY)
        self.optimizer.step()
        self.model.zero_grad()
