"""The tasks' table, their data from files and from the hub, and their one numbers."""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advreg.lab.kinds.classification.metrics import METRICS
from advreg.lab.kinds.classification.tasks import (
    TASKS,
    TaskSpec,
    average_score,
    find_task,
    main_score,
)
from advreg.lab.kinds.classification.textdata import Example
from advreg.lab.kinds.classification.understanding import load_task
from advreg.lab.kinds.sources import DataError

GLUE = ("cola", "sst2", "mrpc", "rte", "stsb", "qnli", "qqp", "mnli")
OWN = [name for name in TASKS if name != "anli"]  # those with splits of their own
PER_CLASS = 2
SCORES: list[int | float] = [0.0, 2.5, 3.8, 4.067]

# columns and classes as the cards of the hub's data sets show them
HUB: dict[str, tuple[str, str | None, list[str], list[str] | None]] = {
    "cola": ("nyu-mll/glue", "cola", ["sentence"], ["unacceptable", "acceptable"]),
    "sst2": ("nyu-mll/glue", "sst2", ["sentence"], ["negative", "positive"]),
    "mrpc": ("nyu-mll/glue", "mrpc", ["sentence1", "sentence2"], ["not_equivalent", "equivalent"]),
    "rte": ("nyu-mll/glue", "rte", ["sentence1", "sentence2"], ["entailment", "not_entailment"]),
    "stsb": ("nyu-mll/glue", "stsb", ["sentence1", "sentence2"], None),
    "qnli": ("nyu-mll/glue", "qnli", ["question", "sentence"], ["entailment", "not_entailment"]),
    "qqp": ("nyu-mll/glue", "qqp", ["question1", "question2"], ["not_duplicate", "duplicate"]),
    "mnli": (
        "nyu-mll/glue",
        "mnli",
        ["premise", "hypothesis"],
        ["entailment", "neutral", "contradiction"],
    ),
    "snli": (
        "stanfordnlp/snli",
        None,
        ["premise", "hypothesis"],
        ["entailment", "neutral", "contradiction"],
    ),
    "anli": (
        "facebook/anli",
        None,
        ["premise", "hypothesis"],
        ["entailment", "neutral", "contradiction"],
    ),
    "mr": ("cornell-movie-review-data/rotten_tomatoes", None, ["text"], ["neg", "pos"]),
}
HUB_SPLITS = {
    "dev": "validation",
    "mnli/dev": "validation_matched",
    "mnli/dev_mm": "validation_mismatched",
}


def rows(task: str, split: str) -> list[dict[str, Any]]:
    """A few lines of a split; no two splits share one."""
    spec = TASKS[task]
    labels: list[int | float] = (
        [0.0, 2.5, 3.8, 4.067] if spec.labels is None else [*range(len(spec.labels))] * PER_CLASS
    )
    texts = ({"text_a": f"{task} {split} {n}", "text_b": f"second {n}"} for n in range(len(labels)))
    lines = [
        {"idx": n, **text, "label": label}
        for n, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]
    return (
        lines if spec.pair else [{k: v for k, v in line.items() if k != "text_b"} for line in lines]
    )


def write(folder: Path, part: str, lines: Sequence[Any]) -> Path:
    path = folder / f"{part}.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(
            (line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines
        )
    return path


def splits(spec: TaskSpec) -> list[str]:
    return [part for part in spec.sizes if part]


def write_all(folder: Path) -> Path:
    for name in OWN:
        for split in splits(TASKS[name]):
            write(folder, f"{name}/{split}", rows(name, split))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all(tmp_path_factory.mktemp("data") / "nlu").parent


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ADVREG_DATA", raising=False)


def examples(*parts: str) -> tuple[Example, ...]:
    lines = [line for part in parts for line in rows(*part.split("/"))]
    return tuple(Example(line["text_a"], line.get("text_b"), line["label"]) for line in lines)


# ---- the table


def test_there_is_a_task_for_each_of_glue_and_the_nli_sets_and_mr() -> None:
    assert set(TASKS) == {*GLUE, "snli", "anli_r1", "anli_r2", "anli_r3", "anli", "mr"}


