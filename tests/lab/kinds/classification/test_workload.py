from __future__ import annotations

import dataclasses
import gzip
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from advreg.hf.checkpoint.state import last_whole_checkpoint
from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.hf.view.injection import InjectionError
from advreg.lab.kinds.calibration import expected_calibration_error
from advreg.lab.kinds.classification.job import ClassificationJob
from advreg.lab.kinds.classification.tasks import TASKS
from advreg.lab.kinds.classification.textdata import Example, TextData, make_text_data
from advreg.lab.kinds.classification.workload import scores_of, training_fields
from advreg.lab.kinds.items import Items
from advreg.lab.kinds.registry import KINDS
from advreg.lab.runs.run import Plan, run
from advreg.lab.runs.settings import SettingsError, TrainSettings
from advreg.lab.runs.workloads import load_workload
from advreg.methods import create
from advreg.records import run as records
from little_tables import scored, sentiment, tiny_folder, write_table

EPOCHS, STEPS_PER_EPOCH = 2, 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_table(folder / "reviews.csv", sentiment())
    write_table(folder / "pairs.csv", scored())
    return folder


@pytest.fixture(scope="module")
def settings(model: Path, tables: Path) -> TrainSettings:
    return TrainSettings(
        task="files", train=str(tables / "reviews.csv"), model=str(model), methods=("arch",), seeds=(3,), epochs=EPOCHS,
        batch_size=8, learning_rate=1e-3, options={"arch": {"refresh_every": 2, "cache_fraction": 0.5}},
    )  # fmt: skip


def plan(settings: TrainSettings, folder: Path) -> Plan:
    return load_workload(settings).plans(settings, folder)[0]


def load_data(settings: TrainSettings) -> TextData:
    data = load_workload(settings).data
    assert isinstance(data, TextData)
    return data


def prepare(one: Plan, notice: Callable[[str], None] = lambda _: None) -> ClassificationJob:
    job = one.source.build(one, notice)
    assert isinstance(job, ClassificationJob)
    return job


def carry_out(
    settings: TrainSettings, folder: Path, resume: bool = False
) -> tuple[records.RunRecord, list[str]]:
    """Run the first plan; its record and what was said."""
    said: list[str] = []
    record = run(plan(settings, folder), lambda *_: None, said.append, resume)
    return record, said


