"""The Hugging Face Trainer with a method: every argument the stock one takes, and ``method=``."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
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
from transformers import Seq2SeqTrainer, Trainer, TrainerCallback
from transformers.modeling_outputs import SequenceClassifierOutput

from advreg.core.checks import check_choice
from advreg.core.progress import Progress, counting
from advreg.core.schedule import Clock
from advreg.core.shard import Shard
from advreg.hf.ahead import Ahead
from advreg.hf.checkpoint import load_method, save_method
from advreg.hf.counting import CountingTask, PassCount, Timer
from advreg.hf.data import IdCollator, Identified, Limits, leave_inherited
from advreg.hf.deepspeed import refuse_deepspeed
from advreg.hf.finite import REPLAY, NonFiniteLossError, Update, Withholding, is_finite
from advreg.hf.progress import progress_bar
from advreg.hf.randomness import kept_randomness
from advreg.hf.ranks import method_files
from advreg.hf.saving import SavingMixin
from advreg.hf.sharding import ShardBatches
from advreg.hf.stopping import Stop
from advreg.hf.survey import survey
from advreg.hf.task import ITEMS, SAMPLE_ID, ModelTask, require_non_reentrant
from advreg.memory.corpus import Corpus
from advreg.methods.base import Batch, Method, StepReport, Task
from advreg.methods.standard import Standard

logger = logging.getLogger(__name__)

_STRATEGIES = ("random", "sequential", "group_by_length")

OnNonFinite = Literal["stop", "skip"]


class AdversarialMixin(SavingMixin):
    """Turns any Trainer into one that trains by a method; put it before the Trainer among the bases.

    Args:
        method: how to train on a batch; Standard if none is given.
        site: where δ is added: ``"tokens"``, ``"block"`` or a module's name.
        on_non_finite: what to do when the loss or a gradient is not finite: ``"stop"`` with an error that names the
            step and the samples, or ``"skip"`` that update and count it in ``skipped``. With fp16 a gradient that
            overflows is the loss scaler's to skip.
        kwargs: all the arguments of the stock Trainer.
    """

    data_collator: Any
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
        self.data_collator = IdCollator(self.data_collator, Limits.of(self.model))
        self.add_callback(_Watch(self))
        self.passes = PassCount()
        self.timer = Timer()
        self._ahead = Ahead()
        self._epoch = 0
        self._planned: int | None = None  # updates of the run, as it was when it began
        self._group = 1  # micro-batches of this update
        self._update = Update()
        self._passes_before = PassCount()  # this update
        self._withholding: Withholding | None = None
        self._stop = Stop()
        self._leaving = False
        self._measured: dict[str, list[Tensor]] = defaultdict(list)
        self._task: ModelTask | None = None

    # ---- before the first step

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        if self.args.n_gpu > 1:
            raise ValueError(
                f"advreg trains on one GPU per process, got a process with {self.args.n_gpu}; launch with torchrun or "
                "accelerate, or set CUDA_VISIBLE_DEVICES to one GPU"
            )
        if "lomo" in str(self.args.optim).lower():
            raise ValueError(
                f"optim must be an optimizer with a step of its own, got {self.args.optim}, which updates the weights "
                "inside the backward pass; choose adamw_torch or another"
            )
        if self.on_non_finite == "skip" and self.args.world_size > 1:
            raise ValueError(
                f"on_non_finite must be 'stop' with several processes, got 'skip' with {self.args.world_size}: one "
                "that skips would leave the others waiting for its gradient"
            )
        self._refuse_sharding()
        if self.on_non_finite == "stop":
            self.args.logging_nan_inf_filter = False  # nothing is left for it to find, and it waits for the GPU
        if self.args.gradient_checkpointing:
            keywords = self.args.gradient_checkpointing_kwargs or {}
            self.args.gradient_checkpointing_kwargs = {"use_reentrant": False, **keywords}
        checkpoint = self._settle(resume_from_checkpoint)
        self._task, self._planned = self._make_task(), None
        self._identify()
        if self.method.needs_corpus:
            self._prepare_method()
        try:
            with Stop() as self._stop:
                return super().train(checkpoint, *args, **kwargs)
        finally:
            self._task.release()
            if self._withholding is not None:
                self._withholding.release()

    def _refuse_sharding(self) -> None:
        """Refuse ways to spread the weights over processes that this method or these settings cannot train with."""
        if self.is_deepspeed_enabled:
            plugin = self.accelerator.state.deepspeed_plugin
            refuse_deepspeed(plugin.deepspeed_config, self.method, self.args, self.on_non_finite)
        if not self.is_fsdp_enabled:
            return
        if not self.accelerator.is_fsdp2:
            raise ValueError("fsdp_config must have 'version': 2, got 1, which hides the weights from the ascent")
        if self.method.needs_whole_weights:
            raise ValueError(
                f"{self.method.needs_whole_weights} of {self.method.name} must be off under FSDP: it needs all weights "
                "in every process; turn it off, or train under DDP"
            )
        if self.args.fp16:
            raise ValueError(
                "fp16 must be off under FSDP: an ascent that overflows is repeated, and a process that repeats alone "
                "would wait for ever; train in bf16"
            )

    def _prepare_method(self) -> None:
        """Let the method see the training set once."""
        with self._progress_bar() as progress:
            self.method.prepare(self._survey(progress), self.args.seed, self.args.device, progress)

    def _progress_bar(self) -> AbstractContextManager[Progress]:
        """Of many processes one shows how far it is."""
        return progress_bar(not self.args.disable_tqdm and self.is_world_process_zero())

    def _survey(self, progress: Progress) -> Corpus:
        """What the method may know of the training set."""
        shard = self._shard()
        advance = counting(progress, "surveying the data", len(shard))
        return survey(self.task, self.train_dataset, self._collator(), advance, shard)

    def _shard(self) -> Shard:
        """The training samples of this process."""
        return Shard(len(self.train_dataset), self.args.process_index, self.args.world_size)

    def _collator(self) -> Any:
        """The collator, for samples that have texts beside the token ids too; those that are gathered have none."""
        if isinstance(self.train_dataset, Identified) and self.train_dataset.gathers:
            return self.data_collator
        return self._get_collator_with_removed_columns(self.data_collator)

    @property
    def task(self) -> ModelTask:
        """The model as the method sees it."""
        if self._task is None:
            self._task = self._make_task()
        return self._task

    def _make_task(self) -> ModelTask:
        return ModelTask(
            self.model,
            site=self.site,
            label_smoothing=self.args.label_smoothing_factor,
            loss_function=self._user_loss if self.compute_loss_func is not None else None,
            half=self.args.fp16,
            context=self.compute_loss_context_manager,
        )

    def _user_loss(self, logits: Tensor, batch: Batch, items: Tensor) -> Tensor:
        outputs = SequenceClassifierOutput(logits=cast(Any, logits))
        loss: Tensor = self.compute_loss_func(outputs, batch["labels"], num_items_in_batch=items)
        return loss

    def _identify(self) -> None:
        """Give every training sample its index as a stable id."""
        data = self.train_dataset
        if data is None or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
            if self.method.needs_corpus:
                raise ValueError(
                    f"{self.method.name} remembers samples, so train_dataset must have a length and items by index, "
                    f"got {type(data).__name__}; load it whole, or use a method without memory (r3f, smart)"
                )
            return
        if hasattr(data, "add_column") and data.format["type"] != "custom":  # a datasets.Dataset
            ids = list(range(len(data)))
            if SAMPLE_ID not in data.column_names:
                self.train_dataset = data.add_column(SAMPLE_ID, ids)
            elif list(data[SAMPLE_ID]) != ids:
                raise ValueError(f"the dataset must not have a column '{SAMPLE_ID}' of its own; rename it")
        elif not isinstance(data, Identified):  # also a datasets.Dataset whose transform would drop the column
            self.train_dataset = Identified(data)

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if SAMPLE_ID not in self._signature_columns:
            self._signature_columns.append(SAMPLE_ID)

    # ---- the data

    def get_train_dataloader(self) -> Any:
        """The stock one; of many processes each has its own samples, for the whole run."""
        if self.args.world_size == 1 or isinstance(self.train_dataset, IterableDataset):
            return super().get_train_dataloader()
        return self._loader(self._shard_batches())

    def _shard_batches(self) -> ShardBatches:
        strategy = str(getattr(self.args.train_sampling_strategy, "value", self.args.train_sampling_strategy))
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
        return np.array([len(self.train_dataset[index]["input_ids"]) for index in shard.ids], dtype=np.int64)

    def _loader(self, batches: Any) -> Any:
        """As the stock one, but batches come from a sampler that knows of processes and epochs itself."""
        loader: DataLoader[Any] = DataLoader(
            self.train_dataset,
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
            non_blocking=self.args.dataloader_pin_memory,  # else the host waits until the GPU has nothing left to do
        )  # fmt: skip

    # ---- the step

    def _begin_step(self) -> None:
        """An update begins, with the first of its micro-batches."""
        self._mark_step()
        self._update, self._passes_before = Update(self.state.global_step, self._epoch), replace(self.passes)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        if not (model.training and self.model.training):  # an evaluation turns off what DDP wraps, not the wrapper
            model.train()
        if callable(getattr(self.optimizer, "train", None)):
            self.optimizer.train()
        batch = dict(self._prepare_inputs(inputs))
        if num_items_in_batch is not None:
            batch[ITEMS] = num_items_in_batch
        task = self.task
        task.wrapped = model
        self._update.taken.append(batch)
        try:
            report = self._method_step(batch)
        except NonFiniteLossError:  # says where already
            raise
        except FloatingPointError as error:
            if self.on_non_finite == "stop":
                raise NonFiniteLossError(f"{error} ({self._update.place(batch)})") from error
            self._update.spoilt = True
            return torch.full((), math.nan, device=self.args.device)
        if self.args.torch_empty_cache_steps and self.state.global_step % self.args.torch_empty_cache_steps == 0:
            torch.cuda.empty_cache()
        self._update.reports.append((batch, report))
        return report.loss.detach().to(self.args.device)

    def _method_step(self, batch: dict[str, Any]) -> StepReport:
        """The method's step; once more, in two passes, where its fused pass was too much for the memory."""
        self.task.has_fused = False
        try:
            return self._single_step(batch)
        except torch.OutOfMemoryError:
            if self.args.world_size > 1 or not self.task.unfuse():  # the other processes know nothing of it
                raise
        # The backward pass may have added a part of its gradients, which cannot be told from what was there before.
        self.model.zero_grad()
        self.passes = replace(self._passes_before)
        for earlier in self._update.taken[:-1]:
            self._single_step(earlier)
        return self._single_step(batch)

    def _single_step(self, batch: dict[str, Any]) -> StepReport:
        clock = self._clock(bool(self.accelerator.sync_gradients))
        counter = CountingTask(self.task, self.passes, len(batch["input_ids"]))
        backward = counter.counted(self._backward)
        report = self.method.step(cast(Task, counter), batch, clock, backward, self._inner_update)
        self.passes.steps += 1
        return report

    def _clock(self, closes_group: bool = True) -> Clock:
        """Where the run stands; one that is lengthened keeps the plan it began with."""
        self._planned = self._planned or self.state.max_steps
        return Clock(self._epoch, self.state.global_step, closes_group, self._planned)

    def _backward(self, loss: Tensor) -> None:
        """As the stock trainer does; a loss is divided by the items of its whole accumulation group already."""
        self.accelerator.backward(loss, **({"scale_wrt_gas": False} if self.is_deepspeed_enabled else {}))

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, *args: Any, **kwargs: Any
    ) -> tuple[list[Any], Tensor | None]:
        """The batches of an accumulation group, and its loss items; the method is told of the group after it."""
        batches = self._ahead.take(epoch_iterator, num_batches)
        self._group = max(1, len(batches))
        if self.method.looks_ahead:
            for batch in self._ahead.glimpse(num_batches):
                self.method.expect(batch[SAMPLE_ID].cpu())
        return batches, self._items_of(batches)

    def _items_of(self, batches: list[Any]) -> Tensor | None:
        """The loss items of an accumulation group, over all processes; per process, since DDP averages gradients."""
        if not batches or "labels" not in batches[0]:
            return None
        count = torch.stack([self.task.count(batch).to(self.args.device) for batch in batches]).sum()
        if self.args.world_size > 1:
            count = self.accelerator.gather(count).sum() / self.args.world_size
        return count

    def _get_num_items_in_batch(self, *args: Any, **kwargs: Any) -> Any:
        """What evaluation divides by: a model's own loss is a mean, which a count would only scale wrongly."""
        return super()._get_num_items_in_batch(*args, **kwargs) if self.compute_loss_func is not None else None

    def _begin_epoch(self) -> None:
        """Let the method do what it does before an epoch: ARCH may sweep its cache."""
        self.model.train()
        counter = CountingTask(self.task, self.passes, self.args.per_device_train_batch_size)
        clock = self._clock()
        begun = time.perf_counter()
        with self._progress_bar() as progress:
            self.method.begin_epoch(cast(Task, counter), clock, self._fetch, progress)
        self.timer.spend(time.perf_counter() - begun)

    def _mark_step(self) -> None:
        """For CUDA graphs: what earlier passes returned may be overwritten from here on."""
        if self.args.torch_compile:
            cast(Any, torch.compiler).cudagraph_mark_step_begin()

    def _fetch(self, groups: Sequence[Tensor]) -> Iterator[dict[str, Any]]:
        """A batch of each group of training samples."""
        collate = self._collator()
        for ids in groups:
            self._mark_step()
            yield dict(self._prepare_inputs(collate([self.train_dataset[index] for index in ids.tolist()])))

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """The stock estimate, six times tokens times weights, which are counted once and not for every batch."""
        name = getattr(self.model, "main_input_name", "input_ids")
        return 6 * inputs[name].numel() * self._weight_count if name in inputs else 0

    @cached_property
    def _weight_count(self) -> int:
        """Weights that are not embeddings."""
        count = getattr(self.model, "num_parameters", None)
        return 0 if count is None else int(count(exclude_embeddings=True))

    def _inner_update(self) -> None:
        """The optimizer step between two of FreeAT's replays: clipped as the outer one, the schedule left alone."""
        most = self.args.max_grad_norm if self.args.max_grad_norm > 0 else math.inf
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), most)
        if self._withholding is not None:
            self._withholding.put_replay(self._update, norm)
        elif not self.args.fp16 and not math.isfinite(norm):
            raise FloatingPointError(REPLAY)
        self.optimizer.step()
        self.model.zero_grad()

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        """The norm of an update's gradient, before which it is decided whether there is an update."""
        norm = super()._get_grad_norm(model, grad_norm)
        if self._withholding is None:
            reports = self._require_finite(None if self.args.fp16 else norm)
        else:
            self._withholding.put(self._update, norm)
            reports = [report for _, report in self._update.reports]
        for report in reports:
            self._measure(report)
        return norm

    def _require_finite(self, norm: Any) -> list[StepReport]:
        """What the steps did; an update that is not finite is refused, for which the host waits.

        The norm is None in fp16, whose loss scaler looks at it, and with DeepSpeed without ZeRO, which has made the
        update.
        """
        update = self._update
        if not update.spoilt and is_finite(update, norm):
            return [report for _, report in update.reports]
        if self.on_non_finite == "stop":
            update.refuse(norm)
        update.spoilt = True
        self.skipped += 1
        self.model.zero_grad()  # without a gradient the optimizer leaves a weight and its moments as they are
        place = update.place(*update.taken)
        logger.warning("loss or gradient not finite at %s; the update is skipped (%d so far)", place, self.skipped)
        return update.finite_reports()

    def _withhold(self) -> Withholding | None:
        """Leave it to the optimizer not to make an update that is not finite, if it can and the run then stops."""
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)  # without what accelerate wraps around it
        spread = self.is_deepspeed_enabled or self.is_fsdp_enabled
        if self.on_non_finite != "stop" or self.args.fp16 or spread or not Withholding.is_known_to(optimizer):
            return None
        return Withholding(optimizer)

    def _settle_update(self) -> None:
        """Nobody shall see what comes of an update that was not finite."""
        if self._withholding is not None:
            self._withholding.settle()

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.control.should_log or self.control.should_evaluate or self.control.should_save:
            self._settle_update()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    # ---- stopping when asked

    def _is_asked_to_stop(self) -> bool:
        """All processes give one answer, or one would wait for the other's part of the checkpoint."""
        asked = self._stop.asked is not None
        if self.args.world_size > 1:
            count = self.accelerator.reduce(torch.tensor(float(asked), device=self.args.device))
            asked = bool(count > 0)
        return asked

    def _end_step(self, control: Any) -> None:
        self._leaving = self._is_asked_to_stop()
        if self._leaving and self.args.save_strategy == "no":
            self._stop.leave()
        control.should_save = control.should_save or self._leaving

    # ---- evaluation

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """The stock evaluation, which here draws no random number that a run resumed after it would miss."""
        with kept_randomness():
            return super().evaluate(*args, **kwargs)

    # ---- logs

    def _measure(self, report: StepReport) -> None:
        """Note what a step did. The losses of an update's micro-batches add up, as in the Trainer's own ``loss``."""
        self._measured["task_loss"].append(self._group * report.task_loss.detach())
        if report.penalty is not None:
            self._measured["penalty"].append(self._group * report.penalty.detach())
        for name, value in report.measures.items():
            self._measured[name].append(torch.as_tensor(value).detach())

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the means since the last log to a training log, so that every tracker shows them."""
        if "loss" in logs:
            means = [
                torch.stack([value.float().cpu() for value in values]).mean() for values in self._measured.values()
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
        spent = {"epoch_seconds": self.timer.epochs, "updates": self.timer.updates, "skipped": self.skipped}
        plan = {"planned": self._planned}
        process = self.args.process_index, self.args.world_size
        save_method(self.method, Path(output_dir), asdict(self.passes) | spent | plan, *process)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            tally = load_method(self.method, Path(checkpoint), self.args.process_index, self.args.world_size)
            before = len(method_files(Path(checkpoint)))
            if before != self.args.world_size and self.is_world_process_zero():
                logger.warning(
                    "%s was saved by %d processes and is resumed by %d: cached perturbations went to the processes "
                    "their samples belong to now; what is left of an epoch that had begun comes in another order",
                    Path(checkpoint).name,
                    before,
                    self.args.world_size,
                )
            self.passes = PassCount(tally.get("forward", 0), tally.get("backward", 0), int(tally.get("steps", 0)))
            self.skipped = int(tally.get("skipped", 0))
            self._planned = tally.get("planned")
            self.timer = Timer(tally.get("epoch_seconds", []), int(tally.get("updates", 0)))
        super()._load_optimizer_and_scheduler(checkpoint)


class _Watch(TrainerCallback):
    """Tells the trainer which epoch it is, and the method that the weights moved."""

    def __init__(self, trainer: AdversarialMixin) -> None:
        self.trainer = trainer

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._epoch = math.floor((state.epoch or 0) + 1e-6)
        self.trainer.timer.turn(self.trainer._epoch)
        self.trainer._begin_epoch()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._begin_step()
        self.trainer.timer.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.timer.stop()
        self.trainer._end_step(control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer._leaving:
            logger.warning("stopped after step %d, as asked", state.global_step)
            self.trainer._stop.leave()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        require_non_reentrant(self.trainer.model)
        self.trainer._withholding = self.trainer._withhold()
        self.trainer.task.wrapped = self.trainer.model_wrapped  # its hooks are on before a pass is compiled
        for concern in self.trainer.method.concerns(state.num_train_epochs) if state.is_world_process_zero else ():
            logger.warning(concern)
        if state.global_step == 0:  # a resumed run has done so: SMART's average would take one step too many
            self.trainer.method.updated(self.trainer.task)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer._settle_update()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer._update.spoilt:  # there was no update
            return
        self.trainer.method.updated(self.trainer.task)


class AdversarialTrainer(AdversarialMixin, Trainer):
    """``transformers.Trainer`` with ``method=``."""


class AdversarialSeq2SeqTrainer(AdversarialMixin, Seq2SeqTrainer):
    """``transformers.Seq2SeqTrainer`` with ``method=``."""
