from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from advreg.lab.runs.bases import options_for, read_settings, saved_settings
from advreg.lab.runs.settings import SettingsError, TrainSettings, decisive, flag_name
from advreg.lab.search.compare_settings import read_compare
from advreg.lab.search.study_settings import read_study
from advreg.methods import create, describe, preset, registry


def toml(folder: Path, text: str) -> Path:
    path = folder / "settings.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    path = toml(tmp_path, "epochs = 7\nbatch_size = 4\n")
    settings = read_settings(path, {"epochs": "9"}, {})
    assert (settings.epochs, settings.batch_size, settings.warmup) == (9, 4, TrainSettings.warmup)


def test_an_options_flag_wins_over_the_methods_table_and_leaves_its_other_entries(
    tmp_path: Path,
) -> None:
    path = toml(tmp_path, "methods = ['arch']\n[arch]\nradius = 0.5\nrefresh_every = 4\n")
    method = read_settings(path, {"radius": "0.25"}, {}).method("arch")
    assert (method.options()["radius"], method.options()["refresh_every"]) == (0.25, 4)


def test_a_training_flag_wins_over_the_training_table_field_by_field(tmp_path: Path) -> None:
    path = toml(tmp_path, "[training]\nweight_decay = 0.1\nsave_total_limit = 5\n")
    settings = read_settings(path, {}, {"weight_decay": 0.3})
    assert settings.training == {"weight_decay": 0.3, "save_total_limit": 5}


def test_every_setting_may_stand_in_the_file_under_its_own_name(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "task": "files", "train": "a.csv", "dev": "b.csv", "text_column": "t", "pair_column": "p", "label_column": "l",
        "label_kind": "regression", "drop_empty": True,
        "model": "m", "methods": ("smart",), "preset": "understanding", "seeds": (3, 5), "epochs": 2, "batch_size": 3,
        "learning_rate": 0.5, "warmup": 0.25, "precision": "bf16", "max_length": 9, "round_lengths": 8,
        "compile_layers": True,
        "encoder_dropout": 0.5, "head_dropout": 0.25, "site": "block", "on_non_finite": "skip", "output": "o",
        "label_smoothing": 0.2, "weight_decay": 0.03, "weight_ema": 0.9,
    }  # fmt: skip
    lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    settings = read_settings(toml(tmp_path, "\n".join(lines)), {}, {})
    assert {name: getattr(settings, name) for name in given} == given
    fields = {field.name for field in dataclasses.fields(TrainSettings)}
    assert fields - given.keys() == {"data", "options", "training", "trust_remote_code"}
    assert read_settings(toml(tmp_path, "task = 'rte'\ndata = 'd'"), {}, {}).data == "d"


def test_a_flag_of_an_option_reaches_each_method_that_has_it_and_no_other() -> None:
    settings = read_settings(
        None, {"methods": ["arch", "freeat", "standard"], "radius": "0.7", "replays": "5"}, {}
    )
    assert (
        settings.method("arch").options()["radius"]
        == settings.method("freeat").options()["radius"]
        == 0.7
    )
    assert settings.method("freeat").options()["replays"] == 5
    assert settings.options["standard"] == {}
    assert "replays" not in settings.options["arch"]


def test_options_for_gives_every_option_to_exactly_its_owners() -> None:
    names = list(registry)
    for option in {option.name for name in names for option in describe(name)}:
        owners = {name for name in names if option in create(name).options()}
        given = options_for(names, {option: "x"})
        assert {name for name, options in given.items() if options} == owners


def test_a_sum_of_methods_is_one_method_with_the_options_of_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'methods = ["temporal+smart", "smart"]\n["temporal+smart"]\ntemporal.weight = 10\n'
        '"smart.radius" = 0.7\n'
    )
    flags = {"smart.ascent_steps": "2", "temporal.start_at": "0.5"}
    settings = read_settings(path, flags, {})
    assert settings.methods == ("smart+temporal", "smart")
    options = settings.method("smart+temporal").options()
    assert options["temporal.weight"] == 10.0
    assert (options["smart.radius"], options["smart.ascent_steps"]) == (0.7, 2)
    assert (options["temporal.start_at"], options["smart.start_at"]) == (0.5, 0.0)
    alone = settings.method("smart").options()
    assert (alone["ascent_steps"], alone["radius"]) == (2, 0.3)
    assert options["smart.step_size"] == 0.3  # as the built-in task has it for smart alone


