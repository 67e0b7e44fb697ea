"""Steps of the Trainer at two commits, in alternation: time and peak memory, round by round.

    python experiments/trainer_steps.py pack carry OLD NEW            # both commits' src, for a machine without git
    python experiments/trainer_steps.py measure OLD NEW --device cpu --out results/trainer-steps/cpu.json
    python experiments/trainer_steps.py profile OLD NEW --only bert-tiny/eager/r3f

OLD and NEW are commits, checkouts, or folders that `pack` made (carry/old, carry/new). Each tree trains in a separate
process (`trainer_steps_worker.py`), and so does the stock Trainer, for comparison with Standard. The processes
alternate, and each round reverses the order of the previous one: A B B A. A ratio is taken within a round. Every
comparison is repeated with new trainers, since the memory layout of a process affects its speed.

On the CPU the time is process time in one thread, so other work on the machine hardly counts. glibc must not
return memory after each step: whether it can depends on the position of a few bytes in the heap, and
faulting the pages in again costs a small model several per cent of a step. Page faults are recorded.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from advreg.records.environment import capture_environment, now
from advreg.records.sealed import load_as, save_as

WORKER = Path(__file__).with_name("trainer_steps_worker.py")
STOCK, OLD, NEW = "stock", "old", "new"
MODES = ("eager", "layers", "whole")
METHODS = ("standard", "r3f", "arch, reuse", "arch, refresh")
TRAINERS = {"standard": (STOCK, OLD, NEW)}  # who takes part; of other methods, old and new
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, and batches of random tokens for it.

    Args:
        preset: of :mod:`advreg.lab.kinds.architectures`, or llama.
        settings: of its configuration, instead of the preset's.
        kind: classification, translation or continuation.
        device: cpu or cuda.
        batch, tokens: samples in a batch, and tokens in each (of a translation: on either side).
        steps: timed steps in a round.
        modes: how it is compiled where nothing else is asked for.
        bf16: by autocast?
        label_smoothing: of the Trainer.
    """

    preset: str
    settings: dict[str, Any] = field(default_factory=dict)
    kind: str
    device: str
    batch: int
    tokens: int
    steps: int
    modes: tuple[str, ...] = ("eager",)
    bf16: bool = False
    label_smoothing: float = 0.0


_LLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
}
WORKLOADS = {
    "bert-tiny": Workload(
        preset="small", kind="classification", device="cpu", batch=16, tokens=32, steps=8, modes=MODES
    ),
    "minilm": Workload(preset="minilm", kind="classification", device="cpu", batch=4, tokens=16, steps=4),
    "translator": Workload(
        preset="transformer-small", kind="translation", device="cpu", batch=16, tokens=16, steps=4,
        modes=("eager", "layers"), label_smoothing=0.1,
    ),
    "bert-base": Workload(
        preset="bert-base", kind="classification", device="cuda", batch=32, tokens=64, steps=10,
        modes=("eager", "layers"), bf16=True,
    ),
    "bert-base-large": Workload(
        preset="bert-base", kind="classification", device="cuda", batch=256, tokens=128, steps=4,
        modes=("eager", "layers"), bf16=True,
    ),
    "transformer-base": Workload(
        preset="transformer-base", settings={"vocab_size": 10_000, "decoder_vocab_size": 10_000}, kind="translation",
        device="cuda", batch=256, tokens=32, steps=6, modes=("eager", "layers"), bf16=True,
    ),
    "llama": Workload(
        preset="llama", settings=_LLAMA, kind="continuation", device="cuda", batch=16, tokens=128, steps=8, bf16=True
    ),
}  # fmt: skip


# ---- the record


