"""Weights kept while training: the best ones by validation, the last few, and averages of two
kinds.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback

from advreg.core.checks import check_decay
from advreg.hf.view.injection import bare

_INDEX = "scores.json"
_AVERAGE = "average.safetensors"


def average_weights(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor, taken in float64 and returned in its own dtype; integers are the
    last one's.
    """
    if not parts:
        raise ValueError("an average needs at least one set of weights, got none")
    names = set(parts[0])
    for part in parts:
        if set(part) != names:
            odd = sorted(set(part) ^ names)[:3]
            raise ValueError(
                f"weights must be of one model, but only some of them have {', '.join(odd)}"
            )
    return {name: _mean([part[name] for part in parts]) for name in parts[-1]}


def _mean(values: Sequence[Tensor]) -> Tensor:
    last = values[-1]
    if not last.is_floating_point():
        return last
    total = values[0].double()
    for value in values[1:]:
        total = total + value.double()
    return (total / len(values)).to(last.dtype)


def weights_of(model: Any) -> dict[str, Tensor]:
    """The weights of a model on the host, tied ones once."""
    seen: set[int] = set()
    found = {}
    for name, value in bare(model).state_dict().items():
        if value.data_ptr() not in seen:
            seen.add(value.data_ptr())
            found[name] = value.detach().to("cpu", copy=True).contiguous()
    return found


def set_weights(model: Any, weights: Mapping[str, Tensor]) -> None:
    """Give a model weights that :func:`weights_of` took from it; tied ones follow."""
    core = bare(model)
    result = core.load_state_dict(dict(weights), strict=False)
    if result.unexpected_keys:
        raise ValueError(
            f"weights must be of this model, but it has no {', '.join(result.unexpected_keys[:3])}"
        )
    core.tie_weights()


class MovingAverage(TrainerCallback):
    """An exponential moving average of the trained weights, taken after every update of a Trainer
    it is a callback of.

    w̄ ← d w̄ + (1 − d) w with d = min(decay, (1 + t) / (10 + t)) at update t, so that the first
    weights are soon forgotten. It stays on the model's device, and is in the checkpoints of a
    trainer that it :meth:`joins <join>`.

    Args:
        decay: d once the average has warmed up; above 0 and below 1.
    """

    def __init__(self, decay: float) -> None:
        check_decay("decay", decay)
        self.decay = decay
        self._updates = 0
        self._mean: list[Tensor] = []

    def join(self, trainer: Any) -> None:
        """Average the weights that the trainer trains, evaluate averaged weights, and write the
        average to its checkpoints.
        """
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise ValueError(
                "weight_ema must be off where processes share the weights (FSDP, DeepSpeed), got "
                f"{self.decay}; train under DDP or leave it out"
            )
        own, evaluate = trainer.advreg.own, trainer.evaluate
        save, load = own._save_optimizer_and_scheduler, own._load_optimizer_and_scheduler

        def evaluated(*args: Any, **kwargs: Any) -> Any:
            with self.in_place(trainer.model):
                return evaluate(*args, **kwargs)

        def saved(folder: str) -> None:
            save(folder)
            if trainer.args.should_save:
                self.save(Path(folder))

        def loaded(checkpoint: str | None) -> None:
            load(checkpoint)
            if checkpoint is not None:
                self.load(Path(checkpoint), trainer.model)

        own._save_optimizer_and_scheduler, own._load_optimizer_and_scheduler = saved, loaded
        trainer.evaluate = evaluated
        trainer.add_callback(self)

    def save(self, folder: Path) -> None:
        """Write the average to a checkpoint."""
        tensors = {f"{place}": mean.contiguous() for place, mean in enumerate(self._mean)}
        save_file(tensors, folder / _AVERAGE, metadata={"updates": str(self._updates)})

    def load(self, folder: Path, model: Any) -> None:
        """Take the average from a checkpoint."""
        path = folder / _AVERAGE
        weights = list(bare(model).parameters())
        try:
            with safe_open(path, framework="pt") as file:
                self._updates = int(file.metadata()["updates"])
                means = [file.get_tensor(f"{place}") for place in range(len(weights))]
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} must hold the average of the weights, but is missing or damaged "
                f"({error}); resume from an earlier checkpoint"
            ) from error
        self._mean = [mean.to(weight.device) for mean, weight in zip(means, weights, strict=True)]

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        self.update(model)

    @torch.no_grad()
    def update(self, model: Any) -> None:
        """Add the current weights to the average."""
        weights = [weight.detach() for weight in bare(model).parameters()]
        if not self._mean:
            self._mean = [weight.clone() for weight in weights]
        self._updates += 1
        decay = min(self.decay, (1 + self._updates) / (10 + self._updates))
        torch._foreach_lerp_(self._mean, weights, 1 - decay)

    @contextmanager
    def in_place(self, model: Any) -> Iterator[None]:
        """Give the model the averaged weights within this context."""
        weights = [weight.data for weight in bare(model).parameters()]
        if not self._mean:
            raise ValueError(
                "there is no average yet: make it a callback of the trainer before training"
            )
        trained = [weight.clone() for weight in weights]
        torch._foreach_copy_(weights, self._mean)
        try:
            yield
        finally:
            torch._foreach_copy_(weights, trained)


