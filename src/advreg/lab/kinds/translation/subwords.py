"""Subwords by sentencepiece: pieces learnt from the training text, and kept with the model.

A folder holds them as a ``MarianTokenizer`` of transformers does, which can be loaded from it:
sentencepiece's own ``source.spm`` and ``target.spm``, and the ids of the pieces in ``vocab.json``;
a separate target vocabulary is in ``target_vocab.json``. Ids are as in fairseq's
dictionaries: 0 begin, 1 padding, 2 end, 3 unknown.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

BEGIN, PADDING, END, UNKNOWN = 0, 1, 2, 3
SPECIAL: Mapping[str, int] = {"bos": BEGIN, "pad": PADDING, "eos": END}

Kind = Literal["bpe", "unigram"]

_SOURCE, _TARGET, _IDS, _TARGET_IDS = "source.spm", "target.spm", "vocab.json", "target_vocab.json"
_TOKENIZER, _CONFIG = "tokenizer_config.json", "config.json"


class SubwordError(ValueError):
    """Subwords cannot be learnt or loaded; the text names what is wrong and the remedy."""


class Pieces:
    """The subwords of one vocabulary.

    Args:
        proto: the content of a file of sentencepiece.
    """

    def __init__(self, proto: bytes) -> None:
        self.proto = proto
        try:
            self._processor = _sentencepiece().SentencePieceProcessor(model_proto=proto)
        except RuntimeError as error:
            raise SubwordError(f"not a model of sentencepiece: {error}") from error
        found = tuple(
            getattr(self._processor, name)() for name in ("bos_id", "pad_id", "eos_id", "unk_id")
        )
        if found != (BEGIN, PADDING, END, UNKNOWN):
            raise SubwordError(
                f"ids of begin, padding, end and unknown must be {BEGIN}, {PADDING}, {END}, "
                f"{UNKNOWN}, got "
                f"{', '.join(map(str, found))}; learn the subwords with advreg"
            )

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, with the end at the end."""
        return [[*ids, END] for ids in self._processor.encode(list(texts), num_threads=1)]

    def decode(self, rows: Iterable[Sequence[int]]) -> list[str]:
        """The text of each row of ids, up to its end; special tokens leave no trace."""
        return [str(self._processor.decode(list(_inner(row)))) for row in rows]

    def names(self, ids: Iterable[int]) -> list[str]:
        """The subword of each id, special ones too."""
        return [str(self._processor.id_to_piece(int(number))) for number in ids]

    def ids(self) -> dict[str, int]:
        """The id of each subword."""
        return {name: number for number, name in enumerate(self.names(range(len(self))))}


def _inner(row: Sequence[int]) -> Iterable[int]:
    """What a row says: neither begin nor padding, and nothing after the first end."""
    for number in row:
        if number == END:
            return
        if number not in (BEGIN, PADDING):
            yield int(number)


@dataclass(frozen=True)
class Subwords:
    """The subwords of both languages; one object in both fields if they share a vocabulary."""

    source: Pieces
    target: Pieces

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.source.proto + self.target.proto).hexdigest()

    def save(self, folder: Path, positions: int | None = None) -> None:
        """Write the files of a MarianTokenizer; each file is written atomically.

        Args:
            folder: created if it does not exist.
            positions: the maximum number of tokens of the model.
        """
        folder.mkdir(parents=True, exist_ok=True)
        config = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not self.joint}
        files = {
            _SOURCE: self.source.proto,
            _TARGET: self.target.proto,
            _IDS: _json(self.source.ids()),
            **({} if self.joint else {_TARGET_IDS: _json(self.target.ids())}),
            _TOKENIZER: _json(
                config if positions is None else {**config, "model_max_length": positions}
            ),
        }
        for name, content in files.items():
            fresh = folder / f"{name}.new"
            fresh.write_bytes(content)
            os.replace(fresh, folder / name)

    @classmethod
    def load(cls, folder: Path) -> Subwords:
        """What :meth:`save` wrote."""
        missing = [name for name in (_SOURCE, _TARGET, _IDS) if not (folder / name).is_file()]
        if missing:
            raise SubwordError(
                f"'{folder}' must hold {', '.join(missing)}, the subwords of a translation run; "
                "give its model folder"
            )
        source = _read(folder / _SOURCE)
        return cls(source, _read(folder / _TARGET) if (folder / _TARGET_IDS).is_file() else source)


def translator_folder(folder: Path) -> Path:
    """The folder of a translator: the given folder, or ``model`` in the folder of a run."""
    is_run = not (folder / _CONFIG).is_file() and (folder / "model" / _CONFIG).is_file()
    return folder / "model" if is_run else folder


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def _read(path: Path) -> Pieces:
    try:
        return Pieces(path.read_bytes())
    except SubwordError as error:
        raise SubwordError(f"{path}: {error}") from error


def learn_subwords(
    source: Sequence[str],
    target: Sequence[str],
    size: int,
    joint: bool = True,
    kind: Kind = "bpe",
    coverage: float = 1.0,
) -> Subwords:
    """Learn subwords from the two sides of the training text; the same text gives the same pieces
    and ids.

    Args:
        source, target: lines of text.
        size: of the vocabulary, or of each of the two.
        joint: whether both languages share a vocabulary.
        kind: sentencepiece's model type.
        coverage: share of the characters, by occurrence, that get a piece; the others become
            unknown.
    """
    if not 0 < coverage <= 1:
        raise SubwordError(f"character coverage must be above 0 and at most 1, got {coverage}")
    if not joint:
        return Subwords(_learn(source, size, kind, coverage), _learn(target, size, kind, coverage))
    both = _learn([*source, *target], size, kind, coverage)
    return Subwords(both, both)


def _learn(texts: Sequence[str], size: int, kind: Kind, coverage: float) -> Pieces:
    written = io.BytesIO()
    try:
        _sentencepiece().SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=written,
            vocab_size=size,
            model_type=kind,
            character_coverage=coverage,
            # scores need the original text, without NFKC normalisation
            normalization_rule_name="identity",
            bos_id=BEGIN,
            pad_id=PADDING,
            eos_id=END,
            unk_id=UNKNOWN,
            num_threads=1,  # sums in another order would be other pieces
            max_sentence_length=2**20,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        # after "INTERNAL: its file(line) [the condition] "
        told = (
            str(error).strip().splitlines()[-1].rpartition("] ")[2]
            if str(error).strip()
            else type(error).__name__
        )
        raise SubwordError(
            f"vocabulary must fit the training text, got {size} for {len(texts)} lines "
            f"(sentencepiece: {told}); "
            "choose another --vocabulary"
        ) from error
    return Pieces(written.getvalue())


def _sentencepiece() -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise SubwordError(
            "translation needs the package sentencepiece; install advreg[mt]"
        ) from error
    return sentencepiece
