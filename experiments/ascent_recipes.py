"""What the ascent of the paper's recipe for understanding does, as each source of it reads.

    python experiments/ascent_recipes.py results/ascent_recipes.jsonl --commit $(git rev-parse HEAD)

Fine-tunes MiniLM on a task with Standard, then finds perturbations of dev samples by each recipe, with dropout off and
with dropout as in training. How far a perturbation moves the prediction, KL(f(x) ‖ f(x+δ)), is always taken without
dropout, so that δ alone moves it. Each line of OUT is one recipe on one task; docs/methods/arch.md has them as a table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advreg.core.divergence import kl
from advreg.core.perturbation import Perturbation
from advreg.hf.view.view import HFModelView
from advreg.lab.kinds.classification.job import ClassificationJob
from advreg.lab.kinds.training import train
from advreg.lab.report.labels import task_name
from advreg.lab.runs.settings import TrainSettings
from advreg.lab.runs.workloads import load_workload
from advreg.methods import create, preset
from advreg.methods.adversarial.smart import Smart
from advreg.methods.base import Batch, Dropout
from advreg.records.environment import capture_environment

PRESET, NOISE = "`--preset understanding`", "noise of size ε, no ascent"
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "the paper's text": ("tokens", {"step_rule": "gradient", "step_end": "project"}),
    "MT-DNN until August 2020": ("block", {"step_rule": "normalised", "step_end": "project"}),
    "MT-DNN since then": ("block", {"step_rule": "gradient", "step_end": "rescale"}),
    "the same, η = 1e-3 (smart-pytorch)": (
        "block",
        {"step_rule": "gradient", "step_end": "rescale", "step_size": 1e-3},
    ),
    PRESET: ("block", {}),
    NOISE: ("block", {}),
}
BATCH, UPDATES = 16, 150


def trained(task: str, folder: Path) -> tuple[ClassificationJob, dict[str, float]]:
    """MiniLM after some updates of Standard, and its scores."""
    settings = TrainSettings(
        task=task, model="minilm", methods=("standard",), seeds=(0,), epochs=1, learning_rate=1e-4, encoder_dropout=0.1,
        head_dropout=0.1, training={"save_strategy": "no", "eval_strategy": "no", "max_steps": UPDATES},
    )  # fmt: skip
    workload = load_workload(settings)
    (plan,) = workload.plans(settings, folder)
    job = workload.build(plan, lambda text: print(text, flush=True))
    assert isinstance(job, ClassificationJob)
    return job, dict(train(job).metrics)


def measured(
    job: ClassificationJob, recipe: str, dropout: Dropout, samples: int
) -> dict[str, float]:
    """Means over samples of what a recipe's perturbation is and does; every recipe has the same
    starts.
    """
    site, options = RECIPES[recipe]
    method = create("smart", **{**preset("understanding", "smart"), "divergence": "kl", **options})
    task = HFModelView(job.model.train(), site=site)
    batches = [job.collator(job.dev[first : first + BATCH]) for first in range(0, samples, BATCH)]
    found = [
        one_batch(task, method, batch, dropout, recipe == NOISE, seed)
        for seed, batch in enumerate(batches)
    ]
    return {name: statistics.fmean(each[name] for each in found) for name in found[0]}


def one_batch(
    task: HFModelView, method: Smart, batch: Batch, dropout: Dropout, noise: bool, seed: int
) -> dict[str, float]:
    with task.dropout(dropout):
        clean = task.bare_logits(batch).detach()
        torch.manual_seed(seed)
        start = method.origin.draw(task.zeros(batch), method.ball)
        torch.manual_seed(seed)  # the ascent draws the same start
        delta = method.ball.rescale(start) if noise else method.worst_case(task, batch, clean)
    with task.dropout("off"), torch.no_grad():
        still, moved = task.bare_logits(batch).double(), task.bare_logits(batch, delta).double()
    first, last = words(start), words(delta)
    return {
        "cosine_to_start": float(F.cosine_similarity(first, last, dim=-1).mean()),
        "largest_entry": float(last.abs().amax(-1).mean()),
        "kl": float(kl(still, moved).mean()),
        "predictions_changed": float((still.argmax(-1) != moved.argmax(-1)).double().mean()),
    }


def words(delta: Perturbation) -> Tensor:
    """The rows of real tokens."""
    return delta.values["tokens"][delta.masks["tokens"]].double()


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """What docs/methods/arch.md shows: a row for each recipe, with dropout off and, in brackets, as
    in training.
    """
    tasks = list(dict.fromkeys(line["task"] for line in lines))
    found = {(line["recipe"], line["task"], line["dropout"]): line for line in lines}
    header = [
        "",
        "largest entry",
        "cosine of start and δ",
        *(f"KL, {task_name(task)}" for task in tasks),
    ]
    rows = [header, ["---", *["---:"] * (len(header) - 1)]]
    for recipe in RECIPES:
        (first, *_) = cells = [
            [found[recipe, task, dropout] for dropout in ("off", "fresh")] for task in tasks
        ]
        cosines = [
            statistics.fmean(pair[place]["cosine_to_start"] for pair in cells) for place in (0, 1)
        ]
        told = [f"{first[0]['largest_entry']:.1g}", f"{cosines[0]:.2f} ({cosines[1]:.2f})"]
        name = "the preset `understanding`" if recipe == PRESET else recipe
        rows.append(
            [name, *told, *(f"{off['kl']:.1g} ({fresh['kl']:.1g})" for off, fresh in cells)]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    parser.add_argument("--tasks", default="mrpc,cola")
    parser.add_argument("--samples", type=int, default=96)
    asked = parser.parse_args()
    environment = capture_environment()
    about = {
        "commit": asked.commit, "git": environment["git"], "device": environment["device"],
        "packages": environment["packages"], "samples": asked.samples, "updates": UPDATES,
        "command": " ".join(["experiments/ascent_recipes.py", asked.out.name, *sys.argv[2:]]),
    }  # fmt: skip
    lines = []
    for task in asked.tasks.split(","):
        with tempfile.TemporaryDirectory() as folder:
            job, scores = trained(task, Path(folder))
        for recipe, (site, options) in RECIPES.items():
            for dropout in ("off", "fresh"):
                found = measured(job, recipe, dropout, asked.samples)
                lines.append(
                    {
                        "task": task,
                        "recipe": recipe,
                        "site": site,
                        "options": options,
                        "dropout": dropout,
                    }
                )
                lines[-1] |= {**found, "scores": scores, **about}
                print(json.dumps(lines[-1]), flush=True)
    asked.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
