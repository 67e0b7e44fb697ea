from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advreg.lab.runs.settings import SettingsError
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.lab.search.budget import Budget
from advreg.lab.search.compare_settings import CompareSettings, choose_folder, read_compare

ROOT = Path(__file__).parents[3]


def asked(config: Path | None = None, **flags: Any) -> CompareSettings:
    own = {
        name: flags.pop(name)
        for name in (
            *("candidates", "budget", "max_seeds", "alpha"),
            *("reference", "keep_models", "controls"),
        )
        if name in flags
    }
    return read_compare(config, flags, {}, **own)


def written(folder: Path, text: str) -> Path:
    path = folder / "compare.toml"
    path.write_text(text)
    return path


def test_without_a_word_standard_meets_arch_on_the_built_in_task() -> None:
    settings = asked()
    assert (settings.tasks, settings.methods, settings.seeds) == (
        ("docstrings",),
        ("standard", "arch"),
        (0, 1, 2),
    )
    assert settings.reference == "standard"
    assert len(settings.points("standard")) == len(settings.points("arch")) == settings.candidates
    assert settings.any_base.preset is None  # the small model is not the paper's


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"norm": "l2", "radius": 0.1, "step_size": 0.1, "refresh_every": 3}),
        (
            {"preset": "fine-tuning"},
            {"norm": "l2", "radius": 0.1, "step_size": 0.1, "refresh_every": 3},
        ),
        (
            {"preset": "understanding"},
            {"norm": "linf", "scope": "token", "radius": 1.0, "refresh_every": None},
        ),
    ],
)
def test_a_pretrained_model_gets_a_preset_and_the_grid_around_it(
    given: Any, expected: dict[str, Any]
) -> None:
    settings = asked(
        task="rte,mrpc", model="bert-base-uncased", methods=["standard,arch", "r3f"], **given
    )
    assert settings.tasks == ("rte", "mrpc")
    assert settings.methods == ("standard", "arch", "r3f")
    paper = settings.any_base.preset == "understanding"
    for point in settings.points("arch"):
        arch = settings.settings_for("rte", "arch", point).method("arch").options()
        assert expected.items() <= arch.items()
        assert (arch["step_size"] < 1e-3) == paper
    assert settings.bases["mrpc"].epochs == 10
    grouped = {} if paper else {"train_sampling_strategy": "group_by_length"}
    assert settings.bases["rte"].training == grouped


def test_what_a_flag_fixes_is_not_tuned_and_reaches_every_candidate() -> None:
    settings = asked(learning_rate="0.01", radius="0.7", methods="arch,smart")
    assert "learning_rate" not in settings.grid.common
    assert "radius" not in {**settings.grid.methods["arch"], **settings.grid.methods["smart"]}
    for method in settings.methods:
        for point in settings.points(method):
            run = settings.settings_for("docstrings", method, point)
            assert run.peak_learning_rate == 0.01
            assert run.method(method).options()["radius"] == 0.7
            assert run.batch_size == point["batch_size"]
            assert run.method(method).options()["weight"] == point["weight"]


@pytest.mark.parametrize(
    ("given", "first", "most", "budget"),
    [
        ({}, (0, 1, 2), 20, None),
        ({"seeds": "5"}, (0, 1, 2, 3, 4), 5, None),
        ({"seeds": "4,9"}, (4, 9), 2, None),
        ({"seeds": "5", "budget": "2h"}, (0, 1, 2, 3, 4), 20, Budget(seconds=7200)),
        ({"seeds": "5", "budget": "40", "max_seeds": 10}, (0, 1, 2, 3, 4), 10, Budget(runs=40)),
        ({"max_seeds": 8}, (0, 1, 2), 8, None),
    ],
)
def test_seeds_are_added_unless_they_are_given_alone(
    given: Any, first: tuple[int, ...], most: int, budget: Budget | None
) -> None:
    settings = asked(**given)
    assert (settings.seeds, settings.most_seeds, settings.limit) == (first, most, budget)


@pytest.mark.parametrize("candidates", [0, 1])
def test_one_candidate_means_no_tuning(candidates: int) -> None:
    assert asked(candidates=candidates).points("arch") == []


