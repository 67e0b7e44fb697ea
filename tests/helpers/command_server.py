"""Runs of the command ``advreg`` in processes of their own, at the price of one start of Python for
all of them.

`CommandServer` starts this file as a script. It imports what the command imports and then forks a
child for every request, or several that train together as torchrun would start them; a child has
its own folder, environment, output and, if asked, a fault: a real signal to itself at a step or in
the middle of a save, or a disk that is full. Nothing but the imports is shared between two runs.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import free_port, full_disk

GRACE_SECONDS = 30.0  # what torchrun gives processes that it has asked to end


@dataclass(frozen=True)
class Done:
    """How a run ended.

    Args:
        code: its exit code, or minus the signal that ended it; of several processes that of the
            first that failed.
        out, err: what it printed; of several processes one after the other.
        codes: of each process.
        seconds: from the first failure to the end of the last process.
    """

    code: int
    out: str
    err: str
    codes: tuple[int, ...]
    seconds: float


class CommandServer:
    """Runs ``advreg`` with arguments, in a forked child of a warm process."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "COLUMNS": "160",
        }
        environment.pop("ADVREG_DEBUG", None)
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __call__(
        self,
        *arguments: object,
        cwd: Path,
        fault: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        ranks: int = 1,
        struck: int | None = 0,
    ) -> Done:
        """Run the command to its end.

        Args:
            arguments: of the command.
            cwd: where.
            fault: see :func:`install` and :func:`install_moment`.
            env: what is added to the environment.
            ranks: how many processes train together.
            struck: which of them the fault is for. None: for the last, and if that is killed, so
                are all others.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd),
            "fault": fault,
            "env": dict(env or {}),
            "ranks": ranks,
            "struck": ranks - 1 if struck is None else struck,
            "together": struck is None,
            "out": [str(self.scratch / f"out-{rank}.txt") for rank in range(ranks)],
            "err": [str(self.scratch / f"err-{rank}.txt") for rank in range(ranks)],
        }
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        code, codes, seconds = json.loads(self.process.stdout.readline())
        out, err = (
            "".join(Path(path).read_text() for path in request[name]) for name in ("out", "err")
        )
        return Done(code, out, err, tuple(codes), seconds)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def start(folder: Path, command: Sequence[object]) -> subprocess.Popen[str]:
    """The command as a shell would start it: with a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "advreg.cli", *map(str, command)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def serve() -> None:
    """Read requests, one JSON object to a line, and answer each with how its children ended."""
    import advreg.cli.flags
    import advreg.cli.train
    import advreg.hf.trainer  # noqa: F401 - what every run would import

    gc.freeze()  # or each child would search all of it for garbage, and copy it
    os.fsync = lambda descriptor: None  # a kill, unlike a power cut, loses nothing that is written
    for line in sys.stdin:
        request, port, children = json.loads(line), free_port(), dict[int, int]()
        for rank in range(request["ranks"]):
            child = os.fork()
            if child == 0:
                os._exit(_run(request, rank, port))
            children[child] = rank
        print(json.dumps(_tend(children, request["together"])), flush=True)


def _tend(children: dict[int, int], together: bool) -> tuple[int, list[int], float]:
    """Wait for processes as torchrun does: when one fails, the others are asked to end, and in the
    end made to.

    Args:
        children: their ranks by process id.
        together: when one fails, kill the others at once, as a power cut would.

    Returns:
        The first failure's exit code, all exit codes, and the seconds from the first failure to the
        last end.
    """
    codes = [0] * len(children)
    first, failed, until = 0, 0.0, float("inf")
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            code = codes[children.pop(child)] = os.waitstatus_to_exitcode(status)
            if code and not first:
                first, failed = code, time.monotonic()
                until = failed + GRACE_SECONDS
                for other in children:
                    os.kill(other, signal.SIGKILL if together else signal.SIGTERM)
        elif time.monotonic() > until:
            for other in children:
                os.kill(other, signal.SIGKILL)
            until = float("inf")
        else:
            time.sleep(0.005)
    return first, codes, time.monotonic() - failed if first else 0.0


