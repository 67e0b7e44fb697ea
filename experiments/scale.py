"""The costs of a run with many processes, without the training: sampler, cache tables, resharding, neighbours.

    python experiments/scale.py --out results/scale.json --commit $(git rev-parse HEAD) --data DATA

Each part runs in a separate process with one thread, and its peak memory is recorded. Times are CPU seconds, so
that other work on the machine does not count. Nothing is trained: the script measures costs that grow with the number of
samples. Rows of the simulated cache are short, since bookkeeping does not depend on them; the size of real
rows is arithmetic (`experiments/cache_size.py`, `docs/scale.md`). DATA is a folder of known tasks; the neighbours use the
sentences of one of them, with word vectors drawn from N(0, I), as in a new model.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core.ball import Ball
from advreg.core.perturbation import Perturbation
from advreg.core.shard import Shard
from advreg.hf.sharding import ShardBatches
from advreg.hf.survey import mean_rows, token_checksum
from advreg.lab.kinds.translation.batching import TokenBatches
from advreg.memory.cache import PerturbationCache
from advreg.memory.neighbours import nearest

BATCH, REPEATS, WIDTH = 256, 200, 8
WORDS = 30_000


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU time of this process, and what came out."""
    begun = time.process_time()
    value = work()
    return time.process_time() - begun, value


def sampler(samples: int, world: int) -> dict[str, Any]:
    """Drawing the order of an epoch for one process, and handing out its batches."""
    sampler = ShardBatches(Shard(samples, 0, world), BATCH)
    batches = iter(sampler)
    first, _ = seconds(lambda: next(batches))
    rest, handed = seconds(lambda: sum(1 for _ in islice(batches, 10_000)))
    return {
        "samples": samples,
        "world": world,
        "steps": len(sampler),
        "seconds_to_first_batch": first,
        "microseconds_per_batch": 1e6 * rest / max(handed, 1),
    }


def token_batches(pairs: int, world: int) -> dict[str, Any]:
    """Composing batches by a budget of tokens for one process of many."""
    lengths = (
        np.random.default_rng(0)
        .lognormal(3.2, 0.55, (pairs, 2))
        .round()
        .clip(1, 256)
        .astype(np.int64)
    )
    compose, sampler = seconds(lambda: TokenBatches(lengths, 4096, rank=0, world=world))
    epoch, _ = seconds(lambda: sum(1 for _ in sampler))
    return {
        "pairs": pairs,
        "world": world,
        "seconds_to_compose": compose,
        "seconds_per_epoch": epoch,
    }


def delta_of(ids: Tensor, lengths: Tensor) -> Perturbation:
    mask = torch.arange(int(lengths.max())) < lengths[:, None]
    return Perturbation(
        {"tokens": torch.randn(*mask.shape, WIDTH) * mask[..., None]}, {"tokens": mask}
    )


