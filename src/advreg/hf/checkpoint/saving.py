"""Checkpoints of the Trainer in one piece: whole or not there; and a failed save is not a failed
run.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy

from advreg.hf.checkpoint.deepspeed import require_readable
from advreg.hf.checkpoint.manifest import STAGING, is_foreign, new_token, publish, seal, token_of
from advreg.hf.checkpoint.ranks import first_decides
from advreg.hf.checkpoint.state import (
    CheckpointError,
    checkpoints,
    last_whole_checkpoint,
    require_whole,
    rotate,
    step_of,
)

logger = logging.getLogger(__name__)

_FAILED_WRITES = (
    "failed writing",
    "inline_container",
)  # torch.save on a full disk: "unexpected pos 576 vs 534"

_CONVERSIONS = "_weight_conversions"  # of a model: what save_pretrained renames and splits

_Any: Any = object  # to the type checker: whatever Trainer it is mixed into


class SavingMixin(_Any):  # type: ignore[misc]
    """A Trainer whose checkpoints are sealed; see :mod:`advreg.hf.checkpoint.manifest`."""

    _staged = False  # is a checkpoint being written?
    _run = ""  # token of the run
    _since = 0  # step from which on checkpoints in the folder are the run's

    def _settle(self, given: str | bool | None) -> str | None:
        """The checkpoint to go on from, known to be whole; what a run that was killed in a save
        left is cleared.
        """
        output = Path(self.args.output_dir)
        if self.args.should_save:
            shutil.rmtree(output / STAGING, ignore_errors=True)
        self._run, self._since = new_token(), 0
        checkpoint = first_decides(
            lambda: _whole(given, output, self.is_deepspeed_enabled, self.method.memory is not None)
        )
        if checkpoint is None:
            return None
        if self.args.should_save:
            self._rotate_behind(checkpoint)
        if not is_foreign(checkpoint):
            self._run = token_of(checkpoint)
        elif checkpoint.parent.resolve() == output.resolve():
            self._since = step_of(checkpoint) + 1
        return str(checkpoint)

    def _rotate_behind(self, checkpoint: Path) -> None:
        """Delete what a run that was killed after its save would have deleted next; never what came
        later.
        """
        run, step = checkpoint.parent, step_of(checkpoint)
        later = {folder for number, folder in checkpoints(run).items() if number >= step}
        best = TrainerState.load_from_json(
            str(checkpoint / TRAINER_STATE_NAME)
        ).best_model_checkpoint
        rotate(run, self.args.save_total_limit, later | {Path(best or checkpoint)})

    # ---- what the Trainer reads is unpickled with weights_only; an error of that is worded for
    # users

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        with _worded(f"the weights in {resume_from_checkpoint}"):
            super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _worded(f"optimizer.pt or scheduler.pt in {checkpoint}"):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _worded(f"rng_state.pth in {checkpoint}"):
            super()._load_rng_state(checkpoint)

    def _load_best_model(self) -> None:
        if self.is_deepspeed_enabled:
            first_decides(lambda: require_readable(Path(self.state.best_model_checkpoint), True))
        super()._load_best_model()

    # ---- saving

    def _get_output_dir(self, trial: Any) -> str:
        folder: str = super()._get_output_dir(trial)
        return os.path.join(folder, STAGING) if self._staged else folder

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self._staged:  # else it has not got its name yet
            super()._push_from_checkpoint(checkpoint_folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Save, seal, rename, and only then drop older ones. A save that fails costs that save, not
        the run.

        Of many processes each writes its files; one that cannot fails the save of all.
        """
        best = self.state.best_model_checkpoint
        run = Path(self._get_output_dir(trial))
        folder = run / f"checkpoint-{self.state.global_step}"
        failure = _failure(lambda: self._write(model, trial))
        failed = self._processes_that(failure is not None)
        if not failed:
            failure = _failure(lambda: self._publish(run / STAGING / folder.name, folder))
            failed = self._processes_that(failure is not None)
        if failed:
            if self.args.should_save:
                shutil.rmtree(run / STAGING, ignore_errors=True)
            self.state.best_model_checkpoint = best  # not the folder that is gone
            logger.error(
                "could not save %s (%s); training goes on and earlier checkpoints are kept. Free "
                "some space, or set "
                "save_total_limit",
                folder.name,
                failure
                or f"{failed} of {self.args.world_size} processes could not write their part",
            )
            return
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(folder))

    def _write(self, model: nn.Module, trial: Any) -> None:
        self._staged = True
        try:
            with _own_names(self.model):
                super()._save_checkpoint(model, trial)
        finally:
            self._staged = False

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The stock one; in a checkpoint it fails for all processes, which wait for each other in
        what comes next.
        """
        save = partial(super().save_model, output_dir, _internal_call)
        if not self._staged:
            save()
            return
        failure = _failure(save)
        if self._processes_that(failure is not None):
            raise failure or OSError("another process could not write the weights")

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """The stock one; DeepSpeed's processes wait for each other in it, so that one that fails
        ends the run.
        """
        failure = _failure(partial(super()._save_optimizer_and_scheduler, output_dir))
        if failure is None:
            return
        if self.is_deepspeed_enabled and self.args.world_size > 1:
            raise CheckpointError(
                f"this process could not write its part of {Path(output_dir).name} ({failure}), "
                "for which the others "
                "wait under DeepSpeed; free some space, and go on from the checkpoint before"
            ) from failure
        raise failure

    def _publish(self, staged: Path, folder: Path) -> None:
        best = self._best_checkpoint(staged, folder)
        is_news = best != self.state.best_model_checkpoint
        self.state.best_model_checkpoint = best
        if self.args.should_save:
            if is_news:
                self.state.save_to_json(str(staged / TRAINER_STATE_NAME))
            seal(staged, self._run, self._since)
            publish(staged, folder)
            keep = {folder, Path(self.state.best_model_checkpoint or folder)}
            rotate(folder.parent, self.args.save_total_limit, keep)

    def _best_checkpoint(self, staged: Path, folder: Path) -> str | None:
        """The best checkpoint by its own name, which the stock Trainer looks for where this one is
        staged.

        It may be an earlier one: an evaluation after a save finds that the saved weights are the
        best so far.
        """
        told: str | None = self.state.best_model_checkpoint
        if told == str(staged):
            return str(folder)
        is_kept = self.args.save_strategy in (
            SaveStrategy.STEPS,
            SaveStrategy.EPOCH,
            SaveStrategy.BEST,
        )
        earlier = folder.parent / f"checkpoint-{self.state.best_global_step}"
        return (
            str(earlier) if is_kept and self.state.best_global_step and earlier.is_dir() else told
        )

    def _processes_that(self, are: bool) -> int:
        """How many processes say so; each waits for all."""
        if self.args.world_size == 1:
            return int(are)
        return int(
            self.accelerator.gather(
                torch.tensor([are], device=self.args.device, dtype=torch.int64)
            ).sum()
        )


def _whole(
    given: str | os.PathLike[str] | bool | None, output: Path, engaged: bool, remembers: bool
) -> Path | None:
    """The checkpoint that was asked for, or the last one of a run; read once for all processes, and
    to its end.
    """
    if given is True:
        checkpoint = last_whole_checkpoint(output, remembers)
        if checkpoint is None:
            raise CheckpointError(
                f"No valid checkpoint found in output directory ({output}); leave "
                "resume_from_checkpoint out"
            )
    elif isinstance(given, str | os.PathLike):
        checkpoint = Path(given)
        require_whole(checkpoint, remembers)
    else:
        return None
    require_readable(checkpoint, engaged)
    return checkpoint


def _failure(action: Callable[[], None]) -> BaseException | None:
    """Why something could not be written, if it could not; other errors are raised."""
    try:
        action()
    except (OSError, SafetensorError, RuntimeError, CheckpointException) as error:
        if isinstance(error, RuntimeError) and not any(
            sign in str(error) for sign in _FAILED_WRITES
        ):
            raise
        return error
    return None


@contextmanager
def _own_names(model: Any) -> Iterator[None]:
    """Within, weights are saved under the names that the model has for them.

    ``save_pretrained`` uses the names of the files that such models are published in:
    ``LayerNorm.gamma``, or each expert of a mixture by itself. The Trainer loads a checkpoint
    without them, and would leave those weights as they are; ``from_pretrained`` reads both.
    """
    renamed = vars(model).get(_CONVERSIONS)
    setattr(model, _CONVERSIONS, [])
    try:
        yield
    finally:
        if renamed is None:
            delattr(model, _CONVERSIONS)
        else:
            setattr(model, _CONVERSIONS, renamed)


@contextmanager
def _worded(what: str) -> Iterator[None]:
    """An error of unpickling or of safetensors as one of ours. Torch's own text advises to load
    code after all.
    """
    try:
        yield
    except pickle.UnpicklingError as error:
        told = "it holds something other than tensors and numbers, perhaps code, or is damaged"
        raise _as_ours(
            error, f"{what} cannot be read ({told}); go on from an earlier checkpoint"
        ) from error
    except (SafetensorError, EOFError, KeyError) as error:
        raise _as_ours(
            error, f"{what} cannot be read ({error!r}); go on from an earlier checkpoint"
        ) from error


def _as_ours(error: Exception, text: str) -> CheckpointError:
    """A CheckpointError that is caught wherever the stock Trainer's error is."""
    kind = type("CheckpointError", (CheckpointError, type(error)), {"__str__": lambda _: text})
    ours: CheckpointError = kind(text)
    return ours