@pytest.fixture(scope="module")
def finished(
    settings: TrainSettings, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, records.RunRecord]:
    """A run of ARCH that is done: the folder of the runs, and the record."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, carry_out(settings, folder)[0]


# ---- plans and folders


def test_seeds_are_outermost_so_that_methods_take_turns(
    settings: TrainSettings, tmp_path: Path
) -> None:
    several = dataclasses.replace(settings, methods=("standard", "arch"), seeds=(5, 1))
    plans = load_workload(several).plans(several, tmp_path)
    assert [one.name for one in plans] == [
        "standard-seed5",
        "arch-seed5",
        "standard-seed1",
        "arch-seed1",
    ]
    assert [one.folder for one in plans] == [tmp_path / one.name for one in plans]


# ---- mistakes leave nothing behind


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"site": "nonsense"},
            "site 'nonsense' is no module of BertForSequenceClassification; choose tokens, block",
        ),
        (
            {"training": {"weight_decai": 1}},
            r"no field 'weight_decai' \(did you mean 'weight_decay'\?\)",
        ),
        (
            {"training": {"save_strategy": "daily"}},
            "TrainingArguments refuses .*'save_strategy': 'daily'.*",
        ),
        (
            {"max_length": 3},
            "max_length must be between 5 and 64, which is what the model and its tokenizer .* take, got 3",
        ),
        (
            {"max_length": 65},
            "max_length must be between 5 and 64, which is what the model and its tokenizer .* take, got 65",
        ),
        (
            {"model": "/no/such/model"},
            "model '/no/such/model' is neither a folder here nor reachable on the hub",
        ),
        ({"train": "nowhere.csv"}, "nowhere.csv: must be a file, got nothing; check the path"),
        (
            {"train": "table.xlsx"},
            "table.xlsx: the file name must end in one of .csv, .*; convert it",
        ),
        ({"label_column": "stars"}, "--label-column must be one of 'text', 'label', got 'stars'"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(
    settings: TrainSettings, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises((ValueError, InjectionError), match=message):
        carry_out(dataclasses.replace(settings, **change), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


# ---- a finished run


def test_the_record_says_what_was_run_and_what_it_cost(
    settings: TrainSettings,
    finished: tuple[Path, records.RunRecord],
) -> None:
    folder, told = finished
    record = records.load(folder / "arch-seed3" / "record.json")
    assert record == told.portable()
    assert record.method.name == "arch"
    assert record.method.settings == {
        **create("arch", **settings.options["arch"]).options(),
        "site": "tokens",
    }
    data = load_data(settings)
    assert (record.task.name, record.task.fingerprint) == ("reviews", data.fingerprint())
    assert record.task.sizes == {"train": 40, "dev": 4}
    assert record.task.details["labels"] == ["neg", "pos"]
    assert record.model.name == "…/tiny-bert"
    weights = load_file(folder / "arch-seed3" / "model" / "model.safetensors")
    assert record.model.parameters == sum(weight.numel() for weight in weights.values())
    training = record.training
    assert (training.epochs, training.batch_size, training.learning_rate) == (EPOCHS, 8, 1e-3)
    assert (training.seed, training.precision) == (3, "fp32")
    assert record.outcome.status == "finished"
    steps = EPOCHS * STEPS_PER_EPOCH
    assert record.outcome.timing["steps"] == steps
    seconds = record.outcome.timing["seconds_per_step"]
    assert seconds is not None
    assert 0 < seconds < 10
    # epoch 0 refreshes with 3 ascent steps: 5 forward, 4 backward; epoch 1 reuses: 2 and 1
    assert record.outcome.passes == {"forward": 3.5, "backward": 2.5}
    assert set(record.outcome.metrics) == {"loss", "accuracy"}
    assert [line["step"] for line in record.outcome.history if "penalty" in line] == list(
        range(1, steps + 1)
    )
    assert record.environment["device"] in (
        "cpu",
        torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    )


def test_the_record_counts_the_bytes_of_the_cache(finished: tuple[Path, records.RunRecord]) -> None:
    folder, record = finished
    tensors = load_file(folder / "arch-seed3" / "checkpoint-10" / "advreg_method.safetensors")
    rows = max(
        (value for name, value in tensors.items() if name.startswith("cache.")),
        key=lambda value: value.nbytes,
    )
    assert record.outcome.cache_bytes is not None
    assert (
        rows.nbytes <= record.outcome.cache_bytes <= sum(value.nbytes for value in tensors.values())
    )


def test_neither_record_nor_its_arguments_hold_an_absolute_path(
    settings: TrainSettings,
    finished: tuple[Path, records.RunRecord],
) -> None:
    folder, _ = finished
    text = (folder / "arch-seed3" / "record.json").read_text(encoding="utf-8")
    assert settings.train is not None
    for path in (folder, Path(settings.train).parent, Path(settings.model).parent):
        assert str(path) not in text


def test_the_saved_model_and_tokenizer_give_the_recorded_accuracy(
    settings: TrainSettings,
    finished: tuple[Path, records.RunRecord],
) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder, record = finished
    saved = folder / "arch-seed3" / "model"
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(saved),
        AutoTokenizer.from_pretrained(saved),
    )
    dev = load_data(settings).dev
    with torch.no_grad():
        logits = model(
            **tokenizer([example.text for example in dev], padding=True, return_tensors="pt")
        ).logits
    right = (
        (logits.argmax(-1) == torch.tensor([int(example.label) for example in dev])).float().mean()
    )
    assert record.outcome.metrics["accuracy"] == pytest.approx(float(right))
    assert model.config.id2label == {0: "neg", 1: "pos"}


def test_a_finished_run_is_read_and_not_repeated(
    settings: TrainSettings, finished: tuple[Path, records.RunRecord]
) -> None:
    folder, record = finished
    before = (folder / "arch-seed3" / "record.json").stat().st_mtime_ns
    again, said = carry_out(settings, folder, resume=True)
    assert again == record.portable()
    assert said == ["arch-seed3: finished before, not repeated"]
    assert (folder / "arch-seed3" / "record.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"epochs": 3}, "epochs was 2, is 3"),
        ({"batch_size": 4}, "batch_size was 8, is 4"),
        ({"learning_rate": 0.5}, r"learning_rate was 0\.001, is 0\.5"),
        ({"warmup": 0.5}, r"warmup was 0\.1, is 0\.5"),
        ({"max_length": 9}, "max_length was None, is 9"),
        ({"encoder_dropout": 0.5}, r"encoder_dropout was None, is 0\.5"),
        ({"head_dropout": 0.5}, r"head_dropout was None, is 0\.5"),
        ({"site": "block"}, "site was tokens, is block"),
        ({"precision": "fp16"}, "precision was fp32, is fp16"),
        ({"training": {"weight_decay": 0.1}}, r"weight_decay was None, is 0\.1"),
        (
            {"options": {"arch": {"refresh_every": 3}}},
            r"refresh_every was 2, is 3; cache_fraction was 0\.5, is 0\.1",
        ),
    ],
)
def test_a_changed_setting_is_named_when_a_run_is_resumed(
    settings: TrainSettings,
    finished: tuple[Path, records.RunRecord],
    change: dict[str, Any],
    told: str,
) -> None:
    folder, _ = finished
    opening = "arch-seed3 cannot be resumed, because its settings or data changed: "
    with pytest.raises(SettingsError, match=opening + told):
        carry_out(dataclasses.replace(settings, **change), folder, resume=True)


def test_a_changed_data_file_is_named_when_a_run_is_resumed(
    settings: TrainSettings, finished: tuple[Path, records.RunRecord], tmp_path: Path
) -> None:
    folder, record = finished
    rows = sentiment()
    rows[11] = {**rows[11], "text": rows[11]["text"] + " indeed"}
    changed = dataclasses.replace(settings, train=str(write_table(tmp_path / "reviews.csv", rows)))
    with pytest.raises(
        SettingsError,
        match=f"changed: data was {record.task.fingerprint}, is [0-9a-f]{{64}}. Resume",
    ):
        carry_out(changed, folder, resume=True)


def test_a_run_that_stopped_is_held_to_its_plan_too(
    settings: TrainSettings, finished: tuple[Path, records.RunRecord], tmp_path: Path
) -> None:
    folder, _ = finished
    stopped = tmp_path / "arch-seed3"
    stopped.mkdir()
    (stopped / "plan.json").write_bytes((folder / "arch-seed3" / "plan.json").read_bytes())
    with pytest.raises(
        SettingsError,
        match=r"changed: epochs was 2, is 4.* no results yet: delete it to start again",
    ):
        carry_out(dataclasses.replace(settings, epochs=4), tmp_path, resume=True)
    assert sorted(os.listdir(stopped)) == ["plan.json"]


def test_every_setting_that_changes_the_result_is_a_fact_of_the_plan(
    settings: TrainSettings, tmp_path: Path
) -> None:
    facts = plan(settings, tmp_path).facts()
    elsewhere = {
        "task",
        "data",
        "train",
        "dev",
        "text_column",
        "pair_column",
        "label_column",
        "label_kind",
        "drop_empty",
    }  # in the data's fingerprint
    named = {"methods": "method", "seeds": "seed", "preset": "options"}
    for field in dataclasses.fields(TrainSettings):
        if field.name not in {*elsewhere, "output"}:
            assert named.get(field.name, field.name) in facts
    assert "data" in facts


# ---- a run that fails


def test_a_loss_that_is_not_finite_stops_the_run_and_names_step_and_samples(
    settings: TrainSettings, tmp_path: Path
) -> None:
    wild = dataclasses.replace(
        settings, methods=("standard",), options={}, warmup=0.6, learning_rate=1e30,
        training={"max_grad_norm": 0, "save_strategy": "steps", "save_steps": 1},
    )  # fmt: skip
    place = r"the loss is nan at step (\d+) \(epoch \d\), sample ids \[(\d+, )+\d+\]"
    with pytest.raises(NonFiniteLossError, match=place) as raised:
        carry_out(wild, tmp_path)
    record = records.load(tmp_path / "standard-seed3" / "record.json")
    assert record.outcome.status == "failed"
    assert record.outcome.error == f"NonFiniteLossError: {raised.value}"
    assert "Lower the learning rate" in str(raised.value)
    assert record.finished is not None
    steps = [line["step"] for line in record.outcome.history if "loss" in line]
    assert steps == sorted(set(steps))  # what was logged before it is kept
    assert f"at step {steps[-1]} " in str(raised.value)
    last = last_whole_checkpoint(tmp_path / "standard-seed3")
    assert last is not None
    assert f"at step {last.name.removeprefix('checkpoint-')} " in str(raised.value)


def test_an_absurd_weight_is_named_in_the_message_by_its_penalty(
    settings: TrainSettings, tmp_path: Path
) -> None:
    wild = dataclasses.replace(settings, methods=("r3f",), options={"r3f": {"weight": 1e300}})
    with pytest.raises(
        NonFiniteLossError, match=r"the loss is inf at step 0 \(epoch 0\), sample ids .* penalty \d"
    ):
        carry_out(wild, tmp_path)


def test_a_failed_run_can_be_resumed_and_finishes(
    settings: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = dataclasses.replace(settings, methods=("standard",), options={})

    def fail_late(step: int, total: int, logs: Mapping[str, float]) -> None:
        if step == STEPS_PER_EPOCH + 2:
            raise OSError("the disk is gone")

    one = plan(plain, tmp_path)
    with pytest.raises(OSError, match="the disk is gone"):
        run(one, fail_late, lambda text: None, False)
    assert records.load(one.folder / "record.json").outcome.error == "OSError: the disk is gone"
    record, said = carry_out(plain, tmp_path, resume=True)
    assert said == [f"standard-seed3: resumed from step {STEPS_PER_EPOCH}"]
    assert record.outcome.status == "finished"
    (earlier,) = record.outcome.earlier_errors
    assert earlier.endswith("+00:00: OSError: the disk is gone")
    assert record.outcome.timing["steps"] == EPOCHS * STEPS_PER_EPOCH


def test_averaged_weights_are_scored_and_saved_and_survive_a_stop(
    settings: TrainSettings, tmp_path: Path
) -> None:
    averaged = dataclasses.replace(
        settings, methods=("standard",), options={}, weight_ema=0.9, label_smoothing=0.1
    )
    plain = dataclasses.replace(averaged, weight_ema=None)
    records_of = {
        name: carry_out(each, tmp_path / name)[0]
        for name, each in (("whole", averaged), ("plain", plain))
    }

    def fail_late(step: int, total: int, logs: Mapping[str, float]) -> None:
        if step == STEPS_PER_EPOCH + 2:
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        run(plan(averaged, tmp_path / "stopped"), fail_late, lambda text: None, False)
    resumed, _ = carry_out(averaged, tmp_path / "stopped", resume=True)
    assert resumed.outcome.metrics == records_of["whole"].outcome.metrics
    assert resumed.training.more["weight_ema"] == 0.9
    weights = {
        name: load_file(tmp_path / name / "standard-seed3" / "model" / "model.safetensors")
        for name in ("whole", "plain", "stopped")
    }
    for name, weight in weights["whole"].items():
        assert torch.equal(weight, weights["stopped"][name])
    assert any(not torch.equal(w, weights["plain"][name]) for name, w in weights["whole"].items())


def test_labels_of_a_regression_are_not_smoothed(
    settings: TrainSettings, tables: Path, tmp_path: Path
) -> None:
    pairs = dataclasses.replace(settings, train=str(tables / "pairs.csv"), label_smoothing=0.1)
    with pytest.raises(SettingsError, match="label_smoothing must be 0 for a regression"):
        carry_out(pairs, tmp_path)


@pytest.mark.parametrize(("name", "field", "value"), [
    ("label_smoothing", "label_smoothing_factor", 0.2), ("weight_decay", "weight_decay", 0.03),
])  # fmt: skip
def test_a_regularisation_is_a_setting_or_a_field_and_not_both(
    settings: TrainSettings, name: str, field: str, value: float
) -> None:
    given = dataclasses.replace(settings, **{name: value})
    assert training_fields(given, 0, 10)[field] == value
    assert (
        training_fields(dataclasses.replace(settings, training={field: value}), 0, 10)[field]
        == value
    )
    with pytest.raises(SettingsError, match=f"training field '{field}' is a setting of advreg"):
        dataclasses.replace(given, training={field: value})


# ---- data of other kinds


def test_pairs_with_scores_are_trained_as_regression(
    settings: TrainSettings, tables: Path, tmp_path: Path
) -> None:
    pairs = dataclasses.replace(
        settings, train=str(tables / "pairs.csv"), epochs=12, learning_rate=3e-3
    )
    record, _ = carry_out(pairs, tmp_path)
    assert set(record.outcome.metrics) == {"loss", "pearson", "rmse"}
    assert record.task.details["labels"] is None
    assert record.outcome.metrics["loss"] == pytest.approx(
        float(record.outcome.metrics["rmse"] or 0) ** 2, rel=1e-3
    )
    losses = [line["task_loss"] for line in record.outcome.history if "task_loss" in line]
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    config = json.loads((tmp_path / "arch-seed3" / "model" / "config.json").read_text())
    assert config["problem_type"] == "regression"


def test_the_second_text_of_a_pair_reaches_the_model(
    settings: TrainSettings, tables: Path, tmp_path: Path
) -> None:
    pairs = dataclasses.replace(settings, train=str(tables / "pairs.csv"))
    one = plan(pairs, tmp_path)
    job = prepare(one)
    first = load_data(pairs).train[0]
    words = job.tokenizer.convert_ids_to_tokens(job.train[0]["input_ids"])
    middle = words.index("[SEP]")
    assert first.pair is not None
    assert (words[1:middle], words[middle + 1 : -1]) == (first.text.split(), first.pair.split())
    assert job.train[0]["token_type_ids"] == [0] * (middle + 1) + [1] * (len(words) - middle - 1)
    assert job.train[0]["labels"] == first.label


def test_texts_that_are_too_long_are_cut_and_counted(
    settings: TrainSettings, tmp_path: Path
) -> None:
    short = dataclasses.replace(settings, max_length=7)
    one = plan(short, tmp_path)
    said: list[str] = []
    job = prepare(one, said.append)
    data = load_data(short)
    splits = {"train": data.train, "dev": data.dev}
    lengths = {
        name: [len(example.text.split()) + 2 for example in split] for name, split in splits.items()
    }
    cut = {name: sum(length > 7 for length in found) for name, found in lengths.items()}
    assert min(cut.values()) > 0
    assert said == [
        f"{cut[name]} of {len(splits[name])} {name} texts are longer than 7 tokens and were cut"
        for name in splits
    ]
    assert [len(sample["input_ids"]) for sample in job.train] == [
        min(length, 7) for length in lengths["train"]
    ]


def test_a_task_is_the_same_whatever_the_seed_and_only_the_weights_differ(
    settings: TrainSettings, tmp_path: Path
) -> None:
    plans = load_workload(settings).plans(dataclasses.replace(settings, seeds=(1, 2)), tmp_path)
    one, other = map(prepare, plans)
    again = prepare(plans[0])
    assert one.train == other.train
    assert torch.equal(one.model.classifier.weight, again.model.classifier.weight)
    assert not torch.equal(one.model.classifier.weight, other.model.classifier.weight)


# ---- named tasks


@pytest.fixture(scope="module")
def named_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few samples of every split of every task."""
    folder = tmp_path_factory.mktemp("nlu")
    for spec in TASKS.values():
        for seed, split in enumerate(spec.sizes):
            classes = len(spec.labels) if spec.labels is not None else 5
            rows = [
                {
                    "idx": n,
                    "text_a": row["text"],
                    **({"text_b": row["text"]} if spec.pair else {}),
                    "label": n % classes,
                }
                for n, row in enumerate(sentiment(12, seed))
            ]
            path = folder / spec.name / f"{split}.jsonl.gz"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(
                gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
            )
    return folder


