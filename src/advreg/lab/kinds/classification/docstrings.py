"""A real task without downloads: predict the standard-library package of a sentence.

The sentences come from the docstrings of the running interpreter's own library, read from the
source files with `ast`; nothing is imported. The classes are its largest packages, and whole
*files* are held out, so that a model is measured on modules it has never read. The training split
is small on purpose: regularisation has something to do.

Another Python has another library: compare results only where `TextData.fingerprint()` is the same.
"""

from __future__ import annotations

import ast
import random
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from advreg.lab.kinds.classification.textdata import Example, TextData, make_text_data
from advreg.lab.kinds.sources import DataError

MAX_CLASSES = 10
MIN_CLASSES = 3
MIN_FILES = 3
MIN_SENTENCES_BESIDES_THE_LARGEST_FILE = 40
MIN_WORDS, MAX_WORDS = 4, 40
HELD_OUT_SHARE = 0.25
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "ensurepip"}
)

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"'`(]?[A-Z])")
_Files = tuple[tuple[str, ...], ...]
_Package = tuple[str, _Files]


def load_docstrings(
    train_per_class: int = 100,
    dev_per_class: int = 100,
    seed: int = 0,
    *,
    stdlib: Path | None = None,
) -> TextData:
    """Sentences of the largest packages, up to a number of each class; `seed` picks held-out files
    and sentences.

    With one seed, a larger split holds a smaller one, and the size of one split does not affect
    the other. `stdlib` is the library to read, by default the running interpreter's.
    """
    for name, value in (("train_per_class", train_per_class), ("dev_per_class", dev_per_class)):
        if value < 1:
            raise DataError(f"{name} must be at least 1, got {value}")
    root = Path(sysconfig.get_paths()["stdlib"]) if stdlib is None else stdlib
    train: list[Example] = []
    dev: list[Example] = []
    packages = _packages(root)
    for label, (package, files) in enumerate(packages):
        draw = random.Random(f"{seed}:{package}")  # seeded by a string: the same in every process
        kept, held = _split_files(files, draw)
        train += _drawn(kept, train_per_class, label, draw)
        dev += _drawn(held, dev_per_class, label, draw)
    random.Random(f"{seed}:train").shuffle(train)
    random.Random(f"{seed}:dev").shuffle(dev)
    return make_text_data("docstrings", train, dev, [package for package, _ in packages])


def _split_files(files: _Files, draw: random.Random) -> tuple[_Files, _Files]:
    """Training and held-out files: random ones are held out until they have their share; never the
    largest.
    """
    order = sorted(files, key=len, reverse=True)
    largest, others = order[0], order[1:]
    draw.shuffle(others)
    wanted = HELD_OUT_SHARE * sum(map(len, files))
    count, sentences = 0, 0
    while sentences < wanted and count < len(others):
        sentences += len(others[count])
        count += 1
    return (largest, *others[count:]), tuple(others[:count])


def _drawn(files: _Files, count: int, label: int, draw: random.Random) -> list[Example]:
    sentences = [sentence for file in files for sentence in file]
    # shuffle, not sample: a larger count then adds to a smaller one, and leaves the generator in
    # the same state
    draw.shuffle(sentences)
    return [Example(sentence, None, label) for sentence in sentences[:count]]


@lru_cache(maxsize=4)
def _packages(root: Path) -> tuple[_Package, ...]:
    """The classes in alphabetical order, each with the sentences of its files."""
    found = [(package, files) for package, files in _usable_files(root).items() if _is_large(files)]
    found.sort(key=lambda item: (-sum(map(len, item[1])), item[0]))
    if len(found) < MIN_CLASSES:
        raise DataError(
            f"{root}: must hold at least {MIN_CLASSES} packages with docstrings, got {len(found)}; "
            "is this "
            f"interpreter's library zipped or stripped? Use a full Python, or a table of your own"
        )
    return tuple(sorted(found[:MAX_CLASSES]))


def _is_large(files: _Files) -> bool:
    """Whether there are enough files to hold some out, and sentences in more than one of them."""
    sizes = sorted(map(len, files))
    return len(sizes) >= MIN_FILES and sum(sizes[:-1]) >= MIN_SENTENCES_BESIDES_THE_LARGEST_FILE


def _usable_files(root: Path) -> dict[str, _Files]:
    """Each package's files, without sentences that another package has, and each sentence in its
    first file only.
    """
    written = {
        package: [_sentences(path) for path in paths] for package, paths in _sources(root).items()
    }
    packages_with = Counter(
        key for files in written.values() for key in {_key(s) for file in files for s in file}
    )
    usable: dict[str, _Files] = {}
    for package, files in written.items():
        seen: set[str] = set()
        unique = tuple(tuple(_unseen(file, packages_with, seen)) for file in files)
        usable[package] = tuple(file for file in unique if file)
    return usable


def _unseen(sentences: Sequence[str], packages_with: Counter[str], seen: set[str]) -> Iterator[str]:
    for sentence in sentences:
        key = _key(sentence)
        if packages_with[key] == 1 and key not in seen:
            seen.add(key)
            yield sentence


def _key(sentence: str) -> str:
    """The key by which two sentences are equal: their words, without case and punctuation."""
    return " ".join(re.findall(r"\w+", sentence.lower()))


def _sources(root: Path) -> dict[str, list[Path]]:
    """The source files of each top-level package, in the order of their names."""
    inside = root.iterdir() if root.is_dir() else ()
    folders = sorted(path for path in inside if path.is_dir() and path.name.isidentifier())
    return {
        folder.name: _python_files(folder)
        for folder in folders
        if folder.name not in SKIPPED_FOLDERS
    }


def _python_files(folder: Path) -> list[Path]:
    inside = {path: path.relative_to(folder) for path in folder.rglob("*.py")}
    wanted = [path for path, name in inside.items() if SKIPPED_FOLDERS.isdisjoint(name.parts[:-1])]
    return sorted(wanted, key=lambda path: inside[path].as_posix())


def _sentences(path: Path) -> list[str]:
    """All sentences of the file's docstrings that are of a usable length, in the order of the
    file.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # old files hold invalid escapes; that is not the user's affair
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise DataError(
            f"{path}: must be Python that this interpreter reads, got: {error}; reinstall it"
        ) from error
    return [
        sentence
        for docstring in _docstrings(tree)
        for paragraph in _paragraphs(docstring)
        for sentence in _SENTENCE_END.split(paragraph)
        if _is_usable(sentence)
    ]


def _is_usable(sentence: str) -> bool:
    words = sentence.split()
    return (
        len(words) <= MAX_WORDS and sum(any(map(str.isalpha, word)) for word in words) >= MIN_WORDS
    )


def _docstrings(node: ast.AST) -> Iterator[str]:
    """The docstrings of a module and of all classes and functions in it, in the order of the
    file.
    """
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        if docstring:
            yield docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(
            child, ast.stmt | ast.ExceptHandler | ast.match_case
        ):  # no expression holds a definition
            yield from _docstrings(child)


def _paragraphs(docstring: str) -> Iterator[str]:
    """The docstring's paragraphs, each on one line, without doctests and what they print."""
    lines: list[str] = []
    in_doctest = False
    for line in [*docstring.splitlines(), ""]:
        words = " ".join(line.split())
        if words:
            in_doctest = in_doctest or words.startswith(">>>")
            if not in_doctest:
                lines.append(words)
            continue
        if lines:
            yield " ".join(lines)
        lines, in_doctest = [], False
