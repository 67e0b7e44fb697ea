"""What a sketch of the cached prediction costs in the gradient: bias, variance and cosine by its
size and its tail.

    python experiments/consistency/sketch_curve.py --data DATA --out sketch.json
    python experiments/consistency/sketch_curve.py --data DATA --out sketch.json --models smollm2
    --updates 2

A model is trained briefly, a copy of it is kept, and training continues. The cached predictions q
of a batch of the training set come from the copy, the present predictions p from the trained model,
both with dropout as in training. G is the gradient of the penalty alone, the mean KL(q ‖ p) over
the batch's target tokens, for all parameters in float32. G_r is the same with a sketch of q, where
r stands for the draws of its tail. Ḡ is the mean of G_r over --repeats draws:

    variance  V = E‖G_r − Ḡ‖²              bias  ‖E G_r − G‖, V / repeats taken off its square
    cosine    mean of cos(G_r, G)          batch variance  E‖g_b − ḡ‖² of g_b = ∇(CE + λ KL) over
    batches

Models: ``multi30k``, the translator of the contest (4 + 4 layers of 256), and ``smollm2`` on GSM8K,
the folder in ADVREG_SMOLLM2.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core.divergence import divergence
from advreg.core.sketch import Drawn, Lumped, Parts, Sketch
from advreg.hf.survey import to_device
from advreg.hf.view.view import HFModelView
from advreg.lab.kinds.training import device_name, quiet_libraries
from advreg.records.environment import capture_environment, now
from advreg.records.sealed import load_as, save_as

SIZES = (4, 8, 16, 32)  # of k, and of m
_WARMUP = 50  # updates
_BETAS = (0.9, 0.98)


# ---- the record


@dataclass(frozen=True, kw_only=True)
class Point:
    """One form of the sketch.

    Args:
        sketch: lumped or drawn.
        top, draws: k and m.
        bytes: that a token takes.
        bias: over ‖G‖.
        variance: over ‖G‖².
        cosine: with G.
        share: the variance divided by the variance of the batch gradient, times λ².
        bias_share: the squared bias over the same.
    """

    sketch: str
    top: int
    draws: int
    bytes: int
    bias: float
    variance: float
    cosine: float
    share: float
    bias_share: float


@dataclass(frozen=True, kw_only=True)
class Curve:
    """All forms on one model."""

    model: str
    parameters: int
    outputs: int
    tokens: int
    updates: int
    later_updates: int
    seed: int
    weight: float
    batches: int
    repeats: int
    penalty: float
    norm: float
    batch_variance: float
    points: list[Point] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SketchRecord:
    """The curves of one call."""

    schema: int = 1
    kind: str = "sketch-curve"
    environment: dict[str, Any]
    started: str
    finished: str
    curves: list[Curve]


def load(path: Path) -> SketchRecord:
    """Read a record; an error for anything but a whole, unedited one."""
    return load_as(path, SketchRecord)


# ---- the models


@dataclass(frozen=True)
class Subject:
    """A model and the samples it is trained on.

    Args:
        name: of model and data.
        model: to be trained.
        collate: a batch of these samples.
        counts: target tokens of each sample.
        learning_rate: reached after the warm-up, then constant.
        smoothing: of the task's labels.
    """

    name: str
    model: Any
    collate: Callable[[Sequence[int]], dict[str, Any]]
    counts: Sequence[int]
    learning_rate: float
    smoothing: float = 0.0

    def batches(self, tokens: int, seed: int) -> Iterator[dict[str, Any]]:
        """Endless batches of at least this number of target tokens; the order is drawn from the
        seed.
        """
        draw, order, chosen = random.Random(seed), list(range(len(self.counts))), list[int]()
        while True:
            draw.shuffle(order)
            for index in order:
                chosen.append(index)
                if sum(self.counts[each] for each in chosen) >= tokens:
                    yield to_device(self.collate(chosen), self.model.device)
                    chosen = []

    def predicted(self, model: Any, batch: dict[str, Any], tokens: int) -> tuple[Tensor, Tensor]:
        """Logits of the first target tokens of a batch, and the tokens."""
        labels, mask = HFModelView(model, perturbs=False).targets(batch)
        logits = model(**batch, use_cache=False).logits
        return logits[mask][:tokens], labels[mask][:tokens]

    def task_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits.float(), labels, label_smoothing=self.smoothing)


def language_model(data: Path, seed: int) -> Subject:
    """SmolLM2-135M on GSM8K."""
    from language_runs import (
        GSM8K,
        IGNORED,
        MODEL_NAME,
        TRAIN,
        collator,
        load_model,
        model_folder,
        prepared,
    )

    found = prepared(GSM8K, data, model_folder(), 512)
    rows, collate = found.rows[TRAIN], collator(found.tokenizer)
    return Subject(
        name=f"{MODEL_NAME} on {GSM8K}",
        model=load_model(),
        collate=lambda indices: dict(collate([dict(rows[index]) for index in indices])),
        counts=[sum(label != IGNORED for label in row["labels"]) for row in rows],
        learning_rate=1e-4,
    )


def translator(data: Path, seed: int) -> Subject:
    """The translator of the contest on Multi30k En-De, from scratch."""
    from contests import TRANSLATION
    from translation_runs import small_model, vocabulary_and_pairs

    from advreg.lab.kinds.translation.batching import PairCollator

    subwords, pairs = vocabulary_and_pairs(TRANSLATION.tasks[0], data)
    model = small_model(subwords, TRANSLATION.base["dropout"], seed)
    collate = PairCollator(model.config.pad_token_id, model.config.decoder_start_token_id, 8)
    return Subject(
        name=f"marian 4+4 layers of width 256 on {TRANSLATION.tasks[0]}",
        model=model,
        collate=lambda indices: dict(collate([pairs[index] for index in indices])),
        counts=pairs.lengths[:, 1].tolist(),
        learning_rate=TRANSLATION.base["learning_rate"],
        smoothing=TRANSLATION.base["label_smoothing"],
    )


MODELS: dict[str, Callable[[Path, int], Subject]] = {
    "multi30k": translator,
    "smollm2": language_model,
}
UPDATES = {"multi30k": 1000, "smollm2": 100}


def train(subject: Subject, updates: int, later: int, tokens: int, seed: int) -> Any:
    """Standard training, in bfloat16 on a GPU; gives a copy of the model as it is before the later
    updates.
    """
    model = subject.model.train()
    earlier = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=subject.learning_rate, betas=_BETAS, weight_decay=0.0
    )
    warm_up = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / _WARMUP)
    )
    for step, batch in enumerate(islice(subject.batches(tokens, seed), updates + later)):
        if step == updates:
            earlier = copy.deepcopy(model)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
            logits, labels = subject.predicted(model, batch, tokens)
        subject.task_loss(logits, labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
        optimizer.zero_grad()
    return earlier


# ---- the curve


class Spread:
    """Mean and variance of vectors that come one by one, and their cosine with another one.

    Args:
        whole: the other vector; none: no cosine.
    """

    def __init__(self, whole: Tensor | None = None) -> None:
        self.whole, self.count, self.squares, self.cosines = whole, 0, 0.0, 0.0
        self.total: Tensor | None = None

    def add(self, vector: Tensor) -> None:
        self.total = vector.clone() if self.total is None else self.total.add_(vector)
        self.squares += dot(vector, vector)
        self.count += 1
        if self.whole is not None:
            norms = math.sqrt(dot(vector, vector) * dot(self.whole, self.whole))
            self.cosines += dot(vector, self.whole) / norms

    @property
    def mean(self) -> Tensor:
        assert self.total is not None
        return self.total / self.count

    @property
    def variance(self) -> float:
        """E‖v − E v‖², without bias; 0 of one vector."""
        if self.count < 2:
            return 0.0
        return max(0.0, self.squares - self.count * dot(self.mean, self.mean)) / (self.count - 1)

    @property
    def cosine(self) -> float:
        return self.cosines / self.count

    @property
    def bias(self) -> float:
        """‖E v − whole‖, less what the variance adds to its square."""
        assert self.whole is not None
        apart = self.mean - self.whole
        return math.sqrt(max(0.0, dot(apart, apart) - self.variance / self.count))


def dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.double(), b.double()))


def gradient(loss: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """For all parameters, as one vector; the graph is kept."""
    found = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
    return torch.cat([value.flatten() for value in found])


def kept(sketch: Sketch, logits: Tensor, generator: torch.Generator) -> Parts:
    """What a cache holds of these rows."""
    uniforms = torch.rand(len(logits), sketch.draws, generator=generator, device=logits.device)
    return {
        name: part.to(sketch.fields[name][1])
        for name, part in sketch.encode(logits, uniforms).items()
    }


def row_bytes(sketch: Sketch) -> int:
    return sum(width * dtype.itemsize for width, dtype in sketch.fields.values())


def sketches(outputs: int, sizes: Sequence[int]) -> Iterator[Lumped]:
    yield from (Lumped(outputs, top) for top in sizes)
    yield from (Drawn(outputs, top, draws) for top in sizes for draws in sizes)


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Args:
        tokens: of a batch.
        batches: for the variance of the batch gradient.
        repeats: draws of a sketch.
        weight: λ.
        seed: of all draws.
        sizes: of k and m.
    """

    tokens: int
    batches: int
    repeats: int
    weight: float
    seed: int
    sizes: Sequence[int] = SIZES