def named(settings: TrainSettings, task: str, data: Path, **changes: Any) -> TrainSettings:
    return dataclasses.replace(
        settings,
        task=task,
        data=str(data),
        train=None,
        methods=("standard",),
        options={},
        epochs=1,
        **changes,
    )


@pytest.mark.parametrize("task", TASKS)
def test_every_named_task_is_trained_and_every_set_evaluated(
    task: str, settings: TrainSettings, named_tasks: Path, tmp_path: Path
) -> None:
    quick = named(
        settings,
        task,
        named_tasks,
        training={"eval_strategy": "no", "save_strategy": "no", "max_steps": 1},
    )
    record, _ = carry_out(quick, tmp_path)
    spec, data = TASKS[task], load_data(quick)
    names = ("loss", *spec.metrics)
    prefixes = ("", *(f"{name}_" for name in data.evaluations))
    assert set(record.outcome.metrics) == {
        f"{prefix}{name}" for prefix in prefixes for name in names
    }
    assert set(spec.main_metrics) <= set(record.outcome.metrics)
    sets = {"train": data.train, "dev": data.dev, **data.evaluations}
    assert record.task.sizes == {name: len(examples) for name, examples in sets.items()}
    assert record.task.fingerprint == data.fingerprint()
    assert record.task.details["training_sets"].keys() == {
        part.split("/")[0] for part in spec.train
    }
    assert [text for text in load_workload(quick).notes if "official" in text] == list(data.notes)