def test_an_option_without_a_part_reaches_each_part_that_has_it() -> None:
    settings = read_settings(None, {"methods": ["rdrop+temporal", "r3f"], "weight": "4"}, {})
    options = settings.method("rdrop+temporal").options()
    assert (options["rdrop.weight"], options["temporal.weight"]) == (4.0, 4.0)
    assert settings.method("r3f").options()["weight"] == 4.0


def test_a_sum_in_another_order_is_the_same_method() -> None:
    with pytest.raises(SettingsError, match="methods must be different ones"):
        read_settings(None, {"methods": ["temporal+smart", "smart+temporal"]}, {})


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        (["smart+freelb"], "freelb cannot be combined with other methods"),
        (["smart+smrt"], "unknown method 'smrt'"),
    ],
)
def test_a_sum_that_cannot_be_is_refused(methods: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_settings(None, {"methods": methods}, {})


def test_an_option_that_no_chosen_method_has_is_refused_and_the_likely_one_named() -> None:
    with pytest.raises(
        SettingsError,
        match=r"of the methods arch has the option 'radios' \(did you mean 'radius'\?\)",
    ):
        options_for(["arch"], {"radios": "1"})
    with pytest.raises(
        SettingsError, match="none of the methods arch, standard has the option 'replays'"
    ):
        read_settings(None, {"methods": ["arch", "standard"], "replays": "3"}, {})


def test_a_training_file_makes_the_task_files_unless_the_task_is_given() -> None:
    assert read_settings(None, {"train": "a.csv"}, {}).task == "files"
    with pytest.raises(SettingsError, match="docstrings task brings its own data; leave --train"):
        read_settings(None, {"train": "a.csv", "task": "docstrings"}, {})


def test_the_built_in_task_tunes_arch_and_smart_only_with_the_small_model_and_below_the_users_options() -> (
    None
):
    default, plain = create("arch").options(), TrainSettings().method("arch").options()
    assert plain["refresh_every"] == 3 != default["refresh_every"]
    other = TrainSettings(model="other").method("arch").options()
    assert other == {**default, "refresh_every": 4}  # of 12 epochs
    files = TrainSettings(task="files", train="a.csv")
    assert files.method("arch").options() == {**default, "refresh_every": 4}
    mine = TrainSettings(options={"arch": {"refresh_every": 2}}).method("arch").options()
    assert mine == {**plain, "refresh_every": 2}
    smart = TrainSettings().method("smart").options()
    assert [smart[name] for name in ("radius", "step_size")] == [
        plain[name] for name in ("radius", "step_size")
    ]


def test_a_preset_lies_below_the_users_options_and_replaces_those_of_the_built_in_task() -> None:
    settings = read_settings(
        None, {"preset": "understanding", "methods": ["arch", "smart"], "radius": "0.5"}, {}
    )
    for name in ("arch", "smart"):
        expected = create(name, **{**preset("understanding", name), "radius": 0.5}).options()
        assert settings.method(name).options() == expected


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("rte", (16, 1e-4, 0.0)),
        ("mrpc", (8, 2e-4, 0.1)),
        ("mnli", (128, 1e-4, 0.1)),
        ("mr", (32, 1e-4, 0.1)),
    ],
)
def test_the_understanding_preset_is_the_papers_recipe_for_the_task(
    task: str, expected: tuple[int, float, float]
) -> None:
    settings = read_settings(None, {"preset": "understanding", "task": task}, {})
    assert (settings.batch_size, settings.peak_learning_rate, settings.encoder_dropout) == expected
    assert (settings.epochs, settings.warmup, settings.head_dropout) == (10, 0.1, 0.1)
    assert settings.site == "block"


