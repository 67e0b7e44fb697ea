"""The bench: measures contenders in alternation, in rounds for each shape."""

from __future__ import annotations

import dataclasses
import gc
import platform
import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from advreg.hf.patches.compile_layers import allow_many_graphs
from advreg.hf.view.view import HFModelView
from advreg.lab.bench.entries import enter, yardstick
from advreg.lab.bench.figures import finished, whole_runs
from advreg.lab.bench.loop import Contender, Loop
from advreg.lab.bench.peers import (
    SmartPytorch,
    TrainerEntry,
    smart_pytorch_entries,
    time_trainer,
    trainer_entries,
    trainer_rows,
    trainer_samples,
)
from advreg.lab.bench.settings import BenchSettings, Shape, Spec
from advreg.lab.bench.stopwatch import Lap
from advreg.lab.bench.workload import Workload
from advreg.lab.kinds.architectures import find_model
from advreg.lab.kinds.training import device_name
from advreg.records.bench import YARDSTICK, BenchRecord, Panel, Row, Status
from advreg.records.environment import capture_environment, now

Watch = Callable[[str, int, int], None]  # what is being done, how many turns are over, of how many
Keep = Callable[[BenchRecord], None]
Make = Callable[[], list[Contender]]


class Bench:
    """Measures according to its settings. The record so far is available at any time, also after
    an interruption.

    Args:
        settings: what to measure.
        commit: of the code, where it is not a git checkout.
    """

    def __init__(self, settings: BenchSettings, commit: str | None = None) -> None:
        self.settings = settings
        self.device = settings.place()
        self.started = now()
        self.notes: list[str] = []
        self.panels: list[Panel] = []
        name = device_name() if self.device.type == "cuda" else "cpu"
        self.environment = capture_environment(name)
        found = self.environment["git"]
        self.commit = commit or (found["commit"] if found else None)
        self.model: Any = None
        self._described: dict[str, Any] = {}
        self._current: _Measuring | None = None

    def run(self, watch: Watch = lambda *_: None, keep: Keep = lambda _: None) -> BenchRecord:
        """Measure everything; ``keep`` receives the record after each round."""
        longest = max(shape.tokens for shape in self.settings.parsed_shapes)
        self.model = find_model(self.settings.model, longest, self.settings.seed).to(self.device)
        self._described = describe_model(self.model, self.settings.model)
        for shape in self.settings.parsed_shapes:
            self._current = _Measuring(self, shape)
            self._current.run(watch, lambda: keep(self.record("running")))
            self.panels.append(self._current.panel())
            self._current = None
            release()
        return self.record("finished")

    def record(self, status: Status) -> BenchRecord:
        """The record so far."""
        return BenchRecord(
            status=status,
            settings=dataclasses.asdict(self.settings),
            model=self._described,
            commit=self.commit,
            environment=self.environment,
            hardware=hardware(self.device),
            started=self.started,
            finished=now(),
            notes=list(self.notes),
            panels=[*self.panels, *([] if self._current is None else [self._current.panel()])],
        )

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