@pytest.mark.parametrize("task", ["mnli", "mrpc", "stsb", "cola"])
def test_the_scores_of_a_named_task_are_those_of_the_saved_model(
    task: str, settings: TrainSettings, named_tasks: Path, tmp_path: Path
) -> None:
    from scipy import stats
    from sklearn import metrics
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    chosen = named(settings, task, named_tasks)
    record, _ = carry_out(chosen, tmp_path)
    saved = tmp_path / "standard-seed3" / "model"
    model, tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(saved),
        AutoTokenizer.from_pretrained(saved),
    )
    data = load_data(chosen)
    references = {
        "accuracy": lambda p, y: metrics.accuracy_score(y, p.argmax(-1)),
        "f1": lambda p, y: metrics.f1_score(y, p.argmax(-1)),
        "matthews": lambda p, y: metrics.matthews_corrcoef(y, p.argmax(-1)),
        "pearson": lambda p, y: stats.pearsonr(p[:, 0], y).statistic,
        "spearman": lambda p, y: stats.spearmanr(p[:, 0], y).statistic,
    }
    for prefix, examples in (
        ("", data.dev),
        *((f"{name}_", each) for name, each in data.evaluations.items()),
    ):
        second = [example.pair for example in examples] if data.has_pairs else None
        batch = tokenizer(
            [example.text for example in examples], second, padding=True, return_tensors="pt"
        )
        with torch.no_grad():
            outputs = model(**batch).logits.numpy()
        for name in set(data.metrics) & references.keys():
            expected = references[name](outputs, [example.label for example in examples])
            assert record.outcome.metrics[f"{prefix}{name}"] == pytest.approx(expected, abs=1e-5)
    items = Items.load(tmp_path / "standard-seed3")
    sets = {"train": len(data.train), **items.sizes}
    assert (items.fingerprint, sets) == (record.task.fingerprint, record.task.sizes)
    names = [name for name in record.outcome.metrics if not name.endswith("loss")]
    scored = {name: record.outcome.metrics[name] for name in names}
    assert KINDS[items.kind].rescore(items, names, {}) == pytest.approx(scored, rel=1e-12)


