"""Parallel text: two files of lines, aligned; read, checked and filtered.

A split is two UTF-8 files with one sentence per line, ``train.en`` and ``train.de``, plain or as
``.gz`` or ``.xz``.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from advreg.lab.kinds.sources import DataError, held_out_details, read_text

_SUFFIXES = ("", ".gz", ".xz")
TRAIN, VALID, TEST = "train", "valid", "test"
TRANSLATION = "translation"  # the task of the user's text


@dataclass(frozen=True, slots=True)
class Bitext:
    """Aligned sentences; ``dropped`` pairs had an empty side and were left out."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.source)

    def take(self, indices: Sequence[int]) -> Bitext:
        """Some of the pairs."""
        return Bitext(
            tuple(self.source[index] for index in indices),
            tuple(self.target[index] for index in indices),
        )


@dataclass(frozen=True)
class ParallelData:
    """A corpus for one direction.

    Args:
        name: of the task.
        languages: of source and target, by the names given.
        splits: ``train``, ``valid``, and the sets that are scored at the end.
        tokenised: whether spaces separate all words and signs.
        notes: notices for the user.
        details: fields for the record.
    """

    name: str
    languages: tuple[str, str]
    splits: Mapping[str, Bitext]
    tokenised: bool = False
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def tests(self) -> dict[str, Bitext]:
        """The test sets, or the validation set if there are none."""
        found = {name: text for name, text in self.splits.items() if name not in (TRAIN, VALID)}
        return found or {VALID: self.splits[VALID]}

    def held_out(self, share: float, seed: int, rows: int | None = None) -> ParallelData:
        """A task within the training text, to tune on without a look at the other sets.

        ``share`` of its pairs, but no more than the validation set has, or this many ``rows``,
        become the new validation set, by which a run is then judged too. Both parts keep their
        order and depend on ``seed`` alone.
        """
        train = self.splits[TRAIN]
        usual = min(round(share * len(train)), len(self.splits[VALID]))
        count = usual if rows is None else rows
        if not 0 < count < len(train):
            asked = f"share must hold at least one pair out and leave one, got {share}"
            if rows is not None:
                asked = f"rows must be at least 1 and leave one pair, got {rows}"
            raise DataError(f"{self.name}: {asked} of {len(train)} training pairs; add pairs")
        held = set(random.Random(seed).sample(range(len(train)), count))
        kept = [index for index in range(len(train)) if index not in held]
        return replace(
            self,
            splits={TRAIN: train.take(kept), VALID: train.take(sorted(held))},
            details={**self.details, "held_out": held_out_details(share, seed, rows, len(train))},
        )

    def swapped(self) -> ParallelData:
        """The same with the text to train and to validate on exchanged: the other fold."""
        exchanged = {TRAIN: self.splits[VALID], VALID: self.splits[TRAIN]}
        return replace(self, splits={**self.splits, **exchanged})

    def fingerprint(self) -> str:
        """SHA-256 of all sentences in order."""
        digest = hashlib.sha256()
        for name, text in sorted(self.splits.items()):
            digest.update(f"{name}\0{len(text)}\0".encode())
            for line in (*text.source, *text.target):
                digest.update(line.encode() + b"\n")
        return digest.hexdigest()


# ---- reading


def read_lines(path: Path, flag: str = "") -> list[str]:
    """The lines of a text file; only a line feed ends one, no other separator. ``flag`` is what the
    file was given by.
    """
    lines = read_text(path, flag).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def read_bitext(source: Path, target: Path, flags: tuple[str, str] = ("", "")) -> Bitext:
    """Two aligned files, given by these flags if any; pairs with an empty side are dropped and
    counted.
    """
    ones, others = read_lines(source, flags[0]), read_lines(target, flags[1])
    if len(ones) != len(others):
        raise DataError(
            f"source and target must have the same number of lines, got {len(ones)} in {source} "
            f"and {len(others)} in {target}; "
            "they must be aligned line by line"
        )
    return whole_pairs(ones, others, f"{source}, {target}")


