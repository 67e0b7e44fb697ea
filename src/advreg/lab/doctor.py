"""Proves with one batch that δ reaches every stream of a model and changes its predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from advreg.core.ball import Ball, uniform_noise
from advreg.core.perturbation import Perturbation
from advreg.hf.view.gradient import CheckpointingError
from advreg.hf.view.head import IGNORED
from advreg.hf.view.injection import SURVIVES, InjectionError, bare, surviving_share
from advreg.hf.view.view import HFModelView
from advreg.methods.base import Batch


@dataclass(frozen=True)
class Finding:
    """The result of one check: its subject, the outcome, the evidence and a remedy."""

    stream: str
    check: str
    passed: bool
    seen: str
    remedy: str = ""


def examine(
    model: Any, batch: Batch | None = None, site: str = "tokens", radius: float = 0.1
) -> list[Finding]:
    """Examine a model with one batch.

    Args:
        model: any Hugging Face model, bare or wrapped by PEFT.
        batch: inputs of the model; by default random tokens of unequal lengths.
        site: where δ is added.
        radius: l2 norm, per sentence, of the δ to try.
    """
    try:
        view = HFModelView(model, site=site, compute_loss=_predict_alone)
    except CheckpointingError as error:
        return [Finding("model", "gradient checkpointing", False, "reentrant", str(error))]
    except InjectionError as error:
        return [Finding("model", "site", False, f"'{site}' cannot be hooked", str(error))]
    batch = batch if batch is not None else random_batch(model)
    try:
        embeddings = view.streams.embeddings(batch)
    except InjectionError as error:
        return [Finding("model", "hook fires", False, "not once per pass", str(error))]
    return list(_findings(view, batch, embeddings, Ball(radius)))


def _predict_alone(model: Any, inputs: dict[str, Any], *_: Any) -> Tensor:
    """A loss outside the model, whose pass can always be fused."""
    logits: Tensor = model(
        **{name: value for name, value in inputs.items() if name != "labels"}
    ).logits
    return logits.sum()


def _findings(
    view: HFModelView, batch: Batch, embeddings: dict[str, Tensor], ball: Ball
) -> Iterator[Finding]:
    zeros = view.zeros(batch)
    noise = ball.rescale(zeros.map(uniform_noise))
    for stream, embedding in embeddings.items():
        module = type(view.streams.injection.sites[stream]).__name__
        yield Finding(
            stream, "hook fires once per pass", True, f"{module}, output {tuple(embedding.shape)}"
        )
    with torch.no_grad(), view.modes.evaluating():
        clean = view.bare_logits(batch)
        yield _zero_changes_nothing(clean, view.bare_logits(batch, zeros))
        for stream in embeddings:
            yield _noise_changes_output(
                clean, view.bare_logits(batch, only(stream, noise, zeros)), stream
            )
        yield _fused_equals_two(view, batch, clean, noise)
    for stream, gradient in _gradients(view, batch, noise).items():
        yield _gradient_is_usable(gradient, stream)
    for stream, embedding in embeddings.items():
        yield _above_resolution(embedding, noise.values[stream], stream)


def _zero_changes_nothing(clean: Tensor, zeroed: Tensor) -> Finding:
    gap = float((clean - zeroed).abs().max())
    remedy = (
        "the model draws its own noise even in evaluation, which the penalty would measure as "
        "well; turn it off"
    )
    return Finding(
        "model", "δ = 0 equals the clean pass", gap == 0, f"largest difference {gap:.1e}", remedy
    )


def _noise_changes_output(clean: Tensor, moved: Tensor, stream: str) -> Finding:
    gap = float((clean - moved).abs().max())
    remedy = (
        "δ enters a module whose output is not used, or is too small; choose another site or a "
        "larger radius"
    )
    return Finding(
        stream, "δ ≠ 0 changes the output", gap > 0, f"largest difference {gap:.1e}", remedy
    )


def _fused_equals_two(
    view: HFModelView, batch: Batch, clean: Tensor, noise: Perturbation
) -> Finding:
    try:
        first, second = view.paired_logits(batch, noise)
    except ValueError as error:
        return Finding(
            "model", "fused pass equals two passes", False, "batch statistics", str(error)
        )
    separate = view.bare_logits(batch, noise)
    gap = float(torch.maximum((first - clean).abs().max(), (second - separate).abs().max()))
    scale = float(clean.abs().max().clamp_min(1.0))
    limit = 100 * torch.finfo(clean.dtype).eps * scale
    remedy = "samples of a batch influence each other; use fuse=False"
    return Finding(
        "model",
        "fused pass equals two passes",
        gap <= limit,
        f"largest difference {gap:.1e}",
        remedy,
    )


def _gradients(view: HFModelView, batch: Batch, noise: Perturbation) -> dict[str, Tensor]:
    """∇_δ of the divergence at δ = noise, in training mode, as an ascent takes it."""
    point = noise.leaf()
    target = view.bare_logits(batch).detach()
    objective = view.divergence(target, view.ascent_logits(batch, point), batch, "symmetric_kl")
    # autograd would raise for an unused stream
    unused = sum(0.0 * value.sum() for value in point.values.values())
    return dict(view.gradient(objective + unused, point).values)


def _gradient_is_usable(gradient: Tensor, stream: str) -> Finding:
    finite, largest = bool(torch.isfinite(gradient).all()), float(gradient.abs().max())
    remedy = (
        "train in bf16 or float32"
        if not finite
        else "the stream does not influence the output; choose another site"
    )
    return Finding(
        stream,
        "∇_δ is finite and not zero",
        finite and largest > 0,
        f"largest entry {largest:.1e}",
        remedy,
    )


def _above_resolution(embedding: Tensor, noise: Tensor, stream: str) -> Finding:
    share = surviving_share(embedding, noise.to(embedding.device))
    remedy = (
        f"δ is rounded away in {embedding.dtype}; raise radius, or keep the weights in float32 and "
        "use autocast (bf16)"
    )
    return Finding(
        stream,
        "δ is above the dtype's resolution",
        share >= SURVIVES,
        f"{share:.0%} of its entries survive",
        remedy,
    )


def only(stream: str, delta: Perturbation, zeros: Perturbation) -> Perturbation:
    """δ in one stream, nothing in the others."""
    return Perturbation(
        {name: (delta if name == stream else zeros).values[name] for name in delta.values},
        delta.masks,
    )


def random_batch(
    model: Any, seed: int = 0, lengths: Sequence[int] = (9, 7, 5, 8), width: int | None = None
) -> dict[str, Tensor]:
    """Right-padded sentences of random tokens, with labels that fit the head.

    Args:
        model: the model to make them for, and on its device.
        seed: of the tokens and labels.
        lengths: number of tokens of each sentence.
        width: padded length; by default the length of the longest sentence.
    """
    core = bare(model)
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(width or max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    pad = _padding(core)
    tokens = _draw_tokens(core, mask.shape, generator).masked_fill(~mask, pad)
    if core.config.is_encoder_decoder and "Classification" in type(core).__name__:
        last = mask.sum(1) - 1  # where BART's and T5's heads read
        tokens[torch.arange(len(last)), last] = core.config.eos_token_id
    batch = {
        "input_ids": tokens,
        "attention_mask": mask.long(),
        "labels": _labels(core, mask, generator),
    }
    return {name: value.to(core.device) for name, value in batch.items()}


def _padding(core: Any) -> int:
    pad = getattr(core.config, "pad_token_id", None)
    return 0 if pad is None else int(pad)


def _draw_tokens(core: Any, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Random ids that are not special tokens."""
    size = int(core.config.get_text_config().vocab_size)
    special = {value for name, value in core.config.to_dict().items() if name.endswith("_token_id")}
    usable = torch.tensor([token for token in range(size) if token not in special])
    return usable[torch.randint(len(usable), tuple(shape), generator=generator)]


def _labels(core: Any, mask: Tensor, generator: torch.Generator) -> Tensor:
    name = type(core).__name__
    translates = getattr(core.config, "is_encoder_decoder", False) and "Classification" not in name
    if translates or core.can_generate() or "MaskedLM" in name:
        return _draw_tokens(core, mask.shape, generator).masked_fill(~mask, IGNORED)
    count, rows = int(core.config.num_labels), mask.shape[0]
    if "TokenClassification" in name:
        return torch.randint(count, tuple(mask.shape), generator=generator).masked_fill(
            ~mask, IGNORED
        )
    if count == 1:
        return torch.rand(rows, generator=generator)
    return torch.randint(count, (rows,), generator=generator)