def test_a_held_out_part_of_a_named_task_is_trained_like_the_task(
    settings: TrainSettings, named_tasks: Path, tmp_path: Path
) -> None:
    chosen = named(settings, "mnli", named_tasks)
    part = load_workload(chosen).held_out(0.25, seed=1)
    one = part.plans(chosen, tmp_path)[0]
    record = run(one, lambda *_: None, lambda text: None, False)
    assert record.task.sizes == {"train": 9, "dev": 3}
    assert set(record.outcome.metrics) == {"loss", "accuracy"}
    assert record.task.details["held_out"] == {"share": 0.25, "seed": 1, "of": 12}
    assert record.task.fingerprint == part.fingerprint != load_data(chosen).fingerprint()


def test_the_record_holds_both_dropouts_and_the_model_has_them(
    settings: TrainSettings, named_tasks: Path, tmp_path: Path
) -> None:
    chosen = named(settings, "rte", named_tasks, encoder_dropout=0.0, head_dropout=0.25)
    record, _ = carry_out(chosen, tmp_path)
    assert (record.training.more["encoder_dropout"], record.training.more["head_dropout"]) == (
        0.0,
        0.25,
    )
    job = prepare(plan(chosen, tmp_path))
    assert (job.model.dropout.p, job.model.bert.embeddings.dropout.p) == (0.25, 0.0)


