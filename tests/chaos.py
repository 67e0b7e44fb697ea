"""Faults on purpose: runs killed at random moments and resumed, and a long run that must not grow.

python tests/chaos.py                    50 kills and 20,000 steps; writes results/chaos.json,
                                         results/soak.json and the page
python tests/chaos.py --only kills       or soak; the page is made of the records there are
python tests/chaos.py --only page        docs/reliability.md alone
python tests/chaos.py --only kills --ranks 2 --kills 24
                                         two processes a run; writes results/chaos-2.json
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.progress import track

from advreg.hf.checkpoint.state import last_whole_checkpoint
from advreg.records.environment import capture_environment, now
from advreg.records.sealed import Payload, Upgrade, load_as, save_as

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

from command_server import CommandServer, Done  # noqa: E402
from ends import differences  # noqa: E402
from little_tables import sentiment, tiny_folder, write_table  # noqa: E402

RECORDS, PAGE = ROOT / "results", ROOT / "docs" / "reliability.md"
CHAOS, SOAK = "chaos.json", "soak.json"
KILLS, STEPS, SAVE_EVERY, BATCH = 50, 20, 3, 8
TIERS = ("device", "host", "disk")

# 40 samples in batches of 8: 5 steps to an epoch, of which every second one refreshes
ARGUMENTS: tuple[object, ...] = (
    "--seed", 7, "--epochs", 4, "--learning-rate", 3e-3, "--encoder-dropout", 0.2,
    "--method", "arch", "--refresh-every", 2, "--cache-fraction", 0.5, "--ema", 0.3, "--neighbours", 2,
    "--set", "save_strategy=steps", "--set", f"save_steps={SAVE_EVERY}",
)  # fmt: skip
# phase that a kill is aimed at: how often, and how many such occasions there are in a run
AIMS = {"start": (1, 1), "reuse": (3, 10), "refresh": (3, 10), "save": (5, 7), "evaluation": (1, 5)}


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One run that was killed, and what became of it."""

    aimed_at: str
    occasion: int
    delay_ms: float
    hit: str  # what the process was at
    in_step: int
    saved: int  # last step whose save was over
    resumed_from: int
    differs: list[
        str
    ]  # what of weights, caches, losses and record is not as in the undisturbed run
    left_behind: list[str]  # files that an undisturbed run does not leave
    rank: int | None = 0  # the process that was killed; none: all at once
    seconds: float = 0.0  # until the others had ended
    hung: int = 0  # of the others had to be killed too, because they did not end

    @property
    def survived(self) -> bool:
        return self.resumed_from >= self.saved and not (
            self.differs or self.left_behind or self.hung
        )


@dataclass(frozen=True, kw_only=True)
class Soak:
    """A long run whose cache moved between tiers."""

    steps: int
    moves: int
    seconds: float
    rss_mb: list[float]  # at even distances
    growth: float  # of the last tenth's mean over that of the third tenth, as a share
    descriptors: list[int]  # open files after each move
    left_behind: list[str]


def _of_one_process(record: Payload) -> Payload:
    """Schema 1 did not always say which process was killed, and how the others ended."""
    of_one = {"rank": 0, "seconds": 0.0, "hung": 0}
    return record | {"kills": [of_one | kill for kill in record["kills"]]}


@dataclass(frozen=True, kw_only=True)
class ChaosRecord:
    """The kills."""

    UPGRADES: ClassVar[Mapping[int, Upgrade]] = {1: _of_one_process}

    command: str
    seed: int
    ranks: int
    kills: list[Kill]
    environment: dict[str, Any]
    started: str
    finished: str
    schema: int = 2


@dataclass(frozen=True, kw_only=True)
class SoakRecord:
    """The long run."""

    command: str
    soak: Soak
    environment: dict[str, Any]
    started: str
    finished: str
    schema: int = 1


# ---- kills


