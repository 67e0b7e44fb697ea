"""Training a classifier or regressor, and scoring it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from advreg.core.progress import Progress
from advreg.hf.trainer import AdversarialTrainer
from advreg.lab.kinds.classification.metrics import predicted
from advreg.lab.kinds.training import Job, Scores

Array = np.ndarray[Any, Any]
Metrics = Callable[[Array, Array], dict[str, float]]
_DEV = "dev"


@dataclass(frozen=True, kw_only=True)
class ClassificationJob(Job):
    """A run on labelled texts.

    Args:
        tokenizer: saved with the model.
        collator: makes a batch of samples.
        train, dev: samples, each a mapping of token ids and ``labels``.
        metrics: scores from what the model puts out and labels.
        evaluations: further sets to evaluate on after training; their scores begin with the set's
            name.
        outputs: the predictions and labels of the last evaluation.
    """

    tokenizer: Any
    collator: Any
    train: list[dict[str, Any]]
    dev: list[dict[str, Any]]
    metrics: Metrics
    evaluations: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    outputs: dict[str, list[Any]] = field(default_factory=dict)

    def trainer(self) -> AdversarialTrainer:
        try:
            trainer = AdversarialTrainer(
                **self.usual_arguments(),
                eval_dataset=self.dev,
                data_collator=self.collator,
                processing_class=self.tokenizer,
                compute_metrics=self._measure,
            )
        except (ImportError, RuntimeError) as error:  # report_to names a missing tracker, say
            raise ValueError(f"the Trainer refuses these settings: {error}") from error
        if trainer.args.train_sampling_strategy == "group_by_length":
            # the stock order comes from the global generator, so that a run that is resumed within
            # an epoch would see other batches; this order depends on seed and epoch alone
            samples = trainer.advreg.samples
            samples.batches = samples.shard_batches()
        return trainer

    def _measure(self, found: Any) -> dict[str, float]:
        outputs, labels = found.predictions, found.label_ids
        self.outputs.update(predictions=predicted(outputs, labels).tolist(), labels=labels.tolist())
        return self.metrics(outputs, labels)

    def score(self, trainer: Any, progress: Progress | None = None) -> Scores:
        """Evaluate all sets and save the model."""
        found: dict[str, Any] = {}
        items: dict[str, dict[str, list[Any]]] = {}
        for name, samples in {_DEV: self.dev, **self.evaluations}.items():
            prefix = "eval" if name == _DEV else f"eval_{name}"
            found |= trainer.evaluate(samples, metric_key_prefix=prefix)
            items[name] = dict(self.outputs)
        if trainer.args.should_save:  # a kill while saving may have left a part of a model
            shutil.rmtree(self.folder / "model", ignore_errors=True)
        trainer.save_model(str(self.folder / "model"))
        metrics = {
            name.removeprefix("eval_"): value
            for name, value in found.items()
            if _is_score(name, value)
        }
        return Scores(metrics=metrics, items=items)

    def token_texts(self, stream: str, ids: Sequence[int]) -> Sequence[str]:
        texts: list[str] = self.tokenizer.convert_ids_to_tokens(ids)
        return texts


def _is_score(name: str, value: Any) -> bool:
    speed = ("_runtime", "_samples_per_second", "_steps_per_second")
    return isinstance(value, float | int) and name != "epoch" and not name.endswith(speed)
