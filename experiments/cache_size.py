"""The size of a cache for a data set of WMT'16 size, by fraction and precision.

    python experiments/cache_size.py results/cost/cache-size.jsonl --commit $(git rev-parse HEAD)

Lengths are log-normal with the stated mean and standard deviation, cut to 1–256 tokens, for source and target alike.
WMT'16 English–German has 4.5 M pairs of 26 and 24 words (116 M and 110 M words, Luong et al. 2015), which are
about 29 tokens with 32k joint subwords. The bytes are for rows and means as `advreg.memory.cache.cache_bytes` counts them; a
test compares this with the real allocation of a cache.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from advreg.memory.cache import cache_bytes

STREAMS = ("encoder", "decoder")
DTYPES = ("float32", "float16", "bfloat16")


def drawn_lengths(count: int, mean: float, deviation: float, seed: int) -> Tensor:
    """Log-normal lengths, cut to 1–256."""
    variance = math.log(1 + (deviation / mean) ** 2)
    normal = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    lengths = (math.log(mean) - variance / 2 + math.sqrt(variance) * normal).exp()
    return lengths.round().clamp(1, 256).long()


def measure(asked: argparse.Namespace, fraction: float) -> dict[str, Any]:
    """One line: the bytes of the cached share of the pairs in each precision."""
    cached = torch.randperm(asked.pairs, generator=torch.Generator().manual_seed(2))[
        : int(asked.pairs * fraction)
    ]
    tokens = {
        stream: int(drawn_lengths(asked.pairs, asked.mean, asked.deviation, seed)[cached].sum())
        for seed, stream in enumerate(STREAMS)
    }
    widths = dict.fromkeys(STREAMS, asked.width)
    return {
        "pairs": asked.pairs,
        "width": asked.width,
        "mean_length": asked.mean,
        "sd_length": asked.deviation,
        "fraction": fraction,
        "tokens": tokens,
        "bytes": {dtype: cache_bytes(tokens, len(cached), widths, dtype) for dtype in DTYPES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    parser.add_argument("--pairs", type=int, default=4_500_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--mean", type=float, default=29.0)
    parser.add_argument("--deviation", type=float, default=17.0)
    parser.add_argument("--fraction", type=float, nargs="+", default=[1.0, 0.1, 0.04, 0.01])
    asked = parser.parse_args()
    command = " ".join(["experiments/cache_size.py", *sys.argv[1:]]).replace(
        str(asked.out), asked.out.name
    )
    for fraction in asked.fraction:
        line = json.dumps(measure(asked, fraction) | {"commit": asked.commit, "command": command})
        with asked.out.open("a") as out:
            out.write(line + "\n")
        print(line)


if __name__ == "__main__":
    main()
