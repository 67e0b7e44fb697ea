"""What a method does to a model, seen from outside: passes, the δ that reaches the embeddings,
events, traces left.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainerCallback

from advreg.core import ball
from advreg.core.perturbation import Perturbation
from advreg.core.schedule import Clock
from advreg.hf.data import IdCollator
from advreg.hf.survey import survey
from advreg.hf.view.streams import Streams
from advreg.hf.view.view import HFModelView
from advreg.memory.memory import MemoryState
from advreg.methods import Method, Step, StepReport, create, describe
from naive import Rows, sites
from tiny_models import POSITIONS, VOCABULARY, tiny, tiny_batch

Batch = dict[str, Tensor]

torch.set_num_threads(1)  # models this small only wait for each other's threads


# ---- models, data and steps


def exact(family: str, **settings: Any) -> Any:
    """A tiny model in which training mode is deterministic and rounding far below what is
    compared.
    """
    return deepcopy(_built(family, **settings))


@cache
def _built(family: str, **settings: Any) -> Any:
    return tiny(family, **({"dropout": 0.0, "dtype": torch.float64} | settings))


def quiet(family: str, **settings: Any) -> Any:
    """A tiny model without dropout."""
    return tiny(family, **{"dropout": 0.0} | settings)


def smoothed_view(model: nn.Module, smoothing: float) -> HFModelView:
    """A view whose loss smooths the labels."""

    def smoothed(model: nn.Module, inputs: Any, batch: Any, copies: int = 1) -> Tensor:
        labels = inputs.pop("labels")
        loss = view.prediction_head.loss
        return loss(model(**inputs).logits, labels, batch.get("num_items_in_batch"), smoothing)

    view = HFModelView(model, compute_loss=smoothed)
    return view


def noise_of(view: HFModelView, batch: Batch, scale: float = 0.1, seed: int = 0) -> Perturbation:
    """A random perturbation of a batch."""
    torch.manual_seed(seed)
    return view.zeros(batch).map(lambda values, _: scale * torch.randn_like(values))


def batch_of(family: str, size: int = 4, **settings: Any) -> Batch:
    batch = tiny_batch(family, batch=size, **settings)
    return {**batch, "sample_id": torch.arange(len(batch["input_ids"]))}


def take(batch: Batch, rows: Sequence[int]) -> Batch:
    return {name: value[torch.tensor(rows)] for name, value in batch.items()}


def features_of(batch: Batch) -> list[dict[str, Any]]:
    """A batch as a data set: one dict per sample, without padding and without an id."""
    found = []
    for row, mask in enumerate(batch["attention_mask"]):
        labels = batch["labels"][row]
        found.append(
            {
                "input_ids": batch["input_ids"][row][mask == 1].tolist(),
                "labels": labels[labels != -100].tolist() if labels.dim() else labels.item(),
            }
        )
    return found


@dataclass
class Padded:
    """A collator: pads inputs on the side asked for, and labels on the right."""

    pad: int
    side: Literal["right", "left"] = "right"

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> Batch:
        inputs = [feature["input_ids"] for feature in features]
        labels = [feature["labels"] for feature in features]
        batch = {
            "input_ids": self.fill(inputs, self.pad, self.side),
            "attention_mask": self.fill([[1] * len(row) for row in inputs], 0, self.side),
            "labels": self.fill(labels, -100, "right")
            if isinstance(labels[0], list)
            else torch.tensor(labels),
        }
        if "sample_id" in features[0]:
            batch["sample_id"] = torch.tensor([feature["sample_id"] for feature in features])
        return batch

    @staticmethod
    def fill(rows: list[list[int]], value: int, side: str) -> Tensor:
        width = max(map(len, rows))
        gaps = [[value] * (width - len(row)) for row in rows]
        return torch.tensor(
            [
                gap + row if side == "left" else row + gap
                for gap, row in zip(gaps, rows, strict=True)
            ]
        )


def ready(method: Method, task: HFModelView, batch: Batch, seed: int = 0) -> None:
    """Let the method see the batch as its whole training set."""
    task.widths(batch)  # the silent pass that measures the widths is no pass of a step
    memory = method.memory
    if memory is None:
        return
    memory.prepare(
        survey(task, features_of(batch), Padded(task.model.config.pad_token_id)),
        seed,
        torch.device("cpu"),
    )


def switched_off(name: str) -> dict[str, float]:
    """Options with which a method trains as Standard does: 0 for every number that may be 0."""
    found = {}
    for option in describe(name):
        if option.type is float:
            with suppress(ValueError):
                create(name, **{option.name: 0.0})
                found[option.name] = 0.0
    return found


def remembered(method: Method) -> dict[str, Tensor]:
    """A copy of what a method remembers."""
    state = MemoryState() if method.memory is None else method.memory.state()
    return {name: value.clone() for name, value in state.tensors.items()}


def step(
    method: Method,
    task: HFModelView,
    batch: Batch,
    *,
    epoch: int = 0,
    seed: int = 0,
    at: int = 0,
    planned: int | None = None,
    **ways: Any,
) -> StepReport:
    """One step at a known random state; the update between FreeAT's replays clears the gradients
    and does no more.
    """
    torch.manual_seed(seed)
    ways.setdefault("update", task.model.zero_grad)
    return method.step(task, batch, Step(Clock(epoch, at, planned=planned), **ways))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: value.grad.clone()
        for name, value in model.named_parameters()
        if value.grad is not None
    }


def close(
    mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor], tolerance: float = 1e-6
) -> bool:
    """Equal names, and every entry within the tolerance; and they are not all zero, which would
    prove nothing.
    """
    assert set(mine) == set(theirs)
    assert any(bool(value.any()) for value in theirs.values())
    worst = max(float((mine[name].detach() - theirs[name].detach()).abs().max()) for name in theirs)
    return worst < tolerance


# ---- passes


@dataclass
class Pass:
    """One pass over the model: how many rows it had, and what was added to each stream's
    embeddings.
    """

    rows: int
    deltas: dict[str, Tensor] = field(default_factory=dict)

    @property
    def perturbed(self) -> bool:
        return any(bool(delta.any()) for delta in self.deltas.values())

    def second_half(self) -> "Pass":
        """The perturbed copies of a fused pass, whose clean copies must have been left alone."""
        half = self.rows // 2
        assert not any(bool(delta[:half].any()) for delta in self.deltas.values())
        return Pass(half, {stream: delta[half:] for stream, delta in self.deltas.items()})

    def samples(self, task: HFModelView, batch: Batch) -> list[Rows]:
        """δ of each sample, one row per real token; padding must have been left alone."""
        real = real_tokens(task, batch)
        assert all(not bool(delta[~real[stream]].any()) for stream, delta in self.deltas.items())
        return [
            {s: delta[row][real[s][row]] for s, delta in self.deltas.items()}
            for row in range(self.rows)
        ]


def real_tokens(task: HFModelView, batch: Batch) -> dict[str, Tensor]:
    """Where there is a real token; said once more here, from the batch alone."""
    inputs = batch["attention_mask"] == 1
    if not task.model.config.is_encoder_decoder:
        return {"tokens": inputs}
    return {"encoder": inputs, "decoder": batch["labels"] != -100}


@contextmanager
def watched(model: nn.Module) -> Iterator[list[Pass]]:
    """Every pass over the model, and the δ that came out of its embedding modules, whoever put it
    there.

    A hook of ours would run before one that is registered later, and miss it; so the modules'
    `__call__` is wrapped. For the same reason a pass is noticed at its first embeddings and not
    where it enters the model.
    """
    passes: list[Pass] = []
    modules = sites(model)
    classes = {stream: type(module) for stream, module in modules.items()}
    for number, (stream, module) in enumerate(modules.items()):
        module.__class__ = _listening(type(module), stream, passes, begins=number == 0)
    try:
        yield passes
    finally:
        for stream, module in modules.items():
            module.__class__ = classes[stream]


def _listening(
    plain: type[nn.Module], stream: str, passes: list[Pass], begins: bool
) -> type[nn.Module]:
    """A module that notes its output; the first of a model also notes that a pass begins."""

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        output: Tensor = plain.__call__(self, *args, **kwargs)
        if begins:
            passes.append(Pass(len(output)))
        with torch.no_grad():
            passes[-1].deltas[stream] = output.detach() - plain.forward(self, *args, **kwargs)
        return output

    return type(plain.__name__, (plain,), {"__call__": call})


# ---- events


class Wrapper(nn.Module):
    """What DDP is to a model: `.module`, and a forward that must be followed by one backward."""

    def __init__(self, module: nn.Module, events: list[str]) -> None:
        super().__init__()
        self.module = module
        self.events = events

    def forward(self, **inputs: Any) -> Any:
        self.events.append("forward")
        return self.module(**inputs)


class Exchanging(Wrapper):
    """The same, that knows whether gradients are exchanged with other processes or kept for the
    next pass.
    """

    exchanging = True

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.exchanging = False
        try:
            yield
        finally:
            self.exchanging = True

    def backward(self, loss: Tensor) -> None:
        self.events.append("exchanged" if self.exchanging else "kept")
        loss.backward()


def heard(events: list[str]) -> Callable[[Tensor], None]:
    """A `backward` that writes itself down."""

    def backward(loss: Tensor) -> None:
        events.append("backward")
        loss.backward()

    return backward


# ---- noise


def content_noise(patch: pytest.MonkeyPatch) -> None:
    """Make each random draw a function of stream, token and its place in the sentence.

    Then the noise follows a sample wherever a batch puts it, and batches that hold the same samples
    can be compared.
    """
    known: list[tuple[Tensor, str, Tensor]] = []
    masks = Streams.masks

    def masks_noted(self: Streams, batch: Batch) -> dict[str, Tensor]:
        made = masks(self, batch)
        known.extend((made[stream], stream, ids) for stream, (ids, _) in self.tokens(batch).items())
        return made

    @cache
    def table(stream: str, width: int, normal: bool) -> Tensor:
        generator = torch.Generator().manual_seed(len(stream))
        shape = (VOCABULARY, POSITIONS, width)
        kind = torch.randn if normal else torch.rand
        return kind(shape, generator=generator, dtype=torch.float64)

    def rows(values: Tensor, mask: Tensor, normal: bool) -> Tensor:
        stream, ids = next((stream, ids) for other, stream, ids in known if other is mask)
        place = mask.long().cumsum(1) - 1
        drawn = table(stream, values.shape[-1], normal)[ids, place.clamp_min(0)].to(values.dtype)
        return (drawn if normal else 2 * drawn - 1) * mask[..., None]

    changed = {
        ball.uniform_noise: lambda values, mask: rows(values, mask, False),
        ball.normal_noise: lambda values, mask, scale: scale * rows(values, mask, True),
    }
    patch.setattr(Streams, "masks", masks_noted)
    for name, module in list(sys.modules.items()):
        if name.startswith("advreg"):
            for attribute, value in list(vars(module).items()):
                if callable(value) and value in changed:
                    patch.setattr(module, attribute, changed[value])


# ---- dropout


@dataclass
class Copies:
    """Which of its two copies a pass is of: each drops other values, and the same ones again in
    every pass.
    """

    differ: bool = True
    copy: int = 0
    is_fused: bool = False

    def dropped(
        self, values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """In place of ``F.dropout``: what is dropped follows from the values and the copy, and from
        nothing else.
        """
        if not training or p == 0:
            return values
        copy = torch.full((len(values),), self.copy)
        if self.is_fused:
            copy[len(values) // 2 :] = 1
        moved = 0.5 * self.differ * copy.view(-1, *[1] * (values.dim() - 1))
        return values * ((997 * values.detach() + moved) % 1 >= p) / (1 - p)

    @contextmanager
    def of(self, copy: int) -> Iterator[None]:
        before, self.copy = self.copy, copy
        try:
            yield
        finally:
            self.copy = before


def known_dropout(patch: pytest.MonkeyPatch) -> Copies:
    """Make dropout a function of what it is applied to and of the copy in :meth:`HFModelView.paired_logits`,
    so that it follows a sample wherever a batch puts it. The model must be made by
    :func:`dropping`."""
    copies, pair = Copies(), HFModelView.paired_logits
    passes: list[int] = []  # of the pair under way

    def pair_noted(*args: Any, **ways: Any) -> Any:
        passes[:] = [0]
        try:
            return pair(*args, **ways)
        finally:
            passes.clear()

    def noted(make: Callable[..., Any]) -> Callable[..., Any]:
        def pass_noted(*args: Any, **ways: Any) -> Any:
            copies.is_fused = bool(ways.get("doubled") or ways.get("both_losses"))
            try:
                with copies.of(max(copies.copy, min(1, sum(passes)))):
                    passes[:] = [count + 1 for count in passes]
                    return make(*args, **ways)
            finally:
                copies.is_fused = False

        return pass_noted

    patch.setattr(torch.nn.functional, "dropout", copies.dropped)
    patch.setattr(HFModelView, "paired_logits", pair_noted)
    for name in ("_trained_pass", "_prediction"):
        patch.setattr(HFModelView, name, noted(getattr(HFModelView, name)))
    return copies


def dropping(family: str, **settings: Any) -> Any:
    """As :func:`exact`, with dropout, all of which goes through ``F.dropout``."""
    if family not in ("llama", "qwen"):
        return exact(family, dropout=0.1, attn_implementation="eager", **settings)
    model = exact(
        family, **settings
    )  # they drop in their attention alone, which in float64 must not be eager
    model.score = nn.Sequential(nn.Dropout(0.1), model.score)
    return model


# ---- runs of the trainer


class BadGradient(TrainerCallback):  # type: ignore[misc]
    """In one step a weight's gradient is infinite, though the loss is not."""

    def __init__(self, step: int) -> None:
        self.step, self.now = step, False

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        def spoil(gradient: Tensor) -> Tensor:
            return gradient.new_full((), torch.inf) + gradient if self.now else gradient

        model.classifier.weight.register_hook(spoil)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.now = state.global_step == self.step - 1


class Weights(TrainerCallback):  # type: ignore[misc]
    """The weights after each update."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        self.seen.append({name: value.detach().clone() for name, value in model.named_parameters()})


class Reads(TorchDispatchMode):
    """Counts how often a value is read off a tensor, for which the host would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def within(mode: Any, work: Any) -> Any:
    with mode:
        return work()


def reads_in_training(trainer: Any) -> int:
    """How often a value is read off a tensor in a whole training; what looks at batches on the host
    is left out.
    """
    everywhere, on_host, collator = Reads(), Reads(), trainer.data_collator

    class Watched(IdCollator):
        def __call__(self, features: Any) -> Any:
            return within(on_host, lambda: IdCollator.__call__(self, features))

    trainer.data_collator = Watched(collator.collator, collator.limits)
    within(everywhere, trainer.train)
    return everywhere.count - on_host.count
