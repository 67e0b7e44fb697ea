from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advreg.cli.app import app
from advreg.cli.flags import option_flags, parse_assignments, setting_flags
from advreg.lab.runs.settings import TrainSettings
from advreg.methods import OptionInfo, create, describe, registry


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What ``advreg train ARGUMENTS`` would carry out, in a folder with two tables."""
    monkeypatch.chdir(tmp_path)
    for name in ("x.csv", "y.csv"):
        (tmp_path / name).write_text("text,a,label\n")
    seen: list[tuple[TrainSettings, bool]] = []
    monkeypatch.setattr(
        "advreg.cli.train.run_all",
        lambda settings, resume, console: seen.append((settings, resume)),
    )

    def parse(*arguments: object) -> tuple[TrainSettings, bool]:
        result = CliRunner().invoke(app, ["train", *map(str, arguments)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return seen[-1]

    return parse


def another(method: str, option: OptionInfo) -> Any:
    """A value the option takes that is not its default."""
    if (method, option.name) == ("freeat", "step_rule"):
        return "normalised"
    if get_origin(option.type) is Literal:
        return next(choice for choice in get_args(option.type) if choice != option.default)
    if option.type is bool:
        return not option.default
    if option.type in (float, float | None):
        return 0.375
    return "elsewhere" if option.type == str | None else option.default + 1


CASES = [(name, option) for name in registry for option in describe(name)]


@pytest.mark.parametrize(("method", "option"), CASES, ids=lambda case: getattr(case, "name", case))
def test_every_options_flag_reaches_its_method_and_changes_nothing_else(
    settings_of: Any, method: str, option: OptionInfo
) -> None:
    value = another(method, option)
    settings, _ = settings_of(
        *("--method", method, "--model", "m", "--preset", "none", "--epochs", "20"),
        *(f"--{option.name.replace('_', '-')}", value),
    )
    assert settings.method(method).options() == {**create(method).options(), option.name: value}


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--task", "files", "--train", "x.csv"], "train", "x.csv"),
        (["--train", "x.csv", "--dev", "y.csv"], "dev", "y.csv"),
        (["--task", "rte", "--data", "d"], "data", "d"),
        (["--train", "x.csv", "--text-column", "a"], "text_column", "a"),
        (["--train", "x.csv", "--pair-column", "a"], "pair_column", "a"),
        (["--train", "x.csv", "--label-column", "a"], "label_column", "a"),
        (["--model", "a/b"], "model", "a/b"),
        (["--method", "r3f", "--method", "smart"], "methods", ("r3f", "smart")),
        (["--preset", "translation"], "preset", "translation"),
        (["--method", "r3f,smart"], "methods", ("r3f", "smart")),
        (["--methods", "r3f,smart"], "methods", ("r3f", "smart")),
        (["--seeds", "3"], "seeds", (0, 1, 2)),
        (["--seeds", "5,7"], "seeds", (5, 7)),
        (["--seeds", "5", "--seeds", "7,"], "seeds", (7,)),
        (["--seed", "3", "--seed", "0"], "seeds", (3, 0)),
        (["--seed", "3"], "seeds", (3,)),
        (["--epochs", "3"], "epochs", 3),
        (["--batch-size", "3"], "batch_size", 3),
        (["--learning-rate", "1e-5"], "learning_rate", 1e-5),
        (["--warmup", "0"], "warmup", 0.0),
        (["--precision", "bf16"], "precision", "bf16"),
        (["--max-length", "16"], "max_length", 16),
        (["--encoder-dropout", "0"], "encoder_dropout", 0.0),
        (["--head-dropout", "0"], "head_dropout", 0.0),
        (["--site", "block"], "site", "block"),
        (["--output", "o"], "output", "o"),
        (
            ["--set", "weight_decay=0.5", "--set", "optim=sgd"],
            "training",
            {"weight_decay": 0.5, "optim": "sgd"},
        ),
    ],
)
def test_every_settings_flag_sets_it(
    settings_of: Any, arguments: list[str], name: str, value: Any
) -> None:
    settings, resume = settings_of(*arguments)
    assert getattr(settings, name) == value
    assert not resume


def test_a_flag_with_a_methods_name_is_for_that_method_or_part(settings_of: Any) -> None:
    """One for one of two methods, or for a part of a sum; ``--help`` does not list them."""
    settings, _ = settings_of(
        *("--method", "temporal+smart", "--method", "rdrop", "--model", "m", "--preset", "none"),
        *("--temporal.weight", "10", "--smart.start-at", "0.67", "--rdrop.fuse", "no"),
    )
    assert settings.methods == ("smart+temporal", "rdrop")
    options = settings.method("smart+temporal").options()
    usual = create("smart+temporal").options()
    assert options == usual | {"temporal.weight": 10.0, "smart.start_at": 0.67}
    assert settings.method("rdrop").options() == create("rdrop").options() | {"fuse": False}
    told = CliRunner().invoke(app, ["train", "--help"]).output
    assert "--weight" in told
    assert "--temporal.weight" not in told


def test_none_is_a_value_where_an_option_may_be_absent(settings_of: Any) -> None:
    settings, resume = settings_of("--refresh-every", "none", "--resume")
    assert settings.method("arch").options()["refresh_every"] is None
    assert resume


def test_without_a_flag_the_settings_are_the_defaults(settings_of: Any) -> None:
    assert settings_of()[0] == TrainSettings(options={"standard": {}, "arch": {}})


@pytest.mark.usefixtures("settings_of")
def test_an_empty_value_is_refused_instead_of_passed_over() -> None:
    result = CliRunner().invoke(app, ["train", "--radius", ""])
    assert str(result.exception) == "radius must be a number, got ''"


def test_no_two_flags_have_one_name_and_each_has_help() -> None:
    declared = [*setting_flags(), *option_flags()]
    names = [name for flag in declared for name in info(flag).param_decls]
    assert len(set(names)) == len(names)
    assert [flag.name for flag in declared if not info(flag).help] == []


def info(flag: inspect.Parameter) -> Any:
    return get_args(flag.annotation)[1]


def test_the_help_of_a_shared_option_names_its_methods() -> None:
    helps = {flag.name: info(flag).help for flag in option_flags()}
    for name, text in helps.items():
        owners = [method for method in registry if name in create(method).options()]
        assert text.endswith(f"({', '.join(owners)})")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("1e-3", 1e-3), ("True", True), ("false", False), ("none", None), ("cosine", "cosine"),
        ("[1, 2]", [1, 2]), ("a=b", "a=b"), ("", ""), ("{'a': 1}", {"a": 1}),
    ],
)  # fmt: skip
def test_an_assignments_value_is_a_literal_where_it_can_be(text: str, value: Any) -> None:
    found = parse_assignments([f" name = {text} "])["name"]
    assert (found, type(found)) == (value, type(value))


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans(),
    )
)
def test_assignments_give_back_what_was_written(values: dict[str, Any]) -> None:
    assert parse_assignments([f"{name}={value!r}" for name, value in values.items()]) == values


@pytest.mark.parametrize("pair", ["name", "=3", " = 3", ""])
def test_an_assignment_without_name_or_sign_is_refused(pair: str) -> None:
    with pytest.raises(ValueError, match=f"--set takes NAME=VALUE, got '{pair}'"):
        parse_assignments([pair])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--fuse", "--model", "minilm"],
        ["--joint", "--model", "minilm"],
        ["--compile-layers", "maybe"],
    ],
)
def test_what_is_true_or_false_says_so_before_a_word_that_it_has_swallowed_leads_astray(
    arguments: list[str],
) -> None:
    told = CliRunner().invoke(app, ["train", *arguments], env={"COLUMNS": "120"})
    assert told.exit_code == 2
    assert (
        f"Invalid value for '{arguments[0]}': must be yes or no, got '{arguments[1]}'"
        in told.output
    )