class Snapshots:
    """Weights at the validations of a run, by step: the best ones and the last ``keep``, each in
    one file.

    Args:
        folder: of the files.
        keep: how many of the last to keep.
        higher_is_better: whether a higher score is better.
    """

    def __init__(self, folder: Path, keep: int, higher_is_better: bool = True) -> None:
        self.folder, self.keep, self.higher_is_better = folder, max(1, keep), higher_is_better

    def take(self, model: Any, step: int, score: float) -> None:
        """Save the current weights, and keep only the best and the last ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _in_one_piece(self._file(step), lambda path: save_file(weights_of(model), str(path)))
        scores = {**self.scores(), step: score}
        kept = {*sorted(scores)[-self.keep :], self._best(scores)}
        self._write({at: value for at, value in scores.items() if at in kept})
        for at in scores.keys() - kept:
            self._file(at).unlink(missing_ok=True)

    def forget_after(self, step: int) -> None:
        """Drop weights that are newer than the checkpoint from which a run resumes."""
        scores = self.scores()
        for at in [at for at in scores if at > step]:
            del scores[at]
            self._file(at).unlink(missing_ok=True)
        if self.folder.is_dir():
            self._write(scores)

    def scores(self) -> dict[int, float]:
        """Score of each step whose weights are saved."""
        path = self.folder / _INDEX
        if not path.is_file():
            return {}
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
            scores = {
                int(step): math.nan if score is None else float(score)
                for step, score in entries.items()
            }
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{path} is damaged ({error}); delete '{self.folder}' and resume the run"
            ) from error
        return {step: score for step, score in sorted(scores.items()) if self._file(step).is_file()}

    def best(self) -> int:
        """The step with the best score; the first one in a tie."""
        return self._best(self._some())

    def last(self, count: int) -> list[int]:
        """The last steps, oldest first."""
        return sorted(self._some())[-count:]

    def load(self, steps: Sequence[int]) -> dict[str, Tensor]:
        """The weights of a step, or the average of several."""
        parts = [self._read(step) for step in steps]
        return parts[0] if len(parts) == 1 else average_weights(parts)

    def _read(self, step: int) -> dict[str, Tensor]:
        try:
            weights: dict[str, Tensor] = load_file(self._file(step))
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"{self._file(step)} is damaged ({error}); delete it and resume the run"
            ) from error
        return weights

    def _some(self) -> dict[int, float]:
        scores = self.scores()
        if not scores:
            raise ValueError(
                f"'{self.folder}' holds no weights; the run was never validated, or they were "
                "deleted"
            )
        return scores

    def _best(self, scores: Mapping[int, float]) -> int:
        sign = -1 if self.higher_is_better else 1
        return min(scores, key=lambda step: (math.isnan(scores[step]), sign * scores[step], step))

    def _file(self, step: int) -> Path:
        return self.folder / f"step-{step}.safetensors"

    def _write(self, scores: Mapping[int, float]) -> None:
        plain = {
            str(step): score if math.isfinite(score) else None
            for step, score in sorted(scores.items())
        }
        _in_one_piece(
            self.folder / _INDEX, lambda path: path.write_text(json.dumps(plain), encoding="utf-8")
        )


def _in_one_piece(path: Path, write: Any) -> None:
    fresh = path.with_name(f"{path.name}.new")
    write(fresh)
    os.replace(fresh, path)
