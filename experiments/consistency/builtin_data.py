"""The built-in task for the contests: the held-out files in two halves, one to choose on and one to
report on.

The interpreter's library decides the sentences, so they are written to files once, and every
machine reads those. Each sentence says whether it is clear: whether naive Bayes over words, trained
on the sentences of the training files (for one of them on the other nine tenths), finds its
package.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advreg.lab.kinds.classification import docstrings
from advreg.lab.kinds.classification.textdata import Example

TRAIN, CHOOSE, REPORT = "train", "choose", "report"
TRAIN_PER_CLASS, HELD_OUT_PER_CLASS = 200, 100
FOLDER = "builtin"
_FOLDS = 10

Files = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Builtin:
    """The sentences of a split, with their packages' numbers, and which are clear."""

    labels: tuple[str, ...]
    splits: dict[str, tuple[tuple[Example, bool], ...]]

    def examples(self, split: str, clear_only: bool = False) -> tuple[Example, ...]:
        return tuple(example for example, clear in self.splits[split] if clear or not clear_only)


def write(folder: Path) -> None:
    """Draw the sentences from the running interpreter's library."""
    rows: dict[str, list[dict[str, Any]]] = {TRAIN: [], CHOOSE: [], REPORT: []}
    packages = docstrings._packages(Path(sysconfig.get_paths()["stdlib"]))
    for label, (package, files) in enumerate(packages):
        draw = random.Random(f"0:{package}")  # as load_docstrings: the same files are held out
        kept, held = docstrings._split_files(files, draw)
        for split, sentences in {TRAIN: [s for file in kept for s in file], **halves(held)}.items():
            draw.shuffle(sentences)
            most = TRAIN_PER_CLASS if split == TRAIN else HELD_OUT_PER_CLASS
            rows[split] += [{"text": text, "label": label} for text in sentences[:most]]
    mark_clear(rows)
    folder.mkdir(parents=True, exist_ok=True)
    for split, found in rows.items():
        random.Random(split).shuffle(found)
        text = "".join(json.dumps(row) + "\n" for row in found)
        (folder / f"{split}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    (folder / "labels.json").write_text(json.dumps([package for package, _ in packages]))


def halves(files: Files) -> dict[str, list[str]]:
    """Whole files in two halves of like size; a file that is alone is cut in the middle."""
    if len(files) == 1:
        middle = len(files[0]) // 2
        return {CHOOSE: list(files[0][:middle]), REPORT: list(files[0][middle:])}
    found: dict[str, list[str]] = {CHOOSE: [], REPORT: []}
    for file in sorted(files, key=len, reverse=True):
        min(found.values(), key=len).extend(file)
    return found


def read(folder: Path) -> Builtin:
    labels = tuple(json.loads((folder / "labels.json").read_text()))
    splits = {}
    for split in (TRAIN, CHOOSE, REPORT):
        lines = gzip.decompress((folder / f"{split}.jsonl.gz").read_bytes()).decode().split("\n")
        rows = [json.loads(line) for line in lines if line]
        splits[split] = tuple(
            (Example(row["text"], None, row["label"]), row["clear"]) for row in rows
        )
    return Builtin(labels, splits)


def mark_clear(rows: dict[str, list[dict[str, Any]]]) -> None:
    """Say of each sentence whether naive Bayes, which has not seen it, finds its package."""
    train = rows[TRAIN]
    whole = Words(train)
    for split in (CHOOSE, REPORT):
        for row in rows[split]:
            row["clear"] = whole.label(row["text"]) == row["label"]
    for fold in range(_FOLDS):
        others = Words([row for place, row in enumerate(train) if place % _FOLDS != fold])
        for row in train[fold::_FOLDS]:
            row["clear"] = others.label(row["text"]) == row["label"]


class Words:
    """Multinomial naive Bayes over words, one added to every count."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.counts: dict[int, Counter[str]] = {}
        for row in rows:
            self.counts.setdefault(row["label"], Counter()).update(words(row["text"]))
        self.size = len(set().union(*self.counts.values()))

    def label(self, text: str) -> int:
        found = words(text)
        return max(sorted(self.counts), key=lambda label: self._likelihood(label, found))

    def _likelihood(self, label: int, found: Sequence[str]) -> float:
        counts = self.counts[label]
        total = counts.total() + self.size
        return sum(math.log((counts[word] + 1) / total) for word in found)


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
