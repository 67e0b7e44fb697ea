"""A method's objective inside a trainer's own step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from transformers.trainer_pt_utils import LabelSmoother

from advreg.hf.components.component import Component, is_stock
from advreg.hf.counting import PassCount
from advreg.hf.data import Ahead
from advreg.hf.guards.nonfinite import REPLAY, NonFiniteLossError, Update
from advreg.hf.patches.mask_sync import PADDED
from advreg.hf.replaced import replaced
from advreg.hf.view.doubling import rows_of
from advreg.hf.view.inputs import ITEMS, SAMPLE_ID, ModelInputs
from advreg.methods.base import Batch, Step, StepReport

ComputeLoss = Callable[..., Tensor]
Items = Tensor | int | None  # that the loss of an accumulation group is divided by


class TrainingMode:
    """Skips ``model.train()``, which every stock step calls, where it would change nothing.

    Setting the mode of each module again takes several per cent of a step that waits for the host.
    """

    def __init__(self) -> None:
        self._model: nn.Module | None = None
        self._modules: list[nn.Module] = []

    @contextmanager
    def kept(self, model: nn.Module) -> Iterator[None]:
        """Within, ``model.train()`` skips a model whose modules are all in that mode."""
        if self._model is not model:
            self._model, self._modules = model, list(model.modules())
        has_own = "train" in vars(model)
        if has_own or not all(module.training for module in self._modules):
            yield
            return
        with replaced(vars(model), "train", partial(_train_again, model)):
            yield


def _train_again(model: nn.Module, mode: bool = True) -> nn.Module:
    return model if mode else type(model).train(model, mode)


@dataclass(eq=False)
class StepRunner(Component):
    """Makes the trainer's step minimise the objective of the method.

    During a step, the trainer's ``compute_loss`` is replaced by :meth:`objective`. The passes of
    the method call the trainer's own ``compute_loss``, overridden or not. Contexts, scaling and
    the backward pass stay the trainer's.
    """

    hooks: ClassVar[tuple[str, ...]] = ("training_step", "floating_point_ops")

    _passes_before: PassCount = field(default_factory=PassCount)  # this update
    _modes: TrainingMode = field(default_factory=TrainingMode)

    def begin(self) -> None:
        """Begin an update, before its first micro-batch."""
        if self.trainer.args.torch_compile:  # CUDA graphs may overwrite outputs of earlier passes
            cast(Any, torch.compiler).cudagraph_mark_step_begin()
        self.attached.update = Update(self.trainer.state.global_step, self.attached.epoch)
        self._passes_before = replace(self.tally.passes)

    def training_step(
        self, model: nn.Module, inputs: ModelInputs, num_items_in_batch: Items = None
    ) -> Tensor:
        update = self.attached.update
        self.attached.loss.stock_items = num_items_in_batch
        update.taken.append(inputs)
        if not self.method.info.needs:
            return self._stock_step(model, inputs, num_items_in_batch)
        self.view.train_through(model)
        try:
            with self._modes.kept(model):
                return self._method_step(model, inputs, num_items_in_batch)
        except NonFiniteLossError:  # has the place in its text
            raise
        except FloatingPointError as error:
            if self.attached.on_non_finite == "stop":
                raise NonFiniteLossError(f"{error} ({update.place(inputs)})") from error
            update.has_nonfinite = True
            return torch.full((), math.nan, device=self.trainer.args.device)

    def _stock_step(self, model: nn.Module, inputs: ModelInputs, items: Items) -> Tensor:
        """The trainer's own step, to the bit."""
        known = {name: value for name, value in inputs.items() if name not in (SAMPLE_ID, PADDED)}
        loss: Tensor = self.own.training_step(model, known, items)
        self.tally.passes.forward += 1
        self.tally.passes.end_step()
        self.attached.update.reports.append((inputs, StepReport(loss, loss)))
        return loss

    def _method_step(self, model: nn.Module, inputs: ModelInputs, items: Items) -> Tensor:
        """The method's step; repeated in two passes if the fused pass ran out of memory."""
        try:
            return self._single_step(model, inputs, items)
        except torch.OutOfMemoryError:
            # with several processes, the others cannot follow
            if self.trainer.args.world_size > 1 or not self.view.unfuse():
                raise
        # The backward pass may have added some gradients, which cannot be separated from
        # earlier ones.
        model.zero_grad()
        self.tally.passes = replace(self._passes_before)
        for earlier in self.attached.update.taken[:-1]:
            self._single_step(model, earlier, items)
        return self._single_step(model, inputs, items)

    def _single_step(self, model: nn.Module, inputs: ModelInputs, items: Items) -> Tensor:
        with self._objective_as_loss():
            loss: Tensor = self.own.training_step(model, inputs, items)
        self.tally.passes.end_step()
        return loss

    @contextmanager
    def _objective_as_loss(self) -> Iterator[None]:
        """Within, the trainer's ``compute_loss`` returns the method's objective."""
        own = self.trainer.compute_loss
        with (
            replaced(vars(self.attached.loss), "own_compute_loss", own),
            replaced(vars(self.trainer), "compute_loss", self.objective),
        ):
            yield

    def objective(self, model: nn.Module, inputs: ModelInputs, *_: object, **__: object) -> Tensor:
        """The objective of a batch, scaled so that the trainer's step does not change it."""
        loss = self.attached.loss
        batch = {name: value for name, value in inputs.items() if name != ITEMS}
        if loss.group_items is not None:
            batch[ITEMS] = loss.group_items
        clock = self.attached.clock(bool(self.trainer.accelerator.sync_gradients))
        self.view.count_in(self.tally.passes, rows_of(batch))
        step = Step(clock, self.backward, self._inner_update, self.trainer.optimizer)
        report = self.method.objective(self.view, batch, step)
        self.attached.update.reports.append((batch, replace(report, loss=report.loss.detach())))
        scaled: Tensor = report.loss * loss.stock_divisor()
        return scaled if scaled.requires_grad else scaled.requires_grad_()

    def backward(self, loss: Tensor) -> None:
        """Propagate the loss of a point before the last one; it needs no further scaling."""
        self.tally.passes.backward += 1
        scaling = {"scale_wrt_gas": False} if self.trainer.is_deepspeed_enabled else {}
        self.trainer.accelerator.backward(loss, **scaling)

    def _inner_update(self) -> None:
        """The optimizer step between two replays of FreeAT: clipped as usual, at the same learning
        rate.
        """
        trainer, guard = self.trainer, self.attached.updates.guard
        most = trainer.args.max_grad_norm if trainer.args.max_grad_norm > 0 else math.inf
        norm = trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), most)
        if guard is not None:
            guard.check_replay(self.attached.update, norm)
        elif not trainer.args.fp16 and not math.isfinite(norm):
            raise FloatingPointError(REPLAY)
        trainer.optimizer.step()
        trainer.model.zero_grad()

    def floating_point_ops(self, inputs: ModelInputs) -> int:
        """The stock estimate, six times tokens times weights, with the weights counted once."""
        if not self.method.info.needs or not is_stock(self.own.floating_point_ops):
            return int(self.own.floating_point_ops(inputs))
        name = getattr(self.trainer.model, "main_input_name", "input_ids")
        return 6 * inputs[name].numel() * self._weight_count if name in inputs else 0

    @cached_property
    def _weight_count(self) -> int:
        """Weights that are not embeddings."""
        count = getattr(self.trainer.model, "num_parameters", None)
        return 0 if count is None else int(count(exclude_embeddings=True))