def _run(request: Mapping[str, Any], rank: int, port: int) -> int:
    """The child: the command's own entry point, with its output in files."""
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(request[name][rank], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    if request["ranks"] > 1:
        ranked = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": request["ranks"],
            "MASTER_PORT": port,
        }
        os.environ.update(
            {name: str(value) for name, value in ranked.items()}, MASTER_ADDR="127.0.0.1"
        )
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(120)  # a run that hangs ends, and its test fails
    sys.argv = ["advreg", *request["arguments"]]
    if request["fault"] is not None and rank == request["struck"]:
        (install_moment if "phase" in request["fault"] else install)(**request["fault"])
    from advreg.cli import main

    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def install(
    kind: str, count: int, method: str = "arch", sign: str = "SIGKILL", times: int = 1
) -> None:
    """Make this process send itself a signal, or fail to write.

    Args:
        kind: ``"step"``, inside the backward pass of a training step, gradients half made;
            ``"save"``, when half of a checkpoint's method file is written; ``"full"``, no signal:
            in a save no file may be larger than 1 kB.
        count: at which such occasion, from one.
        method: whose steps are counted.
        sign: the signal's name.
        times: how often it is sent.
    """
    import advreg.hf.checkpoint.saving as saving
    from advreg.hf.checkpoint.ranks import method_file
    from advreg.hf.components.steps import StepRunner

    seen = 0

    def strike() -> None:
        for _ in range(times):
            os.kill(os.getpid(), getattr(signal, sign))

    def step(self: Any, *given: Any) -> Any:
        nonlocal seen
        name, accelerator = self.method.info.name, self.trainer.accelerator
        seen += name == method
        if name != method or seen != count:
            return whole_step(self, *given)
        backward = accelerator.backward

        def struck(loss: Any, **ways: Any) -> None:
            loss.register_hook(lambda gradient: strike())
            backward(loss, **ways)

        accelerator.backward = struck
        try:
            return whole_step(self, *given)
        finally:
            del accelerator.backward

    def save(method: Any, folder: Path, tally: Any, rank: int, world: int) -> None:
        nonlocal seen
        seen += 1
        whole_save(method, folder, tally, rank, world)
        if seen == count:
            file = folder / method_file(rank, world)
            os.truncate(file, file.stat().st_size // 2)
            strike()

    def write(self: Any, *rest: Any) -> None:
        nonlocal seen
        seen += 1
        with full_disk() if seen == count else nullcontext():
            whole_write(self, *rest)

    writer = saving.CheckpointWriter
    whole_step, whole_save, whole_write = StepRunner.training_step, saving.save_method, writer.write
    if kind == "step":
        StepRunner.training_step = step  # type: ignore[method-assign]
    elif kind == "save":
        saving.save_method = save
    else:
        writer.write = write  # type: ignore[method-assign]


PHASES = ("start", "reuse", "refresh", "save", "evaluation")


def install_moment(phase: str | None, count: int, delay: float, note: str) -> None:
    """Kill this process some time after a phase of an ARCH run begins, wherever it is by then.

    Args:
        phase: one of PHASES: the start, a step that reuses or refreshes the cache, a save, an
            evaluation. None: do not kill, but note how long each phase takes.
        count: at which such occasion, from one.
        delay: seconds from there.
        note: a file that gets what the process was at when it was killed, or the phases' times.
    """
    from advreg.hf.checkpoint.saving import CheckpointWriter
    from advreg.hf.components.run import TrainingRun
    from advreg.hf.components.steps import StepRunner

    at = {"phase": "start", "step": 0, "saved": 0}
    seen = dict.fromkeys(PHASES, 0)
    installed = time.perf_counter()

    def strike() -> None:
        Path(note).write_text(json.dumps(at))
        os.kill(os.getpid(), signal.SIGKILL)

    def enter(now: str) -> None:
        at["phase"] = now
        seen[now] += 1
        if now == phase and seen[now] == count:
            threading.Timer(delay, strike).start()

    def within(now: str, work: Any) -> Any:
        enter(now)
        begun = time.perf_counter()
        done = work()
        at["phase"] = "between"
        took(now, time.perf_counter() - begun)
        return done

    def took(what: str, seconds: float) -> None:
        if phase is None:
            with open(note, "a") as file:
                file.write(f"{what} {seconds}\n")

    step, save = StepRunner.training_step, CheckpointWriter._save_checkpoint
    evaluate = TrainingRun.evaluate

    def noted_step(self: Any, *given: Any) -> Any:
        if at["step"] == 0:
            took("start", time.perf_counter() - installed)
        at["step"] = self.trainer.state.global_step + 1
        due = self.attached.method.memory.schedule.due(self.attached.epoch)
        now = "refresh" if due else "reuse"
        return within(now, lambda: step(self, *given))

    def noted_save(self: Any, *rest: Any) -> None:
        within("save", lambda: save(self, *rest))
        at["saved"] = self.trainer.state.global_step

    def noted_evaluation(self: Any, *a: Any, **k: Any) -> Any:
        return within("evaluation", lambda: evaluate(self, *a, **k))

    StepRunner.training_step = noted_step  # type: ignore[method-assign]
    CheckpointWriter._save_checkpoint = noted_save  # type: ignore[method-assign]
    TrainingRun.evaluate = noted_evaluation  # type: ignore[method-assign]
    enter("start")


if __name__ == "__main__":
    serve()
