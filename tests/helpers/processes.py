"""Functions run in several processes at once that can talk to each other (gloo, on the CPU),
against the clock.
"""

import gc
import importlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def together(
    job: str, world: int, folder: Path, seconds: float = 120, /, **arguments: Any
) -> list[Any]:
    """What ``job``, the name of a function as ``module:function``, returns in each of ``world``
    processes.

    It is called with the arguments, which must be JSON. One that fails, or one that is not done in
    time (a deadlock), fails the test, with what they all printed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = common_environment() | {"WORLD_SIZE": str(world), "MASTER_PORT": str(free_port())}
    logs = [folder / f"log-{rank}.txt" for rank in range(world)]
    running = []
    for rank, log in enumerate(logs):
        command = [
            sys.executable,
            str(Path(__file__)),
            job,
            json.dumps(arguments),
            str(folder / f"found-{rank}.pt"),
        ]
        ranked = environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        with log.open("w") as file:
            running.append(
                subprocess.Popen(command, env=ranked, stdout=file, stderr=subprocess.STDOUT)
            )
    try:
        codes = _ended(running, seconds)
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert codes == [0] * world, "\n".join(f"{log.name}: {log.read_text()[-3000:]}" for log in logs)
    return [torch.load(folder / f"found-{rank}.pt", weights_only=False) for rank in range(world)]


def common_environment() -> dict[str, str]:
    """Of every process: the code that this one has, one thread each, and where they meet."""
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return os.environ | {
        "PYTHONPATH": paths,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ACCELERATE_USE_CPU": "true",
    }


@contextmanager
def full_disk() -> Iterator[None]:
    """Within, this process can write no file of more than a kilobyte."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _ended(running: list[subprocess.Popen[bytes]], seconds: float) -> list[int | None]:
    """Exit codes; early when one failed, for the others would wait for it, and None for those out
    of time.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        codes = [process.poll() for process in running]
        if None not in codes or any(codes):
            return codes
        time.sleep(0.05)
    return [process.poll() for process in running]


def main(job: str, arguments: str, found: str) -> None:
    module, function = job.split(":")
    torch.set_num_threads(1)
    work = getattr(importlib.import_module(module), function)
    gc.freeze()  # each run of the Trainer collects garbage, which modules are not
    value = work(**json.loads(arguments))
    torch.save(value, found)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