class Trials:
    """Runs of one and the same training, each killed at a moment of its own.

    Args:
        advreg: runs the command.
        home: a folder for the runs.
        ranks: processes of a run.
    """

    def __init__(self, advreg: CommandServer, home: Path, ranks: int = 1) -> None:
        if ranks < 1 or BATCH % ranks:
            raise ValueError(f"ranks must divide a batch of {BATCH}, got {ranks}")
        self.advreg, self.home, self.ranks = advreg, home, ranks
        model = tiny_folder(home / "tiny-bert")
        table = write_table(home / "train.csv", sentiment())
        self.arguments = (
            "train", "--train", table, "--model", model, "--batch-size", BATCH // ranks, "--set", "use_cpu=true",
            *ARGUMENTS,
        )  # fmt: skip
        self.seconds = self._undisturbed()

    def _undisturbed(self) -> dict[str, float]:
        """Make the run that all others must end like; the seconds each phase takes."""
        note = self.home / "phases.txt"
        done = self("whole", fault={"phase": None, "count": 0, "delay": 0, "note": str(note)})
        assert done.code == 0, done.err
        times = defaultdict(list)
        for line in note.read_text().splitlines():
            phase, seconds = line.split()
            times[phase].append(float(seconds))
        return {phase: statistics.mean(seconds) for phase, seconds in times.items()}

    def __call__(
        self, output: str, *more: str, fault: dict[str, Any] | None = None, struck: int | None = 0
    ) -> Done:
        arguments = (*self.arguments, "--output", output, *more)
        return self.advreg(*arguments, cwd=self.home, fault=fault, ranks=self.ranks, struck=struck)

    def folder(self, output: str) -> Path:
        return self.home / output / "arch-seed7"

    def kill(self, draw: random.Random, number: int) -> Kill:
        """Kill a run at a random moment, resume it, and compare its end; a moment that came too
        late is drawn again.
        """
        while True:
            phase = draw.choices(list(AIMS), [often for often, _ in AIMS.values()])[0]
            occasion = draw.randint(1, AIMS[phase][1])
            delay = draw.uniform(0, 1.2 * self.seconds[phase])
            note, output = (
                self.home / f"moment-{number}.json",
                f"run-{number}-{draw.getrandbits(32):x}",
            )
            fault = {"phase": phase, "count": occasion, "delay": delay, "note": str(note)}
            struck = draw.choice([*range(self.ranks), None]) if self.ranks > 1 else 0
            done = self(output, fault=fault, struck=struck)
            if done.code == -signal.SIGKILL:
                drawn = {
                    "aimed_at": phase,
                    "occasion": occasion,
                    "delay_ms": 1000 * delay,
                    "rank": struck,
                }
                others = 0 if struck is None else done.codes.count(-signal.SIGKILL) - 1
                return self._resumed(
                    output, json.loads(note.read_text()), **drawn, seconds=done.seconds, hung=others
                )

    def _resumed(self, output: str, hit: dict[str, Any], **known: Any) -> Kill:
        whole = last_whole_checkpoint(self.folder(output))
        done = self(output, "--resume")
        assert done.code == 0, done.err
        told = re.search(r"resumed from step (\d+)", done.out)
        over = (
            "finished before" in done.out
        )  # the first process had written the record when another was killed
        resumed_from = int(told.group(1)) if told else STEPS if over else 0
        expected = 0 if whole is None else int(whole.name.removeprefix("checkpoint-"))
        assert resumed_from == expected, (resumed_from, expected)
        return Kill(
            **known,
            hit=hit["phase"],
            in_step=hit["step"],
            saved=hit["saved"],
            resumed_from=resumed_from,
            differs=differences(self.folder("whole"), self.folder(output), STEPS),
            left_behind=sorted(files(self.folder(output)) - files(self.folder("whole"))),
        )


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def kill_runs(
    advreg: CommandServer,
    home: Path,
    kills: int,
    seed: int,
    ranks: int = 1,
    watch: Callable[..., Any] = iter,
) -> list[Kill]:
    trials, draw = Trials(advreg, home, ranks), random.Random(seed)
    return [trials.kill(draw, number) for number in watch(range(kills))]


# ---- the soak