def test_the_file_holds_settings_options_and_grid_and_flags_override_it(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        task = ["docstrings"]
        methods = ["standard", "arch"]
        seeds = [4, 9]
        candidates = 3
        reference = "standard"
        epochs = 7
        [arch]
        radius = 0.2
        weight = 2
        [training]
        weight_decay = 0.1
        [grid]
        batch_size = [8, 16, 32]
        [grid.arch]
        ascent_steps = [1, 2]
        """,
    )
    settings = asked(path, epochs="2", weight="3", candidates=2)
    assert (settings.seeds, settings.candidates, settings.reference) == ((4, 9), 2, "standard")
    run = settings.settings_for("docstrings", "arch", settings.points("arch")[0])
    assert (run.epochs, run.training) == (2, {"weight_decay": 0.1})
    options = run.method("arch").options()
    assert (options["radius"], options["weight"]) == (0.2, 3.0)
    assert dict(settings.grid.methods) == {"arch": {"ascent_steps": [1, 2]}}


def test_flags_that_are_not_given_leave_the_file_its_values(tmp_path: Path) -> None:
    path = written(tmp_path, "candidates = 3\ncontrols = false\nbudget = '2h'\n")
    settings = asked(path, candidates=None, budget=None, controls=None, reference=None)
    assert (settings.candidates, settings.controls, settings.budget) == (3, False, "2h")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "epochs = 1\nlearnin_rate = 1",
            "has the unknown key 'learnin_rate' \\(did you mean 'learning_rate'\\?\\)",
        ),
        ("candidates = 'many'", "candidates must be a whole number, got 'many'"),
        ("grid = 3", r"grid must be a table, \[grid\], got 3"),
        (
            "batch_size = 8\n[grid]\nbatch_size = [8, 16]",
            "both sets and tunes batch_size; remove one of the two",
        ),
        (
            "[arch]\nradius = 1\n[grid.arch]\nradius = [1]",
            "both sets and tunes arch.radius; remove one of the two",
        ),
        ("[grid]\nbatch_size = [0, 8]", "batch_size must be a whole number of 1 or more, got 0"),
        ("epochs =", "cannot be read"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_the_file(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        asked(written(tmp_path, text))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"seeds": "x"}, r"seeds must be how many \(3\) or which \(0,5,7\), got 'x'"),
        ({"seeds": "0"}, r"seeds must be how many, 1 to 10000, or which \(.*\), got '0'"),
        ({"task": "rte,rte"}, r"task must be different names, at least one, got \['rte', 'rte'\]"),
        ({"task": "ret"}, "task must be one of .*, got 'ret'"),
        ({"candidates": -1}, "candidates must be a whole number of 0 or more, got -1"),
        ({"budget": "soon"}, "budget must be a time"),
        ({"alpha": 1.5}, "alpha must be between 0 and 1"),
        ({"reference": "smart"}, "reference must be one of standard, arch, got 'smart'"),
        ({"methods": "arhc"}, "unknown method 'arhc'"),
    ],
)
def test_a_mistake_in_the_flags_is_named(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        asked(**flags)


def test_files_go_to_the_task_of_files_alone() -> None:
    settings = asked(task="docstrings,files", train="x.csv", text_column="words")
    assert settings.bases["files"].train == "x.csv"
    assert (settings.bases["docstrings"].train, settings.bases["docstrings"].text_column) == (
        None,
        None,
    )
    assert asked(train="x.csv").tasks == ("files",)
    with pytest.raises(
        SettingsError,
        match=r"dev 'x\.csv' needs a training file of its kind; give --train FILE too",
    ):
        asked(dev="x.csv")


def test_the_suite_of_the_consistency_contest_is_the_contest() -> None:
    settings = asked(ROOT / "experiments/consistency/understanding.toml")
    assert settings.tasks == ("rte", "mrpc", "cola", "stsb")
    assert settings.methods[0] == settings.reference == "standard"
    assert settings.seeds == tuple(range(400, 420))
    assert settings.most_seeds == 20
    for method in settings.methods:
        points = settings.points(method)
        assert len(points) == settings.candidates == 6
        assert all(point["encoder_dropout"] > 0 for point in points)


def test_regularisation_is_tuned_for_every_model_and_every_method_has_all_candidates() -> None:
    for given in ({}, {"task": "rte", "model": "minilm"}, {"task": "multi30k-en-de"}):
        settings = asked(methods="standard,arch,rdrop,temporal,freelb,freeat", **given)
        assert {"label_smoothing", "weight_decay"} <= set(settings.grid.common)
        assert {len(settings.points(method)) for method in settings.methods} == {8}


def test_a_field_of_the_trainer_is_as_fixed_as_the_setting_that_fills_it() -> None:
    settings = read_compare(None, {}, {"weight_decay": 0.3})
    assert "weight_decay" not in settings.grid.common
    assert settings.settings_for("docstrings", "arch", {}).training == {"weight_decay": 0.3}


def test_one_command_finds_one_folder() -> None:
    assert choose_folder(asked(task="rte,mrpc", model="models/tiny")) == Path(
        "runs/compare-rte-mrpc-tiny"
    )
    assert choose_folder(asked(output="here")) == Path("here")


# ---- translation


def test_a_translation_task_gets_its_own_settings_and_a_grid_that_it_has() -> None:
    settings = asked(
        task="multi30k-en-de,multi30k-de-en",
        vocabulary="4000",
        learning_rate="0.002",
        methods="arch,r3f",
    )
    base = settings.bases["multi30k-de-en"]
    assert isinstance(base, TranslationSettings)
    assert (base.vocabulary, base.model, base.preset) == (4000, "transformer-iwslt", "translation")
    assert "learning_rate" not in settings.grid.common
    for point in settings.points("arch"):
        run = settings.settings_for("multi30k-en-de", "arch", point)
        assert (run.model_dropout, run.method("arch").weight) == (
            point["model_dropout"],
            point["weight"],
        )
    assert choose_folder(settings) == Path(
        "runs/compare-multi30k-en-de-multi30k-de-en-transformer-iwslt"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "task = 'rte,multi30k-en-de'",
            "task must name tasks of one kind, got rte, multi30k-en-de",
        ),
        (
            "task = 'multi30k-en-de'\n[grid]\nbatch_size = [8]",
            "grid.batch_size must be a setting of the task, but",
        ),
        (
            "task = 'rte'\n[grid]\nmodel_dropout = [0.1]",
            "grid.model_dropout must be a setting of the task, but rte",
        ),
    ],
)
def test_what_one_kind_of_task_has_is_not_asked_of_the_other(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        asked(written(tmp_path, text))
