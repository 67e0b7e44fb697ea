"""One thread per process: the models are tiny, and two test processes would fight over the cores.

No deadline for examples either: a machine that is busy is no failure.
"""

import gc
import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("ADVREG_ALLOW_DIRTY", "1")  # tests run while their tree is being changed

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
gc.disable()  # until all is collected: imports take a quarter less, and leave little garbage
os.fsync = lambda descriptor: None  # no test cuts the power, and all together wait for minutes
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")


def pytest_collection_finish() -> None:
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def _modules_are_no_garbage() -> None:
    """Each run of the Trainer collects garbage, which takes a second or more unless the modules
    that are imported so far are frozen.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def graphs() -> Iterator[Any]:
    """What torch.compile counts, from nothing; and no graph is left to the next test."""
    from torch._dynamo.utils import counters  # it takes a while, and few tests compile

    torch._dynamo.reset()
    counters.clear()
    yield counters
    torch._dynamo.reset()
