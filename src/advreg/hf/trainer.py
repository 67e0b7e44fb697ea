"""The Hugging Face Trainer with a method: every argument the stock one takes, and ``method=``."""

from __future__ import annotations

import copy
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import PreTrainedModel, Seq2SeqTrainer, Trainer

from advreg.core.checks import check_choice
from advreg.core.progress import Progress, counting
from advreg.core.schedule import Clock
from advreg.core.shard import Shard
from advreg.hf.checkpoint.deepspeed import refuse_deepspeed
from advreg.hf.checkpoint.ranks import method_files
from advreg.hf.checkpoint.saving import SavingMixin
from advreg.hf.checkpoint.state import load_method, save_method
from advreg.hf.counting import PassCount, Timer
from advreg.hf.data import IdCollator, Limits, leave_inherited
from advreg.hf.guards.nonfinite import Update, Withholding, is_finite
from advreg.hf.guards.randomness import kept_randomness
from advreg.hf.guards.requirements import require
from advreg.hf.guards.stopping import Stop
from advreg.hf.progress import progress_bar
from advreg.hf.samples import SamplesMixin
from advreg.hf.sharding import ShardBatches
from advreg.hf.stepping import SteppingMixin
from advreg.hf.survey import survey
from advreg.hf.view.head import Head
from advreg.hf.view.injection import bare
from advreg.hf.view.view import HFModelView
from advreg.memory.corpus import Corpus
from advreg.methods.base import Method, StepReport
from advreg.methods.standard import Standard

logger = logging.getLogger(__name__)

_STRATEGIES = ("random", "sequential", "group_by_length")

_OPTION = "method."  # before the name of a method's option in a search space

OnNonFinite = Literal["stop", "skip", "ignore"]