@pytest.mark.parametrize("spec", TASKS.values(), ids=lambda spec: spec.name)
def test_a_task_takes_scores_that_exist_on_splits_that_exist(spec: TaskSpec) -> None:
    assert set(spec.metrics) <= set(METRICS)
    assert spec.main_metrics[0] in spec.metrics
    for part in (*spec.train, *(part for parts in spec.evaluations.values() for part in parts)):
        task, split = part.split("/")
        assert split in TASKS[task].sizes
        assert split in TASKS[task].hub.splits
        assert (TASKS[task].labels, TASKS[task].pair) == (spec.labels, spec.pair)


# ---- files


@pytest.mark.parametrize("name", OWN)
def test_a_task_is_read_from_its_folder_or_the_one_above(name: str, folder: Path) -> None:
    data = load_task(name, folder)
    spec = TASKS[name]
    assert data == load_task(name, folder / "nlu")
    assert (data.name, data.labels, data.metrics) == (name, spec.labels, spec.metrics)
    assert data.train == examples(f"{name}/train")
    assert data.dev == examples(f"{name}/dev")
    others = {"mnli": {"mm": "dev_mm"}, "snli": {"test": "test"}}
    further = others.get(name, {"test": "test"} if name.startswith("anli") else {})
    assert data.evaluations == {key: examples(f"{name}/{split}") for key, split in further.items()}


def test_the_labels_of_similarity_are_scores(folder: Path) -> None:
    data = load_task("stsb", folder)
    assert data.is_regression
    assert [example.label for example in data.train] == SCORES


def test_anli_trains_on_every_nli_set_and_is_evaluated_by_round_and_as_a_whole(
    folder: Path,
) -> None:
    data = load_task("anli", folder)
    rounds = ("anli_r1", "anli_r2", "anli_r3")
    assert data.train == examples(*(f"{name}/train" for name in ("mnli", "snli", *rounds)))
    assert data.dev == examples(*(f"{name}/dev" for name in rounds))
    expected = {
        f"r{n}_{split}": examples(f"anli_r{n}/{split}")
        for split in ("dev", "test")
        for n in (1, 2, 3)
    }
    assert data.evaluations == {
        **expected,
        "all_test": examples(*(f"{name}/test" for name in rounds)),
    }
    assert data.details["main_set"] == "all_dev"


def test_training_sets_that_anli_lacks_are_said_and_those_it_has_counted(tmp_path: Path) -> None:
    write_all(tmp_path)
    for name in ("anli_r2", "anli_r3"):
        (tmp_path / name / "train.jsonl.gz").unlink()
    data = load_task("anli", tmp_path)
    assert data.train == examples("mnli/train", "snli/train", "anli_r1/train")
    assert (
        f"anli: trained without anli_r2/train, anli_r3/train, which {tmp_path} does not hold"
        in data.notes
    )
    assert data.details["training_sets"] == {
        "mnli": {"samples": 6, "official": 392_702},
        "snli": {"samples": 6, "official": 549_367},
        "anli_r1": {"samples": 6, "official": 16_946},
    }
    assert data.details["evaluation_sets"]["all_test"] == {"samples": 18, "official": 3_200}
    for name in ("mnli", "snli", "anli_r1"):
        (tmp_path / name / "train.jsonl.gz").unlink()
    with pytest.raises(
        DataError,
        match=r"anli must have one of mnli/train, snli/train, .* to train on, got none in",
    ):
        load_task("anli", tmp_path)


def test_a_set_that_is_not_the_official_one_in_full_is_said(folder: Path) -> None:
    assert load_task("qqp", folder).notes == (
        "qqp/dev: 4 samples; the official set has 40,430",
        "qqp/train: 4 samples; the official set has 363,846",
    )


def test_a_set_of_the_official_size_needs_no_note(tmp_path: Path) -> None:
    for split, size in TASKS["rte"].sizes.items():
        write(tmp_path, f"rte/{split}", (rows("rte", split) * size)[:size])
    data = load_task("rte", tmp_path)
    assert data.notes == ()
    assert data.details["training_sets"] == {"rte": {"samples": 2_490, "official": 2_490}}


