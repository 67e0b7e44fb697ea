from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from advreg.cli.saying import Notices
from advreg.cli.train import (
    comparison,
    leave_card,
    next_steps,
    no_better_than_a_constant,
    relative_time,
    spread,
)
from advreg.lab.kinds.registry import kind_of
from advreg.records.run import ModelInfo, RunRecord, TaskInfo
from comparisons import run_record

scores = st.floats(-1, 1, width=32)
seconds = st.floats(1e-4, 10)


def record(method: str, seed: int, time: float | None = 1.0, **outcome: Any) -> RunRecord:
    made = run_record(method, seed, {"accuracy": 0.5})
    usual = {
        "timing": {"seconds_per_step": time, "steps": 10.0},
        "passes": {"forward": 1, "backward": 1},
    }
    return dataclasses.replace(
        made, outcome=dataclasses.replace(made.outcome, **{**usual, **outcome})
    )


def rows(done: Sequence[RunRecord]) -> dict[str, list[str]]:
    table = comparison(done)
    columns = [list(map(str, column.cells)) for column in table.columns]
    return {row[0]: list(row[1:]) for row in zip(*columns, strict=True)}


@given(st.lists(scores, min_size=2, max_size=8))
def test_spread_is_the_mean_and_the_sample_standard_deviation(values: list[float]) -> None:
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    variance = sum((value - mean) ** 2 for value in exact) / (len(exact) - 1)
    shown_mean, shown_deviation = spread(values).split(" ± ")
    assert float(shown_mean) == pytest.approx(float(mean), abs=0.051)
    assert float(shown_deviation) == pytest.approx(math.sqrt(variance), abs=0.051)


def test_a_single_value_has_no_deviation() -> None:
    assert spread([0.25], 3) == "0.250"


@given(st.dictionaries(st.integers(0, 20), st.tuples(seconds, seconds), min_size=1, max_size=5))
def test_relative_time_averages_the_ratios_seed_by_seed(
    times: dict[int, tuple[float, float]],
) -> None:
    plain = [record("standard", seed, time[0]) for seed, time in times.items()]
    mine = [record("arch", seed, time[1]) for seed, time in reversed(times.items())]
    expected = sum(time[1] / time[0] for time in times.values()) / len(times)
    assert float(relative_time(mine, [*mine, *plain])) == pytest.approx(
        expected, rel=1e-3, abs=0.00501
    )
    assert relative_time(plain, [*mine, *plain]) == "1.00"


def test_relative_time_leaves_out_seeds_that_standard_did_not_run() -> None:
    mine = [record("arch", 1, 3.0), record("arch", 2, 100.0)]
    assert relative_time(mine, [*mine, record("standard", 1, 2.0)]) == "1.50"


@pytest.mark.parametrize(
    "plain",
    [[], [record("standard", 2)], [record("standard", 1, 0.0)], [record("standard", 1, None)]],
)
def test_there_is_no_relative_time_without_a_standard_run_of_the_seed(
    plain: list[RunRecord],
) -> None:
    mine = [record("arch", 1)]
    assert relative_time(mine, [*mine, *plain]) == "–"


def test_the_table_has_a_row_for_each_method_in_the_order_of_the_runs() -> None:
    done = [
        record("standard", 0, 1.0, metrics={"accuracy": 0.5}),
        record(
            "arch",
            0,
            3.0,
            metrics={"accuracy": 0.75},
            passes={"forward": 2, "backward": 1},
            cache_bytes=2 * 10**6,
        ),
        record("standard", 1, 2.0, metrics={"accuracy": 0.75}),
        record(
            "arch",
            1,
            2.0,
            metrics={"accuracy": 1.0},
            passes={"forward": 3, "backward": 1.5},
            cache_bytes=10**6,
        ),
    ]
    assert rows(done) == {
        "standard": ["2", "62.5 ± 17.7", "1.00", "1.00", "1.00", "–"],
        "arch": ["2", "87.5 ± 17.7", "2.00", "2.50", "1.25", "2.0 MB"],
    }
    assert list(rows(done)) == ["standard", "arch"]
    assert comparison(done).title == "reviews: dev accuracy, mean ± sd over seeds"
    assert [column.header for column in comparison(done).columns][3] == "step time"


def main_score(one: RunRecord) -> tuple[str, float]:
    """The score that the table shows, by its name in the title, and its value."""
    table = kind_of(one.task).table(one)
    name = table.title.removeprefix(f"{one.task.name}: dev ").removesuffix(", mean ± sd over seeds")
    return name, table.scores(one)[0]


def test_a_regression_is_judged_by_pearson_and_a_missing_score_is_not_a_number() -> None:
    scored = record("r3f", 0, metrics={"pearson": 0.5, "rmse": 0.1})
    assert main_score(scored) == ("pearson", 50.0)
    missing = record("r3f", 0, metrics={"pearson": None, "rmse": None})
    assert math.isnan(main_score(missing)[1])
    assert rows([missing])["r3f"][1] == "nan"


