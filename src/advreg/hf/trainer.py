"""The Hugging Face Trainer with a method: every argument the stock one takes, and ``method=``."""

from __future__ import annotations

from operator import attrgetter

from transformers import Seq2SeqTrainer, Trainer

from advreg.hf.attach import Attachment, OnNonFinite, attach
from advreg.methods.base import Method
from advreg.methods.standard import Standard


class AdversarialMixin:
    """Attaches a method to a Trainer when it is made; put it before the Trainer among the bases.

    With ``Standard()`` every step is the stock trainer's.

    Args:
        method: how to train on a batch; Standard if none is given.
        site: where δ is added: ``"tokens"``, ``"block"`` or a module's name.
        on_non_finite: what to do when the loss or a gradient is not finite: ``"stop"`` with an
            error that names the step and the samples, ``"skip"`` that update and count it in
            ``skipped``, or ``"ignore"`` it as the stock trainer does. With fp16 the loss scaler
            skips a gradient that overflows.
        kwargs: all the arguments of the stock Trainer.
    """

    advreg: Attachment

    def __init__(
        self,
        *args: object,
        method: Method | None = None,
        site: str = "tokens",
        on_non_finite: OnNonFinite = "stop",
        **kwargs: object,
    ) -> None:
        super().__init__(*args, **kwargs)
        attach(self, method or Standard(), site, on_non_finite)

    passes = property(attrgetter("advreg.tally.passes"))
    timer = property(attrgetter("advreg.tally.timer"))
    skipped = property(attrgetter("advreg.tally.skipped"))
    task = property(attrgetter("advreg.view"))

    @property
    def method(self) -> Method:
        """How to train on a batch."""
        return self.advreg.method

    @method.setter
    def method(self, method: Method) -> None:
        self.advreg.method = method


class AdversarialTrainer(AdversarialMixin, Trainer):
    """``transformers.Trainer`` with ``method=``.

    Example:
        >>> from transformers import TrainingArguments
        >>> from advreg import R3F
        >>> trainer = AdversarialTrainer(
        ...     model,
        ...     TrainingArguments(**arguments),
        ...     train_dataset=samples,
        ...     data_collator=collate,
        ...     method=R3F(noise_scale=0.1),
        ... )
        >>> trainer.method.options()["noise_scale"]
        0.1
    """


class AdversarialSeq2SeqTrainer(AdversarialMixin, Seq2SeqTrainer):
    """``transformers.Seq2SeqTrainer`` with ``method=``.

    Example:
        >>> from transformers import Seq2SeqTrainingArguments
        >>> from advreg import SimCut
        >>> args = Seq2SeqTrainingArguments(**arguments)
        >>> AdversarialSeq2SeqTrainer(model, args, method=SimCut()).method.info.name
        'simcut'
    """
