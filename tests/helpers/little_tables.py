"""Tables of a few dozen sentences that a tiny model learns in seconds, and such a model in a
folder.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

GOOD, BAD = ("good", "fine", "lovely", "bright"), ("bad", "dull", "dreary", "poor")
NEUTRAL = ("the", "film", "story", "was", "and", "quite")
SIZE = 44  # of which a tenth is held out: 40 samples, 5 batches of 8


def sentiment(size: int = SIZE, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences with the label pos or neg, of three to nine words."""
    draw = random.Random(seed)
    rows = []
    for number in range(size):
        label, words = ("pos", GOOD) if number % 2 else ("neg", BAD)
        chosen = [
            draw.choice(words),
            *(draw.choice(words + NEUTRAL) for _ in range(draw.randint(2, 8))),
        ]
        rows.append({"text": " ".join(chosen), "label": label})
    return rows


def scored(size: int = SIZE, seed: int = 0) -> list[dict[str, Any]]:
    """Pairs of sentences with the share of kind words as their score."""
    rows = []
    for first, second in zip(sentiment(size, seed), sentiment(size, seed + 1), strict=True):
        words = f"{first['text']} {second['text']}".split()
        share = sum(word in GOOD for word in words) / len(words)
        rows.append({"text_a": first["text"], "text_b": second["text"], "score": round(share, 3)})
    return rows


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows in the format of the path's suffix."""
    names = list(rows[0])
    if path.suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, names, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


def tiny_folder(folder: Path, **overrides: Any) -> Path:
    """A tiny BERT without a head and the tokenizer of these tables, saved as ``from_pretrained``
    wants them.
    """
    from advreg.lab.kinds.wordpieces import train_tokenizer
    from tiny_models import tiny

    tokenizer = train_tokenizer([row["text"] for row in sentiment()], vocabulary=200)
    model: Any = tiny("bert", vocab_size=len(tokenizer), **overrides)
    model.bert.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
