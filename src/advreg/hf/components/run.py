"""A training from its first check to its end."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from advreg.hf.components.component import Component
from advreg.hf.guards.randomness import kept_randomness
from advreg.hf.guards.requirements import require, require_arguments, require_sharding
from advreg.hf.guards.stopping import Stop
from advreg.hf.progress import progress_bar
from advreg.hf.replaced import replaced
from advreg.hf.view.head import Head
from advreg.hf.view.injection import bare

logger = logging.getLogger(__name__)

Trial = object  # of a hyper-parameter search; its class depends on the backend
_OPTION = "method."  # before the name of a method's option in a search space


@dataclass(eq=False)
class TrainingRun(Component):
    """Checks a training, prepares the method and follows the training to its end."""

    hooks: ClassVar[tuple[str, ...]] = (
        "train",
        "_inner_training_loop",
        "_hp_search_setup",
        "evaluate",
    )

    is_training: bool = False
    _is_prepared: bool = False  # has this training prepared its method?

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: object, **kwargs: object
    ) -> object:
        attached, trainer = self.attached, self.trainer
        require_arguments(trainer.args, self.method, attached.on_non_finite)
        require_sharding(trainer, self.method, attached.on_non_finite)
        checkpoint = attached.checkpoints.settle(resume_from_checkpoint)
        self._is_prepared, self.is_training, self.tally.planned = False, True, None
        with ExitStack() as during:
            during.callback(setattr, self, "is_training", False)
            during.callback(setattr, trainer, "args", trainer.args)
            self._adapt_arguments()
            during.callback(attached.release_view)
            during.callback(attached.updates.release)
            events, handler = Events(attached), trainer.callback_handler
            follow = partial(events.follow, handler.call_event)
            during.enter_context(replaced(vars(handler), "call_event", follow))
            during.enter_context(events.stop)
            return self.own.train(checkpoint, *args, **kwargs)

    def _adapt_arguments(self) -> None:
        """Give a method's step a copy of the arguments with what it needs; the user's own stay
        unchanged.
        """
        if not self.method.info.needs:
            return
        args = self.trainer.args = copy.copy(self.trainer.args)
        if self.attached.on_non_finite == "stop":
            # there is nothing left for the filter to find, and it waits for the GPU
            args.logging_nan_inf_filter = False
        if args.gradient_checkpointing:
            keywords = args.gradient_checkpointing_kwargs or {}
            args.gradient_checkpointing_kwargs = {"use_reentrant": False, **keywords}

    def _inner_training_loop(self, *args: object, **kwargs: object) -> object:
        """The trainer's own loop, on the final model: ``model_init``, a trial or liger may have
        changed it.
        """
        self.attached.samples.identify()
        if self.method.info.needs:
            require(self.trainer, self.method)
            self.attached.new_view()
            if "corpus" in self.method.info.traits and not self._is_prepared:
                self.prepare_method()
        self._is_prepared = True
        return self.own._inner_training_loop(*args, **kwargs)

    def prepare_method(self) -> None:
        """Let the memory of the method look at the training set once."""
        trainer, memory = self.trainer, self.method.memory
        assert memory is not None
        is_shown = not trainer.args.disable_tqdm and trainer.is_world_process_zero()
        with progress_bar(is_shown) as progress:
            corpus = self.attached.samples.survey(progress)
            memory.prepare(corpus, trainer.args.seed, trainer.args.device, progress)

    def _hp_search_setup(self, trial: Trial) -> None:
        """The stock set-up of a trial, with a fresh method; ``method.radius`` in the search space
        is its option.
        """
        if trial is None:
            self.own._hp_search_setup(trial)
            return
        space = self.trainer.hp_space
        options: dict[str, object] = {}

        def without_options(trial: Trial) -> dict[str, object]:
            drawn = dict(space(trial))
            options.update(
                {name: drawn.pop(name) for name in list(drawn) if name.startswith(_OPTION)}
            )
            return drawn

        with replaced(vars(self.trainer), "hp_space", without_options):
            self.own._hp_search_setup(trial)
        if isinstance(trial, dict):
            options.update(
                {name: value for name, value in trial.items() if name.startswith(_OPTION)}
            )
        self.attached.method = self.method.fresh(
            **{name.removeprefix(_OPTION): value for name, value in options.items()}
        )

    def evaluate(self, *args: object, **kwargs: object) -> object:
        """The trainer's own. With a method the random state is restored afterwards, because a run
        that is resumed from here does not evaluate again.
        """
        if not self.method.info.needs:
            return self.own.evaluate(*args, **kwargs)
        with kept_randomness():
            return self.own.evaluate(*args, **kwargs)


@dataclass(eq=False)
class Events(Component):
    """What happens at the events of one training."""

    stop: Stop = field(default_factory=Stop)
    _is_stopping: bool = False

    def follow(
        self,
        call: Callable[..., TrainerControl],
        event: str,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: object,
    ) -> TrainerControl:
        """Call the callbacks of the user, then the method of that name here."""
        control = call(event, args, state, control, **kwargs)
        if hasattr(self, event):
            getattr(self, event)(control)
        return control

    def on_train_begin(self, control: TrainerControl) -> None:
        self.attached.updates.begin()
        if not self.method.info.needs:
            warn_of_ignored_items(self.trainer)
            return
        self.view.train_through(
            self.trainer.model_wrapped
        )  # adds its hooks before a pass is compiled
        if self.trainer.is_world_process_zero():
            for warning in self.method.warnings(self.trainer.state.num_train_epochs):
                logger.warning(warning)
        # a resumed run has done so: SMART's average would take one step too many
        if self.trainer.state.global_step == 0 or self.attached.checkpoints.begins_empty:
            self.method.updated(self.view)

    def on_epoch_begin(self, control: TrainerControl) -> None:
        self.attached.epoch = math.floor((self.trainer.state.epoch or 0) + 1e-6)
        self.tally.timer.turn(self.attached.epoch)

    def on_step_begin(self, control: TrainerControl) -> None:
        self.attached.steps.begin()
        self.tally.timer.start()

    def on_optimizer_step(self, control: TrainerControl) -> None:
        if not self.method.info.needs:
            return
        for _, report in self.attached.update.reports:
            self.attached.logs.add(report)
        if not self.attached.update.has_nonfinite:  # else there was no update
            self.method.updated(self.view)

    def on_step_end(self, control: TrainerControl) -> None:
        self.tally.timer.stop()
        self._is_stopping = self._must_stop()
        if self._is_stopping and self.trainer.args.save_strategy == "no":
            self.stop.leave()
        control.should_save = control.should_save or self._is_stopping

    def _must_stop(self) -> bool:
        """Whether a process received a signal. All processes give the same answer, or one would
        wait for the other's part of the checkpoint.
        """
        asked, args = self.stop.asked is not None, self.trainer.args
        if args.world_size > 1:
            count = self.trainer.accelerator.reduce(torch.tensor(float(asked), device=args.device))
            asked = bool(count > 0)
        return asked

    def on_save(self, control: TrainerControl) -> None:
        if self._is_stopping:
            logger.warning("stopped after step %d, as asked", self.trainer.state.global_step)
            self.stop.leave()

    def on_train_end(self, control: TrainerControl) -> None:
        self.attached.updates.settle()


def warn_of_ignored_items(trainer: Trainer) -> None:
    """Warn that the stock step multiplies the loss by the accumulation steps with this model."""
    steps, core = trainer.args.gradient_accumulation_steps, bare(trainer.model)
    own_loss = trainer.compute_loss_func is None and trainer.label_smoother is None
    takes_items = (
        own_loss and trainer.model_accepts_loss_kwargs and isinstance(core, PreTrainedModel)
    )
    if steps > 1 and takes_items and Head(core).ignores_items and trainer.is_world_process_zero():
        logger.warning(
            "%s ignores num_items_in_batch: with gradient_accumulation_steps=%d the stock "
            "step, which Standard() "
            "leaves alone, has %d times the loss and gradient of one batch; all other methods "
            "divide by the items "
            "of the whole group",
            type(core).__name__,
            steps,
            steps,
        )
