"""Parallel text: two files of lines, aligned; read, checked, and known by name.

A split is two UTF-8 files with a sentence a line, ``train.en`` and ``train.de``, plain or as ``.gz`` or ``.xz``. Known
corpora are looked for as ``mt/<corpus>/<split>.<language>.xz`` in the folder of the data (``--data`` or ADVREG_DATA).
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from advreg.methods.base import suggest
from advreg.recipes.textdata import DataError
from advreg.recipes.understanding import DATA_VARIABLE

_SUFFIXES = ("", ".gz", ".xz")
TRAIN, VALID, TEST = "train", "valid", "test"
TRANSLATION = "translation"  # the task of one's own text


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
        return Bitext(tuple(self.source[index] for index in indices), tuple(self.target[index] for index in indices))


@dataclass(frozen=True)
class ParallelData:
    """A corpus for one direction.

    Args:
        name: of the task.
        languages: of source and target, as they were named.
        splits: ``train``, ``valid``, and the sets that are scored at the end.
        tokenised: are there spaces between all words and signs?
        notes: what a user should be told.
        details: what the record should say.
    """

    name: str
    languages: tuple[str, str]
    splits: Mapping[str, Bitext]
    tokenised: bool = False
    notes: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def tests(self) -> dict[str, Bitext]:
        """What is scored at the end; the validation set where there is no other."""
        found = {name: text for name, text in self.splits.items() if name not in (TRAIN, VALID)}
        return found or {VALID: self.splits[VALID]}

    def held_out(self, share: float, seed: int) -> ParallelData:
        """A task within the training text, to tune on without a look at the other sets.

        ``share`` of its pairs, but no more than the validation set has, become the new validation set, by which a run
        is then judged too. Both parts keep their order and depend on ``seed`` alone.
        """
        train = self.splits[TRAIN]
        count = min(round(share * len(train)), len(self.splits[VALID]))
        if not 0 < count < len(train):
            raise DataError(
                f"{self.name}: share must hold at least one pair out and leave one, got {share} of {len(train)} "
                "training pairs; add pairs"
            )
        held = set(random.Random(seed).sample(range(len(train)), count))
        kept = [index for index in range(len(train)) if index not in held]
        return replace(
            self,
            splits={TRAIN: train.take(kept), VALID: train.take(sorted(held))},
            details={**self.details, "held_out": {"share": share, "seed": seed, "of": len(train)}},
        )

    def fingerprint(self) -> str:
        """SHA-256 of all sentences in order."""
        digest = hashlib.sha256()
        for name, text in sorted(self.splits.items()):
            digest.update(f"{name}\0{len(text)}\0".encode())
            for line in (*text.source, *text.target):
                digest.update(line.encode() + b"\n")
        return digest.hexdigest()


@dataclass(frozen=True)
class Beam:
    """Beam size and length penalty that a paper decoded a task with."""

    beam: int
    length_penalty: float


@dataclass(frozen=True)
class CorpusSpec:
    """One direction of a known corpus.

    Args:
        folders: its names under ``mt``; the first that is there is taken.
        source, target: languages.
        train: how many pairs the official training set has.
        tokenised: is its text tokenised?
        decoding: what the ARCH paper decodes it with (its table of inference settings), if it is in there.
        settings: what the paper trains it with, or what suits it: settings of ``advreg train``.
        where: how to get it.
    """

    folders: tuple[str, ...]
    source: str
    target: str
    train: int
    tokenised: bool
    decoding: Beam | None
    where: str
    settings: Mapping[str, Any]


def _both_ways(
    name: str,
    folders: tuple[str, ...],
    languages: tuple[str, str],
    train: int,
    decodings: tuple[Beam | None, Beam | None],
    where: str,
    settings: Mapping[str, Any],
    tokenised: bool = False,
) -> dict[str, CorpusSpec]:
    ways = (languages, languages[::-1])
    return {
        f"{name}-{source}-{target}": CorpusSpec(folders, source, target, train, tokenised, decoding, where, settings)
        for (source, target), decoding in zip(ways, decodings, strict=True)
    }


_IWSLT = "the TED talks of the International Conference on Spoken Language Translation (wit3.fbk.eu)"
_MULTI30K = "github.com/multi30k/dataset, task 1, raw"
_BASE = {"model": "transformer-base", "update_tokens": 64_000}
_NARROW = {"model": "transformer-iwslt", "update_tokens": 64_000}
_CAPTIONS = {"model": "transformer-iwslt", "max_tokens": 4096, "update_tokens": 4096, "learning_rate": 5e-4}

CORPORA: dict[str, CorpusSpec] = {
    **_both_ways(
        "iwslt15", ("iwslt15_en-vi",), ("en", "vi"), 133_166, (Beam(10, 1.0), Beam(15, 0.3)),
        "Stanford's release, nlp.stanford.edu/projects/nmt: train, tst2012 as valid, tst2013 as test", _BASE,
        tokenised=True,
    ),
    **_both_ways(
        "iwslt14", ("iwslt14_de-en", "iwslt14_de-en_small"), ("de", "en"), 160_239, (Beam(9, 1.5), Beam(10, 1.5)),
        f"{_IWSLT}, prepared by fairseq's examples/translation/prepare-iwslt14.sh", _NARROW,
    ),
    **_both_ways(
        "iwslt16", ("iwslt16_en-fr",), ("en", "fr"), 224_000, (Beam(10, 0.2), Beam(10, 2.0)), _IWSLT, _BASE,
    ),
    **_both_ways("multi30k", ("multi30k_en-de",), ("en", "de"), 29_000, (None, None), _MULTI30K, _CAPTIONS),
    **_both_ways("multi30k", ("multi30k_en-fr",), ("en", "fr"), 29_000, (None, None), _MULTI30K, _CAPTIONS),
    "wmt16-en-de": CorpusSpec(
        ("wmt16_en-de",), "en", "de", 4_500_966, False, Beam(4, 0.6),
        "fairseq's examples/scaling_nmt: the WMT'16 En-De training set that Google prepared, newstest2013 as valid, "
        "newstest2014 as test",
        {"model": "transformer-big", "vocabulary": 32_000, "update_tokens": 450_000, "weights": "average"},
    ),
}  # fmt: skip
"""Known corpora by task."""


# ---- reading


def read_lines(path: Path, flag: str = "") -> list[str]:
    """The lines of a text file; only a line feed ends one, whatever other separators the text holds.

    Args:
        path: of the file.
        flag: what it was given by, for an error if it is not there.
    """
    if not path.is_file():
        got = "a folder" if path.is_dir() else "nothing"
        raise DataError(f"{flag} {path}: must be a text file (also .gz or .xz), got {got}; check the path".lstrip())
    try:
        data = path.read_bytes()
        content = {".gz": gzip.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)(data)
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path}: cannot be unpacked: {error}; fetch the file again") from error
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return [decoded(line, path, number) for number, line in enumerate(lines, start=1)]


def decoded(line: bytes, path: Path | str, number: int) -> str:
    """A line's text; one that is not UTF-8 is an error that names where it came from, and its number."""
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}: must be UTF-8, got the byte {error.object[error.start]:#04x}; "
            "convert it first (iconv -t UTF-8)"
        ) from error


