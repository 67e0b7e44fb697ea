"""Which settings suit the built-in task: a grid of methods and options, several runs side by side.

    python experiments/default_task.py OUT.jsonl --train train.jsonl --dev dev.jsonl --seeds 5 --jobs 15

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

GRID: list[dict[str, Any]] = [
    *(
        {"method": "standard", "learning_rate": rate, "epochs": epochs}
        for rate in (5e-4, 1e-3, 2e-3)
        for epochs in (10, 20)
    ),
    *(
        {
            "method": "arch",
            "learning_rate": 1e-3,
            "epochs": 20,
            "options": {"radius": radius, "step_size": radius, "weight": weight, "refresh_every": refresh},
        }
        for radius in (0.1, 0.3, 1.0)
        for weight in (1.0, 3.0)
        for refresh in (5,)
    ),
    *(
        {
            "method": "arch",
            "learning_rate": 1e-3,
            "epochs": 20,
            "site": "block",
            "options": {"radius": radius, "step_size": radius, "weight": 1.0, "refresh_every": 5},
        }
        for radius in (1.0, 3.0)
    ),
    {"method": "r3f", "learning_rate": 1e-3, "epochs": 20},
    {"method": "smart", "learning_rate": 1e-3, "epochs": 20, "options": {"radius": 0.3, "step_size": 0.3}},
    {
        "method": "freelb",
        "learning_rate": 1e-3,
        "epochs": 20,
        "options": {"radius": 0.3, "step_size": 0.3, "start_scale": 0.1},
    },
]


def run_one(job: tuple[dict[str, Any], int, str | None, str | None]) -> dict[str, Any]:
    """One line of the result."""
    import torch

    torch.set_num_threads(1)
    from advreg.recipes.classify import load_data, plan_runs, run
    from advreg.recipes.settings import TrainSettings

    point, seed, train, dev = job
    settings = TrainSettings(
        task="docstrings" if train is None else "files",
        train=train,
        dev=dev,
        methods=(point["method"],),
        seeds=(seed,),
        epochs=point["epochs"],
        learning_rate=point["learning_rate"],
        site=point.get("site", "tokens"),
        options={point["method"]: point.get("options", {})},
        training={"save_strategy": "no", "eval_strategy": "no"},
    )
    begun = time.time()
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_runs(settings, load_data(settings), Path(folder))[0]
        outcome = run(plan, lambda *_: None, lambda _: None, resume=False).outcome
    last = [line for line in outcome.history if "loss" in line][-1]
    return {
        "point": point,
        "seed": seed,
        "accuracy": outcome.metrics["accuracy"],
        "penalty": last.get("penalty"),
        "train_loss": last.get("task_loss"),
        "seconds_per_step": outcome.timing["seconds_per_step"],
        "seconds": time.time() - begun,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train")
    parser.add_argument("--dev")
    parser.add_argument("--grid", type=Path, help="a JSON list of points, instead of the one in this file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    grid = json.loads(asked.grid.read_text()) if asked.grid else GRID
    done = [json.loads(line) for line in asked.out.read_text().splitlines()] if asked.out.exists() else []
    seen = {json.dumps([line["point"], line["seed"]]) for line in done}
    jobs = [(point, seed, asked.train, asked.dev) for seed in range(asked.seeds) for point in grid]
    jobs = [job for job in jobs if json.dumps([job[0], job[1]]) not in seen]
    with multiprocessing.get_context("spawn").Pool(asked.jobs) as pool, asked.out.open("a") as out:
        for line in pool.imap_unordered(run_one, jobs):
            out.write(json.dumps(line) + "\n")
            out.flush()
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
