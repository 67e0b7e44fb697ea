"""A method's memory beside the model's weights, and which checkpoint of a run is whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from advreg.methods.base import Method, MethodState

METHOD_FILE = "advreg_method.safetensors"
_SEAL = "trainer_state.json"  # the Trainer writes it last


class CheckpointError(ValueError):
    """A checkpoint cannot be used for this run."""


def save_method(method: Method, folder: Path, tally: Mapping[str, float] | None = None) -> None:
    """Write what the method remembers: tensors, and as metadata its name, options and facts.

    Args:
        method: the method.
        folder: the checkpoint's folder.
        tally: running totals of the run (passes, seconds) that a resumed run goes on counting from.
    """
    state = method.state()
    facts = {
        "method": method.name,
        "options": json.dumps(method.options(), sort_keys=True),
        "facts": json.dumps(dict(state.facts)),
        "tally": json.dumps(dict(tally or {})),
    }
    tensors = {name: value.detach().contiguous().cpu() for name, value in state.tensors.items()}
    save_file(tensors, str(folder / METHOD_FILE), metadata=facts)


def load_method(method: Method, folder: Path) -> dict[str, float]:
    """Give the method back what it remembered, if it is the same method with the same options; returns the tally."""
    path = folder / METHOD_FILE
    if not path.is_file():
        raise CheckpointError(f"{folder} holds no {METHOD_FILE}; it was not saved by advreg, or with save_only_model")
    with safe_open(str(path), framework="pt") as file:  # on the host: a cache may be larger than the GPU
        facts = file.metadata() or {}
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
    method.load_state(MethodState(tensors, json.loads(facts.get("facts", "{}"))))
    tally: dict[str, float] = json.loads(facts.get("tally", "{}"))
    return tally


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
    return (folder / METHOD_FILE).is_file()
