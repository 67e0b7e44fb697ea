"""Probing: how good are an encoder's representations? It is frozen, and only a head is fitted on
other tasks.

The paper fine-tunes an encoder on SST-2 by each method, then fits heads on other tasks with ten
seeds (its figure "Probing experiments"). The representations are computed once; fitting a head on
them takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advreg.core.checks import check_choice, check_positive, check_share, check_whole
from advreg.core.progress import Progress, counting
from advreg.hf.data import Limits
from advreg.lab.kinds.classification.encode import encode, longest_input, padding_collator
from advreg.lab.kinds.classification.features import Pooling, frozen_features
from advreg.lab.kinds.classification.metrics import scorer
from advreg.lab.kinds.classification.tasks import find_task, main_score
from advreg.lab.kinds.classification.textdata import Example, TextData
from advreg.lab.kinds.classification.understanding import load_task
from advreg.lab.kinds.models import load_any, load_tokenizer
from advreg.records import run as records
from advreg.records.probe import ProbeResult


@dataclass(frozen=True)
class ProbeSettings:
    """What is probed, and how heads are fitted.

    Args:
        encoders: folders of runs (with a record and a model), folders of models, or names of
            models.
        tasks: names of tasks; see :data:`advreg.lab.kinds.classification.understanding.TASKS`.
        data: the folder of the data; the hub without it.
        seeds: heads per encoder and task.
        epochs, batch_size, learning_rate, dropout: of fitting a head.
        max_length: tokens a text is cut to.
        pooling: the vector of a text: what the encoder's own head reads (``head``), or the ``mean``
            of its tokens.
    """

    encoders: tuple[str, ...]
    tasks: tuple[str, ...]
    data: str | None = None
    seeds: int = 10
    epochs: int = 10
    batch_size: int = 32
    learning_rate: float = 1e-3
    dropout: float = 0.1
    max_length: int | None = None
    pooling: Pooling = "head"

    def __post_init__(self) -> None:
        for name in ("encoders", "tasks"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one, got none")
        for task in self.tasks:
            find_task(task)
        for name in ("seeds", "epochs", "batch_size"):
            check_whole(name, getattr(self, name), least=1)
        names = [short_name(encoder) for encoder in self.encoders]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"encoders must have different names, got '{name}' {names.count(name)} times"
                )
        check_choice("pooling", self.pooling, get_args(Pooling))
        check_positive("learning_rate", self.learning_rate)
        check_share("dropout", self.dropout)


def probe(
    settings: ProbeSettings,
    progress: Progress | None = None,
    keep: Callable[[list[ProbeResult]], None] = lambda _: None,
    done: Sequence[ProbeResult] = (),
) -> list[ProbeResult]:
    """Fit heads for every encoder and task.

    Args:
        settings: which.
        progress: told how far the encoding of the texts is.
        keep: given all results after each encoder and task.
        done: results of an earlier call, which are not computed again.
    """
    found = list(done)
    have = {(result.encoder, result.task) for result in done}  # by their short names
    data = {
        task: load_task(task, None if settings.data is None else Path(settings.data))
        for task in settings.tasks
    }
    for encoder in settings.encoders:
        missing = [task for task in settings.tasks if (short_name(encoder), task) not in have]
        if not missing:
            continue
        frozen = Frozen.load(encoder, settings.max_length, settings.pooling)
        for task in missing:
            found.append(_probe_one(frozen, task, data[task], settings, progress))
            keep(found)
    return found


@dataclass(frozen=True)
class Frozen:
    """An encoder that is no longer trained, and what is known of its training."""

    name: str
    label: str
    trained_on: str | None
    model: Any
    tokenizer: Any
    longest: int
    pooling: Pooling

    @classmethod
    def load(cls, name: str, max_length: int | None = None, pooling: Pooling = "head") -> Frozen:
        """From the folder of a run, the folder of a model, or by a model's name."""
        run, label, trained_on, folder = Path(name), name, None, name
        if (run / "record.json").is_file() and (run / "model").is_dir():
            about = records.load(run / "record.json")
            label, trained_on, folder = about.method.name, about.task.name, str(run / "model")
        model = load_any(folder)
        tokenizer = load_tokenizer(folder, [], 0)
        if torch.cuda.is_available():
            model = model.to("cuda")
        longest = longest_input(tokenizer, Limits.of(model).positions, max_length)
        return cls(name, label, trained_on, model, tokenizer, longest, pooling)

    def encode(
        self, examples: Sequence[Example], progress: Progress | None, what: str
    ) -> tuple[Tensor, Tensor]:
        """Representations (n, d) and labels (n,)."""
        pairs = (
            [example.pair or "" for example in examples] if examples[0].pair is not None else None
        )
        labels = [example.label for example in examples]
        samples = encode(
            self.tokenizer, [example.text for example in examples], pairs, labels, self.longest
        ).samples
        advance = counting(progress, what, len(samples))
        collator = padding_collator(self.tokenizer)
        vectors = frozen_features(
            self.model, samples, collator, advance=advance, pooling=self.pooling
        )
        return vectors, torch.tensor(labels)