class _Measuring:
    """The measurement of one shape."""

    def __init__(self, bench: Bench, shape: Shape) -> None:
        self.bench = bench
        self.shape = shape
        self.settings = bench.settings
        self.device = bench.device
        self.contenders: list[Contender] = []
        self.failed: list[Row] = []
        self.trainers: list[TrainerEntry] = []
        self.trainer_laps: dict[str, list[Lap]] = defaultdict(list)
        self.turns = 0

    def panel(self) -> Panel:
        rows = [*(one.row() for one in self.contenders), *self.failed]
        rows += trainer_rows(self.trainers, self.trainer_laps)
        rows = finished(rows)
        whole = whole_runs(rows, self.settings.epochs)
        return Panel(batch=self.shape.batch, tokens=self.shape.tokens, rows=rows, whole=whole)

    def run(self, watch: Watch, keep: Callable[[], None]) -> None:
        settings = self.settings
        task = make_task(self.bench.model, settings, self.device)
        workload = Workload.draw(task, self.shape, settings)
        loop = Loop(task, self.device, settings.optimizer, settings.precision == "fp16")
        self._enter_all(loop, workload, watch)
        order = random.Random(settings.seed)
        for round_ in range(settings.rounds):
            going = [one for one in self.contenders if one.error is None]
            order.shuffle(going)
            for one in going:
                self._say(watch, f"round {round_ + 1}: {one.name}")
                self._guarded(loop, one, partial(self._turn, loop, one))
            keep()
        if settings.trainers:
            samples = trainer_samples(workload, settings.warmup + settings.steps)
            task.release()
            del task, workload, loop
            self._time_trainers(samples, watch, keep)

    # ---- the loop's contenders

    def _enter_all(self, loop: Loop, workload: Workload, watch: Watch) -> None:
        """Prepare each contender, warm it up, and count its passes and memory, one contender at a
        time.
        """
        kept = 0  # bytes on the GPU that contenders before this one hold
        entries = self._entries(loop, workload)
        self._settle_optimizer(loop, entries["standard"])
        for label, make in entries.items():
            self._say(watch, f"preparing {label}", turn=False)
            before = loop.allocated()
            made = self._made(label, make)
            self.contenders += made
            for one in made:
                self._guarded(loop, one, partial(self._inspect, loop, one, kept))
            kept += loop.allocated() - before

    def _entries(self, loop: Loop, workload: Workload) -> dict[str, Make]:
        """What makes the contenders, by the label of their rows: Standard, then the yardstick."""
        standard, *others = self.settings.specs
        entries: dict[str, Make] = {standard.label: self._enter(standard, workload)}
        entries[YARDSTICK] = lambda: [yardstick(workload)]
        entries |= {spec.label: self._enter(spec, workload) for spec in others}
        if self.settings.peers:
            methods, reason = smart_pytorch_entries(self.settings, loop.task)
            if reason is not None:
                self.bench.note(reason)
            for method in methods:
                name = f"{method.info.name}, S={method.ascent_steps}"
                entries[name] = partial(self._outsider, name, method, workload)
        return entries

    def _enter(self, spec: Spec, workload: Workload) -> Make:
        return partial(enter, spec, workload, self.settings, self.device)

    def _made(self, label: str, make: Make) -> list[Contender]:
        """The contenders, or a row that says why they cannot be measured."""
        try:
            return make()
        except Exception as error:
            self.failed.append(Row(name=label, method=label, error=reason_of(error)))
            release(error)
            return []

    def _outsider(self, name: str, method: SmartPytorch, workload: Workload) -> list[Contender]:
        return [Contender(name, method, workload.batches, [], counted=method.counted())]

    def _settle_optimizer(self, loop: Loop, make: Make) -> None:
        """Create the optimizer's state, which all share, before any memory is measured."""
        (standard,) = make()
        try:
            loop.step(standard)
        except Exception as error:
            reason_of(error)
            release(error)

    def _inspect(self, loop: Loop, one: Contender, kept: int) -> None:
        for _ in range(self.settings.warmup):
            one.advance(loop)
        if one.counted is None:
            one.counted = one.meter(loop)
        peak = loop.peak_bytes(partial(one.advance, loop))
        one.peak_bytes = None if peak is None else peak - kept

    def _turn(self, loop: Loop, one: Contender) -> None:
        one.rounds.append(one.turn(loop, self.settings.steps))

    def _guarded(self, loop: Loop, one: Contender, action: Callable[[], None]) -> None:
        """Run an action; drop a contender that runs out of memory or overflows, and continue with
        the others.
        """
        try:
            action()
        except Exception as error:
            one.error = reason_of(error)
            loop.optimizer.zero_grad(set_to_none=True)
            release(error)

    # ---- trainers

    def _time_trainers(self, samples: list[Any], watch: Watch, keep: Callable[[], None]) -> None:
        settings = self.settings
        for one in self.contenders:
            one.retire()
        release()
        self.trainers = trainer_entries(settings)
        order = random.Random(settings.seed)
        for round_ in range(settings.rounds):
            going = list(self.trainers)
            order.shuffle(going)
            for entry in going:
                self._say(watch, f"round {round_ + 1}: {entry.name}")
                self._time_trainer(entry, samples)
            keep()

    def _time_trainer(self, entry: TrainerEntry, samples: list[Any]) -> None:
        """One turn; a trainer that cannot take it drops out, with a note."""
        try:
            found = time_trainer(entry, self.bench.model, samples, self.shape, self.settings)
        except Exception as error:
            reason = str(error) if isinstance(error, ValueError) else reason_of(error)
            self.bench.note(f"{entry.name} at {self.shape}: {reason}")
            self.trainers.remove(entry)
            release(error)
            return
        for name, lap in found.items():
            self.trainer_laps[name].append(lap)

    def _say(self, watch: Watch, text: str, turn: bool = True) -> None:
        trainers = len(trainer_entries(self.settings)) if self.settings.trainers else 0
        total = (len(self.contenders) + trainers) * self.settings.rounds
        watch(f"{self.shape}, {text}", self.turns, total)
        self.turns += turn


def make_task(model: Any, settings: BenchSettings, device: torch.device) -> HFModelView:
    """The model's view for methods, compiled and under autocast if requested."""
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    if settings.precision != "fp32":
        dtype = torch.bfloat16 if settings.precision == "bf16" else torch.float16
        context = partial(torch.autocast, device.type, dtype)
    if settings.compile:
        torch._dynamo.reset()  # another shape must not make this one's kernels general
        allow_many_graphs()  # clean, perturbed, doubled; with gradient or without
        model = torch.compile(model, mode=settings.compile_mode, dynamic=False)
    return HFModelView(model, half=settings.precision == "fp16", context=context)


def reason_of(error: Exception) -> str:
    """Why a contender cannot be measured while others can; any other error is raised again."""
    if isinstance(error, FloatingPointError):
        return f"not finite: {(str(error).strip().splitlines() or [''])[0]}"
    no_room = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if no_room or "can't allocate memory" in str(error):
        return "out of memory"
    raise error


def release(error: Exception | None = None) -> None:
    """Release memory, including memory held by the frames of an error."""
    if error is not None:
        error.__traceback__ = None
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def describe_model(model: Any, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "class": type(model).__name__,
        "parameters": sum(value.numel() for value in model.parameters()),
        "attention": getattr(model.config, "_attn_implementation", None),
    }


def hardware(device: torch.device) -> dict[str, Any]:
    """The device, and torch's settings for it."""
    found: dict[str, Any] = {
        "device": "cpu",
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "float32_matmul": torch.get_float32_matmul_precision(),
    }
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {
            "device": about.name,
            "memory_bytes": about.total_memory,
            "capability": f"{about.major}.{about.minor}",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    return found


def cpu_name() -> str:
    """The processor's model, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
