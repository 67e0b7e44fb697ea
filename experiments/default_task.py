"""Which settings suit the built-in task: a grid of methods and options, several runs side by side.

    python experiments/default_task.py results/default_task.jsonl --commit $(git rev-parse HEAD) --seeds 8 --jobs 16

    python experiments/default_task.py results/default_task_dropout.jsonl --commit $(git rev-parse HEAD) --seeds 8 \
        --grid experiments/default-task-dropout.json

Each line of OUT is one run: its settings, dev accuracy and time per step. Runs already in OUT are not repeated.
Without --train the data comes from the running Python's own standard library.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any


def arch(**options: Any) -> dict[str, Any]:
    radius = options.pop("radius", 0.3)
    return {
        "method": "arch",
        "options": {"radius": radius, "step_size": radius, "refresh_every": 3, **options},
    }


GRID: list[dict[str, Any]] = [
    {"method": "standard"},
    *(
        arch(refresh_every=every, cache_fraction=share)
        for every in (1, 3, 6, None)
        for share in (0.1, 1.0)
    ),
    *(arch(radius=radius) for radius in (0.1, 1.0)),
    arch(weight=3.0),
    arch(neighbour_choice="random"),
    arch(ema=0.5),
    *({"method": "r3f", "options": {"noise_scale": scale}} for scale in (1e-5, 0.1)),
    {"method": "smart", "options": {"radius": 0.3, "step_size": 0.3}},
    *(
        {"method": "freelb", "options": {"radius": r, "step_size": r, "start_scale": r / 2}}
        for r in (0.01, 0.03, 0.1)
    ),
    *({"method": "freeat", "options": {"radius": r, "step_size": r}} for r in (1e-4, 1e-3)),
]


def run_one(job: tuple[dict[str, Any], int, str | None, str | None, str]) -> dict[str, Any]:
    """One line of the result."""
    import torch

    torch.set_num_threads(1)
    from advreg.lab.runs.run import run
    from advreg.lab.runs.settings import TrainSettings
    from advreg.lab.runs.workloads import load_workload

    point, seed, train, dev, commit = job
    settings = TrainSettings(
        task="docstrings" if train is None else "files",
        train=train,
        dev=dev,
        methods=(point["method"],),
        seeds=(seed,),
        max_length=32,
        options={point["method"]: point.get("options", {})},
        training={"save_strategy": "no", "eval_strategy": "no"},
    )
    begun = time.time()
    with tempfile.TemporaryDirectory() as folder:
        plan = load_workload(settings).plans(settings, Path(folder))[0]
        record = run(plan, lambda *_: None, lambda _: None, resume=False)
    outcome = record.outcome
    last = [line for line in outcome.history if "loss" in line][-1]
    return {
        "point": point,
        "seed": seed,
        "accuracy": outcome.metrics["accuracy"],
        "penalty": last.get("penalty"),
        "train_loss": last.get("task_loss"),
        "seconds_per_step": outcome.timing["seconds_per_step"],
        "passes": outcome.passes,
        "seconds": time.time() - begun,
        "commit": commit,
        "data": record.task.fingerprint,
        "epochs": settings.epochs,
        "device": record.environment["device"],
        "packages": record.environment["packages"],
        "command": " ".join(["experiments/default_task.py", *record.environment["arguments"]]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--train")
    parser.add_argument("--dev")
    parser.add_argument(
        "--grid", type=Path, help="a JSON list of points, instead of the one in this file"
    )
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    grid = json.loads(asked.grid.read_text()) if asked.grid else GRID
    done = (
        [json.loads(line) for line in asked.out.read_text().splitlines()]
        if asked.out.exists()
        else []
    )
    seen = {json.dumps([line["point"], line["seed"]]) for line in done}
    jobs = [
        (point, seed, asked.train, asked.dev, asked.commit)
        for seed in range(asked.seeds)
        for point in grid
    ]
    jobs = [job for job in jobs if json.dumps([job[0], job[1]]) not in seen]
    with multiprocessing.get_context("spawn").Pool(asked.jobs) as pool, asked.out.open("a") as out:
        for line in pool.imap_unordered(run_one, jobs):
            out.write(json.dumps(line) + "\n")
            out.flush()
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