def test_the_text_of_the_paper_by_itself_is_three_options_away_from_its_preset() -> None:
    flags = {
        "preset": "understanding",
        "step_rule": "gradient",
        "step_end": "project",
        "site": "tokens",
    }
    settings = read_settings(None, {"task": "rte", "methods": ["arch", "smart"], **flags}, {})
    assert settings.site == "tokens"
    for name in ("arch", "smart"):
        text = {
            "start_scale": 1e-5,
            "norm": "linf",
            "scope": "token",
            "radius": 1.0,
            "step_size": 1e-4,
            "ascent_steps": 1,
        }
        assert (
            settings.method(name).options()
            == create(
                name,
                start="normal",
                step_rule="gradient",
                **text,
                **({"refresh_every": None} if name == "arch" else {}),
            ).options()
        )


def test_what_is_given_wins_over_the_presets_training_settings(tmp_path: Path) -> None:
    path = toml(tmp_path, "task = 'rte'\npreset = 'understanding'\nbatch_size = 64\nepochs = 3\n")
    settings = read_settings(
        path, {"epochs": "4", "head_dropout": "none", "encoder_dropout": "0.3"}, {}
    )
    assert (settings.batch_size, settings.epochs, settings.learning_rate) == (64, 4, 1e-4)
    assert (settings.head_dropout, settings.encoder_dropout) == (None, 0.3)


def test_without_the_preset_or_with_that_of_translation_the_training_is_as_before() -> None:
    plain = read_settings(None, {"task": "rte"}, {})
    assert (plain.epochs, plain.batch_size, plain.head_dropout) == (
        TrainSettings.epochs,
        TrainSettings.batch_size,
        None,
    )
    other = read_settings(None, {"task": "rte", "preset": "translation"}, {})
    assert other == dataclasses.replace(plain, preset="translation")


def test_a_preset_may_have_fields_of_the_training_arguments_which_given_ones_win_over() -> None:
    usual = read_settings(None, {"task": "rte", "preset": "fine-tuning"}, {})
    assert usual.training == {"train_sampling_strategy": "group_by_length"}
    given = {"train_sampling_strategy": "random", "max_steps": 3}
    assert read_settings(None, {"task": "rte", "preset": "fine-tuning"}, given).training == given


def test_a_new_instance_of_a_method_is_made_each_time() -> None:
    settings = TrainSettings()
    assert settings.method("arch") is not settings.method("arch")


