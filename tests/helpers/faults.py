"""Faults other than kills: two launches at once, a resume during a live run, a disk that fills, and
files that vanish after the end.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file

from advreg.records.run import RECORD_FILE, load
from advreg.records.sealed import RecordError
from command_server import CommandServer, Done
from ends import differences, result, unequal

PLANNED = {"pair": 50, "beside": 20, "disk": 64, "vanished": 40}
"""Cases, and how many trials of each."""

NAMES = {
    "pair": "two launches at once in one folder",
    "beside": "`--resume` during a live run",
    "disk": "a disk that fills",
    "vanished": "a file removed, emptied or changed after the end",
}
RADII = (0.1, 2.0)
_SMALLEST, _LARGEST = 100_000, 20_000_000  # of a disk that fills, in bytes


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One trial of a case.

    Args:
        case: one of PLANNED.
        number: of the trial.
        drawn: what was drawn for it.
        codes: exit codes of its commands.
        flaws: what went wrong, each beginning with lost, mixed, wrong or traceback.
    """

    case: str
    number: int
    drawn: dict[str, Any]
    codes: list[int]
    flaws: list[str]


class Trials(Protocol):
    """Runs of one and the same training; see ``tests/chaos.py``."""

    advreg: CommandServer
    home: Path
    arguments: tuple[object, ...]

    def __call__(self, output: str, *more: str) -> Done: ...

    def folder(self, output: str) -> Path: ...


