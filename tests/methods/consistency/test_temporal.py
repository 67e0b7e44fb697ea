import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import TrainingArguments

import naive
from advreg.core.schedule import Clock
from advreg.hf.checkpoint.state import load_method, save_method
from advreg.hf.trainer import AdversarialTrainer
from advreg.hf.view.view import HFModelView
from advreg.memory.corpus import Corpus
from advreg.methods import Method, Step, StepReport, create, registry
from observe import (
    Batch,
    Padded,
    batch_of,
    close,
    exact,
    features_of,
    gradients,
    ready,
    remembered,
    step,
    take,
)
from tiny_models import tiny

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whole": ({}, {}),
    "lumped": ({"sketch": "lumped", "top": 5}, {"lumped": 5}),
}
SKETCHES = [
    ("bert", {}),
    ("marian", {}),
    ("marian", {"sketch": "lumped"}),
    ("marian", {"sketch": "drawn"}),
]
sketches = pytest.mark.parametrize(("family", "options"), SKETCHES)


def made(
    family: str, size: int = 4, weight: float = 3.0, **options: Any
) -> tuple[Method, HFModelView, Batch]:
    method, task, batch = (
        create("temporal", weight=weight, **options),
        HFModelView(exact(family)),
        batch_of(family, size),
    )
    ready(method, task, batch)
    return method, task, batch


def updated(model: nn.Module, learning_rate: float = 0.02) -> None:
    torch.optim.SGD(model.parameters(), lr=learning_rate).step()
    model.zero_grad()


def labelled(family: str, **model_settings: Any) -> Batch:
    batch = batch_of(family, 3)
    if model_settings.get("num_labels") == 1:
        batch["labels"] = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
    if model_settings.get("problem_type") == "multi_label_classification":
        batch["labels"] = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 1]], dtype=torch.float64)
    return batch


def agree(
    family: str, options: dict[str, Any], references: dict[str, Any], **model_settings: Any
) -> None:
    """Over four epochs with an update after each."""
    model, other = exact(family, **model_settings), exact(family, **model_settings)
    batch, task = labelled(family, **model_settings), HFModelView(model)
    method, reference = create("temporal", weight=3.0, **options), naive.Temporal(3.0, **references)
    ready(method, task, batch)
    for epoch in range(4):
        report = step(method, task, batch, epoch=epoch)
        expected = reference.step(other, batch, epoch)
        assert float(report.loss) == pytest.approx(expected.loss, abs=1e-6)
        assert float(report.task_loss) == pytest.approx(expected.task_loss, abs=1e-6)
        assert float(report.penalty) == pytest.approx(expected.penalty, abs=1e-6)
        assert (expected.penalty > 1e-4) == (epoch > 0)
        assert close(gradients(model), gradients(other))
        updated(model)
        updated(other)


@pytest.mark.parametrize(
    ("family", "case"),
    [("bert", "whole"), *(("marian", case) for case in CASES)],
)
def test_the_cached_prediction_agrees_with_its_reference(family: str, case: str) -> None:
    agree(family, *CASES[case])


def test_regression_is_held_to_its_earlier_values_by_the_squared_error() -> None:
    agree("bert", *CASES["whole"], num_labels=1)


def test_several_labels_are_held_to_their_earlier_probabilities_each_on_its_own() -> None:
    agree("bert", *CASES["whole"], problem_type="multi_label_classification")


# ---- 1. a row that is not this sample's


@sketches
def test_a_sample_whose_labels_changed_has_no_penalty_and_is_counted(
    family: str, options: dict[str, Any]
) -> None:
    method, task, batch = made(family, **options)
    step(method, task, batch)
    changed = {**batch, "labels": batch["labels"].clone()}
    changed["labels"].view(4, -1)[2, 0] += 1
    changed["labels"].view(4, -1)[2, 0] %= 3 if family == "bert" else 50
    report = step(method, task, changed, epoch=1)
    assert float(report.measures["cache_hits"]) == 0.75
    assert float(report.measures["cache_changed"]) == 1
    once_more = step(method, task, changed, epoch=2)
    assert float(once_more.measures["cache_hits"]) == 1
    assert float(once_more.measures["cache_changed"]) == 0


def test_a_target_that_is_cut_shorter_is_not_compared_by_its_first_tokens() -> None:
    method, task, batch = made("marian")
    step(method, task, batch)
    cut = {**batch, "labels": batch["labels"].clone()}
    last = int((cut["labels"][1] != -100).sum()) - 1
    cut["labels"][1, last] = -100
    report = step(method, task, cut, epoch=1)
    assert float(report.measures["cache_changed"]) == 1
    back = step(method, task, batch, epoch=2)  # nothing was written over what there was
    assert float(back.measures["cache_hits"]) == 1