def test_the_variable_names_the_folder_where_no_flag_does(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADVREG_DATA", str(folder))
    assert load_task("rte") == load_task("rte", folder)
    write(tmp_path, "rte/train", rows("rte", "dev"))
    write(tmp_path, "rte/dev", rows("rte", "train"))
    assert load_task("rte", tmp_path).dev == examples("rte/train")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "line 3: must be a JSON object, got '{not json' (Expecting"),
        ("[1, 2]", "line 3: must be a JSON object, got '[1, 2]'"),
        (
            {"text_b": "b", "label": 0},
            "line 3: text_a must be a text, got None; rte has pairs of texts",
        ),
        (
            {"text_a": "a", "label": 0},
            "line 3: text_b must be a text, got None; rte has pairs of texts",
        ),
        ({"text_a": 3, "text_b": "b", "label": 0}, "line 3: text_a must be a text, got 3"),
        (
            {"text_a": "a", "text_b": "b"},
            "line 3: label must be a class number: 0 entailment, 1 not_entailment, got",
        ),
        ({"text_a": "a", "text_b": "b", "label": 2}, "line 3: label must be a class number"),
        ({"text_a": "a", "text_b": "b", "label": -2}, "line 3: label must be a class number"),
        ({"text_a": "a", "text_b": "b", "label": 0.5}, "line 3: label must be a class number"),
        ({"text_a": "a", "text_b": "b", "label": "1"}, "line 3: label must be a class number"),
        ({"text_a": "a", "text_b": "b", "label": True}, "line 3: label must be a class number"),
        ('{"text_a": "a", "text_b": "b", "label": NaN}', "line 3: label must be a class number"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_by_file_and_number(
    line: Any, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, "rte/train", [rows("rte", "train")[0], "", line])
    write(tmp_path, "rte/dev", rows("rte", "dev"))
    with pytest.raises(DataError) as raised:
        load_task("rte", tmp_path)
    assert str(raised.value).startswith(f"{path}, {message}")


def test_a_second_text_where_there_should_be_none_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "cola/dev", rows("rte", "dev"))
    with pytest.raises(
        DataError, match="line 1: text_b must not be given, for cola has single texts; is it the"
    ):
        load_task("cola", tmp_path)


def test_a_score_that_is_no_number_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "stsb/dev", [{"text_a": "a", "text_b": "b", "label": "high"}])
    with pytest.raises(DataError, match="line 1: label must be a number, got 'high'"):
        load_task("stsb", tmp_path)


def test_a_missing_split_is_named_with_what_there_is_and_the_remedy(tmp_path: Path) -> None:
    write(tmp_path / "nlu", "qnli/dev", rows("qnli", "dev"))
    path = tmp_path / "nlu" / "qnli" / "train.jsonl.gz"
    with pytest.raises(DataError) as raised:
        load_task("qnli", tmp_path)
    assert str(raised.value).startswith(
        f"{path}: must be a file, got nothing (its folder holds dev.jsonl.gz); put the"
    )
    assert str(raised.value).endswith(
        "leave --data and ADVREG_DATA out to load 'nyu-mll/glue' from the Hugging Face hub"
    )


def test_a_missing_folder_is_named_with_who_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        DataError, match=r"data must be a folder with TASK/SPLIT.*nowhere', which does not exist"
    ):
        load_task("rte", tmp_path / "nowhere")
    monkeypatch.setenv("ADVREG_DATA", str(write(tmp_path, "rte/dev", [])))
    with pytest.raises(DataError, match=r"ADVREG_DATA must be a folder .*dev.jsonl.gz', a file"):
        load_task("rte")


@pytest.mark.parametrize(
    "content",
    [
        b"plain text",
        gzip.compress(b"{}\n" * 999, mtime=0)[:-9],
        gzip.compress(b"\xff\xfe", mtime=0),
    ],
)
def test_a_file_that_is_no_gzipped_text_is_named(content: bytes, tmp_path: Path) -> None:
    write(tmp_path, "rte/train", rows("rte", "train"))
    (tmp_path / "rte" / "dev.jsonl.gz").write_bytes(content)
    with pytest.raises(
        DataError,
        match=r"rte/dev.jsonl.gz(: cannot be unpacked: |, line 1: (text_a|must be UTF-8))",
    ):
        load_task("rte", tmp_path)


def test_an_unknown_task_is_refused_and_the_likely_one_named() -> None:
    with pytest.raises(
        DataError, match=r"unknown task 'mnil' \(did you mean 'mnli'\?\); there are cola, sst2"
    ):
        find_task("mnil")


def test_samples_without_a_label_are_left_out_and_counted_and_a_hidden_test_set_refused(
    tmp_path: Path,
) -> None:
    hidden = [{**row, "label": -1} for row in rows("snli", "test")]
    for split in ("train", "dev"):
        write(tmp_path, f"snli/{split}", rows("snli", split))
    write(tmp_path, "snli/test", [*hidden[:2], *rows("snli", "test")])
    data = load_task("snli", tmp_path)
    assert data.evaluations["test"] == examples("snli/test")
    assert "snli/test: 2 samples without a label (-1) are left out" in data.notes
    write(tmp_path, "snli/test", hidden)
    with pytest.raises(
        DataError, match="snli/test: must have labels, but all 6 are -1: a hidden test set; use"
    ):
        load_task("snli", tmp_path)


