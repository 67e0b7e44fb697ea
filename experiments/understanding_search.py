"""Which settings make a regulariser work on an understanding task: one factor at a time, judged without dev.

    python experiments/understanding_search.py results/understanding/search-minilm.jsonl --model minilm \
        --tasks rte,mrpc,stsb,cola --seeds 3 --jobs 15 --commit $(git rev-parse HEAD) [--seconds 500]
    python experiments/understanding_search.py results/understanding/search-mpnet.jsonl --model mpnet --grid base \
        --tasks rte --epochs 6 --learning-rate 3e-5 --precision bf16 --seeds 3 --jobs 15 --commit $(git rev-parse HEAD)

A fifth of the training data is held out, another fifth for each seed, and is what the scores are of. Each line of OUT
is one run. Runs already in OUT are not repeated; with --seconds the script stops after that time, losing the runs at
work.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from advreg.lab.kinds.classification.tasks import TASKS, main_score
from advreg.lab.runs.settings import TrainSettings
from advreg.lab.search.jobs import HeldOut, TrainRun
from advreg.lab.search.pool import Job, JobResult, Runner

Point = dict[str, Any]

SHARE = 0.2
SETTINGS = ("learning_rate", "encoder_dropout", "epochs", "batch_size", "site")


def arch(**changes: Any) -> Point:
    """ARCH around the middle of the search: a ball of ε = 1 for the sentence, one ascent step of
    that size.
    """
    radius = changes.get("radius", 1.0)
    usual = {
        "radius": radius,
        "step_size": radius,
        "ascent_steps": 1,
        "refresh_every": 5,
        "cache_fraction": 1.0,
    }
    return {"method": "arch", **usual, **changes}


def smart(**changes: Any) -> Point:
    radius = changes.get("radius", 1.0)
    return {"method": "smart", "radius": radius, "step_size": radius, "ascent_steps": 1, **changes}


GRIDS: dict[str, list[Point]] = {
    "rates": [
        {"method": "standard", "learning_rate": rate, "encoder_dropout": dropout}
        for rate in (5e-5, 1e-4, 2e-4, 4e-4)
        for dropout in (0.0, 0.1)
    ],
    "factors": [
        *({"method": "standard", "encoder_dropout": dropout} for dropout in (0.1, 0.0)),
        *({"method": "r3f", "weight": weight} for weight in (1.0, 5.0)),
        {"method": "r3f", "weight": 5.0, "dropout": "off"},
        {"method": "r3f", "weight": 5.0, "noise_scale": 0.03},
        *(arch(weight=weight) for weight in (1.0, 5.0)),
        *(arch(weight=5.0, radius=radius) for radius in (0.1, 3.0)),
        arch(weight=5.0, dropout="off"),
        arch(weight=5.0, detach_clean=True),
        arch(weight=5.0, step_end="rescale"),
        arch(weight=5.0, site="block"),
        arch(weight=5.0, site="block", radius=3.0),
        arch(weight=5.0, encoder_dropout=0.0),
        *(arch(weight=5.0, refresh_every=every) for every in (1, None)),
        arch(weight=5.0, cache_fraction=0.1),
        *(smart(weight=weight) for weight in (1.0, 5.0)),
        {"method": "arch", "preset": "understanding"},
        {"method": "smart", "preset": "understanding"},
    ],
    # a base-sized encoder, around understanding-mpnet.toml; FreeAT updates twice a batch, as 12
    # epochs do
    "base": [
        {"method": "standard", "encoder_dropout": 0.1},
        {"method": "standard", "epochs": 12},
        {"method": "freeat", "replays": 2, "radius": 1e-3},
        {"method": "r3f", "noise_scale": 0.01, "weight": 5.0},
        smart(weight=5.0, radius=0.2),
        *(arch(weight=weight, radius=0.2, refresh_every=2) for weight in (1.0, 5.0)),
        *(arch(weight=5.0, radius=radius, refresh_every=2) for radius in (1.0, 3.0)),
        arch(weight=5.0, radius=1.0, refresh_every=2, site="block"),
        arch(weight=5.0, radius=1.0, refresh_every=2, cache_fraction=0.1),
        arch(weight=5.0, radius=1.0, refresh_every=2, epochs=12),
        {"method": "arch", "preset": "understanding", "refresh_every": 2},
    ],
}


def settings_of(point: Point, task: str, asked: argparse.Namespace) -> TrainSettings:
    method = point["method"]
    own = {name: point[name] for name in SETTINGS if name in point}
    options = {name: v for name, v in point.items() if name not in (*SETTINGS, "method", "preset")}
    usual = {
        "learning_rate": asked.learning_rate,
        "epochs": asked.epochs,
        "encoder_dropout": 0.1,
        "head_dropout": 0.1,
    }
    return TrainSettings(
        task=task,
        data=asked.data,
        model=asked.model,
        methods=(method,),
        preset=point.get("preset"),
        options={method: options},
        precision=asked.precision,
        training={"save_strategy": "no", "eval_strategy": "no", "tf32": asked.tf32},
        **{**usual, **own},
    )


class Writer:
    """Writes a line for every run that has ended."""

    def __init__(self, out: Path, keys: Mapping[Path, dict[str, Any]]) -> None:
        self.out, self.keys = out, keys

    def started(self, job: Job) -> None: ...

    def stepped(self, job: Job, step: int, total: int, values: Mapping[str, float]) -> None: ...

    def noticed(self, job: Job, text: str) -> None: ...

    def stopping(self) -> None: ...

    def ended(self, ended: JobResult) -> None:
        line = {**self.keys[ended.job.folder], "seconds": ended.seconds, "error": ended.error}
        if ended.error is None:
            outcome = ended.value.outcome
            last = [entry for entry in outcome.history if "loss" in entry][-1]
            line |= {
                "score": main_score(line["task"], outcome.metrics),
                "metrics": {name: v for name, v in outcome.metrics.items() if "eval" not in name},
                "task_loss": last.get("task_loss"),
                "penalty": last.get("penalty"),
                "seconds_per_step": outcome.timing["seconds_per_step"],
                "steps": outcome.timing["steps"],
                "passes": outcome.passes,
                "device": ended.value.environment["device"],
            }
        with self.out.open("a") as out:
            out.write(json.dumps(line) + "\n")
        print(
            json.dumps(
                {
                    name: line.get(name)
                    for name in ("task", "point", "seed", "score", "seconds", "error")
                }
            ),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--grid", default="rates,factors", help=f"of {', '.join(GRIDS)}")
    parser.add_argument("--tasks", default="rte,mrpc,stsb,cola", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--data")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    asked = parser.parse_args()
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        [json.loads(line) for line in asked.out.read_text().splitlines()]
        if asked.out.exists()
        else []
    )

    def name_of(line: dict[str, Any]) -> str:
        return json.dumps([line[part] for part in ("model", "task", "point", "seed", "epochs")])

    done = {name_of(line) for line in lines}
    with tempfile.TemporaryDirectory() as scratch:
        jobs, keys = [], {}
        for seed in range(asked.seeds):
            for point in [point for grid in asked.grid.split(",") for point in GRIDS[grid]]:
                for task in asked.tasks.split(","):
                    settings = settings_of(point, task, asked)
                    key = {
                        "model": asked.model, "task": task, "point": point, "seed": seed, "epochs": settings.epochs,
                        "learning_rate": settings.learning_rate, "commit": asked.commit,
                        "command": " ".join(["experiments/understanding_search.py", asked.out.name, *sys.argv[2:]]),
                    }  # fmt: skip
                    if name_of(key) in done:
                        continue
                    folder = Path(scratch) / str(len(keys))
                    keys[folder] = key
                    run = TrainRun(settings, point["method"], seed, folder, HeldOut(SHARE, seed))
                    jobs.append(Job(f"{task}/{seed}", folder, run))
        if asked.seconds:
            threading.Timer(asked.seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            Runner(asked.jobs).run(jobs, Writer(asked.out, keys))
        except KeyboardInterrupt:
            print("stopped", flush=True)
        os._exit(0)


if __name__ == "__main__":
    main()
