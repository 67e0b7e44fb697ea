"""What the trainer says of the plan of a run: how many updates there will be, also of a run that is
lengthened.
"""

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from advreg.core.schedule import Clock
from advreg.hf.trainer import AdversarialTrainer
from advreg.methods import Method, create
from observe import Padded, batch_of, exact, features_of


def train(
    folder: Path, method: Method, resume: Path | None = None, epochs: int = 2, **fields: Any
) -> list[Clock]:
    """The clocks of all steps: eight samples in batches of four."""
    clocks: list[Clock] = []
    plain = method.objective
    method.objective = lambda view, batch, step: (  # type: ignore[method-assign]
        clocks.append(step.clock),
        plain(view, batch, step),
    )[1]
    settings = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "num_train_epochs": epochs, "report_to": "none",
        "save_strategy": "epoch", "disable_tqdm": True, "use_cpu": True, "logging_steps": 1,
    }  # fmt: skip
    trainer = AdversarialTrainer(
        model=exact("bert"),
        args=TrainingArguments(**settings | fields),
        train_dataset=features_of(batch_of("bert", 8)),
        data_collator=Padded(0),
        method=method,
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return clocks


def test_every_step_knows_how_many_updates_are_planned(tmp_path: Path) -> None:
    clocks = train(tmp_path, create("r3f"))
    assert [(clock.epoch, clock.step, clock.planned) for clock in clocks] == [
        (0, 0, 4),
        (0, 1, 4),
        (1, 2, 4),
        (1, 3, 4),
    ]


def test_updates_are_planned_and_not_micro_batches(tmp_path: Path) -> None:
    ways = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    assert {clock.planned for clock in train(tmp_path, create("r3f"), **ways)} == {4}
    assert {clock.planned for clock in train(tmp_path / "few", create("r3f"), max_steps=3)} == {3}


def test_a_run_that_is_lengthened_keeps_its_old_plan(tmp_path: Path) -> None:
    train(tmp_path, create("r3f"))
    clocks = train(tmp_path, create("r3f"), tmp_path / "checkpoint-4", epochs=4)
    assert [(clock.step, clock.planned) for clock in clocks] == [(4, 4), (5, 4), (6, 4), (7, 4)]
    again = train(tmp_path, create("r3f"), tmp_path / "checkpoint-6", epochs=4)
    assert {clock.planned for clock in again} == {4}
    assert again[-1].progress == 1.0


@pytest.mark.parametrize("name", ["r3f", "simcut", "arch", "temporal"])
def test_a_method_that_starts_half_way_costs_what_standard_training_does_until_then(
    name: str, tmp_path: Path
) -> None:
    options = (
        {"cache_fraction": 1.0, "refresh_every": 1, "ascent_steps": 1} if name == "arch" else {}
    )
    found: list[tuple[int, float | None]] = []
    method = create(name, start_at=0.5, **options)
    plain = method.objective

    def objective(view: Any, batch: Any, step: Any) -> Any:
        before = view._passes.forward
        report = plain(view, batch, step)
        found.append((step.clock.step, view._passes.forward - before))
        return report

    method.objective = objective  # type: ignore[method-assign]
    train(tmp_path, method)
    later = {"r3f": 2, "simcut": 2, "arch": 3, "temporal": 1}[name]
    assert found == [(0, 1), (1, 1), (2, later), (3, later)]


def test_a_cache_that_starts_within_an_epoch_waits_for_the_next_also_when_resumed(
    tmp_path: Path,
) -> None:
    """At a quarter of four epochs and a bit: with the third, not in the middle of the second."""
    options = {"cache_fraction": 1.0, "refresh_every": 5, "ascent_steps": 1, "start_at": 0.3}
    method = create("arch", **options)
    train(tmp_path, method, epochs=4, save_strategy="steps", save_steps=3)
    assert method.memory._begun == 2  # type: ignore[union-attr]
    for step, begun in ((3, 2), (6, 2)):
        again = create("arch", **options)
        train(tmp_path, again, tmp_path / f"checkpoint-{step}", epochs=4)
        assert again.memory._begun == begun  # type: ignore[attr-defined]
