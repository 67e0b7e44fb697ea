"""How long the exact search for neighbours takes.

    python experiments/neighbour_search.py --queries 130000 --anchors 13000 --width 384 --device cpu --threads 2 \\
        --out results/neighbour_search.jsonl --commit $(git rev-parse HEAD)

Appends one JSON line to OUT; a time is the median over ``--repeats`` turns. Older records also hold the
times of faiss, exact and approximate, and the recall of the latter.

Vectors are drawn in one of two ways, queries and anchors alike. ``clusters``: one of 1000 centres from N(0, I), and
N(0, I) around it, so that two of a cluster have a cosine of about 0.5. ``words``: what sentence vectors are made of,
the mean of 24 word vectors, with words drawn from 30000 by Zipf's law and word vectors from N(0, I).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.memory.neighbours import nearest

CENTRES, WORDS, LENGTH = 1000, 30000, 24
ROWS_AT_ONCE = 2**16


def draw(
    size: int,
    width: int,
    kind: str,
    device: torch.device,
    generator: torch.Generator,
    table: Tensor,
) -> Tensor:
    """(size, width) on the host, drawn a part at a time where the generator is."""
    vectors = torch.empty(size, width)
    frequencies = 1 / torch.arange(1, WORDS + 1, device=device)
    for first in range(0, size, ROWS_AT_ONCE):
        rows = min(ROWS_AT_ONCE, size - first)
        if kind == "clusters":
            centre = torch.randint(CENTRES, (rows,), generator=generator, device=device)
            part = table[centre] + torch.randn(rows, width, generator=generator, device=device)
        else:
            words = torch.multinomial(
                frequencies, rows * LENGTH, replacement=True, generator=generator
            )
            part = F.embedding_bag(words.view(rows, LENGTH), table, mode="mean")
        vectors[first : first + rows] = part.cpu()
    return vectors


def timed(search: Callable[[], Tensor], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    search()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    names = (
        [line for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    name = names[0].partition(":")[2].strip() if names else platform.processor()
    return f"{name}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("advreg",):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """One line of the record."""
    device = torch.device(asked.device)
    generator = torch.Generator(device).manual_seed(asked.seed)
    table = torch.randn(
        CENTRES if asked.vectors == "clusters" else WORDS,
        asked.width,
        generator=generator,
        device=device,
    )
    anchors, queries = (
        draw(size, asked.width, asked.vectors, device, generator, table)
        for size in (asked.anchors, asked.queries)
    )

    def search() -> Tensor:
        return nearest(queries, anchors, asked.neighbours, device=device)

    nearest(queries[:4096], anchors, asked.neighbours, device=device)  # warm up
    seconds: dict[str, list[float]] = {"exact": []}
    for _ in range(asked.repeats):
        took = timed(search, device)
        seconds["exact"].append(took)
        print(f"exact: {took:.2f} s", file=sys.stderr, flush=True)
    work = float(asked.queries) * asked.anchors * asked.width
    exact = statistics.median(seconds["exact"])
    return {
        "queries": asked.queries,
        "anchors": asked.anchors,
        "width": asked.width,
        "neighbours": asked.neighbours,
        "vectors": asked.vectors,
        "seed": asked.seed,
        "seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "all_seconds": seconds,
        "multiply_adds_per_second": work / exact,
        "recall": {},
        "hardware": hardware(device),
        "versions": versions(),
        "commit": asked.commit,
        "command": " ".join(["experiments/neighbour_search.py", *sys.argv[1:]]).replace(
            str(asked.out), asked.out.name
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=int, default=130_000)
    parser.add_argument("--anchors", type=int, default=13_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--neighbours", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, help="of torch; default: its own")
    parser.add_argument("--vectors", choices=["clusters", "words"], default="clusters")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    line = json.dumps(measure(asked))
    with asked.out.open("a") as out:
        out.write(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
