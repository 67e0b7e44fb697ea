"""A method's memory beside the model's weights, and which checkpoint of a run is whole."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from advreg.hf.ranks import METHOD_FILE, method_file, method_files, remove_others
from advreg.hf.seal import claimed, discard, flaw
from advreg.methods.base import Method, MethodState

logger = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint cannot be used for this run."""


def save_method(
    method: Method, folder: Path, tally: Mapping[str, Any] | None = None, rank: int = 0, world: int = 1
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


def load_method(method: Method, folder: Path, rank: int = 0, world: int = 1) -> dict[str, Any]:
    """Give the method back what it remembered, if it is the same method with the same options; returns the tally.

    A run of another number of processes is dealt anew; see :meth:`~advreg.methods.base.Method.redealt`.
    """
    paths = method_files(folder)
    if not paths:
        raise CheckpointError(f"{folder} holds no {METHOD_FILE}; it was not saved by advreg, or with save_only_model")
    tallies: list[dict[str, Any]] = []

    def states() -> Iterator[MethodState]:
        for path in paths if len(paths) != world else paths[rank : rank + 1]:
            tensors, facts = _read(method, path)
            tallies.append(json.loads(facts.get("tally", "{}")))
            yield MethodState(tensors, json.loads(facts.get("facts", "{}")))

    method.load_state(next(states()) if len(paths) == world else method.redealt(states()))
    return tallies[0]


def _read(method: Method, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file, if it is of the same method with the same options."""
    try:
        with safe_open(str(path), framework="pt") as file:  # on the host: a cache may be larger than the GPU
            facts: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); go on from an earlier checkpoint") from error
    if facts.get("method") != method.name:
        raise CheckpointError(f"the checkpoint was trained with {facts.get('method')}, this run with {method.name}")
    saved = method.as_then(json.loads(facts.get("options", "{}")))
    changed = [
        f"{name} {saved.get(name)} → {value}"
        for name, value in json.loads(json.dumps(method.decisive_options())).items()
        if saved.get(name) != value
    ]
    if changed:
        raise CheckpointError(
            f"options of {method.name} differ from the checkpoint's: {', '.join(changed)}; resume with the saved ones"
        )
    return tensors, facts


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints of a run by step, newest first."""
    found = {
        int(match.group(1)): folder
        for folder in run.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", folder.name)) and folder.is_dir()
    }
    return dict(sorted(found.items(), reverse=True))


def last_whole_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint of a run that is as it was saved; of newer ones it is said what is wrong with them."""
    token = claimed(run)
    for folder in checkpoints(run).values():
        wrong = flaw(folder, token) or _unfit(folder)
        if wrong is None:
            return folder
        logger.warning("%s is not used: %s. The checkpoint before it is tried", folder.name, wrong)
    return None


def require_whole(folder: Path) -> None:
    """Refuse a checkpoint that is not as it was saved."""
    wrong = (flaw(folder) or _unfit(folder)) if folder.is_dir() else "there is no such folder"
    if wrong is not None:
        raise CheckpointError(
            f"{folder} cannot be used: {wrong}; it was not saved by advreg, or damaged since. Choose an earlier one, "
            "or resume_from_checkpoint=True, which takes the last whole one"
        )


def rotate(run: Path, limit: int | None, keep: Collection[Path]) -> None:
    """Delete the checkpoints that were saved first until ``limit`` are left; never one of ``keep``.

    The Trainer's own rotation orders by number where all were saved within a second, and would then delete the newest
    in favour of a damaged one with a higher number.
    """
    if limit is None or limit <= 0:
        return
    oldest = sorted(
        (folder for folder in checkpoints(run).values() if folder not in keep),
        key=lambda folder: folder.stat().st_mtime_ns,
    )
    excess = len(checkpoints(run)) - max(limit, len(keep))
    for folder in oldest[: max(0, excess)]:
        discard(folder)


def _unfit(folder: Path) -> str | None:
    """Why a run cannot go on from a checkpoint that is whole, or nothing."""
    if not method_files(folder):
        return f"it holds no {METHOD_FILE}, as with save_only_model"
    return None if (folder / "trainer_state.json").is_file() else "it holds no trainer_state.json"
