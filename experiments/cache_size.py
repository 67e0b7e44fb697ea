"""What a cache of WMT'16 size takes: made for real on the device, filled, and read.

    python experiments/cache_size.py results/cache_size.jsonl --commit $(git rev-parse HEAD) --device cuda

Lengths are log-normal with the stated mean and standard deviation, cut to 1–256 tokens, for source and target alike.
WMT'16 English–German has 4.5 M pairs of 26 and 24 words (116 M and 110 M words, Luong et al. 2015), which 32k joint
subwords make some 29 tokens. Each line of OUT is one cache: its bytes, and the time to read a batch of it.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from advreg.core.ball import Ball, uniform_noise
from advreg.core.perturbation import Perturbation
from advreg.memory.cache import PerturbationCache
from advreg.memory.tiers import Place
from advreg.record import capture_environment

STREAMS = ("encoder", "decoder")


def drawn_lengths(count: int, mean: float, deviation: float, seed: int) -> Tensor:
    """Log-normal lengths, cut to 1–256."""
    variance = math.log(1 + (deviation / mean) ** 2)
    normal = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    lengths = (math.log(mean) - variance / 2 + math.sqrt(variance) * normal).exp()
    return lengths.round().clamp(1, 256).long()


def measure(asked: argparse.Namespace, fraction: float, dtype: Any) -> dict[str, Any]:
    """Make the cache, fill a share of it, and time reads of batches."""
    device = torch.device(asked.device)
    lengths = {
        stream: drawn_lengths(asked.pairs, asked.mean, asked.deviation, seed) for seed, stream in enumerate(STREAMS)
    }
    cached = torch.randperm(asked.pairs, generator=torch.Generator().manual_seed(2))[: int(asked.pairs * fraction)]
    widths = dict.fromkeys(STREAMS, asked.width)
    cache = PerturbationCache(cached.sort().values, asked.pairs, lengths, widths, dtype, Place(device, asked.tier))
    batches = [cached[first : first + asked.batch] for first in range(0, 16 * asked.batch, asked.batch)]
    likes = [zeros_for(ids, lengths, widths, device) for ids in batches]
    for ids, zeros in zip(batches, likes, strict=True):
        delta = Ball(0.1).rescale(zeros.map(uniform_noise))
        cache.write(ids.to(device), delta, 0.01, Ball(0.1), epoch=0)
    times = [timed(cache, ids.to(device), zeros) for _ in range(5) for ids, zeros in zip(batches, likes, strict=True)]
    return {
        "pairs": asked.pairs, "width": asked.width, "mean_length": asked.mean, "sd_length": asked.deviation,
        "drawn_mean": {stream: float(length.float().mean()) for stream, length in lengths.items()},
        "fraction": fraction, "dtype": dtype, "tier": asked.tier, "bytes": cache.nbytes,
        "read_ms": 1000 * statistics.median(times[16:]), "batch": asked.batch,
    }  # fmt: skip


def zeros_for(ids: Tensor, lengths: dict[str, Tensor], widths: dict[str, int], device: torch.device) -> Perturbation:
    masks = {}
    for stream, all_lengths in lengths.items():
        mine = all_lengths[ids]
        masks[stream] = (torch.arange(int(mine.max()))[None] < mine[:, None]).to(device)
    return Perturbation.zeros(masks, widths, torch.float32)


def timed(cache: PerturbationCache, ids: Tensor, zeros: Perturbation) -> float:
    if cache.device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    cache.read(ids, zeros)
    if cache.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    parser.add_argument("--pairs", type=int, default=4_500_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--mean", type=float, default=29.0)
    parser.add_argument("--deviation", type=float, default=17.0)
    parser.add_argument("--fraction", type=float, nargs="+", default=[0.1, 0.01])
    parser.add_argument("--dtype", nargs="+", default=["int8", "int4", "float16", "float32"])
    parser.add_argument("--tier", default="device")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    environment = capture_environment()
    for fraction in asked.fraction:
        for dtype in asked.dtype:
            line = measure(asked, fraction, dtype) | {
                "commit": asked.commit,
                "command": " ".join(["experiments/cache_size.py", *sys.argv[1:]]),
                "hardware": torch.cuda.get_device_name() if asked.device == "cuda" else environment.get("device"),
                "packages": environment.get("packages"),
            }
            with asked.out.open("a") as out:
                out.write(json.dumps(line) + "\n")
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