def test_losses_and_the_norm_of_the_gradient_are_in_the_record_at_every_logging_step(
    finished: tuple[Path, records.RunRecord],
) -> None:
    folder, _ = finished
    history = records.load(folder / "arch-seed3" / "record.json").outcome.history
    for name in ("loss", "task_loss", "penalty", "grad_norm", "learning_rate"):
        logged = {line["step"]: line[name] for line in history if name in line}
        assert list(logged) == list(range(1, EPOCHS * STEPS_PER_EPOCH + 1))
        assert all(isinstance(value, float) for value in logged.values())


# ---- TrainingArguments


def test_what_the_user_sets_by_name_wins(settings: TrainSettings) -> None:
    mine = dataclasses.replace(settings, training={"save_total_limit": 9, "weight_decay": 0.1})
    fields = training_fields(mine, 3, 40)
    assert (fields["save_total_limit"], fields["weight_decay"]) == (9, 0.1)
    assert (fields["seed"], fields["data_seed"], fields["num_train_epochs"]) == (3, 3, EPOCHS)


def test_the_learning_rate_rises_for_its_share_of_the_updates_under_accumulation(
    settings: TrainSettings, tmp_path: Path
) -> None:
    slow = dataclasses.replace(
        settings,
        methods=("standard",),
        options={},
        epochs=4,
        warmup=0.5,
        training={"gradient_accumulation_steps": 5},
    )
    record, _ = carry_out(slow, tmp_path)
    rates = {
        line["step"]: line["learning_rate"]
        for line in record.outcome.history
        if "learning_rate" in line
    }
    assert rates == pytest.approx({1: 0.0, 2: 0.5e-3, 3: 1e-3, 4: 0.5e-3})


