"""In processes of their own: how a process allocates cannot be undone."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from advreg.lab.kinds.allocation import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = keep_freed_memory() if sys.argv[1] == "kept" else False
step = lambda: [torch.zeros(2**24).add_(1) for _ in range(2)]  # 64 MiB each
for _ in range(5):
    step()
before = faults()
for _ in range(5):
    step()
print(kept, faults() - before)
"""


def ran(how: str, **environment: str) -> tuple[bool, int]:
    """Did it say that memory is kept, and how many pages were missing in five steps after five
    others?
    """
    usual = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_"))
    }
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how],
        env={**usual, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    kept, faults = done.stdout.split()
    return kept == "True", int(faults)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other ways")
def test_a_step_finds_the_memory_of_the_last_one() -> None:
    kept, few = ran("kept")
    _, many = ran("plain")
    assert kept
    assert (
        many > 5 * 2 * 2**26 / 4096 / 512
    )  # at least once for each of its pages, of 2 MiB if they are large
    assert few < many / 10


@pytest.mark.parametrize(
    "told",
    [
        {"MALLOC_ARENA_MAX_": "2"},
        {"MALLOC_TRIM_THRESHOLD_": "0"},
        {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"},
    ],
)
def test_an_environment_that_says_how_to_allocate_is_left_alone(told: dict[str, str]) -> None:
    assert ran("kept", **told)[0] is False
