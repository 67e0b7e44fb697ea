"""Attention over sentences: the kernels of advreg.core.short_attention beside those that PyTorch
chooses.

    python experiments/attention_speed.py results/translation/attention.jsonl --commit $(git
    rev-parse HEAD)

Batches of the same number of positions, in rows of several lengths; bf16. Once as an encoder
attends, by a mask that hides padding, and once as a decoder does. Forward and backward together,
with cuDNN kept out, as in our runs. Two times
each: that of the kernels alone, by the profiler, and that of calls one after the other, which a
host that is slow to launch them makes longer, so that nothing else may run beside it. Appends one
line to OUT.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from advreg.core.short_attention import attend
from advreg.lab.kinds.attention import for_any_shape
from advreg.lab.kinds.fine_tuning import device_name

REPEATS = 20

Attention = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float], Tensor]


def usual(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """PyTorch's own, over the same layout as :func:`attend`."""
    heads_first = [each.transpose(1, 2) for each in (q, k, v)]
    return F.scaled_dot_product_attention(
        *heads_first, mask, is_causal=causal, scale=scale
    ).transpose(1, 2)


def forward_and_backward(attention: Attention, states: list[Tensor], mask: Tensor | None) -> None:
    out = attention(*states, mask, mask is None, states[0].shape[-1] ** -0.5)
    torch.autograd.grad(out, states, torch.ones_like(out))


def kernel_ms(call: Callable[[], None]) -> float:
    """Milliseconds of a call in kernels of the GPU."""
    for _ in range(REPEATS):
        call()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(REPEATS):
            call()
    kernels = [
        event for event in seen.events() or [] if event.device_type == DeviceType.CUDA
    ]  # the rest launch them
    return float(sum(event.time_range.elapsed_us() for event in kernels)) / REPEATS / 1000


def timed(attention: Attention, states: list[Tensor], mask: Tensor | None) -> dict[str, float]:
    call = lambda: forward_and_backward(attention, states, mask)  # noqa: E731
    kernels = kernel_ms(call)
    wall = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=0.5).median * 1000
    return {"kernels_ms": kernels, "wall_ms": wall}


@for_any_shape()
def measure(asked: argparse.Namespace, length: int) -> dict[str, Any]:
    """Both, by mask and causal, on rows of one length."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = (asked.positions // length, length, asked.heads, asked.width)
    states = [
        torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    real = torch.rand(shape[0], 1, 1, length, device=device) < 0.9
    real[..., 0] = True
    masks = {"padded": real.expand(-1, 1, length, -1), "causal": None}
    ways: dict[str, Attention] = {"short": attend, "usual": usual}
    return {
        "length": length,
        **{
            kind: {way: timed(f, states, mask) for way, f in ways.items()}
            for kind, mask in masks.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    parser.add_argument("--positions", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, nargs="+", default=[16, 32, 64, 128])
    asked = parser.parse_args()
    facts = {
        "positions": asked.positions, "heads": asked.heads, "width": asked.width,
        "lengths": [measure(asked, length) for length in asked.length],
        "device": device_name(), "torch": torch.__version__, "commit": asked.commit,
        "command": " ".join(["experiments/attention_speed.py", asked.out.name, *sys.argv[2:]]),
    }  # fmt: skip
    with asked.out.open("a") as out:
        out.write(json.dumps(facts) + "\n")
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
