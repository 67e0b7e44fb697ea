"""Dropout and random numbers of the passes over a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from advreg.hf.guards.randomness import kept_randomness, random_states, set_random_states
from advreg.hf.replaced import replaced
from advreg.methods.base import Dropout

# LayerDrop draws once per pass, so both copies of a fused pass lose the same layers.
_OF_WHOLE_LAYERS = ("layerdrop", "layer_drop")


class DropoutModes:
    """What the passes of a step drop: new values in each pass, the same ones, or nothing.

    Args:
        model: the model, neither compiled as a whole nor wrapped.
        context: entered around every pass.
    """

    def __init__(
        self, model: nn.Module, context: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._model, self._context = model, context
        self._shared: list[Tensor] | None = None  # random state at the start of each pass

    def mode(self, mode: Dropout) -> AbstractContextManager[None]:
        """Within, passes have ``fresh`` masks, the ``shared`` masks of the first, or dropout
        ``off``.
        """
        if mode == "off":
            return self.evaluating()
        is_shared = mode == "shared"
        return replaced(vars(self), "_shared", random_states()) if is_shared else nullcontext()

    def begin_pass(self) -> None:
        """Start from the random state of the first pass where masks are shared."""
        if self._shared is not None:
            set_random_states(self._shared)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within, dropout is off; afterwards each module has its ``training`` flag back."""
        flags = {module: module.training for module in self._model.modules()}
        self._model.eval()
        try:
            yield
        finally:
            for module, training in flags.items():
                module.training = training

    @contextmanager
    def without_trace(self) -> Iterator[None]:
        """Within, passes have no dropout and no gradients; afterwards the random state is
        restored.
        """
        with torch.no_grad(), kept_randomness(), self.evaluating(), self._context():
            yield


def has_dropout(model: nn.Module, active: bool = True) -> bool:
    """Whether a module drops values with a probability above 0, in training mode if ``active``."""
    return any(
        probability > 0
        for module in model.modules()
        if module.training or not active
        for probability in _drops(module)
    )


def _drops(module: nn.Module) -> Iterator[float]:
    """Dropout probabilities of a module.

    A dropout layer has ``p``. Models of transformers that call ``F.dropout`` hold the probability
    under a name such as ``dropout``, ``attention_dropout`` or ``dropout_prob``.
    """
    is_layer = "drop" in type(module).__name__.lower()
    for name, value in vars(module).items():
        is_named = "drop" in name and not name.startswith(_OF_WHOLE_LAYERS)
        if isinstance(value, float) and (is_named or (is_layer and name == "p")):
            yield value
