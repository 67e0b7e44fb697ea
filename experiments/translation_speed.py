"""Training speed of translation in target tokens a second: our trainer with Standard beside a bare PyTorch loop.

    python experiments/translation_speed.py results/translation/speed.jsonl --task multi30k-en-de \
        --model transformer-base --precision bf16 --max-tokens 8192 32768 --commit $(git rev-parse HEAD)

Both train the same model on the same batches, data loading included, in turns; the first updates of a turn are not
timed. Each line of OUT is one size of batch.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from advreg.hf.run import device_name, quiet_libraries, report_steps
from advreg.hf.stopwatch import as_it_was
from advreg.hf.survey import to_device
from advreg.hf.task import IGNORED
from advreg.hf.translator import TranslationJob, TranslationTrainer
from advreg.recipes.translation import Plan, load_parallel, make_job, prepare_data
from advreg.recipes.translation_settings import TranslationSettings

WARMUP = 4


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def bare_loop(job: TranslationJob, updates: int, device: torch.device) -> float:
    """Seconds of so many updates in the loop one would write by hand."""
    model, smoothing = job.model.to(device).train(), job.fields["label_smoothing_factor"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.98), fused=device.type == "cuda")
    half = torch.autocast(device.type, torch.bfloat16) if job.precision == "bf16" else contextlib.nullcontext()
    groups = accumulated(batches_of(job), job.fields["gradient_accumulation_steps"])
    begun = 0.0
    for number, group in enumerate(groups):
        if number == WARMUP:
            begun = now(device)
        if number == WARMUP + updates:
            return now(device) - begun
        items = sum(int((batch["labels"] != IGNORED).sum()) for batch in group)
        for batch in group:
            near = to_device(batch, device)
            labels = near.pop("labels")
            with half:
                logits = model(**near, use_cache=False).logits
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
    loader = DataLoader(job.train, batch_sampler=job.batches(), collate_fn=job.collator(), pin_memory=pinned)
    return chain.from_iterable(repeat(loader))


def accumulated(batches: Iterator[dict[str, Any]], count: int) -> Iterator[list[dict[str, Any]]]:
    while True:
        yield [next(batches) for _ in range(count)]


class Watch(TrainerCallback):
    """Notes when the updates to be timed begin and end."""

    def __init__(self, updates: int) -> None:
        self.updates, self.begun, self.seconds = updates, 0.0, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == WARMUP:
            self.begun = now(args.device)
        if state.global_step == WARMUP + self.updates:
            self.seconds = now(args.device) - self.begun


def our_trainer(job: TranslationJob, updates: int) -> float:
    """Seconds of so many updates of the trainer."""
    quiet = {"eval_strategy": "no", "save_strategy": "no", "logging_strategy": "no"}
    with tempfile.TemporaryDirectory() as folder, as_it_was(job.model):
        fields = {**job.fields, **quiet, "max_steps": WARMUP + updates, "learning_rate": 1e-6}
        trainer = TranslationTrainer(replace(job, folder=Path(folder), fields=fields))
        report_steps(trainer, None)
        watch = Watch(updates)
        trainer.add_callback(watch)
        trainer.train()
    return watch.seconds


def measure(settings: TranslationSettings, asked: argparse.Namespace) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare_data(settings, load_parallel(settings), Path(folder), lambda _: None)
        job = make_job(Plan(settings, prepared, "standard", 0, Path(folder)))
    tokens = job.batches().target_tokens() * job.fields["gradient_accumulation_steps"] * asked.updates
    bare, ours = [], []
    for _ in range(asked.rounds):
        bare.append(tokens / bare_loop(job, asked.updates, device))
        ours.append(tokens / our_trainer(job, asked.updates))
    shares = [one / other for one, other in zip(ours, bare, strict=True)]
    return {
        "task": settings.task,
        "model": settings.model,
        "precision": settings.precision,
        "max_tokens": settings.max_tokens,
        "batches_per_update": job.fields["gradient_accumulation_steps"],
        "padding": job.batches().padding_share()["both"],
        "bare_tokens_per_second": bare,
        "our_tokens_per_second": ours,
        "share": {"median": statistics.median(shares), "least": min(shares), "most": max(shares)},
        "device": device_name(),
        "torch": torch.__version__,
        "commit": asked.commit,
        "command": " ".join(["experiments/translation_speed.py", asked.out.name, *sys.argv[2:]]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--task", default="multi30k-en-de")
    parser.add_argument("--model", default="transformer-base")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--update-tokens", type=int, default=64_000)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    asked = parser.parse_args()
    quiet_libraries()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    for size in asked.max_tokens:
        settings = TranslationSettings(
            task=asked.task, model=asked.model, precision=asked.precision, methods=("standard",), max_tokens=size,
            update_tokens=asked.update_tokens,
        )  # fmt: skip
        line = measure(settings, asked)
        with asked.out.open("a") as out:
            out.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
