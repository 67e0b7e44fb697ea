"""A method's memory beside the model's weights, and which checkpoint of a run is whole."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from advreg.hf.seal import claimed, discard, flaw
from advreg.methods.base import Method, MethodState

METHOD_FILE = "advreg_method.safetensors"
METHOD_FILES = "advreg_method*.safetensors"  # of all processes

logger = logging.getLogger(__name__)


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
    try:
        with safe_open(str(path), framework="pt") as file:  # on the host: a cache may be larger than the GPU
            facts = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); go on from an earlier checkpoint") from error
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
    if not any(folder.glob(METHOD_FILES)):
        return f"it holds no {METHOD_FILE}, as with save_only_model"
    return None if (folder / "trainer_state.json").is_file() else "it holds no trainer_state.json"