def read_bitext(source: Path, target: Path, flags: tuple[str, str] = ("", "")) -> Bitext:
    """Two aligned files, given by these flags if any; pairs with an empty side are dropped and counted."""
    ones, others = read_lines(source, flags[0]), read_lines(target, flags[1])
    if len(ones) != len(others):
        raise DataError(
            f"source and target must have as many lines, got {len(ones)} in {source} and {len(others)} in {target}; "
            "they must be aligned line by line"
        )
    kept = [(one, other) for one, other in zip(ones, others, strict=True) if one.strip() and other.strip()]
    if not kept:
        raise DataError(f"{source}, {target}: must hold at least one pair of sentences, got {len(ones)} empty ones")
    return Bitext(tuple(one for one, _ in kept), tuple(other for _, other in kept), len(ones) - len(kept))


def read_folder(folder: Path, source: str, target: str) -> dict[str, Bitext]:
    """Every split of a folder that has both languages; ``train`` and ``valid`` must be there."""
    if not folder.is_dir():
        raise DataError(f"{folder}: must be a folder with {TRAIN}.{source} and {TRAIN}.{target}, got none")
    names = sorted({path.name.split(f".{source}")[0] for path in folder.iterdir() if _is_side(path.name, source)})
    found = {}
    for name in names:
        sides = [_side(folder, name, language) for language in (source, target)]
        if sides[0] is not None and sides[1] is not None:
            found[name] = read_bitext(sides[0], sides[1])
    for name in (TRAIN, VALID):
        if name not in found:
            raise DataError(
                f"{folder}: must hold {name}.{source} and {name}.{target} (also .gz or .xz), got "
                f"{', '.join(sorted(path.name for path in folder.iterdir())[:8]) or 'nothing'}"
            )
    order = [TRAIN, VALID, *(name for name in (TEST,) if name in found)]
    return {name: found[name] for name in [*order, *(name for name in names if name in found and name not in order)]}


