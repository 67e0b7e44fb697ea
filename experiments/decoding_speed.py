"""How long a trained model takes to translate its test set, and whether the order of the lines changes the scores.

    python experiments/decoding_speed.py results/translation/decoding.jsonl RUN --commit $(git rev-parse HEAD)

RUN is the folder of a translation run with its record and its model (``advreg compare --keep-models``, or ``advreg
train``). The test set is translated as the run itself did it, then with its lines shuffled, from last to first, and in
smaller and larger batches; what comes out is put back in its place, scored, and compared with the first. Appends one
line to OUT.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from advreg.lab.kinds.training import device_name, quiet_libraries
from advreg.lab.kinds.translation.bleu import score
from advreg.lab.kinds.translation.corpora import load_corpus
from advreg.lab.kinds.translation.parallel import Bitext
from advreg.lab.kinds.translation.translator import Translator
from advreg.records import run as records


def orders_of(count: int, shuffles: int) -> dict[str, list[int]]:
    """Orders of the lines by name, the usual one first."""
    usual = list(range(count))
    shuffled = {
        f"shuffled, {seed}": random.Random(seed).sample(usual, count) for seed in range(shuffles)
    }
    return {"as it is": usual, "from last to first": usual[::-1], **shuffled}


def translated(
    translator: Translator,
    lines: Sequence[str],
    order: Sequence[int],
    max_tokens: int | None,
    precision: str,
) -> tuple[list[str], float]:
    """The translation of each line, made in another order; and the seconds it took."""
    begun = time.perf_counter()
    found = translator.translate(
        [lines[index] for index in order], max_tokens=max_tokens, precision=precision
    )
    seconds = time.perf_counter() - begun  # ids were read off the device by then
    placed = dict(zip(order, found, strict=True))
    return [placed[index] for index in range(len(lines))], seconds


def measure(
    run: Path, text: Bitext, record: records.RunRecord, asked: argparse.Namespace
) -> dict[str, Any]:
    """Every order with the usual batches, then the usual order with others."""
    translator = Translator.load(run)
    precision = "bf16" if record.training.precision == "bf16" else "fp32"  # as the run was scored
    translator.translate(text.source[:64], precision=precision)  # what a device does once is done
    orders = orders_of(len(text), asked.shuffles)
    tries: list[tuple[str, int | None]] = [(name, None) for name in orders]
    tries += [("as it is", size) for size in asked.max_tokens]
    lines, first = [], list[str]()
    for name, size in tries:
        found, seconds = translated(translator, text.source, orders[name], size, precision)
        first = first or found
        lines.append(
            {
                "order": name,
                "max_tokens": size,
                "seconds": seconds,
                "scores": score(found, text.target, record.task.details["tokenised"]).metrics(),
                "differing": sum(one != other for one, other in zip(first, found, strict=True)),
            }
        )
        print(json.dumps(lines[-1]), flush=True)
    return {
        "task": record.task.name,
        "model": record.model.name,
        "method": record.method.name,
        "seed": record.training.seed,
        "sentences": len(text),
        **asdict(translator.decoding),
        "precision": precision,
        "recorded": {
            name: record.outcome.metrics.get(name) for name in ("tokenised_bleu", "bleu", "chrf")
        },
        "orders": lines,
        "device": device_name(),
        "torch": torch.__version__,
        "commit": asked.commit,
        "command": " ".join(
            ["experiments/decoding_speed.py", asked.out.name, run.name, *sys.argv[3:]]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, help="folder of the corpora; else ADVREG_DATA")
    parser.add_argument("--shuffles", type=int, default=2)
    parser.add_argument(
        "--max-tokens",
        type=int,
        nargs="*",
        default=[32_768],
        help="of other batches, beams counted",
    )
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    asked = parser.parse_args()
    quiet_libraries()
    record = records.load(asked.run / "record.json")
    data = load_corpus(record.task.name, asked.data)
    if data.fingerprint() != record.task.fingerprint:
        sys.exit(
            f"the data of {record.task.name} must be those of the run; give the folder it was "
            "trained from"
        )
    line = measure(asked.run, data.splits[record.task.details["scored"]], record, asked)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with asked.out.open("a") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
