"""The base class of the parts of an attachment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from advreg.hf.attach import Attachment
    from advreg.hf.counting import Tally
    from advreg.hf.view.view import HFModelView
    from advreg.methods.base import Method


@dataclass(eq=False)
class Component:
    """A part of an :class:`~advreg.hf.attach.Attachment`.

    Its methods named in ``hooks`` replace the trainer's methods of the same name, which stay
    available as ``self.own.NAME``.

    Args:
        attached: the attachment it belongs to.
    """

    hooks: ClassVar[tuple[str, ...]] = ()

    attached: Attachment
    trainer: Any = field(init=False)
    own: SimpleNamespace = field(init=False)

    def __post_init__(self) -> None:
        self.trainer, self.own = self.attached.trainer, self.attached.own

    @property
    def method(self) -> Method:
        return self.attached.method

    @property
    def view(self) -> HFModelView:
        return self.attached.view

    @property
    def tally(self) -> Tally:
        return self.attached.tally


def is_stock(method: Callable[..., object]) -> bool:
    """Whether a method of a trainer is transformers' own and not an override.

    Example:
        >>> from transformers import Trainer
        >>> is_stock(Trainer.train), is_stock(lambda: None)
        (True, False)
    """
    return str(getattr(method, "__module__", "")).startswith("transformers.")
