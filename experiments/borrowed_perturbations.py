"""The effect of a borrowed perturbation on a trained translator, and of the choice of neighbours.

    python experiments/borrowed_perturbations.py results/translation/borrowed.jsonl RUN --earlier RUN/checkpoint-816 \
        --commit $(git rev-parse HEAD)

RUN is the folder of a translation run with its record and its model. As in ARCH, a tenth of the training pairs
is cached, with the perturbations that the ascent finds for the trained model. The other pairs borrow from their
neighbours, found by the embeddings before training, by the current ones, or at random. For each kind of
perturbation, the output has its size and its effect on the predictions, KL(f(x) ‖ f(x+δ)) per target token without
dropout. For comparison, it has the effect of different dropout masks without a perturbation. With earlier
checkpoints, it also has the effect of perturbations that were found then. Appends one line to OUT.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from advreg.core.divergence import kl
from advreg.core.perturbation import Perturbation
from advreg.hf.data import IdCollator, Identified
from advreg.hf.survey import survey, to_device
from advreg.hf.view.head import IGNORED
from advreg.hf.view.view import HFModelView
from advreg.lab.kinds.architectures import build_translator
from advreg.lab.kinds.averaging import set_weights
from advreg.lab.kinds.training import device_name, quiet_libraries
from advreg.lab.kinds.translation.batching import PairCollator, Pairs, TokenBatches
from advreg.lab.kinds.translation.corpora import load_corpus
from advreg.lab.kinds.translation.parallel import TRAIN
from advreg.lab.kinds.translation.prepare import training_pairs
from advreg.lab.kinds.translation.subwords import SPECIAL
from advreg.lab.kinds.translation.translator import Translator, positions_of
from advreg.lab.report.statistics import Spread
from advreg.memory.corpus import Corpus
from advreg.methods import create, preset
from advreg.methods.adversarial.arch import Arch
from advreg.methods.base import Batch
from advreg.records import run as records

MAX_TOKENS = 8192
RANDOM = "random"
EPOCH = 0
NEIGHBOURS = {
    "nearest, initial embeddings": {},
    "nearest, trained embeddings": {},
    RANDOM: {"neighbour_choice": "random"},
}


# ---- the data


@dataclass(frozen=True)
class Text:
    """The training pairs of a run, in batches."""

    pairs: Pairs
    collator: IdCollator

    def batches(self, ids: Sequence[int], device: torch.device) -> Iterator[Batch]:
        """Batches of these pairs."""
        data = Identified(self.pairs)
        for rows in TokenBatches(self.pairs.lengths[ids], MAX_TOKENS):
            yield to_device(self.collator([data[ids[row]] for row in rows]), device)


def text_of(record: records.RunRecord, translator: Translator, folder: Path | None) -> Text:
    """The pairs that a run was trained on."""
    data = load_corpus(record.task.name, folder)
    if data.fingerprint() != record.task.fingerprint:
        sys.exit(
            f"the data of {record.task.name} must be those of the run; give the folder it was "
            "trained from"
        )
    limits = record.training.more["longest"], record.training.more["max_ratio"]
    pairs, _ = training_pairs(data.splits[TRAIN], translator.subwords, *limits)
    config = translator.model.config
    return Text(pairs, IdCollator(PairCollator(config.pad_token_id, config.decoder_start_token_id)))


def corpora(record: records.RunRecord, translator: Translator, text: Text) -> dict[str, Corpus]:
    """The training pairs as ARCH sees them, with the vectors that each kind of neighbours is found
    by.
    """
    subwords = translator.subwords
    first = build_translator(
        record.model.name, len(subwords.source), None if subwords.joint else len(subwords.target),
        positions=positions_of(translator.model), seed=record.training.seed, special=SPECIAL,
    )  # fmt: skip
    trained, initial = (
        survey(HFModelView(model), text.pairs, text.collator) for model in (translator.model, first)
    )
    return dict(
        zip(NEIGHBOURS, (replace(trained, vectors=initial.vectors), trained, trained), strict=True)
    )


# ---- what is measured


@dataclass
class Effect:
    """What one way to get a perturbation does: of each pair, its size and how far a target token's
    prediction moves.
    """

    norms: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)

    def add(self, delta: Perturbation, moved: Tensor) -> None:
        self.norms += delta.sentence_norm().tolist()
        self.moved += moved.tolist()

    def facts(self, base: Effect | None) -> dict[str, Any]:
        """Means over pairs, and that of the difference from ``base``, with its 95 % confidence
        interval.
        """
        found: dict[str, Any] = {
            "norm": statistics.fmean(self.norms),
            "moved": statistics.fmean(self.moved),
        }
        if base is not None:
            more = Spread.paired(*(dict(enumerate(each.moved)) for each in (self, base)))
            assert more is not None
            found["more_than_random"] = {"mean": more.mean, "interval": more.interval()}
        return found


def facts_of(effects: Mapping[str, Effect]) -> dict[str, Any]:
    """All ways; a neighbour's perturbation is compared with a random neighbour's."""
    bases = {name: effects.get(f"{name.partition(': ')[0]}: {RANDOM}") for name in effects}
    return {
        name: effect.facts(None if bases[name] is effect else bases[name])
        for name, effect in effects.items()
    }


def moved_by(clean: Tensor, other: Tensor, batch: Batch) -> Tensor:
    """KL(f(x) ‖ f(x+δ)) of each pair, mean over its target tokens, (B,)."""
    real = batch["labels"] != IGNORED
    return kl(clean, other).masked_fill(~real, 0.0).sum(1) / real.sum(1)


def like(delta: Perturbation, noise: Perturbation) -> Perturbation:
    """Noise as long as the perturbation, in each pair and stream."""
    sizes = {
        s: torch.linalg.vector_norm(v, dim=(1, 2), keepdim=True) for s, v in delta.values.items()
    }
    lengths = {
        s: torch.linalg.vector_norm(v, dim=(1, 2), keepdim=True) for s, v in noise.values.items()
    }
    return Perturbation(
        {s: v * sizes[s] / lengths[s] for s, v in noise.values.items()}, noise.masks
    )


@dataclass
class Lenders:
    """ARCH with each kind of neighbours; all have the same pairs cached, with the same
    perturbations.

    Args:
        task: the model.
        by_kind: ARCH, by its neighbours.
        earlier: the model some time before, by what its perturbations are called.
    """

    task: HFModelView
    by_kind: Mapping[str, Arch]
    earlier: Mapping[str, HFModelView]

    @property
    def any(self) -> Arch:
        return next(iter(self.by_kind.values()))

    def fill(self, batches: Iterator[Batch]) -> None:
        """Cache what the ascent finds."""
        for batch in batches:
            found = self.worst_case(self.task, batch)
            for each in self.by_kind.values():
                each.memory.cache.write(batch["sample_id"], found, 0.0, each.ball, EPOCH)

    def worst_case(self, task: HFModelView, batch: Batch) -> Perturbation:
        with torch.no_grad():
            clean = task.bare_logits(batch)
        return self.any.worst_case(task, batch, clean)

    def ways(self, batch: Batch) -> dict[str, Perturbation]:
        """A batch's perturbation in every way there is to get one."""
        zeros, ball = self.task.zeros(batch), self.any.ball
        borrowed = {
            kind: each.memory.read(batch["sample_id"], zeros, EPOCH)
            for kind, each in self.by_kind.items()
        }
        noise = self.any.origin.draw(zeros, ball)
        return {
            "own": self.worst_case(self.task, batch),
            **{name: self.worst_case(task, batch) for name, task in self.earlier.items()},
            **{f"borrowed: {kind}": delta for kind, delta in borrowed.items()},
            "noise as long as borrowed": like(borrowed[RANDOM], noise),
            **{
                f"borrowed, rescaled to ε: {kind}": ball.rescale(delta)
                for kind, delta in borrowed.items()
            },
            "noise of size ε": noise,
        }