@pytest.mark.parametrize(
    ("task", "metrics", "expected"),
    [
        ("cola", {"accuracy": 0.75, "matthews": 0.5}, ("matthews", 50.0)),
        ("rte", {"accuracy": 0.75, "loss": 0.5}, ("accuracy", 75.0)),
        ("mrpc", {"accuracy": 0.5, "f1": 0.75}, ("mean of accuracy, f1", 62.5)),
        ("mnli", {"accuracy": 0.5, "mm_accuracy": 0.75}, ("mean of accuracy, mm_accuracy", 62.5)),
        ("mnli", {"accuracy": 0.5}, ("accuracy", 50.0)),
        (
            "stsb",
            {"pearson": 0.5, "spearman": 0.25, "rmse": 1.0},
            ("mean of pearson, spearman", 37.5),
        ),
        ("stsb", {"pearson": 0.5, "rmse": 1.0}, ("pearson", 50.0)),
    ],
)
def test_a_named_task_is_judged_by_its_main_scores(
    task: str, metrics: dict[str, float], expected: tuple[str, float]
) -> None:
    one = record("arch", 0, metrics=metrics)
    assert main_score(dataclasses.replace(one, task=TaskInfo(name=task))) == expected


def test_a_mean_of_scores_is_named_in_full_in_the_title_alone() -> None:
    one = dataclasses.replace(
        record("arch", 0, metrics={"accuracy": 0.5, "f1": 0.75}), task=TaskInfo(name="mrpc")
    )
    table = comparison([one])
    assert table.title == "mrpc: dev mean of accuracy, f1, mean ± sd over seeds"
    assert [column.header for column in table.columns][2] == "mean"
    assert rows([one])["arch"][1] == "62.5"


def judged(method: str, seed: int, share: float | None, **metrics: float) -> RunRecord:
    """A run on dev samples of which this share has the commonest class."""
    details = {} if share is None else {"majority": {"label": "neg", "share": share}}
    task = TaskInfo(name="reviews", details={"labels": ["neg", "pos"], **details})
    return dataclasses.replace(record(method, seed, metrics=metrics), task=task)


def test_the_constant_answer_has_a_row_and_what_is_no_better_is_warned_of() -> None:
    done = [
        judged("standard", 0, 0.535, accuracy=0.5),
        judged("standard", 1, 0.535, accuracy=0.57),
        judged("r3f", 0, 0.535, accuracy=0.6),
        judged("r3f", 1, 0.535, accuracy=0.48),
    ]
    assert "majority: the answer is always 'neg'" in str(comparison(done).caption)
    assert rows(done)["majority"][:2] == ["", "53.5"]
    assert len(list(no_better_than_a_constant(done[:2]))) == 1  # 53.5: exactly as good
    assert list(no_better_than_a_constant(done[2:])) == []
    (told,) = no_better_than_a_constant(done[3:])
    assert told.startswith(
        "WARNING r3f scores 48.0, no better than one answer for every sample (majority: 53.5)"
    )


def test_a_task_with_another_score_or_an_old_record_has_no_constant_answer() -> None:
    old = judged("standard", 0, None, accuracy=0.1)
    assert list(rows([old])) == ["standard"]
    assert list(no_better_than_a_constant([old])) == []
    cola = judged("standard", 0, 0.7, matthews=0.1, accuracy=0.1)
    cola = dataclasses.replace(cola, task=dataclasses.replace(cola.task, name="cola"))
    assert list(rows([cola])) == ["standard"]


def test_uneven_classes_have_columns_of_their_own() -> None:
    table = comparison([judged("r3f", 0, 0.9, accuracy=0.92, macro_f1=0.5, ece=0.03)])
    shown = {str(column.header): list(column.cells) for column in table.columns}
    assert {name: shown[name] for name in ("accuracy", "macro F1", "ECE")} == {
        "accuracy": ["92.0", "90.0"],
        "macro F1": ["50.0", ""],
        "ECE": ["3.0", ""],
    }


def test_the_end_says_how_to_predict() -> None:
    one = judged("r3f", 0, 0.9, accuracy=0.92)
    where, how, python = next_steps(Path("runs/reviews-minilm/r3f-seed0"), one)
    assert where.endswith("runs/reviews-minilm/METHOD-seedN")
    assert how.startswith("to predict: advreg predict runs/reviews-minilm/r3f-seed0 < texts.txt")
    assert (
        'pipeline("text-classification", model="runs/reviews-minilm/r3f-seed0/model", truncation=True)'
        in python
    )


def test_a_notice_is_printed_once_and_another_one_too() -> None:
    out = io.StringIO()
    notices = Notices(Console(file=out, width=20))
    for text in (
        "a long notice, longer than the console",
        "another",
        "a long notice, longer than the console",
    ):
        notices(text)
    assert out.getvalue() == "a long notice, longer than the console\nanother\n"


def carded(folder: Path, model: str) -> str:
    leave_card(dataclasses.replace(record("arch", 1), model=ModelInfo(name=model)), folder)
    return (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("model", ["bert-base-uncased", "org/bert"])
def test_a_card_names_the_model_on_the_hub_that_it_was_made_of(model: str, tmp_path: Path) -> None:
    text = carded(tmp_path, model)
    assert f'base_model: "{model}"' in text
    assert "ARCH (Zuo et al. 2021) on reviews" in text


@pytest.mark.parametrize("model", ["small", "minilm", "transformer-iwslt", "./mine", "here"])
def test_a_card_does_not_name_what_the_hub_does_not_know(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    assert "base_model" not in carded(tmp_path, model)


def test_a_run_without_a_model_has_no_card(tmp_path: Path) -> None:
    leave_card(record("arch", 1), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_of_many_processes_one_leaves_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(FileNotFoundError):
        carded(tmp_path, "small")
    monkeypatch.setenv("RANK", "0")
    assert "ARCH" in carded(tmp_path, "small")
