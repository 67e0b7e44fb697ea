"""A pytest plugin (``-p peers.plugin``) that swaps trainers and records trainings.

The environment says what to do, since some tests run pytest again in a process of their own:

PEERS_SUITE   the library: transformers or trl
PEERS_METHOD  name of a method of advreg, or stock
PEERS_RECORD  the folder where records go
PEERS_FILES   files that may import names which the installed library does not have, separated like
a path
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import math
import os
import random
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peers.absent import fill
from peers.records import TRAININGS, Training, append
from peers.vision import import_torchvision

SUITE, METHOD = os.environ["PEERS_SUITE"], os.environ["PEERS_METHOD"]
TIMES = ("_runtime", "_per_second")
MEMORY = "_mem_"  # bytes allocated, which vary from run to run


class Watch:
    """Notes each training of the stock trainer, which advreg's calls too.

    Args:
        file: where the lines go.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.test: str | None = None
        self.count = 0
        self.begun = 0

    def start(self, test: str) -> None:
        """A test begins."""
        self.test, self.count = test, 0

    def attach(self, trainer_class: Any, handler_class: Any) -> None:
        """Watch ``train``, and the callbacks' handler, which is called at the beginning of each
        update.
        """
        train, on_step_begin = trainer_class.train, handler_class.on_step_begin

        @functools.wraps(train)
        def watched_train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            self.begun = 0
            try:
                result = train(trainer, *args, **kwargs)
            except BaseException as error:
                self.note(trainer, f"{type(error).__name__}: {error}")
                raise
            self.note(trainer, None)
            return result

        @functools.wraps(on_step_begin)
        def watched_step(*args: Any, **kwargs: Any) -> Any:
            self.begun += 1
            return on_step_begin(*args, **kwargs)

        trainer_class.train, handler_class.on_step_begin = watched_train, watched_step

    def note(self, trainer: Any, error: str | None) -> None:
        """Write down what a training did."""
        if self.test is None:
            return
        adversarial = any(kind.__name__ == "AdversarialMixin" for kind in type(trainer).__mro__)
        line = Training(
            test=self.test,
            number=self.count,
            trainer=type(trainer).__name__,
            model=type(trainer.model).__name__,
            method=trainer.method.info.name if adversarial else None,
            begun=self.begun,
            steps=trainer.state.global_step,
            error=error,
            log=[numbers(entry) for entry in trainer.state.log_history],
            **weights_of(trainer.model),
        )
        self.count += 1
        append(self.file, line)


def numbers(entry: dict[str, Any]) -> dict[str, float]:
    """The figures of a log entry that do not depend on the machine's speed."""
    return {
        name: value
        for name, value in entry.items()
        if isinstance(value, int | float) and not name.endswith(TIMES) and MEMORY not in name
    }


def weights_of(model: Any) -> dict[str, Any]:
    """Norm and digest of the weights; nothing where a test has a mock for a model."""
    if not isinstance(model, torch.nn.Module):
        return {}
    digest, squares = hashlib.sha256(), 0.0
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, torch.Tensor):
            weights = value.detach().cpu().contiguous().reshape(-1)
            digest.update(name.encode() + weights.view(torch.uint8).numpy().tobytes())
            squares += float(weights.double().square().sum())
    return {"norm": math.sqrt(squares), "digest": digest.hexdigest()[:16]}


def seed() -> None:
    """Let a test draw the same numbers in every run of the suite."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def seed_searches() -> None:
    """Let optuna propose the same trials in every run, if it is installed."""
    if importlib.util.find_spec("optuna") is None:
        return
    samplers = importlib.import_module("optuna.samplers")
    for sampler in (samplers.TPESampler, samplers.NSGAIISampler):
        sampler.__init__ = partialmethod(sampler.__init__, seed=0)


def prepare() -> Watch:
    """Import the library, before pytest puts a checkout on the path that may have a folder of its
    name; swap, watch.

    transformers runs its ``__init__`` a second time when the trainer is first imported, so that
    comes first.
    """
    import_torchvision()
    seed_searches()
    stock = importlib.import_module("transformers.trainer").Trainer
    handler = importlib.import_module("transformers.trainer_callback").CallbackHandler
    importlib.import_module(SUITE)
    fill([Path(file) for file in os.environ["PEERS_FILES"].split(os.pathsep)], SUITE)
    watch = Watch(Path(os.environ["PEERS_RECORD"]) / TRAININGS / f"{os.getpid()}.jsonl")
    watch.attach(stock, handler)
    if METHOD != "stock":
        importlib.import_module("peers.swap").swap(SUITE, METHOD)
    return watch


watch = prepare()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    watch.start(item.nodeid)
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    seed()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    seed()