def measure(lenders: Lenders, batches: Iterator[Batch]) -> dict[str, Effect]:
    """What each way to get a perturbation does to pairs that are not cached, and what dropout does
    without one.
    """
    task, found = lenders.task, dict[str, Effect]()
    for batch in batches:
        ways = lenders.ways(batch)
        with torch.no_grad():
            clean = task.bare_logits(batch)
            for name, delta in ways.items():
                found.setdefault(name, Effect()).add(
                    delta, moved_by(clean, task.bare_logits(batch, delta), batch)
                )
            task.model.train()
            masked = moved_by(task.bare_logits(batch), task.bare_logits(batch), batch)
            task.model.eval()
            found.setdefault("none, other dropout masks", Effect()).add(task.zeros(batch), masked)
    return found


def earlier_model(model: Any, checkpoint: Path) -> tuple[str, HFModelView]:
    """The model with a checkpoint's weights, and what its perturbations are called."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    other = copy.deepcopy(model)
    set_weights(other, load_file(checkpoint / "model.safetensors"))
    return f"own, found after {state['epoch']:.0f} epochs", HFModelView(other)


def lenders_of(
    record: records.RunRecord, translator: Translator, text: Text, asked: argparse.Namespace
) -> Lenders:
    """ARCH with each kind of neighbours, its cache still empty."""
    seen, options = corpora(record, translator, text), preset("translation", "arch")
    by_kind = {kind: create("arch", **{**options, **own}) for kind, own in NEIGHBOURS.items()}
    for kind, each in by_kind.items():
        each.memory.prepare(seen[kind], asked.seed, translator.model.device)
    earlier = dict(earlier_model(translator.model, checkpoint) for checkpoint in asked.earlier)
    return Lenders(HFModelView(translator.model), by_kind, earlier)


def measure_run(
    record: records.RunRecord, translator: Translator, asked: argparse.Namespace
) -> dict[str, Any]:
    """The whole line."""
    text, device = text_of(record, translator, asked.data), translator.model.device
    lenders = lenders_of(record, translator, text, asked)
    cached = lenders.any.memory.cache.ids.tolist()
    torch.manual_seed(asked.seed)
    others = sorted(set(range(len(text.pairs))) - set(cached))
    chosen = [others[index] for index in torch.randperm(len(others))[: asked.pairs].tolist()]
    lenders.fill(text.batches(cached, device))
    return {
        "task": record.task.name,
        "model": record.model.name,
        "method": record.method.name,
        "epochs": record.training.epochs,
        "bleu": record.outcome.metrics["bleu"],
        "trained": trained(record.portable().environment),
        "dropout": translator.model.config.dropout,
        "radius": lenders.any.radius,
        "cached": len(cached),
        "pairs": len(chosen),
        "ways": facts_of(measure(lenders, text.batches(chosen, device))),
        "device": device_name(),
        "torch": torch.__version__,
        "commit": asked.commit,
        "command": " ".join(["experiments/borrowed_perturbations.py", *map(told, sys.argv[1:])]),
    }


def trained(environment: Mapping[str, Any]) -> dict[str, str]:
    """How the model was made."""
    return {
        "commit": environment["git"]["commit"],
        "device": environment["device"],
        "command": f"advreg {' '.join(environment['arguments'])}",
    }


def told(argument: str) -> str:
    """An argument as a record has it: of a path its name."""
    return Path(argument).name if "/" in argument else argument


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, help="folder of the corpora; else ADVREG_DATA")
    parser.add_argument(
        "--earlier", type=Path, nargs="*", default=[], help="checkpoints of the run, before its end"
    )
    parser.add_argument(
        "--pairs", type=int, default=5000, help="that are not cached, to measure on"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commit", required=True, help="of the code that is run, for the record")
    asked = parser.parse_args()
    quiet_libraries()
    line = measure_run(records.load(asked.run / "record.json"), Translator.load(asked.run), asked)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with asked.out.open("a") as out:
        out.write(json.dumps(line) + "\n")
    print(json.dumps(line, indent=1))


if __name__ == "__main__":
    main()
