"""Time of ARCH's reuse step for data sets of several sizes, interleaved on one model.

    python experiments/dataset_size.py results/cost/dataset_size.json --commit $(git rev-parse HEAD) \\
        --model bert-base --shape 32x64 --precision bf16 --samples 10000 100000 1000000

The record is a record of `advreg bench`; each ARCH row names its number of samples. A cache of a million samples at 64
tokens and a fraction of 0.1 takes 20 GB in float32, so --options picks another dtype if the GPU is smaller.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from pathlib import Path

from advreg.lab.bench.entries import enter
from advreg.lab.bench.figures import finished
from advreg.lab.bench.loop import Contender, Loop
from advreg.lab.bench.run import Bench, describe_model, make_task
from advreg.lab.bench.settings import BenchSettings, Spec
from advreg.lab.bench.workload import Workload
from advreg.lab.kinds.architectures import find_model
from advreg.records.bench import Panel


def reuse_for(samples: int, settings: BenchSettings, loop: Loop) -> Contender:
    """ARCH's reuse step on a data set of this size."""
    sized = dataclasses.replace(settings, samples=samples)
    workload = Workload.draw(loop.task, sized.parsed_shapes[0], sized)
    spec = Spec.parse(settings.methods[0])
    one = next(
        found for found in enter(spec, workload, sized, loop.device) if found.phase == "reuse"
    )
    one.name = f"{spec.label}, reuse, {samples:,} samples"
    return one


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    parser.add_argument("--model", default="small")
    parser.add_argument("--shape", default="32x64")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--samples", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument(
        "--options", default="cache_device=device", help="of ARCH, as in `advreg bench --method`"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args()
    settings = BenchSettings(
        model=asked.model, shapes=(asked.shape,), methods=(f"arch:{asked.options}",), precision=asked.precision,
        samples=max(asked.samples), rounds=asked.rounds, steps=asked.steps,
    )  # fmt: skip
    bench = Bench(settings, asked.commit)
    shape = settings.parsed_shapes[0]
    bench.model = find_model(settings.model, shape.tokens, settings.seed).to(bench.device)
    bench._described = describe_model(bench.model, settings.model)
    loop = Loop(make_task(bench.model, settings, bench.device), bench.device)
    small = dataclasses.replace(settings, samples=min(asked.samples))
    (standard,) = enter(
        Spec("standard"), Workload.draw(loop.task, shape, small), small, bench.device
    )
    contenders = [standard, *(reuse_for(samples, settings, loop) for samples in asked.samples)]
    order = random.Random(0)
    for one in contenders:
        one.turn(loop, settings.warmup)
    for number in range(settings.rounds):
        for one in order.sample(contenders, len(contenders)):
            one.rounds.append(one.turn(loop, settings.steps))
        print(
            f"round {number + 1}: " + ", ".join(f"{one.rounds[-1]:.2f}" for one in contenders),
            file=sys.stderr,
        )
    rows = finished([one.row() for one in contenders])
    bench.panels = [Panel(batch=shape.batch, tokens=shape.tokens, rows=rows, whole=[])]
    bench.record("finished").save(asked.out)
    for row in rows:
        print(row.name, row.time and row.time.median, row.ratio and row.ratio.median)


if __name__ == "__main__":
    main()
