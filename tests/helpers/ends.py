"""How a run of ``advreg train`` ended, to the last bit, and whether two runs ended alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from advreg.hf.checkpoint.ranks import method_files
from advreg.records import run as records


def differences(one: Path, other: Path, steps: int) -> list[str]:
    """What differs in weights, the method's memory in each process, every logged loss or the
    record; empty if nothing.

    Args:
        one, other: folders of the runs.
        steps: how many each has made.
    """
    found = unequal(*(load_file(run / "model" / "model.safetensors") for run in (one, other)))
    (memory, facts), (other_memory, other_facts) = remembered(one, steps), remembered(other, steps)
    found += unequal(memory, other_memory)
    mine, theirs = {**facts, **result(one, steps)}, {**other_facts, **result(other, steps)}
    return found + [
        name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)
    ]


def unequal(tensors: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> list[str]:
    names = tensors.keys() | others.keys()
    return [
        name
        for name in names
        if name not in tensors or name not in others or not torch.equal(tensors[name], others[name])
    ]


def remembered(run: Path, steps: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and metadata of the last checkpoint's method files, less the seconds; each by file
    and name.
    """
    tensors: dict[str, torch.Tensor] = {}
    facts: dict[str, Any] = {}
    paths = method_files(run / f"checkpoint-{steps}")
    assert paths
    for path in paths:
        with safe_open(str(path), framework="pt") as file:
            told = dict(file.metadata())
        tally = json.loads(told.pop("tally"))
        assert min(tally.pop("epoch_seconds")) > 0
        tensors |= {f"{path.name}: {name}": tensor for name, tensor in load_file(path).items()}
        facts |= {f"{path.name}: {name}": value for name, value in {**told, **tally}.items()}
    return tensors, facts


def result(run: Path, steps: int) -> dict[str, Any]:
    outcome = records.load(run / "record.json").outcome
    assert outcome.timing["steps"] == steps
    losses = [
        (line["step"], line["loss"], line["grad_norm"])
        for line in outcome.history
        if "loss" in line
    ]
    assert [step for step, *_ in losses] == list(range(1, steps + 1))
    return {
        "metrics": outcome.metrics,
        "passes": outcome.passes,
        "cache": outcome.cache_bytes,
        "status": outcome.status,
        "losses": losses,
        "train_loss": [line["train_loss"] for line in outcome.history if "train_loss" in line],
    }
