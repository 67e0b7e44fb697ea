"""The methods once more, as naively as their papers write them: the references the real ones are
compared with.

Nothing of `advreg` is used. A batch is taken apart into sentences, each goes through the model
alone and without any padding, a perturbation is one row per real token, norms and projections are
loops, probabilities are exponentials over their sum, and ARCH's cache is a dict from sample id to
rows. Only the order of random draws is shared: one `torch.rand` (or `randn`) of (real tokens of the
batch, width) per stream, in reading order.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Rows = dict[str, Tensor]  # stream → (real tokens, width)
Sentence = dict[str, Tensor]

_BOTH = {"encoder": "model.encoder.embed_tokens", "decoder": "model.decoder.embed_tokens"}
SITES = {
    "BertForSequenceClassification": {"tokens": "bert.embeddings.word_embeddings"},
    "GPT2ForSequenceClassification": {"tokens": "transformer.wte"},
    "LlamaForSequenceClassification": {"tokens": "model.embed_tokens"},
    "Qwen2ForSequenceClassification": {"tokens": "model.embed_tokens"},
    "MarianMTModel": _BOTH,
    "M2M100ForConditionalGeneration": _BOTH,
    "T5ForConditionalGeneration": {
        "encoder": "encoder.embed_tokens",
        "decoder": "decoder.embed_tokens",
    },
}


def sites(model: nn.Module) -> dict[str, nn.Module]:
    """The modules whose outputs are the token embeddings, by stream."""
    return {
        stream: model.get_submodule(name) for stream, name in SITES[type(model).__name__].items()
    }


# ---- the model on one sentence


def sentences(model: Any, batch: dict[str, Tensor]) -> list[Sentence]:
    """The samples of a batch, one by one and without padding."""
    found = []
    for row in range(len(batch["input_ids"])):
        source = batch["input_ids"][row][batch["attention_mask"][row] == 1]
        labels = batch["labels"][row]
        if not model.config.is_encoder_decoder:
            found.append({"input_ids": source, "labels": labels[None]})
            continue
        target = labels[labels != -100]
        start = torch.tensor([model.config.decoder_start_token_id])
        found.append(
            {
                "input_ids": source,
                "decoder_input_ids": torch.cat([start, target[:-1]]),
                "labels": target,
            }
        )
    return found


def streams(sentence: Sentence) -> dict[str, Tensor]:
    """The tokens that are embedded, by stream."""
    if "decoder_input_ids" in sentence:
        return {"encoder": sentence["input_ids"], "decoder": sentence["decoder_input_ids"]}
    return {"tokens": sentence["input_ids"]}


@contextmanager
def perturbed(model: nn.Module, rows: Rows) -> Iterator[None]:
    handles = [
        module.register_forward_hook(
            lambda _, __, output, stream=stream: output + rows[stream][None]
        )
        for stream, module in sites(model).items()
    ]
    yield
    for handle in handles:
        handle.remove()


def predict(model: nn.Module, sentence: Sentence, rows: Rows | None = None) -> Tensor:
    """f(x + δ) of one sentence, (predicted items, outputs)."""
    inputs = {name: value[None] for name, value in sentence.items() if name != "labels"}
    if rows is None:
        output = model(**inputs).logits
    else:
        with perturbed(model, rows):
            output = model(**inputs).logits
    return output.reshape(-1, output.shape[-1])


# ---- losses of one sentence, summed over its items


def head_of(model: Any, sentence: Sentence) -> str:
    if model.config.is_encoder_decoder:
        return "classes"
    if model.config.num_labels == 1:
        return "value"
    return "several" if sentence["labels"].is_floating_point() else "classes"


def task_loss(model: nn.Module, logits: Tensor, sentence: Sentence) -> Tensor:
    labels, kind, total = (
        sentence["labels"],
        head_of(model, sentence),
        torch.zeros((), dtype=logits.dtype),
    )
    for row, label in zip(logits, labels, strict=True):
        if kind == "value":
            total = total + (row[0] - label) ** 2
        elif kind == "several":
            for logit, truth in zip(row, label, strict=True):
                yes = 1 / (1 + torch.exp(-logit))
                total = total - (truth * torch.log(yes) + (1 - truth) * torch.log(1 - yes))
        else:
            total = total - torch.log(torch.exp(row[label]) / torch.exp(row).sum())
    return total


def kullback_leibler(p: Tensor, q: Tensor) -> Tensor:
    """Σ_k p_k log(p_k / q_k)."""
    return (p * torch.log(p / q)).sum()


def distance(
    model: nn.Module, clean: Tensor, moved: Tensor, sentence: Sentence, kind: str
) -> Tensor:
    """ℓ_v of one sentence: KL(f(x) ‖ f(x+δ)), half the sum of both directions, or the squared
    difference.
    """
    head, total = head_of(model, sentence), torch.zeros((), dtype=clean.dtype)
    for one, other in zip(clean, moved, strict=True):
        if head == "value":
            total = total + ((one - other) ** 2).sum()
            continue
        if head == "several":
            yes = [
                (1 / (1 + torch.exp(-a)), 1 / (1 + torch.exp(-b)))
                for a, b in zip(one, other, strict=True)
            ]
            pairs = [(torch.stack([1 - a, a]), torch.stack([1 - b, b])) for a, b in yes]
        else:
            pairs = [
                (torch.exp(one) / torch.exp(one).sum(), torch.exp(other) / torch.exp(other).sum())
            ]
        for p, q in pairs:
            forward = kullback_leibler(p, q)
            total = total + (forward if kind == "kl" else (forward + kullback_leibler(q, p)) / 2)
    return total


def items(model: nn.Module, group: list[Sentence]) -> int:
    """The denominator: samples, target tokens, or for several labels at once all of them."""
    return sum(sentence["labels"].numel() for sentence in group)


# ---- perturbations, sentence by sentence


def draw(model: nn.Module, group: list[Sentence], normal: bool = False) -> list[Rows]:
    """U(−1, 1) or N(0, 1) at each real token, in the order in which `advreg` draws."""
    drawn: list[Rows] = [{} for _ in group]
    for stream, module in sites(model).items():
        lengths = [len(streams(sentence)[stream]) for sentence in group]
        shape, dtype = (sum(lengths), module.weight.shape[1]), module.weight.dtype
        rows = torch.randn(shape, dtype=dtype) if normal else 2 * torch.rand(shape, dtype=dtype) - 1
        for rows_of_one, part in zip(drawn, rows.split(lengths), strict=True):
            rows_of_one[stream] = part
    return drawn


def pieces(rows: Tensor, scope: str) -> list[Tensor]:
    """What a norm is taken over: the whole sentence, or each token."""
    return [rows] if scope == "sample" else [row[None] for row in rows]


def size(piece: Tensor, norm: str) -> float:
    entries = piece.flatten().tolist()
    return (
        max(abs(entry) for entry in entries)
        if norm == "linf"
        else math.sqrt(sum(entry**2 for entry in entries))
    )


def project(delta: Rows, radius: float, norm: str, scope: str) -> Rows:
    projected = {}
    for stream, rows in delta.items():
        inside = []
        for piece in pieces(rows, scope):
            if norm == "linf":
                clipped = [
                    [min(max(entry, -radius), radius) for entry in row] for row in piece.tolist()
                ]
                inside.append(torch.tensor(clipped, dtype=rows.dtype))
            else:
                length = size(piece, norm)
                inside.append(piece * radius / length if length > radius else piece)
        projected[stream] = torch.cat(inside)
    return projected


def onto_surface(delta: Rows, radius: float, norm: str, scope: str) -> Rows:
    return {
        stream: torch.cat([piece * radius / size(piece, norm) for piece in pieces(rows, scope)])
        for stream, rows in delta.items()
    }


def climb(delta: Rows, gradient: Rows, step_size: float, rule: str, norm: str, scope: str) -> Rows:
    """δ + η · g/‖g‖, δ + η · g or δ + η · sign g."""
    moved = {}
    for stream, rows in delta.items():
        parts = []
        for piece, slope in zip(pieces(rows, scope), pieces(gradient[stream], scope), strict=True):
            if rule == "normalised":
                direction = slope / size(slope, norm) if size(slope, norm) > 0 else slope
            else:
                direction = slope if rule == "gradient" else torch.sign(slope)
            parts.append(piece + step_size * direction)
        moved[stream] = torch.cat(parts)
    return moved


def leaf(delta: Rows) -> Rows:
    return {stream: rows.detach().clone().requires_grad_() for stream, rows in delta.items()}


# ---- the methods. Each leaves gradients on the model's parameters and returns the loss and the δ
# of every pass.


@dataclass
class Trace:
    """What a reference did: its loss, the parts of it, and δ sentence by sentence at each perturbed
    pass.
    """

    loss: float = 0.0
    task_loss: float = 0.0
    penalty: float = 0.0
    path: list[list[Rows]] = field(default_factory=list)


def standard(model: nn.Module, batch: dict[str, Tensor]) -> Trace:
    group = sentences(model, batch)
    loss = sum(task_loss(model, predict(model, one), one) for one in group) / items(model, group)
    loss.backward()
    return Trace(float(loss.detach()), float(loss.detach()))


def freeat(
    model: nn.Module,
    batch: dict[str, Tensor],
    learning_rate: float,
    replays: int,
    radius: float,
    step_size: float,
    norm: str,
    scope: str,
    step_rule: str,
) -> Trace:
    """m times: θ ← θ − τ ∇_θ L and δ ← Π(δ + η sign ∇_δ L); all m updates are done when it
    returns.
    """
    group, trace = sentences(model, batch), Trace()
    widths = {stream: module.weight.shape[1] for stream, module in sites(model).items()}
    deltas = [
        {
            stream: torch.zeros(len(ids), widths[stream], dtype=torch.float64)
            for stream, ids in streams(one).items()
        }
        for one in group
    ]
    for _ in range(replays):
        trace.path.append(deltas)
        points = [leaf(delta) for delta in deltas]
        losses = [
            task_loss(model, predict(model, one, point), one)
            for one, point in zip(group, points, strict=True)
        ]
        loss = sum(losses) / items(model, group)
        loss.backward()
        with torch.no_grad():
            for parameter in (
                p for p in model.parameters() if p.requires_grad
            ):  # Marian's sinusoids are fixed
                parameter -= learning_rate * parameter.grad
                parameter.grad = None
        slopes = [{stream: rows.grad for stream, rows in point.items()} for point in points]
        deltas = [
            project(climb(delta, slope, step_size, step_rule, norm, scope), radius, norm, scope)
            for delta, slope in zip(deltas, slopes, strict=True)
        ]
    trace.loss = float(loss.detach())
    return trace


def freelb(
    model: nn.Module,
    batch: dict[str, Tensor],
    radius: float,
    ascent_steps: int,
    step_size: float,
    start_scale: float,
) -> Trace:
    """1/K Σ_{k<K} L(f(x + δ_k), y) with K = 1 + S, δ climbing along the gradient of the same
    passes.
    """
    group, trace, points = sentences(model, batch), Trace(), ascent_steps + 1
    ball = (radius, "l2", "sample")
    deltas = [
        project(
            {s: rows * start_scale / math.sqrt(rows.numel()) for s, rows in noise.items()}, *ball
        )
        for noise in draw(model, group)
    ]
    for _ in range(points):
        trace.path.append(deltas)
        here = [leaf(delta) for delta in deltas]
        losses = [
            task_loss(model, predict(model, one, point), one)
            for one, point in zip(group, here, strict=True)
        ]
        loss = sum(losses) / items(model, group)
        (loss / points).backward()
        trace.loss += float(loss.detach()) / points
        slopes = [{stream: rows.grad for stream, rows in point.items()} for point in here]
        deltas = [
            project(climb(delta, slope, step_size, "normalised", "l2", "sample"), *ball)
            for delta, slope in zip(deltas, slopes, strict=True)
        ]
    trace.task_loss = trace.loss
    return trace


@dataclass
class Inner:
    """max_{‖δ‖ ≤ ε} ℓ_v by projected ascent, and the penalty around it."""

    radius: float = 0.1
    norm: str = "l2"
    scope: str = "sample"
    ascent_steps: int = 3
    step_size: float = 0.1
    step_rule: str = "normalised"
    step_end: str = "project"
    start: str = "uniform"
    start_scale: float = 1e-5
    weight: float = 1.0
    divergence: str = "kl"
    detach_clean: bool = False

    def ascend(self, model: nn.Module, group: list[Sentence]) -> list[list[Rows]]:
        """δ_0, …, δ_S, each for every sentence."""
        ball = (self.radius, self.norm, self.scope)
        if self.start == "uniform":
            start = [onto_surface(noise, *ball) for noise in draw(model, group)]
        else:
            noises = draw(model, group, normal=True)
            start = [
                project({s: self.start_scale * rows for s, rows in noise.items()}, *ball)
                for noise in noises
            ]
        path = [start]
        for _ in range(self.ascent_steps):
            path.append(
                [self._step(model, one, delta) for one, delta in zip(group, path[-1], strict=True)]
            )
        return path

    def _step(self, model: nn.Module, sentence: Sentence, delta: Rows) -> Rows:
        point = leaf(delta)
        clean = predict(model, sentence).detach()
        value = distance(model, clean, predict(model, sentence, point), sentence, self.divergence)
        slopes = dict(zip(point, torch.autograd.grad(value, list(point.values())), strict=True))
        moved = climb(delta, slopes, self.step_size, self.step_rule, self.norm, self.scope)
        end = project if self.step_end == "project" else onto_surface
        return end(moved, self.radius, self.norm, self.scope)

    def objective(
        self, model: nn.Module, group: list[Sentence], deltas: list[Rows]
    ) -> tuple[Tensor, Trace]:
        """(Σ ℓ + λ Σ ℓ_v) / items."""
        task, penalty = torch.zeros(()), torch.zeros(())
        for one, delta in zip(group, deltas, strict=True):
            clean = predict(model, one)
            task = task + task_loss(model, clean, one)
            target = clean.detach() if self.detach_clean else clean
            penalty = penalty + distance(
                model, target, predict(model, one, delta), one, self.divergence
            )
        task, penalty = task / items(model, group), penalty / items(model, group)
        loss = task + self.weight * penalty
        return loss, Trace(float(loss.detach()), float(task.detach()), float(penalty.detach()))


@dataclass
class Smart:
    """L + λ max ℓ_v + μ D(f(x, θ), f(x, θ̃)),  θ̃ ← β θ̃ + (1 − β) θ."""

    inner: Inner
    proximal_weight: float = 0.0
    proximal_momentum: float = 0.99
    average: nn.Module | None = None

    def step(self, model: nn.Module, batch: dict[str, Tensor]) -> Trace:
        self.average = self.average or deepcopy(model)
        group = sentences(model, batch)
        path = self.inner.ascend(model, group)
        loss, trace = self.inner.objective(model, group, path[-1])
        if self.proximal_weight > 0:
            kind, pull = self.inner.divergence, torch.zeros(())
            for one in group:
                pull = pull + distance(
                    model, predict(self.average, one).detach(), predict(model, one), one, kind
                )
            loss = loss + self.proximal_weight * pull / items(model, group)
            trace.loss = float(loss.detach())
        loss.backward()
        trace.path = path
        return trace

    def updated(self, model: nn.Module) -> None:
        with torch.no_grad():
            for mine, theirs in zip(self.average.parameters(), model.parameters(), strict=True):
                mine.copy_(self.proximal_momentum * mine + (1 - self.proximal_momentum) * theirs)


def r3f(
    model: nn.Module, batch: dict[str, Tensor], inner: Inner, noise: str, noise_scale: float
) -> Trace:
    """L + λ ℓ_v(x, z), z ~ U(−σ, σ) or N(0, σ²)."""
    group = sentences(model, batch)
    deltas = [
        {s: noise_scale * rows for s, rows in z.items()}
        for z in draw(model, group, normal=noise == "normal")
    ]
    loss, trace = inner.objective(model, group, deltas)
    loss.backward()
    trace.path = [deltas]
    return trace


def rdrop(
    model: nn.Module,
    batch: dict[str, Tensor],
    weight: float,
    both: bool,
    copy: Callable[[int], AbstractContextManager[None]],
) -> Trace:
    """½ (L₁ + L₂) + λ · ½ [KL(p₁ ‖ p₂) + KL(p₂ ‖ p₁)]; within ``copy(k)`` the model drops what the
    k-th copy does.
    """
    group, trace = sentences(model, batch), Trace()
    task, penalty = torch.zeros(()), torch.zeros(())
    for one in group:
        with copy(0):
            first = predict(model, one)
        with copy(1):
            second = predict(model, one)
        losses = [task_loss(model, prediction, one) for prediction in (first, second)]
        task = task + (sum(losses) / 2 if both else losses[0])
        penalty = penalty + distance(model, first, second, one, "symmetric_kl")
    task, penalty = task / items(model, group), penalty / items(model, group)
    loss = task + weight * penalty
    loss.backward()
    trace.loss, trace.task_loss, trace.penalty = (
        float(loss.detach()),
        float(task.detach()),
        float(penalty.detach()),
    )
    return trace


@contextmanager
def cut_out(model: nn.Module, cut: dict[str, list[bool]]) -> Iterator[None]:
    def blank(stream: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            rows = [
                torch.zeros_like(row) if gone else row
                for row, gone in zip(output[0], cut[stream], strict=True)
            ]
            return torch.stack(rows)[None]

        return hook

    handles = [
        module.register_forward_hook(blank(stream)) for stream, module in sites(model).items()
    ]
    yield
    for handle in handles:
        handle.remove()


def simcut(
    model: nn.Module,
    batch: dict[str, Tensor],
    weight: float,
    cut: float,
    divergence: str = "kl",
    detach: bool = False,
) -> Trace:
    """L + λ KL(f(x) ‖ f(cut x)): each token but the last of a row loses its embedding with
    probability p.

    The first token of a decoder without an encoder keeps it too.
    """
    keeps_first = type(model).__name__.startswith(("Llama", "GPT2", "Qwen2"))
    group = sentences(model, batch)
    gone: list[dict[str, list[bool]]] = [{} for _ in group]
    for stream in sites(model):
        for one, of_one in zip(group, gone, strict=True):
            drawn = [float(torch.rand(1, 1)) for _ in streams(one)[stream]]
            of_one[stream] = [u < cut for u in drawn[:-1]] + [False]
            of_one[stream][0] = of_one[stream][0] and not keeps_first
    task, penalty = torch.zeros(()), torch.zeros(())
    for one, of_one in zip(group, gone, strict=True):
        clean = predict(model, one)
        with cut_out(model, of_one):
            moved = predict(model, one)
        task = task + task_loss(model, clean, one)
        penalty = penalty + distance(
            model, clean.detach() if detach else clean, moved, one, divergence
        )
    task, penalty = task / items(model, group), penalty / items(model, group)
    loss = task + weight * penalty
    loss.backward()
    return Trace(float(loss.detach()), float(task.detach()), float(penalty.detach()))


def softmax(row: Tensor) -> Tensor:
    return torch.exp(row) / torch.exp(row).sum()


@dataclass
class Temporal:
    """L + λ KL(q_i ‖ f(x_i)), q_i ← f(x_i), in a dict by sample; ``lumped`` keeps
    the k likeliest.
    """

    weight: float
    lumped: int | None = None
    cache: dict[int, list[Tensor]] = field(default_factory=dict)

    def step(self, model: nn.Module, batch: dict[str, Tensor], epoch: int) -> Trace:
        group, task, penalty = sentences(model, batch), torch.zeros(()), torch.zeros(())
        seen: dict[int, list[Tensor]] = {}
        for i, one in zip(batch["sample_id"].tolist(), group, strict=True):
            logits = predict(model, one)
            task = task + task_loss(model, logits, one)
            if i in self.cache and epoch > 0:
                pairs = zip(self.cache[i], logits, strict=True)
                penalty = penalty + sum(self.apart(head_of(model, one), q, row) for q, row in pairs)
            seen[i] = self.rounded([self.kept(head_of(model, one), row.detach()) for row in logits])
        self.cache |= seen
        task, penalty = task / items(model, group), penalty / items(model, group)
        loss = task + self.weight * penalty
        loss.backward()
        return Trace(float(loss.detach()), float(task.detach()), float(penalty.detach()))

    def kept(self, head: str, row: Tensor) -> Tensor:
        """What is kept, not yet in half precision; a lumped row has zeros for the rest, and its
        mass last.
        """
        if head == "value":
            return row
        if head == "several":
            return torch.stack([1 / (1 + torch.exp(row)), 1 / (1 + torch.exp(-row))], -1)
        q = softmax(row)
        if self.lumped is None:
            return q
        top = sorted(range(len(q)), key=lambda v: -float(q[v]))[: self.lumped]
        likeliest = [q[v] if v in top else torch.zeros_like(q[v]) for v in range(len(q))]
        return torch.stack([*likeliest, sum(q[v] for v in range(len(q)) if v not in top)])

    def rounded(self, rows: list[Tensor]) -> list[Tensor]:
        return [(row.float() if row.numel() == 1 else row.half()).double() for row in rows]

    def apart(self, head: str, q: Tensor, row: Tensor) -> Tensor:
        if head == "value":
            return ((q - row) ** 2).sum()
        if head == "several":
            yes = 1 / (1 + torch.exp(-row))
            return sum(
                kullback_leibler(a / a.sum(), torch.stack([1 - p, p]))
                for a, p in zip(q, yes, strict=True)
            )
        p = softmax(row)
        if self.lumped is not None:
            top = [v for v in range(len(p)) if q[v] > 0]
            q = torch.stack([*(q[v] for v in top), q[-1]])
            p = torch.stack(
                [*(p[v] for v in top), sum(p[v] for v in range(len(p)) if v not in top)]
            )
        return kullback_leibler(q / q.sum(), p)


@dataclass
class OLS:
    """L + λ KL(s_y ‖ f(x)), s_c the mean over the last epoch's samples of class c that were
    predicted right.
    """

    weight: float
    classes: int
    epoch: int = 0
    right: dict[int, list[Tensor]] = field(default_factory=dict)
    targets: dict[int, Tensor] = field(default_factory=dict)

    def step(self, model: nn.Module, batch: dict[str, Tensor], epoch: int) -> Trace:
        if epoch != self.epoch:
            self.targets = {
                c: torch.full((self.classes,), 1 / self.classes, dtype=torch.float64)
                for c in range(self.classes)
            }
            self.targets |= {c: sum(rows) / len(rows) for c, rows in self.right.items()}
            self.right, self.epoch = {}, epoch
        group, task, penalty = sentences(model, batch), torch.zeros(()), torch.zeros(())
        for one in group:
            logits = predict(model, one)
            task = task + task_loss(model, logits, one)
            for row, label in zip(logits, one["labels"].tolist(), strict=True):
                p = softmax(row)
                if label in self.targets:
                    penalty = penalty + kullback_leibler(self.targets[label], p)
                if int(p.argmax()) == label:
                    self.right.setdefault(label, []).append(p.detach())
        task, penalty = task / items(model, group), penalty / items(model, group)
        loss = task + self.weight * penalty
        loss.backward()
        return Trace(float(loss.detach()), float(task.detach()), float(penalty.detach()))


@dataclass
class Arch:
    """Algorithm 3 of the paper. `cached` is the cache set X; neighbours are looked for among it."""

    inner: Inner
    refresh_every: int | None
    ema: float
    neighbours: int
    cached: set[int]
    corpus: list[Sentence]
    cache: dict[int, dict[str, list[Tensor]]] = field(default_factory=dict)
    nearest: dict[str, dict[int, list[int]]] = field(default_factory=dict)

    def prepare(self, model: nn.Module) -> None:
        """K_i of every uncached sample, by the cosine of mean word embeddings, each stream on its
        own.
        """
        for stream, module in sites(model).items():
            means = [module.weight[streams(one)[stream]].mean(0).tolist() for one in self.corpus]
            self.nearest[stream] = {
                i: sorted(self.cached, key=lambda j, i=i, means=means: -cosine(means[i], means[j]))[
                    : self.neighbours
                ]
                for i in range(len(self.corpus))
                if i not in self.cached
            }

    def step(self, model: nn.Module, ids: list[int], epoch: int) -> Trace:
        """The path of the trace holds the points of the ascent, if there was one, and last the δ
        trained on.
        """
        group = [self.corpus[i] for i in ids]
        if self.is_due(epoch):
            *path, found = self.inner.ascend(model, group)
            deltas = [self.refresh(i, delta) for i, delta in zip(ids, found, strict=True)]
        else:
            path, deltas = [], [self.recall(i) for i in ids]
        loss, trace = self.inner.objective(model, group, deltas)
        loss.backward()
        trace.path = [*path, deltas]
        return trace

    def is_due(self, epoch: int) -> bool:
        return epoch == 0 if self.refresh_every is None else epoch % self.refresh_every == 0

    def refresh(self, i: int, found: Rows) -> Rows:
        """C[i] ← Π(α C[i] + (1 − α) Δ_i); the first time, and for a sample that is not cached, Δ_i
        as it is.
        """
        if i in self.cache:
            old = {stream: torch.stack(rows) for stream, rows in self.cache[i].items()}
            blend = {
                stream: self.ema * old[stream] + (1 - self.ema) * rows
                for stream, rows in found.items()
            }
            found = project(blend, self.inner.radius, self.inner.norm, self.inner.scope)
        if i in self.cached:
            self.cache[i] = {stream: list(rows) for stream, rows in found.items()}
        return found

    def recall(self, i: int) -> Rows:
        """C[i], or at every token the mean over the neighbours j of the mean over the rows of
        C[j].
        """
        if i in self.cached:
            return {stream: torch.stack(rows) for stream, rows in self.cache[i].items()}
        borrowed = {}
        for stream, ids in streams(self.corpus[i]).items():
            means = [
                sum(self.cache[j][stream]) / len(self.cache[j][stream])
                for j in self.nearest[stream][i]
            ]
            borrowed[stream] = torch.stack([sum(means) / len(means)] * len(ids))
        return project(borrowed, self.inner.radius, self.inner.norm, self.inner.scope)


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