def bookkeeping(samples: int, world: int) -> dict[str, Any]:
    """The cache of one process: drawing the cache set, building, and a step's lookups."""
    generator = torch.Generator().manual_seed(0)
    shard = Shard(samples, 0, world)
    lengths = torch.randint(1, 3, (len(shard),), generator=generator)
    draw, cached = seconds(
        lambda: torch.randperm(samples, generator=generator)[: samples // 10].sort().values
    )
    mine = cached[shard.owns(cached)]
    del cached
    build, cache = seconds(
        lambda: PerturbationCache(mine, shard, {"tokens": lengths}, {"tokens": WIDTH}, "float16")
    )
    ids = [torch.randint(len(shard), (BATCH,), generator=generator) * world for _ in range(REPEATS)]
    deltas = [delta_of(batch, lengths[shard.rows(batch)]) for batch in ids]
    ball = Ball(1e3)
    writes = [
        seconds(partial(cache.write, i, d, 0.01, ball, 0))[0]
        for i, d in zip(ids, deltas, strict=True)
    ]
    reads = [seconds(lambda: cache.read(i, d))[0] for i, d in zip(ids, deltas, strict=True)]  # noqa: B023
    tables = (cache.slot_of, cache.ids, cache.written_at, *cache.sample_lengths.values())
    return {
        "samples": samples,
        "world": world,
        "cached": len(mine),
        "seconds_to_draw": draw,
        "seconds_to_build": build,
        "microseconds_per_write": 1e6 * statistics.median(writes),
        "microseconds_per_read": 1e6 * statistics.median(reads),
        "bytes_of_tables": sum(table.numel() * table.element_size() for table in tables)
        + 16 * len(mine),
    }


def redealing(cached: int, before: int, after: int) -> dict[str, Any]:
    """One process's cache from the caches of a run with another number of them; 16 tokens of width
    64 in float16.
    """
    size = 10 * cached
    lengths = torch.full((size,), 16)

    def cache_of(ids: Tensor, shard: Shard) -> PerturbationCache:
        return PerturbationCache(
            ids, shard, {"tokens": lengths[: len(shard)]}, {"tokens": 64}, "float16"
        )

    shares = [torch.arange(rank, size, before)[::10] for rank in range(before)]
    caches = [
        cache_of(ids, Shard(size, rank, before)).state_dict() for rank, ids in enumerate(shares)
    ]
    shard, ids = Shard(size, 0, after), torch.cat(shares).sort().values

    def take_over() -> PerturbationCache:
        mine = cache_of(ids[shard.owns(ids)], shard)
        for cache in caches:
            mine.load_state_dict(cache, whole=False)
        return mine

    spent, found = seconds(take_over)
    state = found.state_dict()
    taken = sum(value.numel() * value.element_size() for value in state.values())
    return {"cached": cached, "before": before, "after": after, "seconds": spent, "bytes": taken}


def checksum(samples: int) -> dict[str, Any]:
    """The fingerprint of the data that does not depend on the number of processes."""
    tokens = torch.randint(WORDS, (samples * 30,))
    spent, _ = seconds(
        lambda: token_checksum(0, range(samples), torch.full((samples,), 30), tokens)
    )
    return {"samples": samples, "tokens": len(tokens), "seconds": spent}


def neighbour_scope(task: str, data: str, width: int) -> dict[str, Any]:
    """How much nearer the nearest of the whole cache set is than the nearest in a process's own
    part of it.
    """
    from advreg.lab.kinds.classification.understanding import load_task

    texts = [example.text.lower().split() for example in load_task(task, Path(data)).train]
    numbers: dict[str, int] = {}
    tokens = torch.tensor(
        [numbers.setdefault(word, len(numbers)) for text in texts for word in text]
    )
    table = torch.randn(len(numbers), width, generator=torch.Generator().manual_seed(0))
    vectors = F.normalize(
        mean_rows(table, tokens, torch.tensor([len(text) for text in texts])), dim=1
    )
    size = len(vectors)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(1))
    cached, others = order[: size // 10].sort().values, order[size // 10 :]
    spent, best = seconds(
        lambda: cached[nearest(vectors, vectors[cached], 1, rows=others)[:, 0].long()]
    )

    def similarity(found: Tensor) -> float:
        return float((vectors[others] * vectors[found]).sum(1).mean())

    rows = []
    for world in (2, 4, 8, 64):
        found = torch.empty_like(best)
        for rank in range(world):
            mine, here = cached[cached % world == rank], others % world == rank
            found[here] = mine[nearest(vectors, vectors[mine], 1, rows=others[here])[:, 0].long()]
        agree = float((found == best).float().mean())
        rows.append({"world": world, "mean_cosine": similarity(found), "same_neighbour": agree})
    random = cached[
        torch.randint(len(cached), (len(others),), generator=torch.Generator().manual_seed(2))
    ]
    return {
        "task": task,
        "samples": size,
        "cached": len(cached),
        "width": width,
        "seconds_of_whole_search": spent,
        "mean_cosine_whole": similarity(best),
        "mean_cosine_random": similarity(random),
        "within_shards": rows,
        "bytes_exchanged_per_refresh": 4 * width * len(cached),
    }


def alone(part: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A part and the peak memory of the process it ran in."""
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found: dict[str, Any] = globals()[part](**arguments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"part": part, **found, "peak_bytes": peak, "peak_bytes_before": before}


def parts(asked: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    samples = asked.samples
    listed: list[tuple[str, dict[str, Any]]] = [
        ("sampler", {"samples": samples, "world": 1}),
        ("sampler", {"samples": 10 * samples, "world": 64}),
        ("token_batches", {"pairs": samples // 100, "world": 8}),
        ("bookkeeping", {"samples": samples, "world": 1}),
        ("bookkeeping", {"samples": samples, "world": 8}),
        ("redealing", {"cached": samples // 100, "before": 4, "after": 2}),
        ("checksum", {"samples": samples // 1000}),
    ]
    if asked.data is not None:
        listed.append(("neighbour_scope", {"task": asked.task, "data": asked.data, "width": 384}))
    return listed


def table(record: dict[str, Any]) -> str:
    """The figures of a record as `docs/scale.md` shows them."""
    rows = ["| what | size | CPU time | peak memory |", "|---|---|---|---|"]
    for part in record["parts"]:
        size = f"{part.get('samples', 0):,} ids, 1 of {part.get('world', 1)} processes"
        memory = f"{(part['peak_bytes'] - part['peak_bytes_before']) / 1e9:.2f} GB"
        if part["part"] == "sampler":
            spent = f"{part['seconds_to_first_batch']:.1f} s, then {part['microseconds_per_batch']:.0f} µs a batch"
            rows.append(f"| order of an epoch | {size} | {spent} | {memory} |")
        elif part["part"] == "token_batches":
            size = f"{part['pairs']:,} pairs, 1 of {part['world']} processes"
            spent = f"{part['seconds_to_compose']:.0f} s once, {part['seconds_per_epoch']:.2f} s an epoch"
            rows.append(f"| batches by tokens | {size} | {spent} | {memory} |")
        elif part["part"] == "bookkeeping":
            spent = f"{part['seconds_to_draw']:.1f} s to draw, {part['seconds_to_build']:.1f} s to build"
            rows.append(
                f"| cache set and tables | {size}, {part['cached']:,} cached | {spent} | {memory} |"
            )
            spent = f"{part['microseconds_per_read']:.0f} µs to read, {part['microseconds_per_write']:.0f} µs to write"
            rows.append(f"| a batch of {BATCH} in it | " + f"{size} | {spent} | |")
        elif part["part"] == "redealing":
            size = f"{part['cached']:,} cached, {part['before']} → {part['after']} processes"
            rows.append(
                f"| redealing | {size}, {part['bytes'] / 1e9:.2f} GB | {part['seconds']:.1f} s | "
                f"{memory} |"
            )
        elif part["part"] == "checksum":
            rows.append(
                f"| checksum of the data | {part['tokens']:,} tokens | {part['seconds']:.2f} s | "
                f"{memory} |"
            )
    return "\n".join(rows)


def scope_table(record: dict[str, Any]) -> str:
    """How near borrowed neighbours are, as `docs/scale.md` shows it."""
    found = next(part for part in record["parts"] if part["part"] == "neighbour_scope")
    rows = ["| neighbours | mean cosine | the nearest of all |", "|---|---|---|"]
    rows.append(f"| of the whole cache set | {found['mean_cosine_whole']:.3f} | 100 % |")
    for part in found["within_shards"]:
        near, same = part["mean_cosine"], part["same_neighbour"]
        rows.append(
            f"| within shards of {part['world']} processes | {near:.3f} | {same:.0%} |".replace(
                "%", " %"
            )
        )
    rows.append(f"| drawn at random | {found['mean_cosine_random']:.3f} | |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--data", help="folder of known tasks; without it neighbours are left out")
    parser.add_argument("--task", default="sst2")
    asked = parser.parse_args()
    found = []
    for part, arguments in parts(asked):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found.append(pool.submit(alone, part, arguments).result())
        print(json.dumps(found[-1]), flush=True)
    record = {
        "commit": asked.commit,
        "command": f"experiments/scale.py --samples {asked.samples} --task {asked.task}",
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "parts": found,
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
