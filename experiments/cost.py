"""The commands of every measurement in docs/results/cost.md, to run on one otherwise idle GPU.

    python experiments/cost.py results/cost --commit $(git rev-parse HEAD) [NAME …]

Without names, all of them run in sequence; existing records are not measured again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

BENCH = ("-m", "advreg.cli", "bench", "--precision", "bf16", "--device", "cuda")
BERT = (*BENCH, "--model", "bert-base")
THREE_TIERS = tuple(
    part
    for tier in ("device", "host", "disk")
    for part in ("--method", f"arch:cache_device={tier},cache_fraction=1.0")
)
FEW = ("--method", "r3f", "--method", "arch", "--method", "smart")

RUNS: dict[str, tuple[str, ...]] = {
    "bert-base.json": (*BERT, "--shape", "32x64", "--method", "r3f", "--method", "arch", "--method", "freelb",
                       "--method", "smart", "--two-pass", "--rounds", "32", "--steps", "5"),
    "bert-base-shapes.json": (*BERT, "--shape", "16x64", "--shape", "64x128", *FEW, "--rounds", "5"),
    "bert-base-large.json": (*BERT, "--shape", "256x128", *FEW, "--two-pass", "--rounds", "5", "--steps", "5"),
    "tiers.json": (*BERT, "--shape", "32x64", *THREE_TIERS, "--reuse-only", "--no-trainers", "--rounds", "14"),
    "tiers-large.json": (*BERT, "--shape", "256x128", *THREE_TIERS, "--reuse-only", "--no-trainers", "--rounds", "6",
                         "--steps", "5"),
    "translation.json": (*BENCH, "--model", "transformer-base", "--shape", "256x32", *FEW, "--method", "freelb",
                         "--rounds", "6"),
    "translation-iwslt.json": (*BENCH, "--model", "transformer-iwslt", "--shape", "128x32", *FEW, "--method", "freelb",
                               "--method", "freeat", "--rounds", "6"),
    "peers.json": (*BERT, "--shape", "32x64", "--peers", "--method", "arch", "--method", "smart",
                   "--method", "smart:ascent_steps=1", "--rounds", "10"),
    "dataset-size.json": ("experiments/dataset_size.py", "OUT", "--model", "bert-base", "--shape", "32x64",
                          "--precision", "bf16", "--samples", "10000", "100000", "1000000", "--rounds", "24",
                          "--steps", "5"),
    "compiled.json": (*BERT, "--shape", "32x64", "--compile", *FEW, "--rounds", "6"),
    "graphs.json": (*BENCH, "--model", "minilm", "--shape", "32x64", "--compile", "--compile-mode", "reduce-overhead",
                    "--method", "r3f", "--method", "arch", "--reuse-only", "--rounds", "6"),
    "graphs-default.json": (*BENCH, "--model", "minilm", "--shape", "32x64", "--compile", "--method", "r3f",
                            "--method", "arch", "--reuse-only", "--rounds", "6"),
    "graphs-eager.json": (*BENCH, "--model", "minilm", "--shape", "32x64", "--method", "r3f", "--method", "arch",
                          "--reuse-only", "--rounds", "6"),
    "neighbours.jsonl": ("experiments/neighbour_search.py", "--queries", "4500000", "--anchors", "450000",
                         "--width", "512", "--device", "cuda", "--repeats", "1"),
    "neighbours-cpu.jsonl": ("experiments/neighbour_search.py", "--queries", "130000", "--anchors", "13000",
                             "--width", "384", "--device", "cpu", "--threads", "2"),
    "cache-size.jsonl": ("experiments/cache_size.py", "OUT"),
}  # fmt: skip


def command(name: str, folder: Path, commit: str) -> list[str]:
    """The command that writes this record."""
    out = str(folder / name)
    parts = [out if part == "OUT" else part for part in RUNS[name]]
    told = [] if out in parts else ["--out", out]
    return [sys.executable, *parts, *told, "--commit", commit]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--commit", required=True, help="of the code that is run, for the records")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RUNS))
    asked = parser.parse_intermixed_args()
    unknown = set(asked.names) - set(RUNS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in asked.names or RUNS:
        if (asked.folder / name).exists():
            continue
        begun = time.perf_counter()
        done = subprocess.run(command(name, asked.folder, asked.commit), check=False)
        print(
            f"{name}: exit {done.returncode} after {time.perf_counter() - begun:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