@pytest.mark.parametrize(
    ("model", "given", "rate"), [("small", None, 1e-3), ("x", None, 5e-5), ("small", 0.25, 0.25)]
)
def test_the_learning_rate_follows_the_model_unless_it_is_given(
    model: str, given: float | None, rate: float
) -> None:
    assert TrainSettings(model=model, learning_rate=given).peak_learning_rate == rate


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"epochs": "0"}, "epochs must be a whole number of 1 or more, got 0"),
        ({"epochs": "two"}, "epochs must be a whole number, got 'two'"),
        ({"epochs": "1.5"}, "epochs must be a whole number, got '1.5'"),
        ({"epochs": "inf"}, "epochs must be a whole number, got 'inf'"),
        ({"batch_size": "-3"}, "batch_size must be a whole number of 1 or more, got -3"),
        ({"round_lengths": "0"}, "round_lengths must be a whole number of 1 or more, got 0"),
        ({"learning_rate": "0"}, r"learning_rate must be a positive finite number, got 0\.0"),
        ({"learning_rate": "nan"}, "learning_rate must be a positive finite number, got nan"),
        ({"learning_rate": "inf"}, "learning_rate must be a positive finite number, got inf"),
        ({"warmup": "1"}, r"warmup must be at least 0 and below 1, got 1\.0"),
        ({"warmup": "nan"}, "warmup must be at least 0 and below 1, got nan"),
        ({"encoder_dropout": "-0.1"}, r"encoder_dropout must be at least 0 and below 1, got -0\.1"),
        ({"precision": "fp8"}, "precision must be one of fp32, bf16, fp16, got 'fp8'"),
        ({"preset": "understandin"}, "preset must be one of .*understanding.*, got 'understandin'"),
        ({"max_length": "long"}, "max_length must be a whole number, got 'long'"),
        (
            {"methods": ["ach"]},
            r"unknown method 'ach' \(did you mean 'arch'\?\); there are standard, ",
        ),
        (
            {"methods": ["arch", "arch"]},
            r"methods must be different ones, at least one, got \['arch', 'arch'\]",
        ),
        ({"methods": []}, r"methods must be different ones, at least one, got \[\]"),
        ({"seeds": ["1", "1"]}, r"seeds must be different numbers, at least one, got \[1, 1\]"),
        ({"seeds": [-1]}, "seeds must be at least 0 and below 4294967296, got -1"),
        (
            {"seeds": ["4294967296,"]},
            "seeds must be at least 0 and below 4294967296, got 4294967296",
        ),
        ({"seeds": "a"}, r"seeds must be how many \(3\) or which \(0,5,7\), got 'a'"),
        ({"seeds": "4294967296"}, "seeds must be how many, 1 to 10000, or which"),
        ({"task": "glue"}, "task must be one of docstrings, files, cola, sst2, .*, got 'glue'"),
        (
            {"task": "multi30k-en-d"},
            r"task must be one of .*, got 'multi30k-en-d' \(did you mean 'multi30k-en-de'\?\)",
        ),
        ({"task": "mnil"}, r"task must be one of .*, got 'mnil' \(did you mean 'mnli'\?\)"),
        (
            {"task": "rte", "train": "a.csv"},
            "the rte task brings its own data; leave --train and --dev out",
        ),
        (
            {"data": "d"},
            "data is a folder of named tasks, but the task is docstrings; give --task NAME too",
        ),
        ({"head_dropout": "1"}, r"head_dropout must be at least 0 and below 1, got 1\.0"),
        ({"task": "files"}, "task 'files' needs a training file; give --train FILE"),
        (
            {"dev": "b.csv"},
            r"dev 'b\.csv' needs a training file of its kind; give --train FILE too",
        ),
        ({"output": ""}, "output must be a text, not empty, got ''; correct it or leave it out"),
        ({"radius": "-1"}, r"radius must be a .*, got -1"),
        ({"radius": ""}, "radius must be a number, got ''"),
        (
            {"refresh_every": "0"},
            "refresh_every must be a whole number of 1 or more, or None .*, got 0",
        ),
        ({"cache_fraction": "2"}, r"cache_fraction must be above 0 and at most 1, got 2\.0"),
        ({"fuse": "perhaps"}, "fuse must be true or false, got 'perhaps'"),
        ({"divergence": "l2"}, "divergence must be one of kl, symmetric_kl, got 'l2'"),
    ],
)
def test_a_bad_value_is_refused_by_name_and_value(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_settings(None, flags, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "epoch = 3",
            r"settings.toml' has the unknown key 'epoch' \(did you mean 'epochs'\?\); it may have task, ",
        ),
        ("[ach]\nradius = 1", r"unknown key 'ach' \(did you mean 'arch'\?\)"),
        ("[options]\nradius = 1", "unknown key 'options'"),
        (
            "[arch]\nradios = 1",
            r"method 'arch' has no option 'radios' \(did you mean 'radius'\?\); it has weight, ",
        ),
        (
            "[smart]\nradios = 1",
            r"method 'smart' has no option 'radios' \(did you mean 'radius'\?\)",
        ),
        ("[arch]\nradius = 'wide'", "radius must be a number, got 'wide'"),
        ("arch = 3", r"settings.toml': arch must be a table, \[arch\], got 3"),
        ("training = 3", r"settings.toml': training must be a table, \[training\], got 3"),
        ("model = 3", "model must be a text, not empty, got 3"),
        ("output = ['a']", r"output must be a text, not empty, got \['a'\]"),
        ("site = 3", "site must be a text, not empty, got 3"),
        ("methods = [3]", "unknown method '3'"),
        ("epochs = true", "epochs must be a whole number, got True"),
        ("epochs = = 3", "settings.toml' cannot be read: .*line 1"),
    ],
)
def test_a_bad_file_is_refused_by_name_and_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_settings(toml(tmp_path, text), {}, {})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"config file '.*nowhere.toml' does not exist"):
        read_settings(tmp_path / "nowhere.toml", {}, {})


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_bytes(b"model = '\xff'")
    with pytest.raises(SettingsError, match=r"settings.toml' cannot be read: .*utf-8"):
        read_settings(tmp_path / "settings.toml", {}, {})