# ---- 2. the first epoch


@sketches
def test_the_first_epoch_is_standard_training_to_the_bit(
    family: str, options: dict[str, Any]
) -> None:
    """With dropout: neither draws it a random number."""
    found = []
    for method in (create("temporal", weight=5.0, **options), create("standard")):
        model = tiny(family)
        task, batch = HFModelView(model), batch_of(family)
        ready(method, task, batch)
        torch.manual_seed(1)
        for number in range(3):
            rows = [number % 4, (number + 1) % 4]
            step_once(method, task, take(batch, rows), number)
        found.append({name: value.detach() for name, value in model.named_parameters()})
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def step_once(method: Method, task: HFModelView, batch: Batch, number: int) -> StepReport:
    report = method.step(task, batch, Step(Clock(0, number)))
    updated(task.model)
    return report


@sketches
def test_a_sample_that_is_new_in_a_later_epoch_has_no_penalty_and_no_gradient_of_one(
    family: str, options: dict[str, Any]
) -> None:
    """To the bit: what nothing is known of is masked, and a gradient of zeros added."""
    method, task, batch = made(family, **options)
    report = step(method, task, batch, epoch=1)
    mine = gradients(task.model)
    task.model.zero_grad()
    expected = step(create("standard"), task, batch)
    assert float(report.loss) == float(expected.loss)
    assert all(torch.equal(value, mine[name]) for name, value in gradients(task.model).items())


# ---- 3. accumulation, order, padding, the other samples of a batch


def rows_by_sample(method: Any) -> dict[str, Tensor]:
    return {name: value.double() for name, value in method.memory.state().tensors.items()}


@sketches
def test_a_sample_has_the_same_row_and_penalty_in_any_company(
    family: str, options: dict[str, Any]
) -> None:
    side = "left" if family == "gpt2" else "right"
    ways: list[list[Batch]] = []
    batch = batch_of(family)
    wide = batch_of(family, pad_to=19, side=side)
    ways.append([batch])
    ways.append([take(batch, [row]) for row in (2, 0, 3, 1)])
    ways.append([take(wide, [3, 1]), take(wide, [0, 2])])
    rows, totals = [], []
    for parts in ways:
        method, task, _ = made(family, **options)
        for epoch in range(2):
            reports = [step(method, task, part, epoch=epoch) for part in parts]
            counts = [float(task.items(part)) for part in parts]
        totals.append(
            sum(float(r.penalty) * count for r, count in zip(reports, counts, strict=True))
        )
        rows.append(rows_by_sample(method))
    for other, total in zip(rows[1:], totals[1:], strict=True):
        assert total == pytest.approx(totals[0], abs=1e-9)
        assert all(torch.allclose(other[name], value, atol=1e-9) for name, value in rows[0].items())


def test_a_sample_that_comes_twice_between_two_updates_is_held_to_its_first_visit_the_second_time() -> (
    None
):
    method, task, batch = made("bert")
    step(method, task, batch)
    updated(task.model)
    first = step(method, task, take(batch, [0]), epoch=1)
    second = step(method, task, take(batch, [0]), epoch=1)
    assert float(first.penalty) > 1e-4
    assert (
        float(second.penalty) < 1e-6
    )  # the weights are the same: half precision is all that is between them


@pytest.mark.parametrize("name", ["temporal", "ols"])
def test_virtual_tokens_of_prompt_tuning_have_no_rows(name: str) -> None:
    peft = pytest.importorskip("peft")
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    task, batch = (
        HFModelView(peft.get_peft_model(tiny("gpt2-lm", dropout=0.0), settings).train()),
        batch_of("gpt2-lm"),
    )
    assert task.logits(batch).shape[1] == batch["labels"].shape[1] + 3
    method = create(name)
    if name == "temporal":
        items = task.targets(batch)[1].sum(1)
        ones = torch.ones(4)
        method.memory.prepare(
            Corpus({"tokens": ones}, {"tokens": 8}, {}, "", items=items), 0, torch.device("cpu")
        )
    penalties = [float(step(method, task, batch, epoch=epoch).penalty) for epoch in range(2)]
    assert penalties[0] == 0
    assert (
        abs(penalties[1]) < 1e-5 if name == "temporal" else penalties[1] > 0
    )  # the same weights predict the same


# ---- 5. kill and resume


@sketches
def test_a_checkpoint_holds_what_was_written_up_to_it_and_nothing_after(
    family: str, options: dict[str, Any], tmp_path: Path
) -> None:
    method, task, batch = made(family, **options)
    step(method, task, batch)
    updated(task.model)
    save_method(method, tmp_path)
    model = deepcopy(task.model)
    fresh, other = create("temporal", weight=3.0, **options), HFModelView(model)
    ready(fresh, other, batch)
    load_method(fresh, tmp_path)
    for epoch in (1, 2):
        for one, its_task in ((method, task), (fresh, other)):
            step(one, its_task, batch, epoch=epoch)
            updated(its_task.model)
        mine, theirs = method.memory.state().tensors, fresh.memory.state().tensors
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
        assert all(
            torch.equal(a, b)
            for a, b in zip(task.model.parameters(), model.parameters(), strict=True)
        )