def _is_side(name: str, language: str) -> bool:
    return any(name.endswith(f".{language}{suffix}") for suffix in _SUFFIXES)


def _side(folder: Path, split: str, language: str) -> Path | None:
    paths = [folder / f"{split}.{language}{suffix}" for suffix in _SUFFIXES]
    return next((path for path in paths if path.is_file()), None)


def load_corpus(task: str, folder: Path | None = None) -> ParallelData:
    """A known corpus from ``folder`` or the one ADVREG_DATA names."""
    if task not in CORPORA:
        raise DataError(f"unknown translation task '{task}'{suggest(task, CORPORA)}; there are {', '.join(CORPORA)}")
    spec = CORPORA[task]
    place = _corpus_folder(task, spec, folder)
    splits = read_folder(place, spec.source, spec.target)
    pairs = len(splits[TRAIN]) + splits[TRAIN].dropped
    note = (
        f"{task}: a subset of the training set, {pairs:,} of {spec.train:,} pairs; not comparable with published scores"
    )
    subset = pairs < 0.98 * spec.train
    return ParallelData(
        name=task,
        languages=(spec.source, spec.target),
        splits=splits,
        tokenised=spec.tokenised,
        notes=(note,) if subset else (),
        details={"corpus": place.name, "subset": subset, "official_train": spec.train},
    )


def _corpus_folder(task: str, spec: CorpusSpec, folder: Path | None) -> Path:
    named = os.environ.get(DATA_VARIABLE) or None
    if folder is None and named is None:
        raise DataError(
            f"task '{task}' needs its files; give the folder that holds mt/{spec.folders[0]}/{TRAIN}.{spec.source}.xz "
            f"with --data or {DATA_VARIABLE}. To get them: {spec.where}"
        )
    given = Path(named or "") if folder is None else folder
    for parent in (given / "mt", given):
        for name in spec.folders:
            if (parent / name).is_dir():
                return parent / name
    raise DataError(
        f"task '{task}' is not in '{given}': there is no mt/{' and no mt/'.join(spec.folders)} with "
        f"{TRAIN}.{spec.source}.xz and {TRAIN}.{spec.target}.xz. To get it: {spec.where}"
    )


def load_files(paths: Mapping[str, tuple[str, str]], languages: tuple[str, str], tokenised: bool) -> ParallelData:
    """Splits from pairs of files, by the name of the split: what ``--train-source`` and ``--train-target`` name."""
    splits = {
        name: read_bitext(Path(source), Path(target), (f"--{name}-source", f"--{name}-target"))
        for name, (source, target) in paths.items()
    }
    return ParallelData(Path(paths[TRAIN][0]).name.split(".")[0], languages, splits, tokenised)


# ---- filtering


@dataclass(frozen=True)
class Kept:
    """Which training pairs are kept, and how many were not, by reason."""

    indices: list[int]
    too_long: int
    too_unlike: int

    def note(self, longest: int, ratio: float) -> str | None:
        """What a user should be told."""
        if not self.too_long and not self.too_unlike:
            return None
        total = len(self.indices) + self.too_long + self.too_unlike
        return (
            f"{len(self.indices):,} of {total:,} training pairs kept: {self.too_long:,} longer than {longest} "
            f"subwords, {self.too_unlike:,} with one side more than {ratio:g} times as long as the other"
        )


def filter_pairs(source: Sequence[int], target: Sequence[int], longest: int, ratio: float) -> Kept:
    """Keep pairs with 1 to ``longest`` subwords on either side whose lengths are alike.

    Args:
        source, target: subwords of each sentence, the end not counted.
        longest: most subwords.
        ratio: how many times as long one side may be as the other.
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
            f"no training pair of {len(source)} is left: {too_long} are longer than {longest} subwords, {too_unlike} "
            f"have sides whose lengths differ by more than {ratio:g}; raise --longest or --max-ratio"
        )
    return Kept(indices, too_long, too_unlike)