@pytest.mark.parametrize(
    ("text", "methods", "seeds"),
    [
        ("methods = 'r3f'\nseeds = 3", ("r3f",), (0, 1, 2)),
        ("methods = 'r3f,smart'\nseeds = '5,7'", ("r3f", "smart"), (5, 7)),
        ("methods = ['r3f', 'smart']\nseeds = [4]", ("r3f", "smart"), (4,)),
    ],
)
def test_methods_and_seeds_take_the_same_forms_in_the_file_as_on_the_command_line(
    tmp_path: Path, text: str, methods: tuple[str, ...], seeds: tuple[int, ...]
) -> None:
    settings = read_settings(toml(tmp_path, text), {}, {})
    assert (settings.methods, settings.seeds) == (methods, seeds)


@pytest.mark.parametrize(
    ("field", "flag"),
    [
        ("num_train_epochs", "--epochs"),
        ("per_device_train_batch_size", "--batch-size"),
        ("learning_rate", "--learning-rate"),
        ("seed", "--seeds"),
        ("output_dir", "--output"),
        ("bf16", "--precision"),
    ],
)
def test_a_training_field_that_is_a_setting_of_ours_is_refused_lest_the_record_be_untrue(
    field: str, flag: str
) -> None:
    with pytest.raises(
        SettingsError,
        match=f"training field '{field}' is a setting of advreg; use {flag} instead",
    ):
        read_settings(None, {}, {field: 1})


@pytest.mark.parametrize("field", [{"torch_compile": True}, {"torch_compile_backend": "inductor"}])
def test_a_model_is_compiled_as_a_whole_or_by_its_layers(field: dict[str, Any]) -> None:
    ((name, value),) = field.items()
    with pytest.raises(
        SettingsError, match=f"compile_layers must be off with {name}={value}, which compiles the"
    ):
        read_settings(None, {"compile_layers": "yes"}, field)
    assert read_settings(None, {"compile_layers": "no"}, field).training == field


def test_options_of_an_unknown_method_are_refused() -> None:
    with pytest.raises(
        SettingsError, match=r"options are given for the method 'ach' \(did you mean 'arch'\?\)"
    ):
        TrainSettings(options={"ach": {}})


def test_a_config_file_cannot_allow_the_code_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("trust_remote_code = true\n")
    with pytest.raises(
        SettingsError,
        match="trust_remote_code must be given as a flag; a file cannot set it",
    ):
        read_settings(tmp_path / "run.toml", {}, {})
    assert read_settings(None, {"trust_remote_code": True}, {}).trust_remote_code
    assert not read_settings(None, {}, {}).trust_remote_code


# ---- what a resumed run must agree on, and what it starts from


def test_what_a_resumed_run_must_agree_on_follows_from_the_roles_of_the_settings() -> None:
    """The facts of older plans: each of their names is still one."""
    facts = TrainSettings().facts()
    assert set(facts) == {
        "model", "site", "epochs", "batch_size", "warmup", "precision", "encoder_dropout", "head_dropout",
        "round_lengths", "compile_layers", "on_non_finite", "trust_remote_code", "learning_rate", "max_length",
        "training", "label_smoothing", "weight_decay", "weight_ema",
    }  # fmt: skip
    for name in ("label_smoothing", "weight_decay", "weight_ema"):
        assert facts[name] is None  # as in older plans, which do not have it
    assert (facts["learning_rate"], facts["max_length"]) == (1e-3, 32)  # in effect


@pytest.mark.parametrize(
    "name", ["logging_steps", "report_to", "disable_tqdm", "torch_compile_mode"]
)
def test_how_a_run_is_logged_and_computed_may_change(name: str) -> None:
    one, other = ({"epochs": 3, "training": {name: value, "max_steps": 9}} for value in (1, 2))
    assert decisive(one) == decisive(other)
    assert decisive(one) != decisive({"epochs": 3, "training": {"max_steps": 8}})