def measure(
    subject: Subject, earlier: Any, settings: Settings, updates: tuple[int, int] = (0, 0)
) -> Curve:
    """The curve of a model against its earlier self."""
    model, tokens = subject.model.train(), settings.tokens
    parameters = [value for value in model.parameters() if value.requires_grad]
    torch.manual_seed(settings.seed)
    batches = list(islice(subject.batches(tokens, settings.seed + 1), settings.batches))
    spread = Spread()
    for batch in batches:
        cached, logits, labels = both(subject, earlier, batch, tokens)
        loss = subject.task_loss(logits, labels) + settings.weight * exact(cached, logits)
        spread.add(gradient(loss, parameters))
        del loss, logits  # and the graph
    cached, logits, _ = both(subject, earlier, batches[0], tokens)
    penalty = exact(cached, logits)
    whole = gradient(penalty, parameters)
    curve = Curve(
        model=subject.name,
        parameters=sum(value.numel() for value in parameters),
        outputs=logits.shape[-1],
        tokens=len(logits),
        updates=updates[0],
        later_updates=updates[1],
        seed=settings.seed,
        weight=settings.weight,
        batches=settings.batches,
        repeats=settings.repeats,
        penalty=float(penalty.detach()),
        norm=math.sqrt(dot(whole, whole)),
        batch_variance=spread.variance,
    )
    generator = torch.Generator(logits.device).manual_seed(settings.seed)
    for sketch in sketches(curve.outputs, settings.sizes):
        found = Spread(whole)
        for _ in range(settings.repeats if sketch.draws else 1):
            parts = kept(sketch, cached, generator)
            found.add(gradient(sketch.divergence(parts, logits).mean(), parameters))
        curve.points.append(point_of(sketch, found, curve))
    return curve


