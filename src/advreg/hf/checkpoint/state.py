"""A method's memory in a checkpoint, and the search for a complete checkpoint of a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from advreg.hf.checkpoint.manifest import claimed, discard, flaw, is_foreign, step_of
from advreg.hf.checkpoint.ranks import METHOD_FILE, method_file, method_files, remove_others
from advreg.memory.memory import MemoryState
from advreg.methods.base import Method, decisive_options, upgraded_options

logger = logging.getLogger(__name__)

_STATE_FILE = "trainer_state.json"


class CheckpointError(ValueError):
    """A checkpoint cannot be used for this run."""


class IncompleteCheckpointError(CheckpointError, FileNotFoundError):
    """A checkpoint lacks ``trainer_state.json``, which the stock Trainer resumes from."""


def save_method(
    method: Method,
    folder: Path,
    tally: Mapping[str, object] | None = None,
    rank: int = 0,
    world: int = 1,
) -> None:
    """Write what the method remembers: tensors, with its name, options and facts as metadata.

    Args:
        method: the method.
        folder: the checkpoint's folder.
        tally: running totals of the run (passes, seconds), which a resumed run continues.
        rank, world: this process and how many there are; each writes its own file.
    """
    state = MemoryState() if method.memory is None else method.memory.state()
    facts = {
        "method": method.info.name,
        "options": json.dumps(method.options(), sort_keys=True),
        "facts": json.dumps(dict(state.facts)),
        "tally": json.dumps(dict(tally or {})),
    }
    tensors = {name: value.detach().contiguous().cpu() for name, value in state.tensors.items()}
    folder.mkdir(
        parents=True, exist_ok=True
    )  # the Trainer's first process makes it, and may not have yet
    save_file(tensors, str(folder / method_file(rank, world)), metadata=facts)
    if rank == 0:
        remove_others(folder, world)


def load_method(method: Method, folder: Path, rank: int = 0, world: int = 1) -> dict[str, Any]:
    """Load what the method remembered, if it is the same method with the same options; returns the
    tally.

    The memory of a run of another number of processes is resharded; see
    :meth:`~advreg.memory.memory.Memory.load`. After another Trainer's checkpoint the method
    begins with an empty memory, and the tally is empty.
    """
    paths = method_files(folder)
    if not paths:
        if method.memory is not None and not is_foreign(folder):
            raise CheckpointError(f"{folder} holds no {METHOD_FILE}, as with save_only_model")
        _begin_memory(method, folder, rank)
        return {}
    tallies: list[dict[str, Any]] = []

    def states() -> Iterator[MemoryState]:
        for path in paths if len(paths) != world else paths[rank : rank + 1]:
            tensors, facts = _read(method, path)
            tallies.append(json.loads(facts.get("tally", "{}")))
            yield MemoryState(tensors, json.loads(facts.get("facts", "{}")))

    if method.memory is None:
        next(states())
    else:
        method.memory.load(states())
    return tallies[0]


def _begin_memory(method: Method, folder: Path, rank: int) -> None:
    """Begin with an empty memory, and say so once."""
    if (wrong := _state_fault(folder / _STATE_FILE)) is not None:
        raise CheckpointError(f"{folder} cannot be used: {wrong}; it is no checkpoint")
    epoch = float(json.loads((folder / _STATE_FILE).read_text(encoding="utf-8")).get("epoch") or 0)
    if method.memory is None:
        return
    method.memory.load((), epoch)
    if rank == 0:
        logger.warning(
            "%s was saved without advreg: %s remembers nothing yet, and its memory begins at epoch "
            "%g",
            folder.name,
            method.info.name,
            epoch,
        )


def _read(method: Method, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a file, if it is of the same method with the same options."""
    try:
        with safe_open(
            str(path), framework="pt"
        ) as file:  # on the host: a cache may be larger than the GPU
            facts: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({error}); resume from an earlier checkpoint"
        ) from error
    require_same_method(method, facts.get("method"), json.loads(facts.get("options", "{}")))
    return tensors, facts


def require_same_method(method: Method, name: str | None, options: Mapping[str, object]) -> None:
    """Refuse to resume with another method than the saved one, or with other options."""
    if name != method.info.name:
        raise CheckpointError(
            f"the checkpoint was trained with {name}, this run with {method.info.name}"
        )
    saved = upgraded_options(type(method), options)
    changed = [
        f"{name} {saved.get(name)} → {value}"
        for name, value in json.loads(json.dumps(decisive_options(method))).items()
        if saved.get(name) != value
    ]
    if changed:
        raise CheckpointError(
            f"options of {method.info.name} differ from the checkpoint's: {', '.join(changed)}; "
            "resume with the saved ones"
        )


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints of a run by step, newest first."""
    found = {
        step: folder
        for folder in run.glob("checkpoint-*")
        if (step := step_of(folder)) is not None and folder.is_dir()
    }
    return dict(sorted(found.items(), reverse=True))


def last_whole_checkpoint(run: Path, remembers: bool = True) -> Path | None:
    """The newest checkpoint of a run that can be used; a warning says what is wrong with each newer
    one.

    Args:
        run: folder of the run.
        remembers: whether the checkpoint must hold what a method remembers."""
    token = claimed(run)
    for folder in checkpoints(run).values():
        wrong = _fault(folder, token, remembers)
        if wrong is None:
            return folder
        logger.warning("%s is not used: %s. The checkpoint before it is tried", folder.name, wrong)
    return None


def require_whole(folder: Path, remembers: bool = True) -> None:
    """Refuse a checkpoint that cannot be used; see :func:`last_whole_checkpoint`."""
    wrong = _fault(folder, None, remembers) if folder.is_dir() else "there is no such folder"
    if wrong is None:
        return
    lacks_state = folder.is_dir() and not (folder / _STATE_FILE).exists()
    raise (IncompleteCheckpointError if lacks_state else CheckpointError)(
        f"Can't find a valid checkpoint at {folder}: {wrong}. Choose an earlier one, or "
        "resume_from_checkpoint=True, "
        "which takes the last one that can be used"
    )


def rotate(run: Path, limit: int | None, keep: Collection[Path]) -> None:
    """Delete the oldest checkpoints until ``limit`` are left; those in ``keep`` stay.

    The Trainer's own rotation orders by number where all were saved within a second, and would then
    delete the newest in favour of a damaged one with a higher number.
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


def _fault(folder: Path, token: str | None, remembers: bool) -> str | None:
    """Why a run cannot resume from a checkpoint, or None."""
    wrong = None
    if not is_foreign(folder):
        wrong = flaw(folder, token)
        if wrong is None and remembers and not method_files(folder):
            wrong = f"it holds no {METHOD_FILE}, as with save_only_model"
    return wrong or _state_fault(folder / _STATE_FILE)


def _state_fault(path: Path) -> str | None:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"it holds no {path.name}"
    except (OSError, ValueError) as error:
        return f"{path.name} cannot be read ({error})"
    return None