def _probe_one(
    frozen: Frozen, task: str, data: TextData, settings: ProbeSettings, progress: Progress | None
) -> ProbeResult:
    train = frozen.encode(data.train, progress, f"{frozen.label}: {task}, training texts")
    sets = {"": data.dev, **{f"{name}_": examples for name, examples in data.evaluations.items()}}
    coded = {
        prefix: frozen.encode(part, progress, f"{frozen.label}: {task}, dev texts")
        for prefix, part in sets.items()
    }
    outputs = 1 if data.labels is None else len(data.labels)
    score = scorer(data.metrics, data.is_regression)
    heads = fit_heads(
        *train,
        outputs,
        settings,
        counting(progress, f"{frozen.label}: {task}, heads", settings.epochs),
    )
    metrics: list[dict[str, float]] = [{} for _ in heads]
    for prefix, (vectors, labels) in coded.items():
        for head, found in zip(heads, metrics, strict=True):
            with torch.no_grad():
                predicted = head(vectors).numpy()
            found |= {
                f"{prefix}{name}": value for name, value in score(predicted, labels.numpy()).items()
            }
    return ProbeResult(
        encoder=short_name(frozen.name),
        label=frozen.label,
        trained_on=frozen.trained_on,
        task=task,
        scores=[main_score(task, one) for one in metrics],
        metrics=metrics,
    )


def short_name(encoder: str) -> str:
    """A folder by its last two parts, which records may hold; a model's name unchanged.

    Example:
        >>> short_name("/home/user/runs/sst2/arch-seed0"), short_name("bert-base-uncased")
        ('sst2/arch-seed0', 'bert-base-uncased')
    """
    return "/".join(Path(encoder).parts[-2:])


def fit_heads(
    vectors: Tensor,
    labels: Tensor,
    outputs: int,
    settings: ProbeSettings,
    advance: Callable[[int], None] | None = None,
) -> list[nn.Linear]:
    """Linear heads on frozen representations: cross-entropy, or squared error where the labels are
    scores.

    AdamW with a learning rate that falls to zero. A seed decides its head's initial weights, order
    and dropout, and torch's own generator stays unchanged. All heads are fitted at once: the
    loss is the sum of their losses, each head has its gradient, and AdamW treats every weight
    separately.

    Args:
        vectors: (n, d).
        labels: (n,).
        outputs: of a head.
        settings: number of seeds, epochs and so on.
        advance: called after each epoch.
    """
    generators = [torch.Generator().manual_seed(seed) for seed in range(settings.seeds)]
    width = vectors.shape[1]
    weight = torch.stack(
        [0.02 * torch.randn(outputs, width, generator=each) for each in generators]
    )  # (S, o, d)
    weight.requires_grad_()
    bias = torch.zeros(settings.seeds, 1, outputs, requires_grad=True)
    optimizer = torch.optim.AdamW([weight, bias], lr=settings.learning_rate)
    steps = settings.epochs * -(-len(vectors) // settings.batch_size)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    for _ in range(settings.epochs):
        orders = torch.stack([torch.randperm(len(vectors), generator=each) for each in generators])
        for chosen in torch.split(orders, settings.batch_size, dim=1):  # (S, b)
            draws = torch.stack(
                [torch.rand(chosen.shape[1], width, generator=each) for each in generators]
            )
            seen = (
                vectors[chosen] * (draws >= settings.dropout) / (1 - settings.dropout)
            )  # (S, b, d)
            predicted = torch.baddbmm(bias, seen, weight.mT)  # (S, b, o)
            optimizer.zero_grad()
            loss = head_loss(
                predicted.flatten(0, 1), labels[chosen].flatten()
            )  # the mean over heads and samples
            (settings.seeds * loss).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        if advance is not None:
            advance(1)
    return [
        _linear(*parameters)
        for parameters in zip(weight.detach(), bias.detach()[:, 0], strict=True)
    ]


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    with torch.device("meta"):  # nothing is drawn
        head = nn.Linear(*weight.mT.shape)
    head.weight, head.bias = nn.Parameter(weight), nn.Parameter(bias)
    return head


def head_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    if labels.is_floating_point():
        return F.mse_loss(outputs[:, 0], labels)
    return F.cross_entropy(outputs, labels)
