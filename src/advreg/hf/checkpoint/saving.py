"""Checkpoints of the Trainer: complete or absent. A run survives a save that fails."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import SafetensorError
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy

from advreg.hf.checkpoint.deepspeed import NO_DATA, require_readable
from advreg.hf.checkpoint.manifest import (
    STAGING,
    is_foreign,
    new_token,
    publish,
    seal,
    step_of,
    token_of,
)
from advreg.hf.checkpoint.ranks import first_decides, method_files
from advreg.hf.checkpoint.state import (
    CheckpointError,
    checkpoints,
    last_whole_checkpoint,
    load_method,
    require_whole,
    rotate,
    save_method,
)
from advreg.hf.components.component import Component
from advreg.hf.counting import Tally
from advreg.hf.replaced import replaced

logger = logging.getLogger(__name__)

_FAILED_WRITES = (  # in what torch.save raises on a full disk
    "failed writing",
    "inline_container",  # "unexpected pos 576 vs 534"
    "iostream error",  # the disk fills as the file is ended
)

# What save_pretrained renames and splits to match the files that such models are published in:
# LayerNorm.gamma, or each expert of a mixture. The Trainer loads a checkpoint without it, and would
# not load those weights; from_pretrained reads both.
_CONVERSIONS = "_weight_conversions"


@dataclass(eq=False)
class CheckpointWriter(Component):
    """Writes sealed checkpoints and resumes from them; see :mod:`advreg.hf.checkpoint.manifest`."""

    hooks: ClassVar[tuple[str, ...]] = (
        "_load_from_checkpoint",
        "_load_optimizer_and_scheduler",
        "_load_rng_state",
        "_load_best_model",
        "_get_output_dir",
        "_push_from_checkpoint",
        "_save_checkpoint",
        "_save_optimizer_and_scheduler",
        "save_model",
    )

    begins_empty: bool = False  # does a resumed run begin with an empty memory?
    _staged: bool = False  # is a checkpoint being written?
    _run: str = ""  # token of the run
    _since: int = 0  # step from which on checkpoints in the folder are the run's

    def settle(self, given: str | bool | None) -> str | None:
        """The checkpoint to resume from, after a check of all its files. Deletes what a run that
        was killed during a save has left.
        """
        trainer = self.trainer
        output = Path(trainer.args.output_dir)
        if trainer.args.should_save:
            shutil.rmtree(output / STAGING, ignore_errors=True)
        self._run, self._since = new_token(), 0
        remembers = self.method.memory is not None
        checkpoint = first_decides(
            lambda: _whole(given, output, trainer.is_deepspeed_enabled, remembers)
        )
        if checkpoint is None:
            return None
        if trainer.args.should_save:
            self._rotate_behind(checkpoint)
        if not is_foreign(checkpoint):
            self._run = token_of(checkpoint)
        elif checkpoint.parent.resolve() == output.resolve():
            self._since = (step_of(checkpoint) or 0) + 1
        return str(checkpoint)

    def _rotate_behind(self, checkpoint: Path) -> None:
        """Delete the checkpoints that a run that was killed after a save would have deleted next;
        later ones stay.
        """
        run, step = checkpoint.parent, step_of(checkpoint) or 0
        later = {folder for number, folder in checkpoints(run).items() if number >= step}
        best = TrainerState.load_from_json(
            str(checkpoint / TRAINER_STATE_NAME)
        ).best_model_checkpoint
        rotate(run, self.trainer.args.save_total_limit, later | {Path(best or checkpoint)})

    # ---- loading: the Trainer unpickles with weights_only, and errors of that get another text

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, *args: object, **kwargs: object
    ) -> None:
        with _worded(f"the weights in {resume_from_checkpoint}"):
            self.own._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            self._load_method(Path(checkpoint))
        with _worded(f"optimizer.pt or scheduler.pt in {checkpoint}"):
            self.own._load_optimizer_and_scheduler(checkpoint)

    def _load_method(self, checkpoint: Path) -> None:
        """Load what the method remembers and what the run has counted."""
        args = self.trainer.args
        saved = load_method(self.method, checkpoint, args.process_index, args.world_size)
        before = len(method_files(checkpoint))
        if before not in (0, args.world_size) and self.trainer.is_world_process_zero():
            logger.warning(
                "%s was saved by %d processes and is resumed by %d: cached perturbations went "
                "to the processes "
                "their samples belong to now; the rest of a partial epoch comes in "
                "another order",
                checkpoint.name,
                before,
                args.world_size,
            )
        self._warn_of_threads(saved.get("threads"))
        self.begins_empty = not saved
        self.attached.tally = Tally.restored(saved)

    def _warn_of_threads(self, before: int | None) -> None:
        """On a CPU, sums are rounded in another order with another number of threads."""
        now, trainer = torch.get_num_threads(), self.trainer
        on_cpu = trainer.args.device.type == "cpu"
        if on_cpu and before not in (None, now) and trainer.is_world_process_zero():
            logger.warning(
                "the checkpoint was saved with %d threads and is resumed with %d: the run ends as "
                "it would have, but not to the last bit; set OMP_NUM_THREADS=%d for that",
                before,
                now,
                before,
            )

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _worded(f"rng_state.pth in {checkpoint}"):
            self.own._load_rng_state(checkpoint)

    def _load_best_model(self) -> None:
        if self.trainer.is_deepspeed_enabled:
            best = Path(self.trainer.state.best_model_checkpoint)
            first_decides(lambda: require_readable(best, True))
        self.own._load_best_model()

    # ---- saving

    def _get_output_dir(self, trial: object) -> str:
        folder: str = self.own._get_output_dir(trial)
        return os.path.join(folder, STAGING) if self._staged else folder

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if not self._staged:  # else it does not have its name yet
            self.own._push_from_checkpoint(checkpoint_folder)

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        """Save, seal, rename, and only then delete older ones. A save that fails does not end the
        run.

        Each process writes its own files; one that cannot fails the save of all.
        """
        trainer = self.trainer
        best = trainer.state.best_model_checkpoint
        run = Path(self._get_output_dir(trial))
        folder = run / f"checkpoint-{trainer.state.global_step}"
        failure = self._attempt(lambda: self.write(model, trial)) or self._attempt(
            lambda: self._publish(run / STAGING / folder.name, folder)
        )
        if failure is not None:
            if trainer.args.should_save:
                shutil.rmtree(run / STAGING, ignore_errors=True)
            trainer.state.best_model_checkpoint = best  # not the folder that is gone
            logger.error(
                "could not save %s (%s); training continues and earlier checkpoints are kept. Free "
                "some space, or set save_total_limit",
                folder.name,
                failure,
            )
            return
        if trainer.args.push_to_hub:
            self._push_from_checkpoint(str(folder))

    def write(self, model: nn.Module, trial: object) -> None:
        """Write the files of this process under a temporary name."""
        attributes = vars(self.trainer.model)
        with replaced(vars(self), "_staged", True), replaced(attributes, _CONVERSIONS, []):
            self.own._save_checkpoint(model, trial)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """The trainer's own. During a checkpoint a failure of one process is raised in all of them,
        because they wait for each other afterwards.
        """
        save = partial(self.own.save_model, output_dir, _internal_call)
        if not self._staged:
            save()
            return
        failure = self._attempt(save)
        if failure is not None:
            raise failure

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """The trainer's own, and what the method remembers.

        Under DeepSpeed a failure ends the run: its processes wait for each other here.
        """
        trainer = self.trainer
        failure = failed_write(partial(self.own._save_optimizer_and_scheduler, output_dir))
        if failure is None:
            process = trainer.args.process_index, trainer.args.world_size
            rest = float(getattr(trainer, "_tr_loss", 0.0))
            loss = self.tally.loss.with_rest(rest, trainer.state.global_step)
            tally = replace(self.tally, loss=loss).state() | {"threads": torch.get_num_threads()}
            save_method(self.method, Path(output_dir), tally, *process)
            return
        if trainer.is_deepspeed_enabled and trainer.args.world_size > 1:
            raise CheckpointError(
                f"this process could not write its part of {Path(output_dir).name} ({failure}), "
                "for which the others "
                "wait under DeepSpeed; free some space, and resume from the checkpoint before"
            ) from failure
        raise failure

    def _publish(self, staged: Path, folder: Path) -> None:
        args, state = self.trainer.args, self.trainer.state
        best = self._best_checkpoint(staged, folder)
        is_news = best != state.best_model_checkpoint
        state.best_model_checkpoint = best
        if args.should_save:
            if is_news:
                state.save_to_json(str(staged / TRAINER_STATE_NAME))
            seal(staged, self._run, self._since)
            publish(staged, folder)
            keep = {folder, Path(state.best_model_checkpoint or folder)}
            rotate(folder.parent, args.save_total_limit, keep)

    def _best_checkpoint(self, staged: Path, folder: Path) -> str | None:
        """The best checkpoint by its final name; the stock Trainer records the name of the staged
        one. The best may be an earlier one, if an evaluation after its save finds its weights the
        best so far.
        """
        state = self.trainer.state
        recorded: str | None = state.best_model_checkpoint
        if recorded == str(staged):
            return str(folder)
        is_kept = self.trainer.args.save_strategy in (
            SaveStrategy.STEPS,
            SaveStrategy.EPOCH,
            SaveStrategy.BEST,
        )
        earlier = folder.parent / f"checkpoint-{state.best_global_step}"
        has_earlier = is_kept and state.best_global_step and earlier.is_dir()
        return str(earlier) if has_earlier else recorded

    def _attempt(self, write: Callable[[], None]) -> BaseException | None:
        """The error of a write that failed here or in another process; each waits for all."""
        failure, args = failed_write(write), self.trainer.args
        if args.world_size == 1:
            return failure
        flag = torch.tensor([failure is not None], device=args.device, dtype=torch.int64)
        count = int(self.trainer.accelerator.gather(flag).sum())
        if failure is None and count > 0:
            text = f"{count} of {args.world_size} processes could not write their part"
            return OSError(text)
        return failure


def _whole(
    given: str | os.PathLike[str] | bool | None, output: Path, engaged: bool, remembers: bool
) -> Path | None:
    """The checkpoint that was asked for, or the last one of a run. One process reads all of its
    files.
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


def failed_write(action: Callable[[], object]) -> BaseException | None:
    """The error of a failed write, or None; other errors are raised."""
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
def _worded(what: str) -> Iterator[None]:
    """An error of unpickling or of safetensors as a :class:`CheckpointError` that is also of the
    stock error's class. Torch's own text advises to load code after all.
    """
    try:
        yield
    except (pickle.UnpicklingError, SafetensorError, EOFError, KeyError) as error:
        reason = NO_DATA if isinstance(error, pickle.UnpicklingError) else repr(error)
        text = f"{what} cannot be read ({reason}); resume from an earlier checkpoint"
        kinds = CheckpointError, type(error)
        raise type("CheckpointError", kinds, {"__str__": lambda _: text})(text) from error