def point_of(sketch: Lumped, found: Spread, curve: Curve) -> Point:
    scale = curve.weight**2 / curve.batch_variance
    return Point(
        sketch="drawn" if sketch.draws else "lumped",
        top=sketch.top,
        draws=sketch.draws,
        bytes=row_bytes(sketch),
        bias=found.bias / curve.norm,
        variance=found.variance / curve.norm**2,
        cosine=found.cosine,
        share=found.variance * scale,
        bias_share=found.bias**2 * scale,
    )


def both(
    subject: Subject, earlier: Any, batch: dict[str, Any], tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the earlier model and of the present one, each with its own dropout, and the
    labels.
    """
    with torch.no_grad():
        cached, _ = subject.predicted(earlier, batch, tokens)
    return cached, *subject.predicted(subject.model, batch, tokens)


def exact(cached: Tensor, logits: Tensor) -> Tensor:
    """Mean KL(q ‖ p) of whole distributions."""
    return divergence(cached, logits, "kl", "classes").mean()


def curve_of(name: str, asked: argparse.Namespace) -> Curve:
    """Train a model, and measure."""
    torch.manual_seed(asked.seed)
    subject = MODELS[name](asked.data, asked.seed)
    subject.model.to("cuda" if torch.cuda.is_available() else "cpu")
    updates = UPDATES[name] if asked.updates is None else asked.updates
    later = min(100, updates) if asked.later is None else asked.later
    earlier = train(subject, updates, later, asked.tokens, asked.seed)
    settings = Settings(
        asked.tokens, asked.batches, asked.repeats, asked.weight, asked.seed, asked.sizes
    )
    return measure(subject, earlier, settings, (updates, later))


# ---- the command


def read_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--updates", type=int, help="of the training before q; by default 1,000 and 100"
    )
    parser.add_argument("--later", type=int, help="between q and p; by default at most 100")
    parser.add_argument("--tokens", type=int, default=4096, help="target tokens of a batch")
    parser.add_argument(
        "--batches", type=int, default=16, help="for the variance of the batch gradient"
    )
    parser.add_argument("--repeats", type=int, default=8, help="draws of a drawn sketch")
    parser.add_argument("--weight", type=float, default=1.0, help="λ")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="of k, and of m")
    parser.add_argument("--seed", type=int, default=500)
    return parser.parse_args()


def main() -> None:
    asked = read_flags()
    quiet_libraries()
    started, curves = now(), []
    for name in asked.models:
        curves.append(curve_of(name, asked))
        print(table(curves[-1]), flush=True)
        environment = capture_environment(device_name())
        save_as(
            asked.out,
            SketchRecord(environment=environment, started=started, finished=now(), curves=curves),
        )


def table(curve: Curve) -> str:
    """The curve as text."""
    lines = [
        f"{curve.model}: {curve.tokens} tokens, KL {curve.penalty:.4f}, batch variance "
        f"{curve.batch_variance:.3g}"
    ]
    lines += [
        f"{one.sketch:7} k {one.top:2} m {one.draws:2} {one.bytes:4} bytes  bias {one.bias:.4f}  "
        "variance "
        f"{one.variance:.4f}  cosine {one.cosine:.4f}  of the batch's variance {one.share:.2%}"
        for one in curve.points
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