def test_draws_are_others_at_the_next_visit_and_for_another_seed() -> None:
    batch, found = batch_of("marian"), []
    for seed, epochs in ((0, 1), (0, 2), (1, 1)):
        method, task = create("temporal", sketch="drawn", top=1), HFModelView(exact("marian"))
        ready(method, task, batch, seed=seed)
        for epoch in range(epochs):
            step(method, task, batch, epoch=epoch)
        found.append(method.memory.state().tensors)
    assert torch.equal(found[0]["cache.items.entries"], found[1]["cache.items.entries"])
    assert not torch.equal(found[0]["cache.items.drawn"], found[1]["cache.items.drawn"])
    assert not torch.equal(found[0]["cache.items.drawn"], found[2]["cache.items.drawn"])


def test_no_random_number_of_others_is_used() -> None:
    found = []
    for name, options in (("temporal", {"sketch": "drawn"}), ("standard", {})):
        task, batch, method = (
            HFModelView(exact("marian")),
            batch_of("marian"),
            create(name, **options),
        )
        ready(method, task, batch)
        torch.manual_seed(0)
        for epoch in range(2):
            method.step(task, batch, Step(Clock(epoch, epoch)))
        found.append(torch.random.get_rng_state())
    assert torch.equal(*found)


# ---- 6. the ends of the scale


@sketches
def test_a_weight_of_zero_is_standard_training(family: str, options: dict[str, Any]) -> None:
    method, task, batch = made(family, weight=0.0, **options)
    expected = step(create("standard"), task, batch)
    plain = gradients(task.model)
    for epoch in range(3):
        task.model.zero_grad()
        assert float(step(method, task, batch, epoch=epoch).loss) == float(expected.loss)
        assert all(torch.equal(value, plain[name]) for name, value in gradients(task.model).items())


@pytest.mark.parametrize("sketch", ["lumped", "drawn"])
def test_a_sketch_of_all_entries_trains_as_the_whole_prediction(sketch: str) -> None:
    found = []
    for options in ({}, {"sketch": sketch, "top": 50}):
        method, task, batch = made("marian", **options)
        for epoch in range(3):
            report = step(method, task, batch, epoch=epoch)
            updated(task.model, 0.05)
        found.append((float(report.penalty), dict(task.model.named_parameters())))
    # the entropy of a drawn sketch is kept in half precision, which no gradient sees
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-4 if sketch == "lumped" else 4e-3)
    assert close(found[1][1], found[0][1], 1e-5)


# ---- 7. and 9. in a training


