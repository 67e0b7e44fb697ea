"""TrainingArguments from plain values."""

from pathlib import Path
from typing import Any

import pytest
import torch

from advreg.lab.kinds.arguments import training_arguments

QUIET = {"report_to": "none", "use_cpu": True}


def test_fields_reach_the_arguments(tmp_path: Path) -> None:
    made = training_arguments(
        tmp_path, "fp32", {**QUIET, "learning_rate": 3e-4, "num_train_epochs": 7}
    )
    assert made.output_dir == str(tmp_path)
    assert (made.learning_rate, made.num_train_epochs) == (3e-4, 7)


@pytest.mark.parametrize(("precision", "half"), [("fp32", (False, False)), ("bf16", (True, False))])
def test_precision_sets_the_flags(precision: str, half: tuple[bool, bool], tmp_path: Path) -> None:
    made = training_arguments(tmp_path, precision, QUIET)
    assert (made.bf16, made.fp16) == half


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("learning_rat", "learning_rate"),
        ("warmup_step", "warmup_steps"),
        ("num_epochs", "num_train_epochs"),
    ],
)
def test_an_unknown_field_is_refused_with_the_close_name(
    field: str, meant: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=rf"no field '{field}' \(did you mean '{meant}'\?\)"):
        training_arguments(tmp_path, "fp32", {field: 1})


def test_a_field_like_no_other_is_refused_without_a_guess(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no field 'zzz'; see its documentation"):
        training_arguments(tmp_path, "fp32", {"zzz": 1})


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("max_steps", "abc", "max_steps must be a whole number, got 'abc'"),
        ("weight_decay", [1], r"weight_decay must be a number, got \[1\]"),
        ("save_total_limit", 1.5, r"save_total_limit must be a whole number, got 1\.5"),
        ("torch_compile", "perhaps", "torch_compile must be true or false, got 'perhaps'"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(
    field: str, value: object, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=told):
        training_arguments(tmp_path, "fp32", {**QUIET, field: value})


def test_nothing_is_a_value_where_the_library_says_so(tmp_path: Path) -> None:
    made = training_arguments(
        tmp_path, "fp32", {**QUIET, "save_total_limit": None, "max_steps": 3.0}
    )
    assert (made.save_total_limit, made.max_steps) == (None, 3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_without_a_gpu_is_refused(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    with pytest.raises(
        ValueError,
        match=f"precision must be fp32 without a GPU, got '{precision}'; bf16 may be tried",
    ):
        training_arguments(tmp_path, precision, {"report_to": "none"})


def test_an_unknown_precision_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="precision must be one of fp32, bf16, fp16, got 'fp8'"):
        training_arguments(tmp_path, "fp8", {})


@pytest.mark.parametrize(
    "fields",
    [{"eval_strategy": "often"}, {"load_best_model_at_end": True, "save_strategy": "steps"}],
)
def test_a_value_the_library_refuses_is_shown_with_its_reason(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(
        ValueError, match=rf"TrainingArguments refuses .*{next(iter(fields))}.*: \S+"
    ):
        training_arguments(tmp_path, "fp32", {**QUIET, **fields})


def test_none_is_a_way_to_report_to_nothing(tmp_path: Path) -> None:
    for given in (None, "none"):
        assert training_arguments(tmp_path, "fp32", {"report_to": given}).report_to == []