@dataclass(frozen=True, kw_only=True)
class Laps:
    """What one trainer did, round by round; per step.

    Args:
        trainer: stock, old or new.
        wall_ms: milliseconds of wall-clock time.
        cpu_ms: milliseconds of the process, all its threads together.
        page_faults: that needed no disk.
        peak_bytes: most memory that was allocated on the GPU in any round; ``None`` on a CPU.
    """

    trainer: str
    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    page_faults: list[float] = field(default_factory=list)
    peak_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Heat:
    """One comparison.

    Args:
        workload: its name.
        mode: eager; layers or whole: what is compiled.
        method: what ours train by.
        repeat: of the same comparison.
        laps: of each trainer.
        error: why it was not measured to the end.
    """

    workload: str
    mode: str
    method: str
    repeat: int
    laps: list[Laps]
    error: str | None = None

    def of(self, trainer: str) -> Laps:
        """One trainer's laps."""
        return next(one for one in self.laps if one.trainer == trainer)


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A source tree: its commit, and whether nothing was changed since."""

    name: str
    commit: str | None
    clean: bool | None


@dataclass(frozen=True, kw_only=True)
class StepsRecord:
    """All comparisons of two trees on one machine."""

    schema: int = 1
    kind: str = "trainer-steps"
    trees: list[Tree]
    workloads: dict[str, dict[str, Any]]
    environment: dict[str, Any]
    workers: dict[str, dict[str, Any]]
    hardware: dict[str, Any]
    started: str
    finished: str
    heats: list[Heat]

    def save(self, path: Path) -> None:
        save_as(path, self)


def load(path: Path) -> StepsRecord:
    """Read a record; an error for anything but a whole, unedited one."""
    return load_as(path, StepsRecord)


# ---- what it says


@dataclass(frozen=True)
class Ratio:
    """The median of ratios taken within rounds, and its 95 % confidence interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, mine: Sequence[float], theirs: Sequence[float]) -> Ratio:
        """From order statistics, for any distribution: P(x₍ₖ₎ ≤ median ≤ x₍ₙ₊₁₋ₖ₎) = 1 − 2
        P(Bin(n, ½) < k).

        Example:
            >>> Ratio.of([2.0, 4.0, 3.0], [2.0, 2.0, 2.0])
            Ratio(median=1.5, low=1.0, high=2.0)
        """
        ratios = sorted(one / other for one, other in zip(mine, theirs, strict=True))
        rank = _rank(len(ratios))
        return cls(statistics.median(ratios), ratios[rank - 1], ratios[-rank])


