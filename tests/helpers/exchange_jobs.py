"""What processes exchange in tests: torch is all they need."""

from typing import Any

import torch
import torch.distributed as distributed

from advreg.core.ball import Ball
from advreg.core.shard import Shard
from advreg.memory.cache import PerturbationCache
from advreg.memory.exchange import SharedMeans, assembled, gathered, summed
from padded import perturbation

CACHED, SIZE = (
    [0, 1, 4, 5, 7, 8, 9, 10],
    12,
)  # two, four and two of three processes


def rows_of(index: int) -> torch.Tensor:
    """Two rows of width 3 that tell whose they are."""
    return torch.tensor([[index, 1.0, -1.0], [index + 1.0, 0.0, 0.5]])


def exchange(dtype: str) -> dict[str, Any]:
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    shard, cached = Shard(SIZE, rank, world), torch.tensor(CACHED)
    mine = cached[shard.owns(cached)]
    lengths = {"tokens": torch.full((len(shard),), 2)}
    cache = PerturbationCache(mine, shard, lengths, {"tokens": 3}, dtype)  # type: ignore[arg-type]
    shared = SharedMeans(cache, cached)
    for index in mine[:2].tolist():  # the third of a process is left unwritten
        cache.write(torch.tensor([index]), perturbation([rows_of(index)]), 0.0, Ball(1e3), 1)
    shared.gather()
    return {
        "gathered": gathered(torch.full((rank, 2), float(rank)), world),
        "assembled": assembled(mine.float()[:, None], cached, world),
        "summed": summed(2**63 + rank, torch.device("cpu"), world),
        "means": shared.means("tokens", torch.arange(len(CACHED))),
        "own": cache.means("tokens", torch.arange(len(mine))),
        "written": shared.written_at,
        "nbytes": shared.nbytes,
    }
