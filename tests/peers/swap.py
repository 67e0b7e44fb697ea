"""The trainers of the libraries, replaced by advreg's."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from advreg import create
from advreg.hf.trainer import AdversarialMixin, AdversarialSeq2SeqTrainer, AdversarialTrainer


def swap(suite: str, method: str) -> None:
    """Replace a library's trainers by ones that train with a method unless the test gives
    another.
    """
    package = importlib.import_module(suite)
    if suite == "transformers":
        _replace(package, package.Trainer, (AdversarialTrainer,), method)
        _replace(package, package.Seq2SeqTrainer, (AdversarialSeq2SeqTrainer,), method)
    else:
        _replace(package, package.SFTTrainer, (AdversarialMixin, package.SFTTrainer), method)


def _replace(package: Any, stock: type, bases: tuple[type, ...], method: str) -> None:
    """Put the swapped trainer wherever the package has the stock one by name."""
    swapped = _with_method(stock, bases, method)
    setattr(package, stock.__name__, swapped)
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == package.__name__ and vars(module).get(stock.__name__) is stock:
            setattr(module, stock.__name__, swapped)


def _with_method(stock: type, bases: tuple[type, ...], method: str) -> type:
    """A trainer whose ``method`` has a default. It is named like the stock one, whose name the
    tests may ask for.
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        kwargs.setdefault("method", create(method))
        super(swapped, self).__init__(*args, **kwargs)

    body = {"__init__": __init__, "__module__": stock.__module__}
    swapped = type(stock.__name__, bases, body)
    return swapped
