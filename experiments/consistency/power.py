"""The power of each comparison: the spread of paired differences in earlier records, and the gain
that a number of seeds shows four times in five.

    python experiments/consistency/power.py

A paired t test of n seeds, two-sided at 5 %, finds a gain of (t(0.975) + t(0.8)) · s / √n in 80 % of the cases
(nearly), s the standard deviation of the differences over seeds, t of n − 1 degrees of freedom.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean, stdev

from scipy.stats import t as student

from advreg.lab.kinds.classification.tasks import main_score
from advreg.records.run import load

RESULTS = Path(__file__).resolve().parents[2] / "results"
SEEDS = {"docstrings": (16,), "multi30k-en-de": (8, 4)}
_UNDERSTANDING_SEEDS = (20,)

Scores = Mapping[str, Mapping[int, float]]  # by method and seed


def found_gain(spread: float, seeds: int) -> float:
    """The gain that is found in 80 % of the cases."""
    return (
        float(student.ppf(0.975, seeds - 1) + student.ppf(0.8, seeds - 1))
        * spread
        / math.sqrt(seeds)
    )


def builtin() -> Scores:
    rows = [json.loads(line) for line in (RESULTS / "default_task.jsonl").read_text().splitlines()]
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(json.dumps(row["point"]), {})[row["seed"]] = 100 * row["accuracy"]
    return {
        ("standard" if name == '{"method": "standard"}' else name): runs
        for name, runs in found.items()
    }


def compared(folder: str, task: str) -> Scores:
    found: dict[str, dict[int, float]] = {}
    for path in (RESULTS / folder).glob(f"{task}/*/*/record.json"):
        record = load(path)
        if record.outcome.status == "finished":
            metrics = record.outcome.metrics
            value = metrics["bleu"] if "bleu" in metrics else main_score(task, metrics)
            found.setdefault(record.method.name, {})[record.training.seed] = value or math.nan
    return found


def spreads(scores: Scores) -> tuple[float, float]:
    """Standard's standard deviation over seeds, and the differences' (root of the mean square over
    the methods).

    A method that fell by more than three deviations is left out: it broke down.
    """
    standard = scores["standard"]
    own = stdev(standard.values())
    squares = []
    for name, runs in scores.items():
        gains = [runs[seed] - standard[seed] for seed in runs if seed in standard]
        if name != "standard" and len(gains) > 2 and fmean(gains) > -3 * own:
            squares.append(stdev(gains) ** 2)
    return own, math.sqrt(fmean(squares))


def rows() -> Iterator[tuple[str, float, float, int]]:
    sources = {
        "docstrings": builtin(),
        **{task: compared("understanding/minilm", task) for task in ("rte", "mrpc")},
        **{task: compared("understanding/minilm-ten", task) for task in ("cola", "stsb")},
        "multi30k-en-de": compared("translation/small-1", "multi30k-en-de"),
    }
    for task, scores in sources.items():
        own, paired = spreads(scores)
        for seeds in SEEDS.get(task, _UNDERSTANDING_SEEDS):
            yield task, own, paired, seeds


def main() -> None:
    print(
        "| task | deviation of Standard | of paired differences | seeds | gain found in 80 % "
        "|\n|---|--:|--:|--:|--:|"
    )
    for task, own, paired, seeds in rows():
        print(f"| {task} | {own:.2f} | {paired:.2f} | {seeds} | {found_gain(paired, seeds):.2f} |")


if __name__ == "__main__":
    main()