def test_a_plan_holds_all_settings_from_which_the_same_run_is_made(tmp_path: Path) -> None:
    flags = {"methods": "smart,arch", "seeds": "4,", "epochs": "2", "radius": "0.7", "warmup": "0"}
    made = read_settings(None, flags, {"weight_decay": 0.1})
    run = tmp_path / "arch-seed4"
    run.mkdir()
    (run / "plan.json").write_text(json.dumps({"settings": made.saved()}))
    saved = saved_settings(tmp_path)
    assert read_settings(None, {}, {}, saved) == made
    changed = read_settings(None, {"epochs": "5", "radius": "0.2"}, {"max_steps": 3}, saved)
    assert (changed.epochs, changed.training) == (5, {"weight_decay": 0.1, "max_steps": 3})
    assert changed.method("arch").options()["radius"] == 0.2
    (tmp_path / "more.toml").write_text("[arch]\nweight = 3\n")
    mine = read_settings(tmp_path / "more.toml", {}, {}, saved).method("arch").options()
    assert (mine["radius"], mine["weight"]) == (0.7, 3.0)
    assert "trust_remote_code" not in saved


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_plans_without_settings_are_passed_over(tmp_path: Path, content: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text(content)
    assert saved_settings(tmp_path) == {}


def test_a_pretrained_model_has_the_same_preset_in_every_command() -> None:
    flags = {"task": "rte", "model": "minilm"}
    one = read_settings(None, flags, {})
    many = read_compare(None, {**flags, "seeds": "2"}, {}).bases["rte"]
    studied = read_study(None, None, [], {**flags, "seeds": "2"}, {}).base
    assert one.preset == many.preset == studied.preset == "fine-tuning"
    assert one.facts() == many.facts() == studied.facts()
    assert read_settings(None, {**flags, "preset": "none"}, {}).preset is None
    assert read_settings(None, {"task": "rte"}, {}).preset is None


@pytest.mark.parametrize(
    ("given", "title"),
    [
        ({}, "docstrings"),
        ({"task": "rte"}, "rte"),
        ({"train": "data/reviews.csv.gz"}, "reviews"),
        ({"task": "multi30k-en-de", "data": "texts"}, "multi30k-en-de"),
        ({"task": "translation", "data": "corpus/", "source": "en", "target": "de"}, "corpus"),
    ],
)
def test_data_are_called_by_their_task_or_file(given: dict[str, str], title: str) -> None:
    assert read_settings(None, given, {}).title == title


@pytest.mark.parametrize(("epochs", "every"), [(12, 4), (4, 2), (2, 1), (20, 15), (15, 5), (1, 15)])
def test_the_usual_refreshes_fall_within_the_epochs(epochs: int, every: int) -> None:
    given = {"train": "a.csv", "epochs": epochs}
    method = TrainSettings(task="files", **given).method("arch")
    assert method.options()["refresh_every"] == every
    assert not [text for text in method.warnings(epochs) if "refresh_every" in text]
    summed = TrainSettings(task="files", methods=("arch+temporal",), **given)
    assert summed.method("arch+temporal").options()["arch.refresh_every"] == every


def test_refreshes_that_are_given_or_cached_once_stay_as_they_are() -> None:
    given = {"task": "files", "train": "a.csv", "epochs": 4}
    mine = TrainSettings(**given, options={"arch": {"refresh_every": 9}})
    assert mine.method("arch").options()["refresh_every"] == 9
    once = TrainSettings(**given, preset="understanding")
    assert once.method("arch").options()["refresh_every"] is None


def test_a_preset_s_refreshes_fall_within_the_epochs_too() -> None:
    short = TrainSettings(task="files", train="a.csv", epochs=2, preset="fine-tuning")
    assert short.method("arch").options()["refresh_every"] == 1


def test_the_kind_of_labels_is_the_flag_kind() -> None:
    assert flag_name("label_kind") == "--kind"
    with pytest.raises(SettingsError, match=r"label_kind must be .*classification.*got 'both'"):
        TrainSettings(task="files", train="a.csv", label_kind="both")