@dataclass(eq=False)
class TaskLoss(Component):
    """The loss of a batch as a part of the mean over its accumulation group."""

    hooks: ClassVar[tuple[str, ...]] = ("get_batch_samples",)

    group: int = 1  # micro-batches of this update
    group_items: Tensor | None = None  # loss items of this update, per process
    stock_items: Items = None  # the same as the stock trainer counts them
    own_compute_loss: ComputeLoss | None = None  # what a step hides
    _ahead: Ahead = field(default_factory=Ahead)

    # ---- the batches of an update

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, *args: object, **kwargs: object
    ) -> tuple[list[Batch], Items]:
        """The batches of an accumulation group and its loss items.

        A memory begins to prefetch for the next group.
        """
        if not self.method.info.needs:
            batches, items = self.own.get_batch_samples(
                epoch_iterator, num_batches, *args, **kwargs
            )
            self.group = max(1, len(batches))
            return batches, items
        batches = self._ahead.take(epoch_iterator, num_batches)
        self.group = max(1, len(batches))
        self._ahead.prefetch(self.method.memory, num_batches)
        items = self.trainer._get_num_items_in_batch(batches, self.trainer.args.device)
        self.group_items = self._items_of(batches, items)
        return batches, items

    def _items_of(self, batches: list[Batch], stock: Items) -> Tensor | None:
        """The loss items of an accumulation group; per process, since DDP averages gradients."""
        if not batches or "labels" not in batches[0]:
            return None
        args = self.trainer.args
        if stock is not None:
            self.stock_items = stock
            return torch.as_tensor(stock, device=args.device) / self._multiplier()
        counts = [self.view.count(batch).to(args.device) for batch in batches]
        count = torch.stack(counts).sum()
        if args.world_size > 1:
            count = self.trainer.accelerator.gather(count).sum() / args.world_size
        return count

    # ---- the loss of a batch

    @property
    def _compute_loss(self) -> ComputeLoss:
        own: ComputeLoss = self.own_compute_loss or self.trainer.compute_loss
        return own

    @property
    def is_stock(self) -> bool:
        """Whether the loss is transformers' own."""
        return is_stock(self._compute_loss) and self.trainer.compute_loss_func is None

    def of_batch(
        self, model: nn.Module, inputs: ModelInputs, batch: Batch, copies: int = 1
    ) -> Tensor:
        """L(θ) of a batch, or its mean over the copies, divided by the items of the accumulation
        group.
        """
        items = None if self.stock_items is None else self.stock_items * copies
        smoother = self._smoothed if self._smooths_compiled() else self.trainer.label_smoother
        with replaced(vars(self.trainer), "label_smoother", smoother):
            loss = self._compute_loss(model, inputs, num_items_in_batch=items)
        return loss * self._scale(batch)

    def _smooths_compiled(self) -> bool:
        view = self.view
        has_stock_smoother = type(self.trainer.label_smoother) is LabelSmoother
        return has_stock_smoother and view.prediction_head.compiles and view.means

    def _smoothed(
        self,
        outputs: Any,
        labels: Tensor,
        *_: object,
        num_items_in_batch: Items = None,
        **__: object,
    ) -> Tensor:
        """The loss of the stock label smoother, compiled."""
        return self.view.prediction_head.loss(
            outputs.logits, labels, num_items_in_batch, self.trainer.args.label_smoothing_factor
        )

    def _scale(self, batch: Batch) -> Tensor | float:
        """The factor that makes the loss of ``compute_loss`` a part of a mean over the accumulation
        group.

        A loss divided by the group's items is such a part. The mean over a micro-batch becomes one
        by its share of the items. An override of ``compute_loss`` may return either, and without
        labels there are no items, so these losses are used as the stock step uses them.
        """
        if not is_stock(self._compute_loss) or self.group_items is None:
            return 1 / self.stock_divisor()
        if self._divides_by_items(batch):
            return 1.0
        share: Tensor = self.view.count(batch) / (self.group_items * self._multiplier())
        return share

    def _divides_by_items(self, batch: Batch) -> bool:
        if self.stock_items is None:
            return False
        if self.trainer.compute_loss_func is not None or self.trainer.label_smoother is not None:
            return True
        return bool(self.trainer.model_accepts_loss_kwargs) and self.view.honours_items(batch)

    def stock_divisor(self) -> int:
        """What the stock step divides the loss by: the number of micro-batches, or 1. Outside a
        training it is 1.
        """
        if not self._stock_divides():
            return 1
        return int(getattr(self.trainer, "current_gradient_accumulation_steps", 1))

    def _stock_divides(self) -> bool:
        """Whether the stock step divides the loss by the number of micro-batches."""
        trainer = self.trainer
        scaled = getattr(trainer, "loss_is_scaled_for_ga", None)
        if scaled is None:
            by_items = trainer.model_accepts_loss_kwargs and self.stock_items is not None
            scaled = by_items or trainer.compute_loss_func is not None
        return not scaled

    def _multiplier(self) -> int:
        """What the stock ``compute_loss`` multiplies a loss by that is divided by the items of all
        processes.
        """
        trainer = self.trainer
        counted = self.stock_items is not None and trainer.args.average_tokens_across_devices
        by_items = trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None
        return int(trainer.accelerator.num_processes) if counted and by_items else 1