def train(
    folder: Path, family: str = "bert", size: int = 4, resume: str | None = None, **ways: Any
) -> Any:
    model = ways.pop("model", None) or exact(family)
    data = ways.pop("data", None) or features_of(batch_of(family, 8))
    options = ways.pop("options", {})
    arguments = {
        "output_dir": str(folder), "per_device_train_batch_size": size, "num_train_epochs": 3, "save_strategy": "no",
        "report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_steps": 1, "label_names": ["labels"],
    }  # fmt: skip
    trainer = AdversarialTrainer(
        model=model,
        args=TrainingArguments(**arguments | ways),
        train_dataset=data,
        data_collator=Padded(model.config.pad_token_id),
        method=create("temporal", weight=3.0, **options),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("family", ["bert", "marian", "gpt2-lm"])
def test_evaluation_and_prediction_neither_read_nor_write(family: str, tmp_path: Path) -> None:
    trainer = train(tmp_path, family)
    before = {name: value.clone() for name, value in trainer.method.memory.state().tensors.items()}
    trainer.evaluate(trainer.train_dataset)
    trainer.predict(trainer.train_dataset)
    after = trainer.method.memory.state().tensors
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    trainer.method.memory.held._store.clear()  # whoever reads now fails
    trainer.evaluate(trainer.train_dataset)


def test_a_log_says_how_many_samples_were_known_and_how_many_had_changed(tmp_path: Path) -> None:
    logs = [line for line in train(tmp_path).state.log_history if "loss" in line]
    assert [line["cache_hits"] for line in logs] == [0, 0, 1, 1, 1, 1]
    assert all(line["cache_changed"] == 0 for line in logs)


@pytest.mark.parametrize("options", [{}, {"sketch": "drawn", "top": 2, "draws": 3}])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_every_tier_trains_to_the_same_bits(
    options: dict[str, Any], accumulation: int, tmp_path: Path
) -> None:
    family = "marian" if "sketch" in options else "bert"
    ways = {"gradient_accumulation_steps": accumulation, "size": 4 // accumulation}
    ends = [
        train(tmp_path / tier, family, options={**options, "cache_device": tier}, **ways)
        for tier in ("device", "host", "disk")
    ]
    first, *others = ends
    assert first.method.memory.held.place.tier == "device"
    assert others[-1].method.memory.prefetches
    for other in others:
        mine, theirs = remembered(first.method), remembered(other.method)
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
        weights = zip(first.model.parameters(), other.model.parameters(), strict=True)
        assert all(torch.equal(*pair) for pair in weights)


@pytest.mark.parametrize("tier", ["device", "disk"])
def test_a_run_that_is_resumed_with_its_cache_elsewhere_ends_as_the_one_that_went_through(
    tier: str, tmp_path: Path
) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3, "size": 3}
    whole = train(tmp_path / "whole", options={"cache_device": "host"}, **saving)
    checkpoint = str(tmp_path / "whole" / "checkpoint-3")
    again = train(tmp_path / "again", resume=checkpoint, options={"cache_device": tier}, **saving)
    mine, theirs = remembered(again.method), remembered(whole.method)
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    weights = zip(whole.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in weights)


def test_the_bytes_are_those_of_a_row_for_each_item_and_a_key_for_each_sample() -> None:
    method, task, batch = made("bert")
    for _ in range(2):  # before the first step too
        assert method.memory.bytes == 5 * 3 * 2 + 5 * (4 + 8)  # three classes in float16; a spare
        step(method, task, batch)


@pytest.mark.parametrize(
    ("family", "model_settings"),
    [
        ("bert", {}),
        ("bert", {"num_labels": 1}),
        ("bert", {"problem_type": "multi_label_classification"}),
        ("marian", {}),
        ("gpt2-lm", {}),
    ],
)
def test_the_bytes_before_the_first_step_are_those_after_it(
    family: str, model_settings: dict[str, Any]
) -> None:
    batch, task = labelled(family, **model_settings), HFModelView(exact(family, **model_settings))
    method = create("temporal")
    ready(method, task, batch)
    before = method.memory.bytes
    step(method, task, batch)
    assert method.memory.bytes == before > 0


def test_outputs_that_no_configuration_tells_have_room_from_the_first_step_on() -> None:
    method, task, batch = made("bert")
    method.memory.prepare(
        replace(method.memory.corpus, outputs=("classes", 7)), 0, torch.device("cpu")
    )
    step(method, task, batch)
    assert method.memory.bytes == 5 * 3 * 2 + 5 * (4 + 8)


def test_the_folder_of_a_cache_on_disk_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cache_folder must be a folder that exists"):
        create("temporal", cache_folder=str(tmp_path / "none")).memory.validate(4)


def test_a_run_is_not_resumed_on_other_data(tmp_path: Path) -> None:
    train(tmp_path, save_strategy="epoch", num_train_epochs=2)
    other = features_of(batch_of("bert", 8, seed=1))
    with pytest.raises(
        ValueError, match="what is cached would be given to other samples; resume with the same"
    ):
        train(tmp_path, resume=str(tmp_path / "checkpoint-4"), data=other)


# ---- what is refused


def test_data_without_labels_are_refused() -> None:
    corpus = Corpus({"tokens": torch.ones(4)}, {"tokens": 8}, {"tokens": torch.ones(4, 8)}, "")
    with pytest.raises(
        ValueError, match="temporal needs labels in the training data, got samples without"
    ):
        create("temporal").memory.prepare(corpus, 0, torch.device("cpu"))


def test_a_step_before_the_data_were_seen_is_refused() -> None:
    with pytest.raises(
        RuntimeError, match=r"memory of the method is not prepared; call method\.memory\.prepare"
    ):
        step(create("temporal"), HFModelView(exact("bert")), batch_of("bert"))


def test_packed_rows_are_refused_by_name() -> None:
    method, task, batch = made("gpt2-lm")
    row = {name: value.reshape(1, -1) for name, value in batch.items() if name != "sample_id"}
    with pytest.raises(ValueError, match="got 4 samples packed into 1 rows; turn packing off"):
        step(method, task, {**row, "sample_id": batch["sample_id"]})


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("weight", math.nan, "weight must be a finite number of 0 or more, got nan"),
        ("sketch", "top", "sketch must be one of auto, whole, lumped, drawn, got 'top'"),
        ("top", 0, "top must be a whole number of 1 or more, got 0"),
        ("draws", 0, "draws must be a whole number of 1 or more, got 0"),
    ],
)
def test_temporal_refuses_bad_values(option: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registry["temporal"](**{option: value})