def whole_pairs(source: Sequence[str], target: Sequence[str], place: str) -> Bitext:
    """The pairs that have two sides; ``place`` is where they come from."""
    kept = [
        (one, other)
        for one, other in zip(source, target, strict=True)
        if one.strip() and other.strip()
    ]
    if not kept:
        raise DataError(
            f"{place}: must hold at least one pair of sentences, got {len(source)} empty ones"
        )
    return Bitext(
        tuple(one for one, _ in kept), tuple(other for _, other in kept), len(source) - len(kept)
    )


def read_folder(folder: Path, source: str, target: str) -> dict[str, Bitext]:
    """Every split of a folder that has both languages; ``train`` and ``valid`` must be there."""
    if not folder.is_dir():
        raise DataError(
            f"{folder}: must be a folder with {TRAIN}.{source} and {TRAIN}.{target}, got none"
        )
    sides = [_sides(folder, language) for language in (source, target)]
    found = {
        name: read_bitext(sides[0][name], sides[1][name])
        for name in sorted(sides[0].keys() & sides[1].keys(), key=_rank)
    }
    for name in (TRAIN, VALID):
        if name not in found:
            files = sorted(path.name for path in folder.iterdir())[:8]
            raise DataError(
                f"{folder}: must hold {name}.{source} and {name}.{target} (also .gz or .xz), got "
                f"{', '.join(files) or 'nothing'}"
            )
    return found


def _sides(folder: Path, language: str) -> dict[str, Path]:
    """The files of a language by split; of several forms of a file the plain one."""
    return {
        path.name.removesuffix(ending): path
        for suffix in reversed(_SUFFIXES)
        for ending in (f".{language}{suffix}",)
        for path in folder.iterdir()
        if path.name.endswith(ending) and path.is_file()
    }


def _rank(split: str) -> tuple[int, str]:
    """The order of splits: train, valid, test, then the others by name."""
    first = (TRAIN, VALID, TEST)
    return first.index(split) if split in first else len(first), split


def load_files(
    paths: Mapping[str, tuple[str, str]], languages: tuple[str, str], tokenised: bool
) -> ParallelData:
    """Splits from pairs of files, by the name of the split: what ``--train-source`` and
    ``--train-target`` name.
    """
    splits = {
        name: read_bitext(Path(source), Path(target), (f"--{name}-source", f"--{name}-target"))
        for name, (source, target) in paths.items()
    }
    return ParallelData(_corpus_name(Path(paths[TRAIN][0])), languages, splits, tokenised)


def _corpus_name(source: Path) -> str:
    """The corpus a training file is of: news of ``news.train.en``, ``news.en`` and
    ``news/train.en``.
    """
    first = source.name.split(".")[0]
    return first if first != TRAIN else source.absolute().parent.name or TRANSLATION


# ---- filtering


@dataclass(frozen=True)
class Kept:
    """The kept training pairs, and the number of excluded ones by reason."""

    indices: list[int]
    too_long: int
    too_unlike: int

    def note(self, longest: int, ratio: float) -> str | None:
        """What a user should know."""
        if not self.too_long and not self.too_unlike:
            return None
        total = len(self.indices) + self.too_long + self.too_unlike
        return (
            f"{len(self.indices):,} of {total:,} training pairs kept: {self.too_long:,} longer "
            f"than {longest} "
            f"subwords, {self.too_unlike:,} with one side more than {ratio:g} times as long as the "
            "other"
        )


def filter_pairs(source: Sequence[int], target: Sequence[int], longest: int, ratio: float) -> Kept:
    """Keep pairs with 1 to ``longest`` subwords on either side whose lengths are alike.

    Args:
        source, target: subwords of each sentence, the end not counted.
        longest: maximum subwords.
        ratio: maximum ratio of the lengths of the two sides.
    """
    indices, too_long, too_unlike = [], 0, 0
    for index, (one, other) in enumerate(zip(source, target, strict=True)):
        if min(one, other) < 1 or max(one, other) > longest:
            too_long += 1
        elif max(one, other) > ratio * min(one, other):
            too_unlike += 1
        else:
            indices.append(index)
    if not indices:
        raise DataError(
            f"no training pair of {len(source)} is left: {too_long} are longer than {longest} "
            f"subwords, {too_unlike} "
            f"have sides whose lengths differ by more than {ratio:g}; raise --longest or "
            "--max-ratio"
        )
    return Kept(indices, too_long, too_unlike)