def test_a_blank_text_of_an_official_set_is_kept(tmp_path: Path) -> None:
    lines = rows("qqp", "train")
    lines[1]["text_b"] = ""
    write(tmp_path, "qqp/train", lines)
    write(tmp_path, "qqp/dev", rows("qqp", "dev"))
    assert load_task("qqp", tmp_path).train[1].pair == ""


# ---- the hub


class FakeHub:
    """`load_dataset` over real data sets in memory, with the hub's columns, class names and split
    names.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, str]] = []
        self.orders: dict[str, list[str]] = {}
        self.extra: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def __call__(self, path: str, name: str | None = None, *, split: str) -> datasets.Dataset:
        self.asked.append((path, name, split))
        for task in OWN:
            key = "anli" if task.startswith("anli") else task
            where, config, columns, classes = HUB[key]
            for mine in splits(TASKS[task]):
                theirs = HUB_SPLITS.get(f"{task}/{mine}", HUB_SPLITS.get(mine, mine))
                if key == "anli":
                    theirs = f"{mine}_{task.removeprefix('anli_')}"
                if (where, config, theirs) == (path, name, split):
                    lines = [*rows(task, mine), *self.extra.get((task, mine), [])]
                    return self._dataset(lines, columns, classes, self.orders.get(task))
        raise FileNotFoundError(f"no {path} {name} {split}")

    def _dataset(
        self,
        lines: list[dict[str, Any]],
        columns: list[str],
        classes: list[str] | None,
        order: list[str] | None,
    ) -> datasets.Dataset:
        texts = {
            column: [line[key] for line in lines]
            for column, key in zip(columns, ("text_a", "text_b"), strict=False)
        }
        labels = [line["label"] for line in lines]
        kind: Any = datasets.Value("float32")
        if classes is not None:
            kind = datasets.ClassLabel(names=order or classes)
            labels = [
                label if label == -1 else (order or classes).index(classes[label])
                for label in labels
            ]
        features = datasets.Features(
            {**dict.fromkeys(columns, datasets.Value("string")), "label": kind}
        )
        return datasets.Dataset.from_dict({**texts, "label": labels}, features=features)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub()
    monkeypatch.setattr(datasets, "load_dataset", fake)
    return fake


@pytest.mark.parametrize("name", TASKS)
def test_the_hub_and_the_folder_give_the_same_data(name: str, hub: FakeHub, folder: Path) -> None:
    found = load_task(name)
    assert found == load_task(name, folder)
    assert found.fingerprint() == load_task(name, folder).fingerprint()
    assert len(set(hub.asked)) == len(hub.asked), "a split was loaded twice"


def test_classes_are_told_by_their_names_whatever_their_order_on_the_hub(
    hub: FakeHub, folder: Path
) -> None:
    hub.orders = {
        "mnli": ["contradiction", "entailment", "neutral"],
        "rte": ["not_entailment", "entailment"],
    }
    for name in ("mnli", "rte"):
        assert load_task(name).fingerprint() == load_task(name, folder).fingerprint()


def test_samples_of_the_hub_without_a_label_are_left_out(hub: FakeHub) -> None:
    hub.extra["snli", "train"] = [{"text_a": "no", "text_b": "consensus", "label": -1}]
    data = load_task("snli")
    assert data.train == examples("snli/train")
    assert "snli/train: 1 samples without a label (-1) are left out" in data.notes


def test_other_classes_or_columns_than_expected_are_refused(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HUB, "cola", ("nyu-mll/glue", "cola", ["sentence"], ["wrong", "right"]))
    with pytest.raises(
        DataError,
        match="the classes of cola/dev must be unacceptable, acceptable, got wrong, right",
    ):
        load_task("cola")
    monkeypatch.setitem(HUB, "sst2", ("nyu-mll/glue", "sst2", ["text"], ["negative", "positive"]))
    with pytest.raises(
        DataError, match=r"sst2/dev must have a column 'sentence', got text, label; .* with --data"
    ):
        load_task("sst2")


def test_a_data_set_in_the_form_of_the_hub_is_read_by_the_real_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """A folder NAMESPACE/NAME in the working directory goes before the hub's of that name."""
    place = tmp_path / "nyu-mll" / "glue"
    fake = FakeHub()
    for split in ("train", "validation"):
        (place / "rte").mkdir(parents=True, exist_ok=True)
        fake("nyu-mll/glue", "rte", split=split).to_parquet(
            place / "rte" / f"{split}-00000-of-00001.parquet"
        )
    card = "---\nconfigs:\n- config_name: rte\n  data_files:\n  - split: train\n    path: rte/train-*\n"
    (place / "README.md").write_text(
        card + "  - split: validation\n    path: rte/validation-*\n---\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    assert load_task("rte").fingerprint() == load_task("rte", folder).fingerprint()


def test_without_a_connection_the_error_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("Couldn't reach 'nyu-mll/glue' on the Hub\n(traceback)")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError) as raised:
        load_task("rte")
    assert str(raised.value) == (
        "'nyu-mll/glue' (rte, validation) cannot be loaded from the Hugging Face hub: Couldn't "
        "reach 'nyu-mll/glue' on "
        "the Hub. Without a connection, give a folder of files with --data or ADVREG_DATA"
    )


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        DataError, match=r"package datasets; install advreg\[data\], or give a folder .* --data"
    ):
        load_task("rte")