@pytest.mark.slow
def test_the_default_task_learns_something(tmp_path: Path) -> None:
    record, _ = carry_out(TrainSettings(methods=("standard",), seeds=(0,), epochs=6), tmp_path)
    chance = 1 / len(record.task.details["labels"])
    assert (record.outcome.metrics["accuracy"] or 0) > 2 * chance


def labelled(labels: list[int]) -> TextData:
    examples = [Example("a", None, label) for label in labels]
    return make_text_data("any", examples, examples, ["neg", "pos"])


def test_uneven_classes_are_scored_by_f1_and_calibration_too() -> None:
    logits = np.array([[2.0, 0.0]] * 5 + [[0.0, 1.0]], dtype=np.float32)
    labels = np.array([0, 0, 0, 0, 1, 1])
    even, uneven = labelled([0, 0, 1]), labelled([*labels[1:].tolist(), 0, 0])
    assert set(scores_of(even)(logits, labels)) == {"accuracy"}
    found = scores_of(uneven)(logits, labels)
    error = expected_calibration_error(torch.tensor(logits), torch.tensor(labels))
    assert found == {
        "accuracy": pytest.approx(5 / 6),
        "macro_f1": pytest.approx((8 / 9 + 2 / 3) / 2),
        "ece": pytest.approx(error),
    }


def test_the_record_has_the_share_of_the_commonest_class(
    settings: TrainSettings, tmp_path: Path
) -> None:
    told: list[str] = []
    one = plan(settings, tmp_path)
    job = one.source.build(one, told.append)
    assert job.details["majority"]["share"] == 0.5
    assert job.details["columns"] == {"text": "text", "pair": None, "label": "label"}
    assert not any("toy" in text for text in told)
    longest = max(len(sample["input_ids"]) for sample in job.train)
    assert isinstance(job, ClassificationJob)
    assert longest <= job.tokenizer.model_max_length <= 128


def test_the_toy_model_says_that_it_is_one_but_not_on_the_built_in_task(
    settings: TrainSettings, tmp_path: Path
) -> None:
    for task, files in (("files", {"train": settings.train}), ("docstrings", {})):
        toy = TrainSettings(task=task, methods=("standard",), seeds=(0,), **files)
        told: list[str] = []
        one = plan(toy, tmp_path)
        one.source.build(one, told.append)
        assert any("is a toy" in text and "--model minilm" in text for text in told) == bool(files)


def test_labels_are_scores_and_empty_rows_left_out_where_the_settings_say_so(
    model: Path, tmp_path: Path
) -> None:
    rows = [{"text": f"good film {n}", "label": n} for n in range(3)] * 10
    path = write_table(tmp_path / "t.csv", [*rows, {"text": " ", "label": 1}])
    chosen = TrainSettings(
        task="files", train=str(path), model=str(model), label_kind="regression", drop_empty=True
    )
    data = load_data(chosen)
    assert data.is_regression
    assert len(data.train) + len(data.dev) == 30
