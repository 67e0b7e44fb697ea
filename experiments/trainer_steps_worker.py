"""One source tree's part in `trainer_steps.py`: trains one trainer at a time, round by round, when
told to.

Runs with the tree's `src` on PYTHONPATH and takes one JSON object a line on its standard input. It
uses only what every compared commit has, so it imports nothing from the folder it lies in.

    {"do": "start", "workload": {…}, "mode": "eager", "method": "r3f", "steps": 8} → {"ready": true}
    {"do": "round"}                          → {"wall_ms": …, "cpu_ms": …, "page_faults": …}
    {"do": "profile", "rounds": 3}           → {"profile": {function: [calls, ms]}}
    {"do": "end"}                            → {"peak_bytes": …}

A round is an epoch, whose first step is not timed; figures are per step.
"""

from __future__ import annotations

import cProfile
import gc
import importlib
import json
import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

STOCK = "stock"
_WARMUP = 2  # epochs; the first fills ARCH's cache
_SEED = 0


def either(name: str, earlier: str) -> Any:
    """A module of the tree by its name, or by the one it had at an earlier commit."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return importlib.import_module(earlier)


def build_model(workload: dict[str, Any]) -> Any:
    """A preset of the tree, or a small Llama, with random weights."""
    build = either("advreg.lab.kinds.architectures", "advreg.hf.architectures").build
    if workload["preset"] != "llama":
        return build(workload["preset"], seed=_SEED, settings=workload["settings"])
    torch.manual_seed(_SEED)
    return LlamaForCausalLM(LlamaConfig(**workload["settings"])).train()


def draw_samples(model: Any, workload: dict[str, Any], count: int) -> list[dict[str, Tensor]]:
    """Random samples, all of one length: classified, translated, or continued."""
    generator = torch.Generator().manual_seed(_SEED)
    shape = count, workload["tokens"]
    ids = torch.randint(3, model.config.vocab_size, shape, generator=generator)
    if workload["kind"] == "classification":
        labels = torch.randint(0, model.config.num_labels, shape[:1], generator=generator)
    else:
        labels = torch.randint(3, model.config.vocab_size, shape, generator=generator)
    labels = ids if workload["kind"] == "continuation" else labels
    mask = torch.ones_like(ids)
    return [
        {"input_ids": one, "attention_mask": real, "labels": label}
        for one, real, label in zip(ids, mask, labels, strict=True)
    ]


def build_method(name: str) -> Any:
    """The method with its defaults; ARCH refreshes its cache in the first epoch alone, or in every
    one.
    """
    from advreg.methods import create

    if not name.startswith("arch"):
        return create(name)
    return create("arch", refresh_every=1 if name == "arch, refresh" else None)


def build_trainer(job: dict[str, Any], folder: str, callback: TrainerCallback) -> Any:
    """The stock Trainer or the tree's own, on a fresh model."""
    from advreg.hf.trainer import AdversarialTrainer

    workload, steps = job["workload"], job["steps"] + 1
    model = build_model(workload)
    if job["mode"] == "layers":
        either("advreg.hf.patches.compile_layers", "advreg.hf.compiling").compile_layers(model)
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=workload["batch"],
        num_train_epochs=100_000,
        learning_rate=1e-6,
        label_smoothing_factor=workload["label_smoothing"],
        bf16=workload["bf16"],
        use_cpu=workload["device"] == "cpu",
        torch_compile=job["mode"] == "whole",
        save_strategy="no",
        logging_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    given: dict[str, Any] = {
        "model": model,
        "args": arguments,
        "train_dataset": draw_samples(model, workload, steps * workload["batch"]),
        "data_collator": transformers.default_data_collator,
    }
    stock = job["method"] == STOCK
    trainer: Any = (
        Trainer(**given)
        if stock
        else AdversarialTrainer(**given, method=build_method(job["method"]))
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(callback)
    return trainer


class Rounds(TrainerCallback):
    """Times the rounds that the commands on the standard input ask for, and waits between them."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.left = _WARMUP  # rounds before the next command
        self.command: dict[str, Any] = {"do": "start"}
        self.profiler: cProfile.Profile | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.device = args.device

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen = 0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.seen != 1:
            return
        gc.collect()
        gc.disable()  # or it would count for the current contender
        if self.profiler is not None:
            self.profiler.enable()
        self.begun = self.now()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen += 1
        if self.seen != self.steps + 1:
            return
        spent = [
            (end - begin) / self.steps for end, begin in zip(self.now(), self.begun, strict=True)
        ]
        if self.profiler is not None:
            self.profiler.disable()
        gc.enable()
        self.left -= 1
        if self.left == 0:
            self.report(spent)
            self.take_command()
            control.should_training_stop = self.command["do"] == "end"

    def report(self, spent: list[float]) -> None:
        if self.profiler is not None:
            reply({"profile": per_step(self.profiler, self.steps * self.command["rounds"])})
        elif self.command["do"] == "round":
            reply({"wall_ms": 1e3 * spent[0], "cpu_ms": 1e3 * spent[1], "page_faults": spent[2]})
        else:
            reply({"ready": True})
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)

    def take_command(self) -> None:
        self.command = json.loads(sys.stdin.readline())
        self.left = self.command.get("rounds", 1)
        self.profiler = (
            cProfile.Profile(time.process_time) if self.command["do"] == "profile" else None
        )

    def now(self) -> tuple[float, float, int]:
        """Seconds on the clock, seconds of this process, page faults."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return (
            time.perf_counter(),
            time.process_time(),
            resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
        )


def per_step(profiler: cProfile.Profile, steps: int) -> dict[str, list[float]]:
    """Calls and cumulated milliseconds a step, of each function."""
    found: dict[str, list[float]] = {}
    profiler.create_stats()
    for (file, _, name), (_, calls, _, total, _) in profiler.stats.items():  # type: ignore[attr-defined]
        sums = found.setdefault(f"{'/'.join(Path(file).parts[-3:])} {name}", [0.0, 0.0])
        sums[0] += calls / steps
        sums[1] += 1e3 * total / steps
    return found


def reply(answer: dict[str, Any]) -> None:
    sys.__stdout__.write(json.dumps(answer) + "\n")
    sys.__stdout__.flush()


def train(job: dict[str, Any]) -> None:
    """One trainer, from its making to its end."""
    peak = None
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(job, folder, Rounds(job["steps"]))
        trainer.train()
        if trainer.args.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(trainer.args.device)
    reply({"peak_bytes": peak})


def release() -> None:
    """Give everything back that a trainer leaves behind."""
    gc.collect()
    torch._dynamo.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def about() -> dict[str, Any]:
    import advreg

    return {
        "package": str(Path(advreg.__file__).parent),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def main() -> None:
    sys.stdout = sys.stderr  # answers alone go to the standard output
    transformers.logging.set_verbosity_error()
    if os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    reply(about())
    for line in sys.stdin:
        try:
            train(json.loads(line))
        except Exception as error:
            reply({"error": f"{type(error).__name__}: {error}"})
        release()


if __name__ == "__main__":
    main()
