"""The final model of a run: whole in its folder, or in a spare one, or reported as unsaved.

It is written as checkpoints are: under a temporary name, synced to the disk, then renamed. The
run's record holds the digests of its files.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.trainer_utils import SaveStrategy

from advreg.hf.checkpoint.manifest import STAGING, changed, publish, synced
from advreg.hf.checkpoint.ranks import first_decides
from advreg.hf.checkpoint.saving import failed_write
from advreg.lab.kinds.arguments import training_arguments

if TYPE_CHECKING:
    from advreg.lab.kinds.training import Job

MODEL_FOLDER = "model"


class NoRoomError(ValueError):
    """What a run writes does not fit on its disk."""


@dataclass(frozen=True)
class SavedModel:
    """Where a model was saved.

    Args:
        folder: that holds it; none if it could not be saved anywhere.
        files: SHA-256 digests by name.
        failure: why it is not in its run's folder.
    """

    folder: Path | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    failure: str | None = None


def spare_folders(run: Path, spare: Path | None) -> list[Path]:
    """Where a run's results go when its own folder cannot be written: always the same places, so
    that ``--resume`` finds them.

    Args:
        run: folder of the run.
        spare: the place that the user gave; the temporary folder comes last.
    """
    key = hashlib.sha256(os.fsencode(run.resolve())).hexdigest()[:16]
    places = [*([] if spare is None else [spare]), Path(tempfile.gettempdir())]
    return [place / f"advreg-{run.name}-{key}" for place in places]


def make_private(spare: Path) -> None:
    """Make a spare folder that only this user can read; refuse one that another user made."""
    spare.mkdir(parents=True, exist_ok=True, mode=0o700)
    if hasattr(os, "getuid") and spare.stat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "another user made this folder", str(spare))


def save_model(write: Callable[[Path], None], run: Path, spares: Sequence[Path]) -> SavedModel:
    """Save the final model in the run's folder, else in the first spare folder that takes it.

    Args:
        write: writes the model to a folder; all processes call it together.
        run: folder of the run.
        spares: folders for what the run's folder does not take.
    """
    failure: str | None = None
    for place in (run, *spares):
        saved = _saved_in(place, write, is_private=place != run)
        if saved.failure is None:
            return replace(saved, failure=failure)
        failure = failure or saved.failure
    return SavedModel(failure=failure)


def _saved_in(place: Path, write: Callable[[Path], None], is_private: bool) -> SavedModel:
    """A model in a folder, or why it is not there."""
    staged = place / STAGING / MODEL_FOLDER
    unwritten = first_decides(lambda: failed_write(lambda: _prepare(place, staged, is_private)))
    unwritten = unwritten or failed_write(lambda: write(staged))
    return first_decides(lambda: _published(staged, unwritten))


def _prepare(place: Path, staged: Path, is_private: bool) -> None:
    if is_private:
        make_private(place)
    shutil.rmtree(staged, ignore_errors=True)  # a kill may have left a part of a model
    staged.mkdir(parents=True)


def _published(staged: Path, unwritten: BaseException | None) -> SavedModel:
    """Give a model that was written its own name; drop one that was not."""
    folder, files = staged.parent.parent / MODEL_FOLDER, dict[str, str]()

    def publish_it() -> None:
        files.update(synced(staged))
        publish(staged, folder)

    failure = unwritten or failed_write(publish_it)
    if failure is None:
        return SavedModel(folder, files)
    shutil.rmtree(staged.parent, ignore_errors=True)
    return SavedModel(failure=str(failure) or type(failure).__name__)


def model_flaw(run: Path, files: Mapping[str, str] | None) -> str | None:
    """What is wrong with the model in a run's folder, or nothing.

    Args:
        run: folder of the run.
        files: digests by name, from its record; none: only its presence is checked.
    """
    model = run / MODEL_FOLDER
    if files is not None and not files:
        return "its model was not saved"
    if not model.is_dir() or not any(model.iterdir()):
        return "its model is missing"
    wrong = next(changed(model, files or {}), None)
    return None if wrong is None else f"of its model, {wrong}"


def take_from_spare(run: Path, spares: Sequence[Path], files: Mapping[str, str]) -> None:
    """Move a run's model from a spare folder, if one holds it, to its own."""
    for spare in spares:
        model, staged = spare / MODEL_FOLDER, run / STAGING / MODEL_FOLDER
        if not files or not model.is_dir() or any(changed(model, files)):
            continue
        shutil.rmtree(staged, ignore_errors=True)
        shutil.copytree(model, staged)
        synced(staged)
        publish(staged, run / MODEL_FOLDER)
        shutil.rmtree(spare, ignore_errors=True)
        return


def require_room(job: Job, resume: bool, notice: Callable[[str], None]) -> None:
    """Refuse a training whose model and one checkpoint cannot fit on the disk; say so where they
    fit, but not all checkpoints that are kept.

    A checkpoint holds the weights and, of Adam, two moments of each. The memory of the method comes
    on top.
    """
    model = sum(weight.nbytes for weight in job.model.state_dict().values())
    arguments = training_arguments(job.folder, job.precision, job.fields)
    trained = sum(weight.nbytes for weight in job.model.parameters() if weight.requires_grad)
    moments = 2 * trained if "adam" in arguments.optim and "8bit" not in arguments.optim else 0
    saves = arguments.save_strategy != SaveStrategy.NO and not arguments.save_only_model
    if resume and any(job.folder.glob("checkpoint-*")):
        saves = False
    checkpoint = (model + moments) * saves
    there = next(place for place in (job.folder, *job.folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    sizes = f"the model takes {_megabytes(model)}" + (
        f" and a checkpoint {_megabytes(checkpoint)} (weights {_megabytes(model)}, optimizer "
        f"{_megabytes(moments)})" * saves
    )
    if free < model + checkpoint:
        raise NoRoomError(
            f"output '{job.folder}' has {_megabytes(free)} free, but {sizes}: "
            f"{_megabytes(model + checkpoint)} in all; free some space, or choose another --output"
        )
    kept = 1 + (arguments.save_total_limit or 1)  # the last is written before the first is deleted
    if free < model + kept * checkpoint:
        notice(
            f"'{job.folder}' has {_megabytes(free)} free, and {sizes}; with {kept} checkpoints at "
            f"a time, {_megabytes(model + kept * checkpoint)} are needed, so some saves may fail"
        )


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