def _rank(count: int) -> int:
    """The largest k with 2 P(Bin(n, ½) < k) ≤ 5 %; 1 for few values, whose whole range covers less
    than 95 %.
    """
    below, rank = 0.0, 0
    while (below := below + math.comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    return max(rank, 1)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The comparison of one workload, mode and method with another trainer, over all repeats.

    Args:
        ms: milliseconds of our step, and of theirs.
        time: the ratio of the steps' time.
        memory: ratio of the peaks, the largest of all repeats.
    """

    workload: str
    mode: str
    method: str
    against: str
    ms: tuple[float, float]
    time: Ratio
    memory: float | None


def comparisons(record: StepsRecord) -> Iterator[Comparison]:
    """New against old, and of Standard new against stock, in the order they were measured."""
    groups: dict[tuple[str, str, str], list[Heat]] = {}
    for heat in record.heats:
        if heat.error is None:
            groups.setdefault((heat.workload, heat.mode, heat.method), []).append(heat)
    for (workload, mode, method), heats in groups.items():
        on_cpu = record.workloads[workload]["device"] == "cpu"
        for against in (OLD, STOCK):
            if any(laps.trainer == against for laps in heats[0].laps):
                mine, theirs = _times(heats, NEW, on_cpu), _times(heats, against, on_cpu)
                yield Comparison(
                    workload=workload,
                    mode=mode,
                    method=method,
                    against=against,
                    ms=(statistics.median(mine), statistics.median(theirs)),
                    time=Ratio.of(mine, theirs),
                    memory=_memory(heats, against),
                )


def _times(heats: Sequence[Heat], who: str, on_cpu: bool) -> list[float]:
    laps = [heat.of(who) for heat in heats]
    return [lap for each in laps for lap in (each.cpu_ms if on_cpu else each.wall_ms)]


def _memory(heats: Sequence[Heat], against: str) -> float | None:
    mine, theirs = ([heat.of(who).peak_bytes for heat in heats] for who in (NEW, against))
    if None in mine or None in theirs:
        return None
    return max(filter(None, mine)) / max(filter(None, theirs))


# ---- trees


def pack(folder: Path, commits: dict[str, str]) -> None:
    """Each commit's ``src`` in a folder with the commit's name."""
    for name, commit in commits.items():
        place = folder / name
        place.mkdir(parents=True)
        archive = subprocess.run(
            ["git", "archive", commit, "src"], check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
            packed.extractall(place, filter="data")
        (place / "COMMIT").write_text(
            _git(Path(), "rev-parse", f"{commit}^{{commit}}") + "\n", encoding="utf-8"
        )


@contextmanager
def unpacked(texts: dict[str, str]) -> Iterator[dict[str, Path]]:
    """The folders that these texts mean; commits are unpacked for as long as they are needed."""
    with tempfile.TemporaryDirectory() as folder:
        commits = {name: text for name, text in texts.items() if not Path(text).is_dir()}
        pack(Path(folder), commits)
        yield {
            name: Path(folder) / name if name in commits else Path(text)
            for name, text in texts.items()
        }


def tree_of(name: str, folder: Path) -> Tree:
    """What is known of a folder's code."""
    said = folder / "COMMIT"
    if said.is_file():
        return Tree(name=name, commit=said.read_text(encoding="utf-8").strip(), clean=True)
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", "src")
    return Tree(name=name, commit=_git(folder, "rev-parse", "HEAD"), clean=not changes)


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


# ---- workers


class WorkerError(RuntimeError):
    """A worker could not do what it was asked for."""


class Worker:
    """A process that trains with one tree.

    Args:
        folder: of the tree.
        device: cpu or cuda.
    """

    def __init__(self, folder: Path, device: str) -> None:
        source = (folder / "src").resolve()
        fixed = ONE_THREAD if device == "cpu" else {}
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONWARNINGS": "ignore", **fixed}
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.about = self.answer()
        package = Path(self.about.pop("package"))
        if package != source / "advreg":
            raise WorkerError(
                f"the worker of {folder} imported advreg from {package}; give a folder with "
                "src/advreg"
            )

    def ask(self, do: str, **more: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"a worker ended with exit status {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise WorkerError(found["error"])
        return found

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


@contextmanager
def workers(folders: dict[str, Path], device: str) -> Iterator[dict[str, Worker]]:
    """One for the stock Trainer, one for each tree."""
    found: dict[str, Worker] = {}
    try:
        for name, folder in {STOCK: folders[NEW], **folders}.items():
            found[name] = Worker(folder, device)
        yield found
    finally:
        for worker in found.values():
            worker.close()


@contextmanager
def training(
    team: dict[str, Worker], name: str, mode: str, method: str
) -> Iterator[dict[str, Worker]]:
    """Within, these workers wait between two rounds of a training each."""
    workload = WORKLOADS[name]
    about = {"workload": asdict(workload), "mode": mode, "steps": workload.steps}
    for who, worker in team.items():
        worker.ask("start", **about, method=STOCK if who == STOCK else method)
    errors = {who: error for who, worker in team.items() if (error := _failure(worker)) is not None}
    going = {who: worker for who, worker in team.items() if who not in errors}
    try:
        if errors:
            raise WorkerError("; ".join(f"{who}: {error}" for who, error in errors.items()))
        yield going
    except WorkerError:
        for worker in going.values():
            worker.ask("end")
            _failure(worker)
        raise


def _failure(worker: Worker) -> str | None:
    """Why the worker did not do what it was asked for, or None."""
    try:
        worker.answer()
    except WorkerError as error:
        return str(error)
    return None


def run_heat(
    team: dict[str, Worker], name: str, mode: str, method: str, rounds: int, repeat: int
) -> Heat:
    """One comparison."""
    team = {who: team[who] for who in TRAINERS.get(method, (OLD, NEW))}
    laps = {who: Laps(trainer=who) for who in team}
    error = None
    try:
        with training(team, name, mode, method):
            order = list(team)
            for _ in range(rounds):
                for who in order:
                    team[who].ask("round")
                    for measure, value in team[who].answer().items():
                        getattr(laps[who], measure).append(value)
                order.reverse()
            for who, worker in team.items():
                worker.ask("end")
                laps[who] = replace(laps[who], **worker.answer())
    except WorkerError as problem:
        error = str(problem)
    return Heat(
        workload=name,
        mode=mode,
        method=method,
        repeat=repeat,
        laps=list(laps.values()),
        error=error,
    )


# ---- commands


Job = tuple[str, str, str]  # workload, mode, method


def jobs(device: str, only: Sequence[str]) -> list[Job]:
    """Workload, mode and method of each comparison; ``only`` names some as ``bert-tiny/eager/r3f``,
    or a beginning.
    """
    known = [(name, mode, method) for name, of in WORKLOADS.items() for mode in MODES for method in METHODS
             if of.device == device]  # fmt: skip
    if not only:
        return [
            job for job in known if job[1] in WORKLOADS[job[0]].modes and job[2] != "arch, refresh"
        ]
    asked = [tuple(text.split("/")) for text in only]
    for parts in asked:
        if not any(job[: len(parts)] == parts for job in known):
            raise SystemExit(
                f"there is no {'/'.join(parts)} on {device}; there are "
                f"{', '.join(map('/'.join, known))}"
            )
    return [job for job in known if any(job[: len(parts)] == parts for parts in asked)]


def measure(asked: argparse.Namespace) -> None:
    from advreg.lab.bench.run import hardware

    started, heats = now(), []
    with unpacked({OLD: asked.old, NEW: asked.new}) as folders:
        trees = [tree_of(name, folder) for name, folder in folders.items()]
        with workers(folders, asked.device) as team:
            about = {name: worker.about for name, worker in team.items()}

            def record() -> StepsRecord:
                import torch

                return StepsRecord(
                    trees=trees,
                    workloads={heat.workload: asdict(WORKLOADS[heat.workload]) for heat in heats},
                    environment=capture_environment(about[NEW]["gpu"] or "cpu"),
                    workers=about,
                    hardware=hardware(torch.device(asked.device)),
                    started=started,
                    finished=now(),
                    heats=heats,
                )

            for job in jobs(asked.device, asked.only):
                for repeat in range(asked.repeats):
                    heats.append(run_heat(team, *job, asked.rounds, repeat))
                record().save(asked.out)
                say(record(), job)


def say(record: StepsRecord, job: Job) -> None:
    """Print what came of a job."""
    for heat in record.heats:
        if (heat.workload, heat.mode, heat.method) == job and heat.error is not None:
            print(f"{'/'.join(job)}: {heat.error}", flush=True)
    for one in comparisons(record):
        if (one.workload, one.mode, one.method) == job:
            memory = "" if one.memory is None else f", memory {one.memory:.3f}"
            time = f"{one.time.median:.3f} [{one.time.low:.3f}, {one.time.high:.3f}]"
            print(
                f"{'/'.join(job)}: new / {one.against} {time}{memory}; ms {one.ms[0]:.2f}, "
                f"{one.ms[1]:.2f}",
                flush=True,
            )


def profile(asked: argparse.Namespace) -> None:
    """Print what each tree's step calls more often, or longer, than the other's."""
    with (
        unpacked({OLD: asked.old, NEW: asked.new}) as folders,
        workers(folders, asked.device) as team,
    ):
        for name, mode, method in jobs(asked.device, asked.only):
            pair = {
                who: team[who] for who in ((STOCK, NEW) if asked.against == STOCK else (OLD, NEW))
            }
            with training(pair, name, mode, method):
                found = []
                for worker in pair.values():
                    worker.ask("profile", rounds=asked.rounds)
                    found.append(worker.answer()["profile"])
                    worker.ask("end")
                    worker.answer()
            print(f"{name}/{mode}/{method}: calls and cumulated ms a step, new − {asked.against}")
            print("\n".join(differences(*found)))


def differences(
    theirs: dict[str, list[float]], mine: dict[str, list[float]], most: int = 40
) -> Iterator[str]:
    """The functions whose calls or times differ most."""
    zero = [0.0, 0.0]
    gaps = {
        name: [
            one - other
            for one, other in zip(mine.get(name, zero), theirs.get(name, zero), strict=True)
        ]
        for name in {*mine, *theirs}
    }
    for name, (calls, ms) in sorted(gaps.items(), key=lambda pair: -abs(pair[1][1]))[:most]:
        yield f"{calls:+9.1f} {ms:+8.3f}  {name}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.set_defaults(run=lambda asked: pack(asked.folder, {OLD: asked.old, NEW: asked.new}))
    measuring, profiling = commands.add_parser("measure"), commands.add_parser("profile")
    for each in (packing, measuring, profiling):
        each.add_argument(OLD)
        each.add_argument(NEW)
    for each, rounds in ((measuring, 16), (profiling, 10)):
        each.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
        each.add_argument("--only", action="append", default=[], metavar="WORKLOAD/MODE/METHOD")
        each.add_argument("--rounds", type=int, default=rounds)
    measuring.add_argument(
        "--repeats", type=int, default=2, help="of each comparison, with new trainers"
    )
    measuring.add_argument("--out", type=Path, required=True)
    measuring.set_defaults(run=measure)
    profiling.add_argument("--against", choices=(OLD, STOCK), default=OLD)
    profiling.set_defaults(run=profile)
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
