"""Adding a method to a trainer, and taking it off again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal, TypeVar, get_args

from transformers import Trainer

from advreg.core.checks import check_choice
from advreg.core.schedule import Clock
from advreg.hf.checkpoint.saving import CheckpointWriter
from advreg.hf.components.component import Component
from advreg.hf.components.run import TrainingRun
from advreg.hf.components.samples import Samples
from advreg.hf.components.steps import StepRunner, TaskLoss
from advreg.hf.components.updates import Logs, UpdateCheck
from advreg.hf.counting import Tally
from advreg.hf.guards.nonfinite import Update
from advreg.hf.view.view import HFModelView
from advreg.methods.base import Method

OnNonFinite = Literal["stop", "skip", "ignore"]

_PLACE = "advreg"  # the attribute of a trainer that holds its attachment

T = TypeVar("T")


class Attachment:
    """A method on a trainer: the value of ``trainer.advreg``.

    Its components replace some methods of the trainer *instance*; the class stays the same. A
    replacement calls what it replaced, so overrides in the trainer's class or on the instance
    keep their effect.

    Args:
        trainer: the trainer.
        method: how to train on a batch.
        site: where δ is added.
        on_non_finite: what to do when the loss or a gradient is not finite.
    """

    def __init__(self, trainer: Any, method: Method, site: str, on_non_finite: OnNonFinite) -> None:
        self.trainer, self.method = trainer, method
        self.site, self.on_non_finite = site, on_non_finite
        self.own = SimpleNamespace()  # the methods of the trainer that hooks replace
        self.tally = Tally()
        self.update = Update()
        self.epoch = 0
        self.samples = Samples(self)
        self.loss = TaskLoss(self)
        self.steps = StepRunner(self)
        self.updates = UpdateCheck(self)
        self.logs = Logs(self)
        self.checkpoints = CheckpointWriter(self)
        self.run = TrainingRun(self)
        self._view: HFModelView | None = None
        self._hooks: dict[str, object] = {}  # what replaces the trainer's methods
        self._on_instance: dict[str, object] = {}  # what the instance had before

    def has(self, method: Method, site: str, on_non_finite: OnNonFinite) -> bool:
        """Whether this is what :func:`attach` with these arguments would make."""
        same = (self.site, self.on_non_finite) == (site, on_non_finite)
        return same and self.method is method

    @property
    def view(self) -> HFModelView:
        """The model as the method sees it."""
        if self._view is None:
            self._view = self.new_view()
        return self._view

    def new_view(self) -> HFModelView:
        """Make a new view of the present model."""
        trainer = self.trainer
        self._view = HFModelView(
            trainer.model,
            site=self.site,
            half=trainer.args.fp16,
            context=trainer.compute_loss_context_manager,
            compute_loss=self.loss.of_batch,
            perturbs="perturbation" in self.method.info.needs,
            means=self.loss.is_stock,
        )
        return self._view

    def release_view(self) -> None:
        """Take the hooks of the view off the model."""
        if self._view is not None:
            self._view.release()

    def clock(self, closes_group: bool = True) -> Clock:
        """Where the run stands; a run that is lengthened keeps the plan it began with."""
        state = self.trainer.state
        self.tally.planned = self.tally.planned or state.max_steps
        return Clock(self.epoch, state.global_step, closes_group, self.tally.planned)

    # ---- on and off

    def install(self) -> None:
        """Replace the trainer's methods."""
        attributes = vars(self.trainer)
        parts = [part for part in vars(self).values() if isinstance(part, Component)]
        self._hooks = {name: getattr(part, name) for part in parts for name in part.hooks}
        for name, hook in self._hooks.items():
            setattr(self.own, name, getattr(self.trainer, name))
            if name in attributes:
                self._on_instance[name] = attributes[name]
            attributes[name] = hook
        attributes[_PLACE] = self
        self.samples.wrap_collator()

    def remove(self) -> None:
        """Give the trainer back what :meth:`install` and the training replaced."""
        attributes = vars(self.trainer)
        for name, hook in self._hooks.items():
            if attributes.get(name) != hook:
                raise RuntimeError(
                    f"the trainer's {name} must be what attach set, got {attributes.get(name)!r}; "
                    "restore it first"
                )
        for name in (*self._hooks, _PLACE):
            del attributes[name]
        attributes.update(self._on_instance)
        self.samples.unwrap()


def attach(
    trainer: T, method: Method, site: str = "tokens", on_non_finite: OnNonFinite = "stop"
) -> T:
    """Make a trainer train with a method; call it before ``train()``.

    Works on an instance of any subclass of ``transformers.Trainer``. The class of the instance
    and overrides of the user's stay. A second call with another method replaces the first; with
    the same arguments it has no effect.

    Args:
        trainer: the trainer.
        method: how to train on a batch. With ``Standard()`` every step is the trainer's own.
        site: where δ is added: ``"tokens"``, ``"block"`` or a module's name.
        on_non_finite: what to do when the loss or a gradient is not finite: ``"stop"`` with an
            error that names the step and the samples, ``"skip"`` that update and count it in
            ``trainer.advreg.tally.skipped``, or ``"ignore"`` it as the stock trainer does. With
            fp16 the loss scaler skips a gradient that overflows.

    Returns:
        The same trainer.

    Example:
        >>> from transformers import Trainer, TrainingArguments
        >>> from advreg import RDrop
        >>> args = TrainingArguments(**arguments)
        >>> trainer = Trainer(model, args, train_dataset=samples, data_collator=collate)
        >>> attach(trainer, RDrop()) is trainer, type(trainer).__name__
        (True, 'Trainer')
    """
    check_choice("on_non_finite", on_non_finite, get_args(OnNonFinite))
    if not isinstance(method, Method):
        raise TypeError(f"method must be a method of advreg, such as RDrop(), got {method!r}")
    if not isinstance(trainer, Trainer):
        raise TypeError(
            f"trainer must be a transformers.Trainer, got {type(trainer).__name__}; in a loop of "
            "your own use advreg.prepare"
        )
    before = attachment_of(trainer)
    if before is not None and before.has(method, site, on_non_finite):
        return trainer
    if trainer.is_in_train or trainer.state.global_step > 0:
        raise RuntimeError(
            f"attach must be called before train(), got a trainer at step "
            f"{trainer.state.global_step}; make a new trainer"
        )
    if before is not None:
        before.remove()
    Attachment(trainer, method, site, on_non_finite).install()
    return trainer


def detach(trainer: T) -> T:
    """Undo :func:`attach`; a trainer without a method does not change.

    Returns:
        The same trainer.

    Example:
        >>> from transformers import Trainer, TrainingArguments
        >>> from advreg import RDrop
        >>> trainer = attach(Trainer(model, TrainingArguments(**arguments)), RDrop())
        >>> hasattr(detach(trainer), "advreg")
        False
    """
    attached = attachment_of(trainer)
    if attached is not None:
        if attached.run.is_training:
            raise RuntimeError("detach must not be called during train(); call it afterwards")
        attached.remove()
    return trainer


def attachment_of(trainer: object) -> Attachment | None:
    """What :func:`attach` put on a trainer, if anything."""
    found: Attachment | None = vars(trainer).get(_PLACE)
    return found
