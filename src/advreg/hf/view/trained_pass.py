"""The pass that a loss function makes through the model: perturbed, doubled and recorded by hooks
around the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from advreg.core.perturbation import Cut, Perturbation
from advreg.hf.guards.capability import refusal
from advreg.hf.patches.fused_head import FUSED_HEAD, fused_head_output
from advreg.hf.view.doubling import first_half, rows_of, twice
from advreg.methods.base import Batch

if TYPE_CHECKING:
    from advreg.hf.view.view import HFModelView

ITEMS = "num_items_in_batch"

Before = Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


class TrainedPass:
    """One call of a loss function, and the one pass through the model that it makes.

    The loss function sees the clean copy alone: its inputs before the pass, its half of the output
    after it. Where the head is known, the labels do not enter the forward pass, which would compute
    the loss of both copies; its loss is computed from the clean logits and put into the output.

    Args:
        task: the model.
        batch: the batch.
        delta: added to the embeddings of the pass, or of the second copy of a doubled one.
        doubled: whether clean and perturbed copies go in one pass, if the loss stays exact.
        both_losses: whether the batch holds both copies already, and the loss is of both.
        needs_logits: whether the predictions are asked for; without them, TRL's fused head stays in
            place.
    """

    def __init__(
        self,
        task: HFModelView,
        batch: Batch,
        delta: Perturbation | Cut | None = None,
        doubled: bool = False,
        both_losses: bool = False,
        needs_logits: bool = True,
    ) -> None:
        self._task, self._batch, self._delta, self._doubled = task, batch, delta, doubled
        self._both_losses, self._needs_logits = both_losses, needs_logits
        self._grad = torch.is_grad_enabled()
        self._inside = ExitStack()
        self._is_made = self._is_inside = False
        self._labels: Tensor | None = None  # kept out of the pass
        self._items: Any = None
        self._rows = 0
        self._has_fused_head = False
        self.loss: Tensor
        self.clean: Tensor | None = None
        self.perturbed: Tensor | None = None

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Within, the first pass through the model is this one."""
        with self._inside, around_calls(model, self._before, self._after):
            yield

    def require_made(self) -> None:
        if not self._is_made:
            raise refusal(
                "predictions",
                "compute_loss does not call the model it is given",
                "call model(**inputs) in it",
            )

    def logits(self) -> Tensor:
        """The clean prediction."""
        if self.clean is None:
            raise refusal(
                "predictions", f"the output of {type(self._task.core).__name__} has no `logits`"
            )
        return self.clean

    # ---- the hooks

    def _before(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._is_made or torch.is_grad_enabled() != self._grad:
            return args, kwargs  # another pass, such as one for metrics
        self._is_made = self._is_inside = True
        inputs = {**self._named(args), **kwargs}
        self._has_fused_head = self._needs_logits and bool(inputs.pop(FUSED_HEAD, False))
        keeps_labels = self._keeps_labels(inputs)
        if not keeps_labels:
            inputs = self._without_labels(inputs)
        if self._doubled and not self._task.may_double(inputs, keeps_labels):
            self._doubled, self._delta = False, None
        if self._doubled:
            self._task.has_fused = True
            self._rows = 2 * rows_of(inputs)
            inputs = twice(inputs)
        self._task.reset_masks()
        has_copies = self._doubled or self._both_losses
        delta = self._delta.above_zeros() if has_copies and self._delta is not None else self._delta
        self._inside.enter_context(self._task.adding(delta))
        return (), inputs

    def _keeps_labels(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the model computes the loss of this pass by itself."""
        labels = inputs.get("labels")
        if labels is None or self._has_fused_head:
            return False
        return FUSED_HEAD in inputs or not self._task.prediction_head.computes(labels)

    def _after(self, output: Any) -> Any:
        if not self._is_inside:
            return output
        self._is_inside = False
        self._inside.close()
        logits = getattr(output, "logits", None)
        if isinstance(logits, Tensor):
            has_copies = self._doubled or self._both_losses
            self.clean, self.perturbed = logits.chunk(2) if has_copies else (logits, None)
        if self._doubled:
            output = first_half(output, self._rows)
            output.logits = self.clean  # the same tensor
        if self._labels is None:
            return output
        head = self._task.prediction_head
        seen: Tensor = self.logits() if self._doubled else output.logits
        if self._has_fused_head:
            return fused_head_output(seen, self._labels, head, output)
        loss = head.loss(seen, self._labels, self._items)
        return type(output)(**{**output, "loss": loss})

    def _without_labels(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the forward pass takes without its labels."""
        self._labels, self._items = inputs.pop("labels", None), inputs.pop(ITEMS, None)
        if self._items is not None and not self._task.takes_items:
            self._items = None
        targets = {} if self._labels is None else {"labels": self._labels}
        return self._task.inputs({**self._batch, **targets, **inputs}, inputs)

    def _named(self, args: tuple[Any, ...]) -> dict[str, Any]:
        """Arguments given by position."""
        names = list(inspect.signature(self._task.core.forward).parameters) if args else ()
        return dict(zip(names, args, strict=False))


@contextmanager
def around_calls(model: nn.Module, before: Before, after: Callable[[Any], Any]) -> Iterator[None]:
    """Within, what goes into the model and what comes out of it passes through two functions.

    They run outside compiled graphs: hooks of a module that is compiled in place would be traced.
    """
    compiled = vars(model).get("_compiled_call_impl")
    if compiled is not None:

        def call(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = before(args, kwargs)
            return after(compiled(*args, **kwargs))

        model._compiled_call_impl = call
        try:
            yield
        finally:
            model._compiled_call_impl = compiled
        return
    handles = [
        model.register_forward_pre_hook(
            lambda _, args, kwargs: before(args, kwargs), with_kwargs=True
        ),
        model.register_forward_hook(lambda _, args, output: after(output)),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def prediction_of(output: Any) -> Tensor:
    """The logits of a model's output."""
    logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model must output `logits`, got {type(output).__name__} "
            f"with {list(getattr(output, 'keys', list)())}; "
            "use a model with a classification, regression, sequence-to-sequence or "
            "language-modelling head"
        )
    return logits
