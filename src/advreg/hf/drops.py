"""Whether a model drops anything at random as it is trained, so that two passes over one batch differ."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

_OF_WHOLE_LAYERS = ("layerdrop", "layer_drop")  # one draw for a batch: both copies of a fused pass lose the same layer


def has_dropout(model: nn.Module) -> bool:
    """Is a part of the model in training mode and its probability of dropping a value above 0?"""
    return any(probability > 0 for module in model.modules() if module.training for probability in _drops(module))


def _drops(module: nn.Module) -> Iterator[float]:
    """The probabilities that a module has: as a dropout layer, or by the names under which models of transformers keep
    what they hand to ``F.dropout`` (``dropout``, ``attention_dropout``, ``dropout_prob``)."""
    is_layer = "drop" in type(module).__name__.lower()
    for name, value in vars(module).items():
        is_named = "drop" in name and not name.startswith(_OF_WHOLE_LAYERS)
        if isinstance(value, float) and (is_named or (is_layer and name == "p")):
            yield value
