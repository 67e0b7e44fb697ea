"""Training speed of translation in target tokens per second: our trainer with Standard and a bare PyTorch loop.

    python experiments/translation_speed.py results/translation/speed.jsonl --task multi30k-en-de \
        --model transformer-base --precision bf16 --max-tokens 8192 32768 --compile layers whole \
        --commit $(git rev-parse HEAD)

Both alternate with the same model on the same batches, including data loading; the first updates of a turn are not
timed. With ``--compile`` both take further turns, with compiled layers or with the model compiled as a whole. Their
first epoch, in which every batch shape occurs, is not timed. Each line of OUT is one batch size, with widths
rounded up to a multiple.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, product, repeat
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from advreg.hf.patches.compile_layers import compile_layers
from advreg.hf.patches.layerdrop import has_disabled_layerdrop, layers_kept
from advreg.hf.view.head import IGNORED
from advreg.lab.kinds.attention import for_any_shape
from advreg.lab.kinds.training import device_name, quiet_libraries, report_steps
from advreg.lab.kinds.translation.job import TranslationJob, TranslationTrainer
from advreg.lab.runs.run import Plan
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.lab.runs.workloads import load_workload

WARMUP = 4


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass(frozen=True)
class Turn:
    """What is trained for how long.

    Args:
        job: a run of Standard.
        updates: the timed ones.
        compiled: what torch.compile takes: ``layers``, ``whole`` or ``nothing``.
    """

    job: TranslationJob
    updates: int
    compiled: str

    @cached_property
    def warmup(self) -> int:
        """Updates before the timed ones."""
        epoch = -(-len(self.job.batches()) // self.accumulated)
        return WARMUP + (epoch if self.compiled != "nothing" else 0)

    @property
    def accumulated(self) -> int:
        return int(self.job.fields["gradient_accumulation_steps"])


def forget_turns() -> None:
    """Each turn compiles for itself: graphs of earlier ones would count towards the limit of torch.compile.

    What is left of them is freed here, and not by the worker that makes the next turn's batches, a fork of this
    process: :func:`advreg.hf.data.leave_inherited` tells why.
    """
    torch._dynamo.reset()
    counters.clear()
    gc.collect()


def graph_count() -> int:
    return int(counters["stats"]["unique_graphs"])


def bare_loop(turn: Turn, device: torch.device) -> float:
    """Target tokens a second in the loop one would write by hand."""
    model = copy.deepcopy(turn.job.model).to(device).train()
    job, smoothing = turn.job, turn.job.fields["label_smoothing_factor"]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-6, betas=(0.9, 0.98), fused=device.type == "cuda"
    )
    half = (
        torch.autocast(device.type, torch.bfloat16)
        if job.precision == "bf16"
        else contextlib.nullcontext()
    )
    if turn.compiled == "layers":
        compile_layers(model)
    called = torch.compile(model) if turn.compiled == "whole" else model
    layers = (
        layers_kept
        if turn.compiled == "whole" and has_disabled_layerdrop(model)
        else contextlib.nullcontext
    )
    begun, tokens = 0.0, 0
    for number, group in enumerate(accumulated(batches_of(job), turn.accumulated)):
        if number == turn.warmup:
            begun, tokens = now(device), 0
        if number == turn.warmup + turn.updates:
            return tokens / (now(device) - begun)
        items = sum(int((batch["labels"] != IGNORED).sum()) for batch in group)
        tokens += items
        for batch in group:
            near = {name: value.to(device, non_blocking=True) for name, value in batch.items()}
            labels = near.pop("labels")
            with half, layers():
                logits = called(**near, use_cache=False).logits
            loss = F.cross_entropy(
                logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED, label_smoothing=smoothing,
                reduction="sum",
            ) / items  # fmt: skip
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    raise AssertionError("the batches never end")


def batches_of(job: TranslationJob) -> Iterator[dict[str, Any]]:
    """The batches of epoch after epoch."""
    pinned = torch.cuda.is_available()
    workers = int(job.fields.get("dataloader_num_workers", 0))
    loader = DataLoader(
        job.train, batch_sampler=job.batches(), collate_fn=job.collator(), pin_memory=pinned, num_workers=workers,
        persistent_workers=workers > 0, prefetch_factor=job.fields.get("dataloader_prefetch_factor"),
    )  # fmt: skip
    return chain.from_iterable(repeat(loader))


def accumulated(batches: Iterator[dict[str, Any]], count: int) -> Iterator[list[dict[str, Any]]]:
    while True:
        yield [next(batches) for _ in range(count)]


class CountingTrainer(TranslationTrainer):
    """Ours, that keeps the number of target tokens of each update, where it is: on the device.

    The last update of an epoch has fewer batches than the others; the loop, which has no epochs, does not.
    """

    def __init__(self, job: TranslationJob) -> None:
        super().__init__(job)
        self.items: list[torch.Tensor] = []
        self.get_batch_samples = partial(self._noted, self.get_batch_samples)

    def _noted(self, get_batch_samples: Any, *args: Any) -> Any:
        found = get_batch_samples(*args)
        items = self.advreg.loss.group_items
        assert items is not None  # a translation has labels
        self.items.append(items)
        return found


class Watch(TrainerCallback):
    """Notes when the updates to be timed begin and end, and the graphs that were compiled by then."""

    def __init__(self, turn: Turn) -> None:
        self.turn, self.begun, self.seconds = turn, 0.0, 0.0
        self.graphs = {"warm-up": 0, "timed": 0}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.turn.warmup:
            self.graphs["warm-up"] = graph_count()
            self.begun = now(args.device)
        if state.global_step == self.turn.warmup + self.turn.updates:
            self.seconds = now(args.device) - self.begun
            self.graphs["timed"] = graph_count() - self.graphs["warm-up"]


def our_trainer(turn: Turn) -> tuple[float, dict[str, int]]:
    """Target tokens a second in the trainer, and the graphs that were compiled."""
    model = copy.deepcopy(turn.job.model)
    job = replace(turn.job, model=model, compile_layers=turn.compiled == "layers")
    compiled = {"torch_compile": True} if turn.compiled == "whole" else {}
    quiet = {"eval_strategy": "no", "save_strategy": "no", "logging_strategy": "no"}
    steps = {"max_steps": turn.warmup + turn.updates, "learning_rate": 1e-6}
    with tempfile.TemporaryDirectory() as folder:
        fields = {**job.fields, **quiet, **steps, **compiled}
        trainer = CountingTrainer(replace(job, folder=Path(folder), fields=fields))
        report_steps(trainer, None)
        watch = Watch(turn)
        trainer.add_callback(watch)
        trainer.train()
    tokens = sum(map(int, trainer.items[turn.warmup : turn.warmup + turn.updates]))
    return tokens / watch.seconds, watch.graphs


@dataclass
class Speeds:
    """Target tokens a second of the loop and of the trainer, round by round."""

    turn: Turn
    bare: list[float]
    ours: list[float]
    graphs: dict[str, int]

    def take(self, device: torch.device) -> None:
        """One more round."""
        forget_turns()
        self.bare.append(bare_loop(self.turn, device))
        forget_turns()
        speed, self.graphs = our_trainer(self.turn)
        self.ours.append(speed)

    def facts(self) -> dict[str, Any]:
        shares = [one / other for one, other in zip(self.ours, self.bare, strict=True)]
        return {
            "bare_tokens_per_second": self.bare,
            "our_tokens_per_second": self.ours,
            "share": {
                "median": statistics.median(shares),
                "least": min(shares),
                "most": max(shares),
            },
            **({"graphs": self.graphs} if self.turn.compiled != "nothing" else {}),
        }


@for_any_shape()
def measure(settings: TranslationSettings, asked: argparse.Namespace) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        workload = load_workload(settings)
        job = workload.build(Plan(settings, workload, "standard", 0, Path(folder)), lambda _: None)
        assert isinstance(job, TranslationJob)
    speeds = {
        way: Speeds(Turn(job, asked.updates, way), [], [], {})
        for way in ("nothing", *asked.compile)
    }
    for _ in range(asked.rounds):
        for each in speeds.values():
            each.take(device)
    facts = {way: each.facts() for way, each in speeds.items()}
    return {
        "task": settings.task,
        "model": settings.model,
        "precision": settings.precision,
        "max_tokens": settings.max_tokens,
        "round_lengths": settings.round_lengths,
        "batches_per_update": job.fields["gradient_accumulation_steps"],
        "padding": job.batches().padding_share()["both"],
        "workers": job.fields.get("dataloader_num_workers", 0),
        **facts.pop("nothing"),
        "compiled": facts,
        "device": device_name(),
        "torch": torch.__version__,
        "commit": asked.commit,
        "command": " ".join(["experiments/translation_speed.py", asked.out.name, *sys.argv[2:]]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--task", default="multi30k-en-de")
    parser.add_argument("--model", default="transformer-base")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument(
        "--round-lengths", type=int, nargs="+", default=[1], help="widths are multiples of it"
    )
    parser.add_argument(
        "--compile",
        nargs="*",
        choices=["layers", "whole"],
        default=[],
        help="both compiled too",
    )
    parser.add_argument("--update-tokens", type=int, default=64_000)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    asked = parser.parse_args()
    quiet_libraries()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    for size, multiple in product(asked.max_tokens, asked.round_lengths):
        settings = TranslationSettings(
            task=asked.task, model=asked.model, precision=asked.precision, methods=("standard",), max_tokens=size,
            update_tokens=asked.update_tokens, round_lengths=multiple,
        )  # fmt: skip
        line = measure(settings, asked)
        with asked.out.open("a") as out:
            out.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
