"""Runs of the command ``advreg`` in processes of their own, at the price of one start of Python for all of them.

`CommandServer` starts this file as a script. It imports what the command imports and then forks a child for every
request; the child has its own folder, environment, output and, if asked, a fault: a real signal to itself at a step or
in the middle of a save. Nothing but the imports is shared between two runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Done:
    """How a run ended: its exit code (or minus the signal that ended it) and what it printed."""

    code: int
    out: str
    err: str


class CommandServer:
    """Runs ``advreg`` with arguments, in a forked child of a warm process."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "160"}
        environment.pop("ADVREG_DEBUG", None)
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(
        self,
        *arguments: object,
        cwd: Path,
        fault: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Done:
        """Run the command to its end; see :func:`install` for the faults."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd),
            "fault": fault,
            "env": dict(env or {}),
            "out": str(self.scratch / "out.txt"),
            "err": str(self.scratch / "err.txt"),
        }
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        return Done(code, Path(request["out"]).read_text(), Path(request["err"]).read_text())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def serve() -> None:
    """Read requests, one JSON object to a line, and answer each with the child's exit code."""
    import advreg.cli.train
    import advreg.hf.trainer  # noqa: F401 - what every run would import

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(_run(json.loads(line)))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(request: Mapping[str, Any]) -> int:
    """The child: the command's own entry point, with its output in files."""
    for name, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.alarm(300)  # a run that hangs ends, and its test fails
    sys.argv = ["advreg", *request["arguments"]]
    if request["fault"] is not None:
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


def install(kind: str, count: int, method: str = "arch", sign: str = "SIGKILL", times: int = 1) -> None:
    """Make this process send itself a signal.

    Args:
        kind: ``"step"``, inside the backward pass of a training step, gradients half made; ``"save"``, when half of a
            checkpoint's method file is written.
        count: at which such occasion, from one.
        method: whose steps are counted.
        sign: the signal's name.
        times: how often it is sent.
    """
    import advreg.hf.trainer as trainer
    from advreg.methods import registry

    seen = 0

    def strike() -> None:
        for _ in range(times):
            os.kill(os.getpid(), getattr(signal, sign))

    def step(self: Any, task: Any, batch: Any, clock: Any, backward: Any, update: Any = None) -> Any:
        nonlocal seen
        seen += 1

        def struck(loss: Any) -> None:
            loss.register_hook(lambda gradient: strike())
            backward(loss)

        return whole_step(self, task, batch, clock, struck if seen == count else backward, update)

    def save(method: Any, folder: Path, *more: Any) -> None:
        nonlocal seen
        seen += 1
        whole_save(method, folder, *more)
        if seen == count:
            file = folder / "advreg_method.safetensors"
            os.truncate(file, file.stat().st_size // 2)
            strike()

    whole_step, whole_save = registry[method].step, trainer.save_method
    if kind == "step":
        registry[method].step = step  # type: ignore[assignment,method-assign]
    else:
        trainer.save_method = save


PHASES = ("start", "reuse", "refresh", "save", "evaluation")


def install_moment(phase: str | None, count: int, delay: float, note: str) -> None:
    """Kill this process some time after a phase of an ARCH run begins, wherever it is by then.

    Args:
        phase: one of PHASES: the start, a step that reuses or refreshes the cache, a save, an evaluation. None: do
            not kill, but note how long each phase takes.
        count: at which such occasion, from one.
        delay: seconds from there.
        note: a file that gets what the process was at when it was killed, or the phases' times.
    """
    import advreg.hf.trainer as trainer
    from advreg.methods import registry

    at = {"phase": "start", "step": 0, "saved": 0}
    seen = dict.fromkeys(PHASES, 0)

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
        if phase is None:
            with open(note, "a") as file:
                file.write(f"{now} {time.perf_counter() - begun}\n")
        return done

    arch, mixin = registry["arch"], trainer.AdversarialMixin
    step, save, evaluate = arch.step, mixin._save_checkpoint, mixin.evaluate

    def noted_step(self: Any, task: Any, batch: Any, clock: Any, *rest: Any) -> Any:
        at["step"] = clock.step + 1
        now = "refresh" if self.schedule.due(clock.epoch) else "reuse"
        return within(now, lambda: step(self, task, batch, clock, *rest))

    def noted_save(self: Any, *rest: Any) -> None:
        within("save", lambda: save(self, *rest))
        at["saved"] = self.state.global_step

    arch.step = noted_step  # type: ignore[method-assign]
    mixin._save_checkpoint = noted_save  # type: ignore[method-assign]
    mixin.evaluate = lambda self, *a, **k: within("evaluation", lambda: evaluate(self, *a, **k))  # type: ignore[method-assign]
    enter("start")


if __name__ == "__main__":
    serve()
