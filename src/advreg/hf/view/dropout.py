"""Whether a model has active dropout, so that two passes over one batch differ."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

_OF_WHOLE_LAYERS = (
    "layerdrop",
    "layer_drop",
)  # one draw per pass: both copies of a fused pass lose the same layer


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
