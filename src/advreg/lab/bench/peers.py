"""Steps of whole trainers, ours and the stock one, and of other installed packages."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from advreg.hf.patches.mask_sync import PADDED
from advreg.hf.view.injection import bare
from advreg.hf.view.inputs import SAMPLE_ID
from advreg.hf.view.trained_pass import prediction_of
from advreg.hf.view.view import HFModelView
from advreg.lab.bench.passes import Cost, penalty_cost
from advreg.lab.bench.settings import BenchSettings, Shape
from advreg.lab.bench.stopwatch import Lap, TrainerJob, laps_of
from advreg.lab.bench.workload import Workload
from advreg.methods import Arch, Method, ModelView, Smart, StepReport
from advreg.methods.base import Batch, Passes, Step, memory_bytes, option
from advreg.records.bench import Phase, Row

STOCK = "Trainer"


_REFRESHING, _REUSING = 0, 1  # epochs


# ---- trainers


@dataclass(frozen=True)
class TrainerEntry:
    """A trainer, and the epoch that each of its rows shows."""

    name: str
    method: Method | None
    epochs: Mapping[Phase, int]


def trainer_entries(settings: BenchSettings) -> list[TrainerEntry]:
    """The stock Trainer, and ours with each method; with Standard the cost should equal the stock
    Trainer's.
    """
    found = [TrainerEntry(STOCK, None, {"always": 0})]
    for spec in settings.specs:
        method = spec.create(refresh_every=max(settings.refresh_every, 2))
        phases = _phases(method, settings.reuse_only)
        if phases:
            found.append(TrainerEntry(f"AdversarialTrainer, {spec.label}", method, phases))
    return found


def _phases(method: Method, reuse_only: bool) -> dict[Phase, int]:
    """The epoch to show for each kind of step."""
    if not isinstance(method, Arch):
        return {"always": 0}
    phases: dict[Phase, int] = {} if method.memory.schedule.due(_REUSING) else {"reuse": _REUSING}
    return phases if reuse_only else {**phases, "refresh": _REFRESHING}


def trainer_samples(workload: Workload, batches: int) -> list[dict[str, Tensor]]:
    """The samples of this number of batches, on the host and without ids."""
    rows: list[dict[str, Tensor]] = []
    for number in range(batches):
        batch = workload.batches[number % len(workload.batches)]
        tensors = {
            name: value.cpu() for name, value in batch.items() if name not in (SAMPLE_ID, PADDED)
        }
        rows += [
            {name: value[row] for name, value in tensors.items()}
            for row in range(workload.shape.batch)
        ]
    return rows


def time_trainer(
    entry: TrainerEntry,
    model: Any,
    samples: Sequence[Mapping[str, Tensor]],
    shape: Shape,
    settings: BenchSettings,
) -> dict[str, Lap]:
    """Times and memory of one training, by the name of the row."""
    job = TrainerJob(
        model,
        samples,
        shape.batch,
        settings.precision,
        settings.place().type == "cpu",
        entry.method,
        epochs=1 + max(entry.epochs.values()),
        compile=settings.compile,
        compile_mode=settings.compile_mode,
    )
    laps = laps_of(job, settings.warmup, settings.steps)
    return {row_name(entry, phase): laps[epoch] for phase, epoch in entry.epochs.items()}


def trainer_rows(entries: Sequence[TrainerEntry], laps: Mapping[str, Sequence[Lap]]) -> list[Row]:
    return [
        _row(entry, phase, laps.get(row_name(entry, phase), ()))
        for entry in entries
        for phase in entry.epochs
    ]


def _row(entry: TrainerEntry, phase: Phase, laps: Sequence[Lap]) -> Row:
    return Row(
        name=row_name(entry, phase),
        method="standard" if entry.method is None else entry.method.info.name,
        settings={} if entry.method is None else entry.method.options(),
        phase=phase,
        against=STOCK,
        rounds=[lap.milliseconds for lap in laps],
        peak_bytes=max(
            (lap.peak_bytes for lap in laps if lap.peak_bytes is not None), default=None
        ),
        cache_bytes=None if entry.method is None else memory_bytes(entry.method),
    )


def row_name(entry: TrainerEntry, phase: Phase) -> str:
    return entry.name if phase == "always" else f"{entry.name}, {phase}"


# ---- other packages


def smart_pytorch_entries(
    settings: BenchSettings, task: HFModelView
) -> tuple[list[SmartPytorch], str | None]:
    """The package smart-pytorch with its own default of one ascent step and with as many as ours;
    or why not.
    """
    if importlib.util.find_spec("smart_pytorch") is None:
        return (
            [],
            "smart-pytorch is not installed, so it is not measured (pip install smart-pytorch)",
        )
    if task.inputs.has_decoder:
        return [], "smart-pytorch perturbs one input; it is not measured on encoder–decoder models"
    ours = next((spec.create() for spec in settings.specs if spec.name == "smart"), Smart())
    steps = getattr(ours, "ascent_steps", 1)
    return [SmartPytorch(number) for number in sorted({1, steps})], None


@dataclass
class SmartPytorch(Method):
    """The package smart-pytorch as its README uses it: task loss + weight · SMARTLoss on the token
    embeddings.
    """

    info = replace(Smart.info, name="smart-pytorch", title="smart-pytorch")

    ascent_steps: int = option(1, "num_steps of SMARTLoss")
    weight: float = option(0.02, "weight of the loss")

    def objective(self, view: ModelView, batch: Batch, step: Step) -> StepReport:
        package = importlib.import_module("smart_pytorch")
        holder: Any = view
        model = holder.model

        def predict(embedded: Tensor) -> Tensor:
            return prediction_of(
                model(inputs_embeds=embedded, attention_mask=batch["attention_mask"])
            )

        with holder.context():
            embedded = bare(model).get_input_embeddings()(batch["input_ids"])
            state = predict(embedded)
            regulariser = package.SMARTLoss(
                predict, package.kl_loss, package.sym_kl_loss, num_steps=self.ascent_steps
            )
            task_loss = holder.prediction_head.loss(state, batch["labels"])
            penalty = regulariser(embedded, state)
        loss = task_loss + self.weight * penalty
        return StepReport(loss, task_loss.detach(), penalty.detach())

    def passes(self) -> Passes:
        return Passes(2 + self.ascent_steps, 1 + self.ascent_steps)

    def counted(self) -> Cost:
        """Passes according to its code: they bypass the view that could count them."""
        return penalty_cost(self.passes(), self.ascent_steps)