class AdversarialMixin(SteppingMixin, SamplesMixin, SavingMixin):
    """Turns any Trainer into one that trains by a method; put it before the Trainer among the
    bases.

    With ``Standard()`` every step is the stock trainer's.

    Args:
        method: how to train on a batch; Standard if none is given.
        site: where δ is added: ``"tokens"``, ``"block"`` or a module's name.
        on_non_finite: what to do when the loss or a gradient is not finite: ``"stop"`` with an
            error that names the step and the samples, ``"skip"`` that update and count it in
            ``skipped``, or ``"ignore"`` it as the stock trainer does. With fp16 a gradient that
            overflows is the loss scaler's to skip.
        kwargs: all the arguments of the stock Trainer.
    """

    args: Any
    data_collator: Any
    hp_space: Any
    train_dataset: Any

    def __init__(
        self,
        *args: Any,
        method: Method | None = None,
        site: str = "tokens",
        on_non_finite: OnNonFinite = "stop",
        **kwargs: Any,
    ) -> None:
        check_choice("on_non_finite", on_non_finite, get_args(OnNonFinite))
        self.method = method or Standard()
        self.site = site
        self.on_non_finite = on_non_finite
        self.skipped = 0
        super().__init__(*args, **kwargs)
        self.data_collator = IdCollator(
            self.data_collator, Limits.of(self.model) if self.method.info.needs else None
        )
        self._reset_steps()
        self.timer = Timer()
        self._epoch = 0
        self._planned: int | None = None  # updates of the run, as it was when it began
        self._stop = Stop()
        self._leaving = False
        self._anew = False  # does a resumed run begin with an empty memory?
        self._measured: dict[str, list[Tensor]] = defaultdict(list)
        self._task: HFModelView | None = None
        self._is_ready = False  # has this training prepared its method?

    # ---- before the first step

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        if self.on_non_finite == "skip" and self.args.world_size > 1:
            raise ValueError(
                "on_non_finite must be 'stop' with several processes, got 'skip' with "
                f"{self.args.world_size}: one "
                "that skips would leave the others waiting for its gradient"
            )
        if self.method.info.needs:
            self._refuse_arguments()
            self._refuse_sharding()
        checkpoint = self._settle(resume_from_checkpoint)
        self._is_ready, self._planned = False, None
        with ExitStack() as during:
            during.enter_context(self._own_arguments())
            during.enter_context(self._following_events())
            during.callback(self._release)
            self._stop = during.enter_context(Stop())
            return super().train(checkpoint, *args, **kwargs)

    def _refuse_arguments(self) -> None:
        """Refuse arguments that only the stock step can train with."""
        if self.args.n_gpu > 1:
            raise ValueError(
                f"advreg trains on one GPU per process, got a process with {self.args.n_gpu}; "
                "launch with torchrun or "
                "accelerate, or set CUDA_VISIBLE_DEVICES to one GPU"
            )
        if "lomo" in str(self.args.optim).lower():
            raise ValueError(
                f"optim must be an optimizer with a step of its own, got {self.args.optim}, which "
                "updates the weights "
                "inside the backward pass; choose adamw_torch or another"
            )

    @contextmanager
    def _own_arguments(self) -> Iterator[None]:
        """Within, ``args`` is a copy with what a method's step needs; the user's own are left
        alone.
        """
        given = self.args
        if self.method.info.needs:
            self.args = copy.copy(given)
            if self.on_non_finite == "stop":
                self.args.logging_nan_inf_filter = (
                    False  # nothing is left for it to find, and it waits for the GPU
                )
            if self.args.gradient_checkpointing:
                keywords = self.args.gradient_checkpointing_kwargs or {}
                self.args.gradient_checkpointing_kwargs = {"use_reentrant": False, **keywords}
        try:
            yield
        finally:
            self.args = given

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        """The stock loop, on a model that is final: ``model_init``, a trial or liger may have
        changed it.
        """
        self._identify()
        if self.method.info.needs:
            require(self)
            self._task = self._make_task()
            if "corpus" in self.method.info.traits and not self._is_ready:
                self._prepare_method()
        self._is_ready = True
        return super()._inner_training_loop(*args, **kwargs)

    def _release(self) -> None:
        if self._task is not None:
            self._task.release()
        if self._withholding is not None:
            self._withholding.release()

    def _hp_search_setup(self, trial: Any) -> None:
        """The stock set-up of a trial, with a fresh method; ``method.radius`` in the search space
        is its option.
        """
        if trial is None:
            super()._hp_search_setup(trial)
            return
        space = self.hp_space
        options: dict[str, Any] = {}

        def without_options(trial: Any) -> dict[str, Any]:
            drawn = dict(space(trial))
            options.update(
                {name: drawn.pop(name) for name in list(drawn) if name.startswith(_OPTION)}
            )
            return drawn

        self.hp_space = without_options
        try:
            super()._hp_search_setup(trial)
        finally:
            self.hp_space = space
        if isinstance(trial, dict):
            options.update(
                {name: value for name, value in trial.items() if name.startswith(_OPTION)}
            )
        self.method = self.method.fresh(
            **{name.removeprefix(_OPTION): value for name, value in options.items()}
        )

    def _refuse_sharding(self) -> None:
        """Refuse ways to spread the weights over processes that this method or these settings
        cannot train with.
        """
        if self.is_deepspeed_enabled:
            plugin = self.accelerator.state.deepspeed_plugin
            refuse_deepspeed(plugin.deepspeed_config, self.method, self.args, self.on_non_finite)
        if not self.is_fsdp_enabled:
            return
        if not self.accelerator.is_fsdp2:
            raise ValueError(
                "fsdp_config must have 'version': 2, got 1, which hides the weights from the ascent"
            )
        for constraint in self.method.constraints():
            if constraint.kind == "whole_weights":
                raise ValueError(
                    f"{constraint.option} of {self.method.info.name} must be off under FSDP: "
                    f"{constraint.why}; turn it off, or train under DDP"
                )
        if self.args.fp16:
            raise ValueError(
                "fp16 must be off under FSDP: an ascent that overflows is repeated, and a process "
                "that repeats alone "
                "would wait for ever; train in bf16"
            )

    def _prepare_method(self) -> None:
        """Let the method see the training set once."""
        assert self.method.memory is not None
        with self._progress_bar() as progress:
            self.method.memory.prepare(
                self._survey(progress), self.args.seed, self.args.device, progress
            )

    def _progress_bar(self) -> AbstractContextManager[Progress]:
        """Of many processes one shows how far it is."""
        return progress_bar(not self.args.disable_tqdm and self.is_world_process_zero())

    def _survey(self, progress: Progress) -> Corpus:
        """What the method may know of the training set."""
        shard = self._shard()
        advance = counting(progress, "surveying the data", len(shard))
        size = self.args.train_batch_size
        return survey(self.task, self._samples(), self._collator(), advance, shard, size)

    def _shard(self) -> Shard:
        """The training samples of this process."""
        return Shard(len(self.train_dataset), self.args.process_index, self.args.world_size)

    @property
    def task(self) -> HFModelView:
        """The model as the method sees it."""
        if self._task is None:
            self._task = self._make_task()
        return self._task

    def _make_task(self) -> HFModelView:
        plain = (
            type(self).compute_loss.__module__.startswith("transformers.")
            and self.compute_loss_func is None
        )
        return HFModelView(
            self.model,
            site=self.site,
            half=self.args.fp16,
            context=self.compute_loss_context_manager,
            compute_loss=self._task_loss,
            perturbs="perturbation" in self.method.info.needs,
            means=plain and "compute_loss" not in vars(self),
        )

    # ---- the data

    def get_train_dataloader(self) -> Any:
        """The stock one; with several processes a method that remembers samples keeps each in one
        process.
        """
        if (
            not self.method.info.needs
            or self.args.world_size == 1
            or isinstance(self.train_dataset, IterableDataset)
        ):
            return super().get_train_dataloader()
        return self._loader(self._shard_batches())

    def _shard_batches(self) -> ShardBatches:
        strategy = str(
            getattr(self.args.train_sampling_strategy, "value", self.args.train_sampling_strategy)
        )
        check_choice("train_sampling_strategy with several processes", strategy, _STRATEGIES)
        shard = self._shard()
        return ShardBatches(
            shard,
            self.args.train_batch_size,
            self.args.seed if self.args.data_seed is None else self.args.data_seed,
            shuffle=strategy != "sequential",
            drop_last=self.args.dataloader_drop_last,
            lengths=self._lengths(shard) if strategy == "group_by_length" else None,
        )

    def _lengths(self, shard: Shard) -> NDArray[np.int64]:
        """Tokens of each sample of a shard."""
        column = self.args.length_column_name
        if column in (getattr(self.train_dataset, "column_names", None) or ()):
            return np.asarray(self.train_dataset[column][shard.rank :: shard.world], dtype=np.int64)
        return np.array(
            [len(self.train_dataset[index]["input_ids"]) for index in shard.ids], dtype=np.int64
        )

    def _loader(self, batches: Any) -> Any:
        """As the stock one, but batches come from a sampler that knows of processes and epochs
        itself.
        """
        loader: DataLoader[Any] = DataLoader(
            self._samples(),
            batch_sampler=batches,
            collate_fn=self._collator(),
            num_workers=self.args.dataloader_num_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            worker_init_fn=leave_inherited,
        )
        return prepare_data_loader(
            loader, device=self.args.device, num_processes=1, process_index=0, put_on_device=True,
            # else the host waits until the GPU has nothing left to do
            non_blocking=self.args.dataloader_pin_memory,
        )  # fmt: skip

    # ---- the step

    def _begin_step(self) -> None:
        """An update begins, with the first of its micro-batches."""
        self._mark_step()
        self._update, self._passes_before = (
            Update(self.state.global_step, self._epoch),
            replace(self.passes),
        )
        self.timer.start()

    def _clock(self, closes_group: bool = True) -> Clock:
        """Where the run stands; one that is lengthened keeps the plan it began with."""
        self._planned = self._planned or self.state.max_steps
        return Clock(self._epoch, self.state.global_step, closes_group, self._planned)

    def _mark_step(self) -> None:
        """For CUDA graphs: what earlier passes returned may be overwritten from here on."""
        if self.args.torch_compile:
            cast(Any, torch.compiler).cudagraph_mark_step_begin()

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """The stock estimate, six times tokens times weights, which are counted once and not for
        every batch.
        """
        if not self.method.info.needs:
            return int(super().floating_point_ops(inputs))
        name = getattr(self.model, "main_input_name", "input_ids")
        return 6 * inputs[name].numel() * self._weight_count if name in inputs else 0

    @cached_property
    def _weight_count(self) -> int:
        """Weights that are not embeddings."""
        count = getattr(self.model, "num_parameters", None)
        return 0 if count is None else int(count(exclude_embeddings=True))

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm of an update's gradient, before which it is decided whether there is an
        update.
        """
        norm = super()._get_grad_norm(model, grad_norm)
        if self.on_non_finite == "ignore":
            reports = [report for _, report in self._update.reports]
        elif self._withholding is None:
            reports = self._require_finite(None if self.args.fp16 else norm)
        else:
            self._withholding.put(self._update, norm)
            reports = [report for _, report in self._update.reports]
        for report in reports if self.method.info.needs else ():
            self._measure(report)
        return norm

    def _require_finite(self, norm: Any) -> list[StepReport]:
        """What the steps did; an update that is not finite is refused, for which the host waits.

        The norm is None in fp16, whose loss scaler looks at it, and with DeepSpeed without ZeRO,
        which has made the update.
        """
        update = self._update
        if not update.spoilt and is_finite(update, norm):
            return [report for _, report in update.reports]
        if self.on_non_finite == "stop":
            update.refuse(norm)
        update.spoilt = True
        self.skipped += 1
        # without a gradient the optimizer leaves a weight and its moments as they are
        self.model.zero_grad()
        place = update.place(*update.taken)
        logger.warning(
            "loss or gradient not finite at %s; the update is skipped (%d so far)",
            place,
            self.skipped,
        )
        return update.finite_reports()

    def _withhold(self) -> Withholding | None:
        """Leave it to the optimizer not to make an update that is not finite, if it can and the run
        then stops.
        """
        optimizer = getattr(
            self.optimizer, "optimizer", self.optimizer
        )  # without what accelerate wraps around it
        spread = self.is_deepspeed_enabled or self.is_fsdp_enabled
        if (
            self.on_non_finite != "stop"
            or self.args.fp16
            or spread
            or not Withholding.is_known_to(optimizer)
        ):
            return None
        return Withholding(optimizer)

    def _settle_update(self) -> None:
        """Raise now if the last update was not finite, before anything is made of it."""
        if self._withholding is not None:
            self._withholding.settle()

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.control.should_log or self.control.should_evaluate or self.control.should_save:
            self._settle_update()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    # ---- events of the training

    @contextmanager
    def _following_events(self) -> Iterator[None]:
        """Within, events of the training reach this trainer after all callbacks, whose list stays
        the user's.
        """
        ours: dict[str, Callable[[Any], None]] = {
            "on_train_begin": self._at_train_begin,
            "on_epoch_begin": self._at_epoch_begin,
            "on_step_begin": lambda control: self._begin_step(),
            "on_optimizer_step": self._at_optimizer_step,
            "on_step_end": self._at_step_end,
            "on_save": self._at_save,
            "on_train_end": lambda control: self._settle_update(),
        }
        handler = self.callback_handler
        call = handler.call_event

        def call_event(event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control = call(event, args, state, control, **kwargs)
            ours.get(event, lambda control: None)(control)
            return control

        handler.call_event = call_event
        try:
            yield
        finally:
            del handler.call_event

    def _at_train_begin(self, control: Any) -> None:
        self._withholding = self._withhold()
        if not self.method.info.needs:
            self._warn_of_ignored_items()
            return
        self.task.train_through(self.model_wrapped)  # installs hooks before a pass is compiled
        for warning in (
            self.method.warnings(self.state.num_train_epochs)
            if self.is_world_process_zero()
            else ()
        ):
            logger.warning(warning)
        # a resumed run has done so: SMART's average would take one step too many
        if self.state.global_step == 0 or self._anew:
            self.method.updated(self.task)

    def _warn_of_ignored_items(self) -> None:
        """Say that the stock step makes the loss larger by accumulation with this model."""
        steps, core = self.args.gradient_accumulation_steps, bare(self.model)
        own_loss = self.compute_loss_func is None and self.label_smoother is None
        takes_items = (
            own_loss and self.model_accepts_loss_kwargs and isinstance(core, PreTrainedModel)
        )
        if steps > 1 and takes_items and Head(core).ignores_items and self.is_world_process_zero():
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

    def _at_epoch_begin(self, control: Any) -> None:
        self._epoch = math.floor((self.state.epoch or 0) + 1e-6)
        self.timer.turn(self._epoch)

    def _at_optimizer_step(self, control: Any) -> None:
        if self.method.info.needs and not self._update.spoilt:  # else there was no update
            self.method.updated(self.task)

    def _at_step_end(self, control: Any) -> None:
        self.timer.stop()
        self._leaving = self._is_asked_to_stop()
        if self._leaving and self.args.save_strategy == "no":
            self._stop.leave()
        control.should_save = control.should_save or self._leaving

    def _at_save(self, control: Any) -> None:
        if self._leaving:
            logger.warning("stopped after step %d, as asked", self.state.global_step)
            self._stop.leave()

    # ---- stopping when asked

    def _is_asked_to_stop(self) -> bool:
        """All processes give one answer, or one would wait for the other's part of the
        checkpoint.
        """
        asked = self._stop.asked is not None
        if self.args.world_size > 1:
            count = self.accelerator.reduce(torch.tensor(float(asked), device=self.args.device))
            asked = bool(count > 0)
        return asked

    # ---- evaluation

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """The stock evaluation; with a method it draws no random number that a run resumed after it
        would miss.
        """
        if not self.method.info.needs:
            return super().evaluate(*args, **kwargs)
        with kept_randomness():
            return super().evaluate(*args, **kwargs)

    # ---- logs

    def _measure(self, report: StepReport) -> None:
        """Note what a step did. The losses of an update's micro-batches add up, as in the Trainer's
        own ``loss``.
        """
        self._measured["task_loss"].append(self._group * report.task_loss.detach())
        if report.penalty is not None:
            self._measured["penalty"].append(self._group * report.penalty.detach())
        for name, value in report.measures.items():
            self._measured[name].append(torch.as_tensor(value).detach())

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the means since the last log to a training log, so that every tracker shows them."""
        if "loss" in logs:
            means = [
                torch.stack([value.float().cpu() for value in values]).mean()
                for values in self._measured.values()
            ]
            if means and self.args.world_size > 1:  # as the Trainer does with its own ``loss``
                mine = torch.stack(means).to(self.args.device)
                means = list(self.accelerator.reduce(mine, "mean").cpu())
            logs.update(zip(self._measured, map(float, means), strict=True))
            self._measured.clear()
        super().log(logs, *args, **kwargs)

    # ---- checkpoints

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        spent = {
            "epoch_seconds": self.timer.epochs,
            "updates": self.timer.updates,
            "skipped": self.skipped,
        }
        plan = {"planned": self._planned}
        process = self.args.process_index, self.args.world_size
        save_method(self.method, Path(output_dir), asdict(self.passes) | spent | plan, *process)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            tally = load_method(
                self.method, Path(checkpoint), self.args.process_index, self.args.world_size
            )
            before = len(method_files(Path(checkpoint)))
            if before not in (0, self.args.world_size) and self.is_world_process_zero():
                logger.warning(
                    "%s was saved by %d processes and is resumed by %d: cached perturbations went "
                    "to the processes "
                    "their samples belong to now; what is left of an epoch that had begun comes in "
                    "another order",
                    Path(checkpoint).name,
                    before,
                    self.args.world_size,
                )
            self._anew = not tally
            self.passes = PassCount(
                tally.get("forward", 0), tally.get("backward", 0), int(tally.get("steps", 0))
            )
            self.skipped = int(tally.get("skipped", 0))
            self._planned = tally.get("planned")
            self.timer = Timer(tally.get("epoch_seconds", []), int(tally.get("updates", 0)))
        super()._load_optimizer_and_scheduler(checkpoint)


class AdversarialTrainer(AdversarialMixin, Trainer):
    """``transformers.Trainer`` with ``method=``."""


class AdversarialSeq2SeqTrainer(AdversarialMixin, Seq2SeqTrainer):
    """``transformers.Seq2SeqTrainer`` with ``method=``."""