def soak(home: Path, steps: int, moves: int, watch: Callable[..., Any] = iter) -> Soak:
    """Train a tiny model for many steps, with its cache in another tier after each resume."""
    import psutil
    from transformers import TrainerCallback
    from transformers.trainer_callback import PrinterCallback

    from advreg.lab.kinds.fine_tuning import quiet_libraries
    from advreg.methods import create
    from tiny_models import tiny
    from tiny_runs import tiny_trainer

    quiet_libraries()
    process, memory, descriptors = psutil.Process(), list[float](), list[int]()
    part = steps // moves

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % max(1, steps // 200) == 0:
                memory.append(process.memory_info().rss / 1e6)

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = True

    run, caches = home / "run", home / "caches"
    caches.mkdir(parents=True)
    begun = time.perf_counter()
    for move in watch(range(moves)):
        options = {"cache_fraction": 0.5, "refresh_every": 4, "radius": 0.1, "ascent_steps": 1}
        method = create("arch", **options, cache_device=TIERS[move % 3], cache_folder=str(caches))
        trainer = tiny_trainer(
            run, method, tiny("bert", dropout=0.1, num_hidden_layers=1), size=32, per_device_train_batch_size=8,
            max_steps=part * moves, save_steps=part, save_total_limit=1, logging_strategy="no", callbacks=[Watch()],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=move > 0)
        assert trainer.state.global_step == part * (move + 1)
        del trainer, method
        gc.collect()
        descriptors.append(process.num_fds())
    tenth = max(1, len(memory) // 10)
    late, early = statistics.mean(memory[-tenth:]), statistics.mean(memory[2 * tenth : 3 * tenth])
    kept = {f"run/checkpoint-{part * moves}", "run", "caches"}
    inside = {
        path.relative_to(home).as_posix()
        for path in [*home.iterdir(), *run.iterdir(), *caches.iterdir()]
    }
    return Soak(
        steps=part * moves,
        moves=moves,
        seconds=time.perf_counter() - begun,
        rss_mb=memory,
        growth=late / early - 1,
        descriptors=descriptors,
        left_behind=sorted(inside - kept),
    )


# ---- the page


def page(folder: Path) -> str:
    """The part of the page that is made of the records."""
    texts = [chaos_text(load_as(path, ChaosRecord)) for path in chaos_files(folder)]
    parts = [*texts, soak_text(load_as(folder / SOAK, SoakRecord))]
    return "\n\n".join(text for part in parts for text in part)


def chaos_file(ranks: int) -> str:
    """Where the kills of runs with so many processes are recorded."""
    return CHAOS if ranks == 1 else f"chaos-{ranks}.json"


def chaos_files(folder: Path) -> list[Path]:
    """The records of kills there are, by the number of processes."""
    return [path for ranks in range(1, BATCH + 1) if (path := folder / chaos_file(ranks)).is_file()]


def chaos_text(record: ChaosRecord) -> list[str]:
    rows = [
        "| the process was in | kills | aimed at | resumed from the last checkpoint | end "
        "bit-identical | files left |"
    ]
    rows.append("|---|---|---|---|---|---|")
    for hit, name in NAMES.items():
        kills = [kill for kill in record.kills if kill.hit == hit]
        if kills:
            aims = ", ".join(
                f"{aim} {count}"
                for aim, count in sorted(Counter(k.aimed_at for k in kills).items())
            )
            rows.append(
                f"| {name} | {len(kills)} | {aims} | "
                f"{sum(k.resumed_from >= k.saved for k in kills)} | "
                f"{sum(not k.differs for k in kills)} | {sum(len(k.left_behind) for k in kills)} |"
            )
    lost = [max(0, kill.in_step - 1 - kill.resumed_from) for kill in record.kills if kill.in_step]
    file, processes = chaos_file(record.ranks), "process" if record.ranks == 1 else "processes"
    return [
        f"Kills: `{record.command}` (seed {record.seed}, {record.ranks} {processes} a run), "
        f"{where(record.environment)}; every one is in [results/{file}](../results/{file}).",
        "\n".join(rows),
        f"Of {len(record.kills)} kills {sum(kill.survived for kill in record.kills)} were "
        "survived. A kill cost "
        f"{statistics.mean(lost):.1f} finished steps on average and {max(lost)} at most, with a "
        "checkpoint every "
        f"{SAVE_EVERY} steps." + (f" {company_text(record)}" if record.ranks > 1 else ""),
    ]


def company_text(record: ChaosRecord) -> str:
    """Who was killed, and what became of the others."""
    whom = Counter(
        "all" if kill.rank is None else "first" if kill.rank == 0 else "other"
        for kill in record.kills
    )
    alone = [kill for kill in record.kills if kill.rank is not None]
    return (
        f"The first process was killed in {whom['first']}, another in {whom['other']}, all at once "
        f"in {whom['all']}. "
        "When one was killed, the others had ended after "
        f"{statistics.median(kill.seconds for kill in alone):.2f} s "
        f"(median) and {max(kill.seconds for kill in alone):.2f} s (longest); "
        f"{sum(kill.hung for kill in alone)} hung."
    )


def soak_text(record: SoakRecord) -> list[str]:
    s = record.soak
    return [
        f"The long run: `{record.command}`, {where(record.environment)}; "
        f"[results/{SOAK}](../results/{SOAK}). "
        f"{s.steps:,} steps in {s.seconds:.0f} s, resumed {s.moves - 1} times with the cache on "
        "device, host and disk "
        f"in turn. Memory at its end was {s.rss_mb[-1]:.0f} MB; the mean of its last tenth was "
        f"{100 * s.growth:+.1f} % "
        f"against its third. {s.descriptors[0]} files were open after the first part and "
        f"{s.descriptors[-1]} after the "
        f"last; {len(s.left_behind)} were left behind."
    ]


def where(environment: dict[str, Any]) -> str:
    commit = ((environment.get("git") or {}).get("commit") or "unknown")[:10]
    cores, torch = environment["cpu_count"], environment["packages"]["torch"]
    return f"commit {commit}, {environment['platform']} with {cores} cores, torch {torch}"


NAMES = {
    "start": "loading and surveying, before the first step",
    "refresh": "a step that refreshes the cache",
    "reuse": "a step that reuses it",
    "save": "a save",
    "evaluation": "an evaluation",
    "between": "the loop, between these",
}
BEGIN, END = "<!-- from results/chaos*.json and soak.json: make chaos -->", "<!-- end -->"


def with_page(text: str, folder: Path) -> str:
    """The page with the records' part in its place."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{page(folder)}\n\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["kills", "soak", "page"])
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--soak-steps", type=int, default=20_000)
    parser.add_argument(
        "--moves", type=int, default=12, help="parts of the long run, each with its cache elsewhere"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1, help="processes of a run")
    parser.add_argument("--out", type=Path, default=RECORDS, help="folder of the records")
    given = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    command, environment = (
        " ".join(["python tests/chaos.py", *arguments]),
        capture_environment("cpu"),
    )
    shared: dict[str, Any] = {
        "command": command,
        "environment": environment,
        "started": now(),
    }
    kills: list[Kill] = []
    with tempfile.TemporaryDirectory(prefix="advreg-chaos-") as name:
        home = Path(name)
        if given.only in (None, "kills"):
            server = CommandServer(home)
            killing = lambda numbers: track(numbers, description="killing")  # noqa: E731
            kills = kill_runs(server, home, given.kills, given.seed, given.ranks, killing)
            server.close()
            done = ChaosRecord(
                **shared, seed=given.seed, ranks=given.ranks, kills=kills, finished=now()
            )
            save_as(given.out / chaos_file(given.ranks), done)
        if given.only in (None, "soak"):
            soaking = lambda numbers: track(numbers, description="soaking")  # noqa: E731
            found = soak(home / "soak", given.soak_steps, given.moves, soaking)
            save_as(given.out / SOAK, SoakRecord(**shared, soak=found, finished=now()))
    if given.out == RECORDS:
        PAGE.write_text(with_page(PAGE.read_text(encoding="utf-8"), RECORDS), encoding="utf-8")
    print(page(given.out))
    return int(any(not kill.survived for kill in kills))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
