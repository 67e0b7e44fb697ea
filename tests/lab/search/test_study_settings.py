from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from advreg.lab.runs.settings import SettingsError
from advreg.lab.search.study_settings import (
    DEFAULT_GRID,
    StudySettings,
    choose_folder,
    read_study,
    write_grid,
)
from advreg.methods import create, preset


def asked(
    *names: str, grid: Path | None = None, config: Path | None = None, **flags: Any
) -> StudySettings:
    own = {
        name: flags.pop(name) for name in ("method", "baselines", "keep_models") if name in flags
    }
    return read_study(config, grid, names, flags, {}, **own)


def written(folder: Path, text: str, name: str = "grid.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def labels(settings: StudySettings) -> dict[str, list[str]]:
    return {study.name: [point.label for point in study.points] for study in settings.studies}


# ---- the shipped grid


def test_without_a_word_it_is_the_papers_figure_with_smart_and_standard_beside_it() -> None:
    settings = asked()
    assert labels(settings) == {
        "ema": ["0", "0.01", "0.05", "0.1"],
        "refresh": ["1", "5", "10", "15", "20", "once"],
        "neighbours": ["1", "5", "10", "random 1"],
        "fraction": ["0.01", "0.05", "0.1", "0.5", "1"],
    }
    assert (settings.method, settings.baselines, settings.seeds) == (
        "arch",
        ("smart", "standard"),
        (0, 1, 2),
    )


def test_every_study_that_is_shipped_can_be_asked_for_by_name_on_either_kind_of_task() -> None:
    names = [
        name
        for name, table in tomllib.loads(DEFAULT_GRID.read_text("utf-8")).items()
        if isinstance(table, dict)
    ]
    assert set(names) >= {
        "ema",
        "refresh",
        "neighbours",
        "fraction",
        "radius",
        "weight",
        "steps",
        "site",
    }
    for task in ("rte", "multi30k-en-de"):
        settings = asked(*names, task=task)
        assert [study.name for study in settings.studies] == names
        sites = [variant.settings.site for variant in settings.variants().values()]
        assert sites.count("block") == 1


def test_the_random_neighbour_is_one_neighbour() -> None:
    (study,) = asked("neighbours", neighbours="5").studies
    assert dict(study.points[-1].changes) == {"neighbours": 1, "neighbour_choice": "random"}


def test_the_grid_can_be_written_edited_and_given_back(tmp_path: Path) -> None:
    write_grid(tmp_path / "new" / "grid.toml")
    assert labels(asked(grid=tmp_path / "new" / "grid.toml")) == labels(asked())
    with pytest.raises(
        SettingsError, match=r"write-grid must be a new file, got '.*', which exists"
    ):
        write_grid(tmp_path / "new" / "grid.toml")


# ---- what is varied


def test_a_point_changes_what_it_names_and_nothing_else(tmp_path: Path) -> None:
    grid = written(tmp_path, "[r]\nradius = [0.7]\n[l]\nlearning_rate = [0.5]\nsite = ['block']")
    settings = asked(grid=grid, weight="3", epochs="4")
    usual = settings.base.method("arch").options()
    (wide,), (fast, block) = (
        [settings.variant("arch", p.changes) for p in s.points] for s in settings.studies
    )
    assert wide.settings.method("arch").options() == {**usual, "radius": 0.7}
    assert usual["weight"] == 3.0
    assert (wide.name, fast.name, block.name) == (
        "arch/radius=0.7",
        "arch/learning_rate=0.5",
        "arch/site=block",
    )
    assert (fast.settings.learning_rate, fast.settings.epochs, fast.settings.site) == (
        0.5,
        4,
        "tokens",
    )
    assert (block.settings.site, block.settings.method("arch").options()) == ("block", usual)


def test_settings_that_come_to_the_same_are_one_whatever_study_they_are_of() -> None:
    settings = asked("ema", "fraction", "neighbours", "refresh", epochs="30", task="multi30k-en-de")
    shared = [
        [
            point.label
            for point in study.points
            if settings.variant("arch", point.changes).name == "arch/default"
        ]
        for study in settings.studies
    ]
    assert shared == [["0.01"], ["0.1"], ["1"], ["15"]]
    points = sum(len(study.points) for study in settings.studies)
    assert len(settings.variants()) == points - 3 + 2  # the default once, and the baselines
    assert settings.notes() == []


@settings_of_hypothesis(max_examples=40, deadline=None)
@given(st.integers(1, 25), st.integers(1, 25), st.integers(1, 25))
def test_refreshes_beyond_the_last_epoch_are_one_run_and_others_are_not(
    epochs: int, one: int, other: int
) -> None:
    settings = asked("site", epochs=str(epochs), refresh_every=str(one))
    usual, changed = (settings.variant("arch", {"refresh_every": every}) for every in (one, other))
    assert usual.name == "arch/default"
    assert (changed.name == usual.name) == (min(one, epochs) == min(other, epochs))
    once = settings.variant("arch", {"refresh_every": None})
    assert (once.name == usual.name) == (one >= epochs)


def test_points_that_cannot_differ_are_told() -> None:
    settings = asked("ema", "refresh", epochs="10", refresh_every="none")
    assert settings.notes() == [
        "study refresh: 10, 15, 20, once are the same with 10 epochs",
        "ema changes nothing while the cache is filled once; give a --refresh-every below --epochs",
    ]


def test_another_method_can_be_studied_and_is_not_its_own_baseline() -> None:
    settings = asked("radius", method="smart")
    assert settings.baselines == ("standard",)
    assert {variant.method for variant in settings.variants().values()} == {"smart", "standard"}
    assert asked("radius", baselines=[]).baselines == ()


# ---- files and mistakes


def test_the_config_file_is_that_of_train_and_flags_override_it(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        """
        task = "docstrings"
        seeds = [4, 9]
        epochs = 7
        baselines = ["r3f"]
        [arch]
        radius = 0.2
        [training]
        weight_decay = 0.1
        """,
        "run.toml",
    )
    settings = asked("ema", config=config, epochs="5")
    assert (settings.seeds, settings.baselines, settings.base.epochs) == ((4, 9), ("r3f",), 5)
    assert settings.base.method("arch").options()["radius"] == 0.2
    assert settings.base.training == {"weight_decay": 0.1}


def test_the_config_file_may_hold_the_grid_and_a_grid_that_is_given_wins(tmp_path: Path) -> None:
    config = written(
        tmp_path, "epochs = 7\n[grid.mine]\nema = [0.2]\n[grid.wide]\nradius = [3]", "run.toml"
    )
    assert labels(asked(config=config)) == {"mine": ["0.2"], "wide": ["3"]}
    assert labels(asked("wide", config=config)) == {"wide": ["3"]}
    assert labels(asked(config=config, grid=written(tmp_path, "[other]\nema = [0.3]"))) == {
        "other": ["0.3"]
    }
    with pytest.raises(
        SettingsError, match=r"grid of '.*run\.toml' has no study 'wild' \(did you mean 'wide'\?\)"
    ):
        asked("wild", config=config)


@pytest.mark.parametrize(
    ("task", "further", "variants", "seeds"), [("multi30k", [], 11, 3), ("stsb", ["radius"], 15, 5)]
)
def test_the_studies_of_the_results_vary_one_thing_at_a_time_around_one_default(
    task: str, further: list[str], variants: int, seeds: int
) -> None:
    settings = asked(config=Path(__file__).parents[3] / "experiments" / f"studies-{task}.toml")
    assert list(labels(settings)) == ["ema", "refresh", "neighbours", "fraction", *further]
    assert settings.notes() == []  # no two points come to the same
    for study in settings.studies:
        names = [settings.variant("arch", point.changes).name for point in study.points]
        assert names.count("arch/default") == 1
    assert (len(settings.variants()), len(settings.seeds), settings.baselines) == (
        variants, seeds, ("smart", "standard"),
    )  # fmt: skip
    weights = {variant.settings.method(variant.method).options().get("weight") for variant in
               settings.variants().values()}  # fmt: skip
    assert weights == {1.0, None}


def test_the_preset_for_fine_tuning_is_what_was_studied() -> None:
    settings = asked(config=Path(__file__).parents[3] / "experiments" / "studies-stsb.toml")
    for method in ("arch", "smart"):
        wanted = create(method, **preset("fine-tuning", method)).options()
        assert settings.variant(method, {}).settings.method(method).options() == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must hold at least one study, got none; --write-grid"),
        ("ema = 3", r"ema must be a table, \[ema\], got 3"),
        (
            "[a]\nradios = [1]",
            r"study a has the unknown option 'radios' \(did you mean 'radius'\?\); arch has weight,",
        ),
        ("[a]\nradius = 1", "study a: radius must be a list of values, at least one, got 1"),
        ("[a]\nradius = []", r"study a: radius must be a list of values, at least one, got \[\]"),
        ("[a]\nradius = [-1]", "radius must be .*, got -1"),
        ("[a]\nradius = ['wide']", "radius must be a number, got 'wide'"),
        (
            "[a]\nradius = [1, 1.0]",
            r"study a must have points with different labels, .* got \['1', '1'\]",
        ),
        (
            "[a]\ntitle = 'x'",
            r"study a must have points with different labels, at least one, got \[\]",
        ),
        ("[a]\ntitle = 3\nema = [0]", "study a: title must be a text, got 3"),
        ("[a]\npoints = [3]", r"study a: points must be a list of tables .*, got \[3\]"),
        (
            "[a]\npoints = [{label = '', ema = 0}]",
            "study a: label must be a text, not empty, got ''",
        ),
        ("studies = ['b']\n[a]\nema = [0]", "has no study 'b'; it has a"),
        ("studies = 'a'\n[a]\nema = [0]", "studies must be different names, got 'a'"),
        (
            "[a]\nmodel_dropout = [0.1]",
            "study a has the unknown option 'model_dropout'",
        ),  # a setting of translation
        ("[a]\nema = [", "cannot be read"),
    ],
)
def test_a_mistake_in_the_grid_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        asked(grid=written(tmp_path, text))


@pytest.mark.parametrize(
    ("names", "flags", "message"),
    [
        (["emma"], {}, r"has no study 'emma' \(did you mean 'ema'\?\); it has ema, refresh"),
        (["ema", "ema"], {}, r"studies must be different names, got \['ema', 'ema'\]"),
        ([], {"task": "rte,cola"}, "task must be one for a study, got rte, cola"),
        ([], {"method": "arhc"}, r"unknown method 'arhc' \(did you mean 'arch'\?\)"),
        ([], {"method": "standard"}, "has the unknown option 'ema'; standard has none"),
        ([], {"baselines": "smart,smrt"}, "unknown method 'smrt'"),
        ([], {"seeds": "few"}, "seeds must be how many"),
    ],
)
def test_a_mistake_in_the_command_is_named(
    names: list[str], flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        asked(*names, **flags)


def test_one_command_finds_one_folder() -> None:
    assert choose_folder(asked(task="rte", model="models/tiny")) == Path("runs/study-rte-tiny")
    assert choose_folder(asked(output="here")) == Path("here")
