"""A method's memory beside the model's weights, and which checkpoint of a run is whole."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from advreg.hf.ranks import METHOD_FILE, method_file, method_files, remove_others
from advreg.methods.base import Method, MethodState

_SEAL = "trainer_state.json"  # the Trainer writes it last


class CheckpointError(ValueError):
    """A checkpoint cannot be used for this run."""


def save_method(
    method: Method, folder: Path, tally: Mapping[str, float] | None = None, rank: int = 0, world: int = 1
) -> None:
    """Write what the method remembers: tensors, and as metadata its name, options and facts.

    Args:
        method: the method.
        folder: the checkpoint's folder.
        tally: running totals of the run (passes, seconds) that a resumed run goes on counting from.
        rank, world: this process and how many there are; each writes a file of its own.
    """
    state = method.state()
    facts = {
        "method": method.name,
        "options": json.dumps(method.options(), sort_keys=True),
        "facts": json.dumps(dict(state.facts)),
        "tally": json.dumps(dict(tally or {})),
    }
    tensors = {name: value.detach().contiguous().cpu() for name, value in state.tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)  # the Trainer's first process makes it, and may not have yet
    save_file(tensors, str(folder / method_file(rank, world)), metadata=facts)
    if rank == 0:
        remove_others(folder, world)


def load_method(method: Method, folder: Path, rank: int = 0, world: int = 1) -> dict[str, float]:
    """Give the method back what it remembered, if it is the same method with the same options; returns the tally.

    A run of another number of processes is dealt anew; see :meth:`~advreg.methods.base.Method.redealt`.
    """
    paths = method_files(folder)
    if not paths:
        raise CheckpointError(f"{folder} holds no {METHOD_FILE}; it was not saved by advreg, or with save_only_model")
    tallies: list[dict[str, float]] = []

    def states() -> Iterator[MethodState]:
        for path in paths if len(paths) != world else paths[rank : rank + 1]:
            tensors, facts = _read(method, path)
            tallies.append(json.loads(facts.get("tally", "{}")))
            yield MethodState(tensors, json.loads(facts.get("facts", "{}")))

    method.load_state(next(states()) if len(paths) == world else method.redealt(states()))
    return tallies[0]


def _read(method: Method, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file, if it is of the same method with the same options."""
    with safe_open(str(path), framework="pt") as file:  # on the host: a cache may be larger than the GPU
        facts: dict[str, str] = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    if facts.get("method") != method.name:
        raise CheckpointError(f"the checkpoint was trained with {facts.get('method')}, this run with {method.name}")
    saved, mine = json.loads(facts.get("options", "{}")), json.loads(json.dumps(method.options()))
    changed = [
        f"{name} {saved.get(name)} → {mine[name]}"
        for name in mine
        if saved.get(name) != mine[name] and name not in method.movable
    ]
    if changed:
        raise CheckpointError(
            f"options of {method.name} differ from the checkpoint's: {', '.join(changed)}; resume with the saved ones"
        )
    return tensors, facts


def last_whole_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint of a run that was written to its end; a kill in mid-save leaves one that was not."""
    numbered = [
        (int(folder.name.removeprefix("checkpoint-")), folder)
        for folder in run.glob("checkpoint-*")
        if folder.name.removeprefix("checkpoint-").isdigit()
    ]
    return next((folder for _, folder in sorted(numbered, reverse=True) if _is_whole(folder)), None)


def _is_whole(folder: Path) -> bool:
    try:
        json.loads((folder / _SEAL).read_text())
    except (OSError, ValueError):
        return False
    return bool(method_files(folder))
