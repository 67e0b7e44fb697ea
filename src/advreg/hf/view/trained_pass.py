"""The pass that a loss function makes through the model: doubled, perturbed and recorded."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from advreg.hf.guards.capability import refusal
from advreg.hf.patches.fused_head import FUSED_HEAD, SKIP_LOGITS, fused_head_output
from advreg.hf.replaced import replaced
from advreg.hf.view.calls import Forward
from advreg.hf.view.doubling import first_half, rows_of
from advreg.hf.view.inputs import ITEMS, ModelInputs
from advreg.hf.view.streams import Delta
from advreg.methods.base import Batch

if TYPE_CHECKING:
    from advreg.hf.view.view import HFModelView

# nn.Module.__call__ prefers this attribute to the forward pass and its hooks
_CALL = "_compiled_call_impl"


class TrainedPass:
    """One call of a loss function, and the one pass through the model that it makes.

    The loss function sees only the clean copy: its inputs before the pass, its half of the output
    after it. Where the head is known, the labels do not enter the forward pass, which would compute
    the loss of both copies; the loss is computed from the clean logits and put into the output.

    Args:
        view: the model.
        batch: the batch.
        delta: added to the embeddings of the pass, or of the second copy.
        doubled: whether clean and perturbed copies go in one pass, if the loss stays exact.
        both_losses: whether the inputs hold both copies already, and the loss covers both.
        needs_logits: whether predictions are needed; otherwise TRL's fused head stays in place.
    """

    loss: Tensor

    def __init__(
        self,
        view: HFModelView,
        batch: Batch,
        delta: Delta,
        doubled: bool,
        both_losses: bool,
        needs_logits: bool,
    ) -> None:
        self._view, self._batch, self._delta = view, batch, delta
        self._doubled, self._both_losses, self._needs_logits = doubled, both_losses, needs_logits
        self._grad = torch.is_grad_enabled()
        self._is_made = False
        self._clean: Tensor | None = None
        self.perturbed: Tensor | None = None

    def make(self, model: nn.Module, inputs: ModelInputs) -> None:
        """Call the loss function, with this pass in the place of the model's call."""
        forward = vars(model).get(_CALL) or model._call_impl
        with replaced(vars(model), _CALL, partial(self._call, forward)):
            self.loss = self._view.compute_loss(model, inputs, self._batch, 1 + self._both_losses)
        if not self._is_made:
            raise refusal(
                "predictions",
                "compute_loss does not call the model it is given",
                "call model(**inputs) in it",
            )

    def logits(self) -> Tensor:
        """The clean prediction."""
        if self._clean is None:
            name = type(self._view.core).__name__
            raise refusal("predictions", f"the output of {name} has no `logits`")
        return self._clean

    def _call(self, forward: Forward, *args: object, **kwargs: Any) -> Any:
        if self._is_made or torch.is_grad_enabled() != self._grad:
            return forward(*args, **kwargs)  # another pass, such as one for metrics
        self._is_made = True
        view = self._view
        head = view.prediction_head
        inputs: ModelInputs = dict(zip(view.inputs.parameters, args, strict=False)) | kwargs
        has_fused_head = self._needs_logits and bool(inputs.pop(FUSED_HEAD, False))
        labels, items = inputs.get("labels"), inputs.get(ITEMS)
        keeps_labels = (
            labels is not None
            and not has_fused_head
            and (FUSED_HEAD in inputs or not head.computes(labels))
        )
        if not keeps_labels:
            read = self._batch.get("labels") if labels is None else labels
            inputs = view.inputs.without_labels(inputs, read)
        elif self._needs_logits and SKIP_LOGITS in view.inputs.parameters:
            inputs[SKIP_LOGITS] = False
        if self._doubled:
            inputs = self._double(inputs, keeps_labels)
        view.modes.begin_pass()
        delta = self._delta
        if delta is not None and (self._doubled or self._both_losses):
            delta = delta.above_zeros()
        with view.streams.adding(delta, self._batch):
            output = forward(**inputs)
        output = self._seen(output, inputs)
        if keeps_labels or labels is None:
            return output
        logits = output.logits if self._both_losses else self.logits()
        if has_fused_head:
            return fused_head_output(logits, labels, head, output)
        loss = head.loss(logits, labels, items if view.inputs.takes_items else None)
        return type(output)(**{**output, "loss": loss})

    def _double(self, inputs: ModelInputs, keeps_labels: bool) -> ModelInputs:
        doubled = self._view.fusing.doubled(inputs, keeps_labels)
        if doubled is None:
            self._doubled, self._delta = False, None
            return inputs
        return doubled

    def _seen(self, output: Any, inputs: Batch) -> Any:
        """The output that the loss function sees, of one copy if the pass doubled the inputs."""
        logits = getattr(output, "logits", None)
        if isinstance(logits, Tensor):
            has_copies = self._doubled or self._both_losses
            self._clean, self.perturbed = logits.chunk(2) if has_copies else (logits, None)
        if self._doubled:
            output = first_half(output, rows_of(inputs))
            output.logits = self._clean  # the same tensor
        return output


def prediction_of(output: object) -> Tensor:
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
