"""A trained model that predicts from texts: what ``advreg predict`` needs of a kind of task.

``predictor.py`` in the folder of a kind has a subclass of :class:`Predictor` named ``PREDICTOR``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch

from advreg.core.options import Checked, option

Form = Literal["txt", "csv", "jsonl"]
PREDICTION = "prediction"
"""The first column of what is predicted."""


class Text(NamedTuple):
    """A text to predict from, and the second text of a pair."""

    text: str
    pair: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to predict from."""
        return not (self.text.strip() or (self.pair or "").strip())


@dataclass(frozen=True)
class PredictorOptions(Checked):
    """Options of every kind."""

    device: str | None = option(None, "cpu or cuda; cuda if there is one")
    precision: Literal["fp32", "bf16"] = option("fp32", "floating-point precision")


class Predictor(ABC):
    """A trained model."""

    options: ClassVar[type[PredictorOptions]] = PredictorOptions
    """Options of the kind, a subclass of :class:`PredictorOptions`."""
    form: ClassVar[Form] = "csv"
    """How predictions are written unless something else is asked for."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, options: Any) -> Self:
        """The model in a folder with ``config.json`` and weights."""

    @abstractmethod
    def predict(
        self, texts: Sequence[Text], advance: Callable[[int], None]
    ) -> list[dict[str, Any]]:
        """What the model predicts, in the order of the texts, none of which is empty.

        Each prediction is a row of columns: ``prediction``, and more, the same in every row.
        ``advance`` takes how many more texts are done.
        """

    def predict_all(
        self, texts: Sequence[Text], advance: Callable[[int], None] = lambda _: None
    ) -> list[dict[str, Any]]:
        """The predictions of all texts; that of an empty text is None."""
        real = [index for index, text in enumerate(texts) if not text.is_empty]
        found: list[dict[str, Any]] = [{PREDICTION: None} for _ in texts]
        rows = self.predict([texts[index] for index in real], advance) if real else []
        for index, row in zip(real, rows, strict=True):
            found[index] = row
        return found


def usable_device(name: str | None) -> torch.device:
    """A device that can be used; by default the GPU if there is one."""
    best = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.empty(0, device=name or best).device
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        there = "cpu" if best == "cpu" else "cpu or cuda"
        what = "a CUDA device" if str(name).startswith("cuda") else "a device"
        raise ValueError(
            f"device must be {there} here, got '{name}', {what} that torch does not find; leave it "
            f"out to use {best}"
        ) from error