class Cases:
    """Trials of every case.

    Args:
        trials: the training, of which an undisturbed run is in ``whole``.
        other: runs a second command at the same time.
        steps: of the training.
    """

    def __init__(self, trials: Trials, other: CommandServer, steps: int) -> None:
        self.trials, self.other, self.steps = trials, other, steps
        self.home = trials.home

    def __call__(self, case: str, number: int, seed: int) -> Fault:
        draw = random.Random(f"{seed}-{case}-{number}")
        tried: Callable[[random.Random, str], tuple[dict[str, Any], list[Done], list[str]]]
        tried = getattr(self, case)
        drawn, done, flaws = tried(draw, f"{case}-{number}")
        flaws += ["traceback" for each in done if "Traceback" in each.err]
        shutil.rmtree(self.home / f"{case}-{number}", ignore_errors=True)
        return Fault(
            case=case,
            number=number,
            drawn=drawn,
            codes=[each.code for each in done],
            flaws=flaws,
        )

    def _start(self, server: CommandServer, output: str, *more: object) -> Done:
        return server(*self.trials.arguments, "--output", output, *more, cwd=self.home)

    # ---- cases: what was drawn, what the commands did, and what went wrong

    def pair(
        self, draw: random.Random, output: str
    ) -> tuple[dict[str, Any], list[Done], list[str]]:
        delay = draw.choice([0.0, draw.uniform(0, 0.3), draw.uniform(0, 3)])
        for radius in RADII:
            if not self.trials.folder(f"radius-{radius}").is_dir():
                self.trials(f"radius-{radius}", "--radius", str(radius))
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(self._start, self.trials.advreg, output, "--radius", RADII[0])
            time.sleep(delay)
            second = self._start(self.other, output, "--radius", RADII[1])
        done = [first.result(), second]
        codes = [each.code for each in done]
        if sorted(codes) != [0, 2]:
            return {"delay": delay}, done, [f"mixed: exit codes {codes}"]
        winner, loser = RADII[codes.index(0)], done[codes.index(2)]
        told = "trains in" in loser.err or "holds runs already" in loser.err
        flaws = [] if told else [f"wrong: {loser.err[-200:]}"]
        whole, run = self.trials.folder(f"radius-{winner}"), self.trials.folder(output)
        flaws += [f"mixed: {name}" for name in differences(whole, run, self.steps)]
        options = load(run / RECORD_FILE).method.settings
        plan = json.loads((run / "plan.json").read_text(encoding="utf-8"))
        if options["radius"] != winner or plan["options"]["radius"] != winner:
            flaws.append("mixed: record or plan has the other radius")
        return {"delay": delay}, done, flaws

    def beside(
        self, draw: random.Random, output: str
    ) -> tuple[dict[str, Any], list[Done], list[str]]:
        delay = draw.uniform(0, 2)
        with ThreadPoolExecutor(1) as pool:
            live = pool.submit(self._start, self.trials.advreg, output)
            while not (self.trials.folder(output) / "plan.json").is_file() and not live.done():
                time.sleep(0.01)
            time.sleep(delay)
            was_live = not live.done()
            resumed = self._start(self.other, output, "--resume")
        refused = resumed.code == 2 and "trains in" in resumed.err
        done = [live.result(), resumed]
        flaws = [] if live.result().code == 0 else ["lost: the live run failed"]
        flaws += self._against_whole(output)
        if not refused and (was_live is False and resumed.code != 0):
            flaws.append(f"wrong: {resumed.err[-200:]}")
        return {"delay": delay, "was_live": was_live}, done, flaws

    def disk(
        self, draw: random.Random, output: str
    ) -> tuple[dict[str, Any], list[Done], list[str]]:
        size = round(_SMALLEST * (_LARGEST / _SMALLEST) ** draw.random())
        spare = self.home / f"{output}-spare"
        spare.mkdir()
        with small_disk(self.home / output, size) as is_mounted:
            fault = None if is_mounted else {"kind": "limit", "count": size}
            given = (*self.trials.arguments, "--output", f"{output}/runs", "--spare", str(spare))
            first = self.trials.advreg(*given, cwd=self.home, fault=fault)
            flaws = [] if first.code in (0, 2, 3) else [f"wrong: exit code {first.code}"]
            if first.code == 2 and "error: " not in first.err:
                flaws.append(f"wrong: {first.err[-200:]}")
            enlarge(self.home / output)
            second = self.trials.advreg(*given, "--resume", cwd=self.home)
            if second.code != 0:
                flaws.append(f"lost: {second.err[-200:]}")
            else:
                flaws += self._wrong_result(self.trials.folder(f"{output}/runs"))
        shutil.rmtree(spare)
        return {"size": size, "tmpfs": is_mounted}, [first, second], flaws

    def vanished(
        self, draw: random.Random, output: str
    ) -> tuple[dict[str, Any], list[Done], list[str]]:
        shutil.copytree(self.trials.folder("whole").parent, self.home / output)
        run = self.trials.folder(output)
        path = draw.choice(sorted(path for path in run.rglob("*") if path.is_file()))
        damage = draw.choice(list(DAMAGES))
        DAMAGES[damage](path, draw)
        name = path.relative_to(run).as_posix()
        done = self.trials(output, "--resume")
        drawn = {"file": name, "damage": damage}
        if done.code == 2 and path.name in done.err:
            return drawn, [done], []
        if done.code != 0:
            return drawn, [done], [f"lost: {done.err[-200:]}"]
        return drawn, [done], self._wrong_result(run)

    def _against_whole(self, output: str) -> list[str]:
        whole = self.trials.folder("whole")
        return [
            f"lost: {name}" for name in differences(whole, self.trials.folder(output), self.steps)
        ]

    def _wrong_result(self, run: Path) -> list[str]:
        """What differs in model and record from the undisturbed run."""
        whole = self.trials.folder("whole")
        try:
            weights = [load_file(each / "model" / "model.safetensors") for each in (whole, run)]
            flaws = unequal(*weights)
            if result(whole, self.steps) != result(run, self.steps):
                flaws.append("record")
        except (OSError, SafetensorError, RecordError) as error:
            flaws = [str(error)]
        return [f"wrong: {name}" for name in flaws]


def _empty(path: Path, draw: random.Random) -> None:
    os.truncate(path, 0)


def _change(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    if content:
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(content))


DAMAGES: Mapping[str, Callable[[Path, random.Random], None]] = {
    "removed": lambda path, draw: path.unlink(),
    "emptied": _empty,
    "changed": _change,
}


# ---- disks


@contextmanager
def small_disk(folder: Path, size: int) -> Any:
    """Within, the folder is a file system of this size; whether it could be mounted."""
    folder.mkdir()
    is_mounted = _root("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    try:
        yield is_mounted
    finally:
        if is_mounted:
            _root("umount", "--lazy", str(folder))


def enlarge(folder: Path) -> None:
    """Make room on a small disk."""
    if os.path.ismount(folder):
        _root("mount", "-o", "remount,size=256m", str(folder))


def _root(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0
