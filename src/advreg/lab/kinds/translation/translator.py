"""A translation model with its subwords and its decoding."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from advreg.lab.kinds.models import ModelError, load_any
from advreg.lab.kinds.predictor import usable_device
from advreg.lab.kinds.translation.decoding import Decoding, decode, generation
from advreg.lab.kinds.translation.subwords import SubwordError, Subwords, translator_folder

_DECODING = "decoding.json"


class Translator:
    """A trained model, its subwords and its decoding settings.

    Args:
        model: an encoder–decoder.
        subwords: of both languages.
        decoding: beam size and length penalty, unless others are asked for.
    """

    def __init__(self, model: Any, subwords: Subwords, decoding: Decoding) -> None:
        self.model, self.subwords, self.decoding = model, subwords, decoding

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], device: str | None = None, dropout: float | None = None
    ) -> Translator:
        """Load a model folder that :meth:`save` wrote, with the subwords in it.

        Args:
            folder: of the model, or of the run that made it.
            device: by default the GPU if there is one.
            dropout: of a further training, instead of the model's own.
        """
        place, folder = usable_device(device), Path(folder)
        if not folder.is_dir():
            raise ModelError(
                f"model must be the model folder of a translation run, got '{folder}', "
                f"{'a file' if folder.exists() else 'which does not exist'}"
            )
        folder = translator_folder(folder)
        subwords = Subwords.load(folder)
        model = load_any(str(folder), settings={} if dropout is None else {"dropout": dropout})
        sizes = len(subwords.source), len(subwords.target)
        config = model.config
        wanted = config.vocab_size, getattr(config, "decoder_vocab_size", None) or config.vocab_size
        if sizes != wanted:
            raise SubwordError(
                f"'{folder}': subwords must be {wanted[0]} and {wanted[1]}, got {sizes[0]} and "
                f"{sizes[1]}"
            )
        model.to(place)
        return cls(model.eval(), subwords, _read_decoding(folder / _DECODING))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write model, subwords and decoding settings; with a tokenizer and a generation config for
        transformers.
        """
        folder, positions = Path(folder), positions_of(self.model)
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)
        generation(self.model.config, self.decoding, positions).save_pretrained(folder)
        self.subwords.save(folder, positions)
        fresh = folder / f"{_DECODING}.new"
        fresh.write_text(json.dumps(asdict(self.decoding)), encoding="utf-8")
        os.replace(fresh, folder / _DECODING)

    def translate(
        self,
        lines: Sequence[str],
        decoding: Decoding | None = None,
        max_tokens: int | None = None,
        precision: str = "fp32",
        advance: Callable[[int], None] | None = None,
    ) -> list[str]:
        """The translation of each line, in their order; an empty line stays empty.

        A line that is longer than the model's positions is truncated.
        """
        real = [index for index, line in enumerate(lines) if line.strip()]
        sources = cut(
            self.subwords.source.encode([lines[index] for index in real]), positions_of(self.model)
        )
        rows = decode(
            self.model, sources, decoding or self.decoding, max_tokens, precision, advance
        )
        found = [""] * len(lines)
        for index, text in zip(real, self.subwords.target.decode(rows), strict=True):
            found[index] = text
        return found


def _read_decoding(path: Path) -> Decoding:
    if not path.is_file():
        return Decoding()
    try:
        return Decoding(**json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"{path}: must hold settings of the decoding, got: {error}; delete it to use others"
        ) from error


def positions_of(model: Any) -> int:
    """Tokens either side may have."""
    return int(model.config.max_position_embeddings)


def cut(rows: Sequence[list[int]], most: int) -> list[list[int]]:
    """Rows of at most ``most`` ids; a longer one keeps its beginning and its end."""
    return [row if len(row) <= most else [*row[: most - 1], row[-1]] for row in rows]