# ---- one number

# RTE, MRPC, CoLA, SST-2, STS-B, QNLI, QQP, MNLI and the average, as printed in the paper's table
PAPER = {
    "BERT": (63.5, (84.1, 89.0), 54.7, 92.9, (89.2, 88.8), 91.1, (90.9, 88.3), (84.5, 84.4), 81.5),
    "FreeAT": (
        68.0,
        (85.0, 89.2),
        57.5,
        93.2,
        (89.5, 89.0),
        91.3,
        (91.2, 88.5),
        (84.9, 85.0),
        82.6,
    ),
    "FreeLB": (
        70.0,
        (86.0, 90.0),
        58.9,
        93.4,
        (89.7, 89.2),
        91.5,
        (91.4, 88.4),
        (85.4, 85.5),
        83.3,
    ),
    "R3F": (70.4, (87.0, 91.0), 59.1, 93.4, (90.1, 89.8), 92.0, (91.7, 88.8), (85.2, 85.4), 83.7),
    "SMART": (71.2, (87.7, 91.3), 59.1, 93.0, (90.0, 89.4), 91.7, (91.5, 88.5), (85.6, 86.0), 83.8),
    "ARCH": (72.2, (88.0, 91.6), 61.1, 93.6, (90.6, 90.2), 92.2, (91.9, 89.1), (85.6, 86.0), 84.5),
}
COLUMNS = ("rte", "mrpc", "cola", "sst2", "stsb", "qnli", "qqp", "mnli")


@pytest.mark.parametrize("method", PAPER)
def test_the_average_is_that_of_the_paper(method: str) -> None:
    *printed, average = PAPER[method]
    per_task = {}
    for task, values in zip(COLUMNS, printed, strict=True):
        scores = values if isinstance(values, tuple) else (values,)
        named = dict(zip(TASKS[task].main_metrics, (score / 100 for score in scores), strict=True))
        per_task[task] = main_score(task, named)
    assert average_score(per_task) == pytest.approx(average, abs=0.0501)


def test_a_score_of_a_further_set_may_be_absent_but_not_one_of_the_main_set() -> None:
    assert main_score("mnli", {"accuracy": 0.5, "loss": 1.0}) == 50
    assert main_score("mnli", {"accuracy": 0.5, "mm_accuracy": 0.6}) == pytest.approx(55)
    with pytest.raises(DataError, match="mrpc is judged by accuracy, f1, got accuracy"):
        main_score("mrpc", {"accuracy": 0.5})
    assert math.isnan(main_score("cola", {"matthews": None}))


@given(st.dictionaries(st.sampled_from(list(TASKS)), st.floats(0, 100), min_size=1))
def test_the_average_counts_each_task_once(per_task: dict[str, float]) -> None:
    assert average_score(per_task) == pytest.approx(sum(per_task.values()) / len(per_task))


def test_an_average_of_nothing_or_of_an_unknown_task_is_refused() -> None:
    with pytest.raises(DataError, match="at least one task, got none"):
        average_score({})
    with pytest.raises(DataError, match="unknown task 'wnli'"):
        average_score({"wnli": 50.0})
