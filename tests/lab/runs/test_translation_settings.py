from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from advreg.core.ball import Ball
from advreg.lab.kinds.architectures import TRANSLATORS
from advreg.lab.runs.bases import read_settings
from advreg.lab.runs.settings import SettingsError
from advreg.lab.runs.translation_settings import (
    MODELS,
    TranslationSettings,
)
from advreg.methods import create, preset

FOLDER: dict[str, Any] = {"data": "corpus", "source": "en", "target": "de"}


def test_models_are_the_architectures_that_translate() -> None:
    assert set(MODELS) == set(TRANSLATORS)


def test_methods_have_the_papers_options_for_translation_unless_others_are_given() -> None:
    settings = TranslationSettings(**FOLDER, options={"arch": {"radius": 0.5}})
    wanted = create("arch", **{**preset("translation", "arch"), "radius": 0.5})
    assert settings.method("arch").options() == wanted.options()
    assert (
        TranslationSettings(**FOLDER, preset=None).method("arch").options()
        == create("arch").options()
    )


def test_methods_that_see_perturbed_text_alone_share_a_small_ball_for_sentences() -> None:
    settings = TranslationSettings(task="multi30k-en-de", methods=("freelb", "freeat"))
    balls = {settings.method(name).ball for name in settings.methods}
    assert balls == {Ball(0.03, "l2", "sample")}
    given = TranslationSettings(
        task="multi30k-en-de", methods=("freeat",), options={"freeat": {"radius": 0.2}}
    )
    assert given.method("freeat").ball == Ball(0.2, "l2", "sample")


def test_a_known_task_is_decoded_as_in_the_paper_unless_asked_otherwise() -> None:
    def search(**given: Any) -> tuple[int, float]:
        beam = TranslationSettings(**given).search()
        return beam.beam, beam.length_penalty

    assert search(task="iwslt15-vi-en") == (15, 0.3)
    assert search(task="iwslt15-vi-en", beam=2) == (2, 0.3)
    assert search(**FOLDER, length_penalty=0.0) == (5, 0.0)


def test_flags_win_over_the_file_and_the_file_over_what_suits_the_task(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        'task = "wmt16-en-de"\nvocabulary = 20000\nepochs = 3\n[arch]\nradius = 0.2\n[training]\nadam_epsilon = 1e-9\n'
    )
    flags = {"epochs": "7", "ema": "0.5", "joint": "no", "seeds": ["3", "4"]}
    settings = read_settings(config, flags, {"torch_compile": True})
    assert (settings.model, settings.update_tokens, settings.weights) == (
        "transformer-big",
        450_000,
        "average",
    )
    assert (settings.vocabulary, settings.epochs, settings.joint, settings.seeds) == (
        20_000,
        7,
        False,
        (3, 4),
    )
    assert settings.options["arch"] == {"radius": 0.2, "ema": "0.5"}
    assert settings.training == {"adam_epsilon": 1e-9, "torch_compile": True}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "translation needs text: give --train-source, .* or --data FOLDER with --source"),
        ({"train_source": "a"}, "train text needs both sides; give --train-target too"),
        (
            {"valid_source": "a", "valid_target": "b"},
            "text to train on; give --train-source and --train-target",
        ),
        (
            {"train_source": "a", "train_target": "b"},
            "validate on; give --valid-source and --valid-target",
        ),
        (
            {"task": "iwslt15-en-vi", "source": "en"},
            "task brings its own data; leave files and languages out",
        ),
        ({"task": "iwslt99"}, r"task must be one of translation, .* got 'iwslt99'"),
        (
            {**FOLDER, "model": "transformer-bas"},
            r"model must be one of .* got 'transformer-bas' \(did you mean",
        ),
        ({**FOLDER, "epochs": 0}, "epochs must be a whole number of 1 or more, got 0"),
        ({**FOLDER, "beam": 0}, "beam must be a whole number of 1 or more, got 0"),
        ({**FOLDER, "max_ratio": 0.5}, r"max_ratio must be 1 or more, got 0\.5"),
        (
            {**FOLDER, "model_dropout": 1.0},
            r"model_dropout must be at least 0 and below 1, got 1\.0",
        ),
        (
            {**FOLDER, "character_coverage": 0.0},
            r"character_coverage must be above 0 and at most 1, got 0\.0",
        ),
        (
            {**FOLDER, "warmup_steps": -1},
            "warmup_steps must be a whole number of 0 or more, got -1",
        ),
        (
            {**FOLDER, "learning_rate": 0.0},
            r"learning_rate must be a positive finite number, got 0\.0",
        ),
        (
            {**FOLDER, "seeds": (1, 1)},
            r"seeds must be different numbers, at least one, got \[1, 1\]",
        ),
        ({**FOLDER, "seeds": (-1,)}, "seeds must be at least 0 and below 4294967296, got -1"),
        (
            {**FOLDER, "options": {"smrt": {}}},
            r"options are given for the method 'smrt' \(did you mean 'smart'\?\)",
        ),
        (
            {**FOLDER, "clip_norm": float("nan")},
            "clip_norm must be a finite number of 0 or more, got nan",
        ),
        ({**FOLDER, "methods": ("smrt",)}, r"unknown method 'smrt' \(did you mean 'smart'\?\)"),
        (
            {**FOLDER, "training": {"weight_decay": 3}},
            "is a setting of advreg; use --weight-decay instead",
        ),
        (
            {**FOLDER, "training": {"max_grad_norm": 3}},
            "is a setting of advreg; use --clip-norm instead",
        ),
        (
            {**FOLDER, "training": {"warmup_steps": 3}},
            "is a setting of advreg; use --warmup-steps instead",
        ),
    ],
)
def test_a_mistake_is_named_with_its_remedy(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        TranslationSettings(**given)


def test_a_config_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"config file '.*none\.toml' does not exist"):
        read_settings(tmp_path / "none.toml", {}, {})
    (tmp_path / "a.toml").write_text("vocabulry = 3\n")
    with pytest.raises(
        SettingsError, match=r"unknown key 'vocabulry' \(did you mean 'vocabulary'\?\)"
    ):
        read_settings(tmp_path / "a.toml", {}, {})
    (tmp_path / "b.toml").write_text("training = 3\n")
    with pytest.raises(
        SettingsError, match=r"b\.toml': training must be a table, \[training\], got 3"
    ):
        read_settings(tmp_path / "b.toml", {}, {})


@pytest.mark.parametrize("value", ["", 3, False])
def test_a_text_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(SettingsError, match="output must be a text, not empty, got"):
        read_settings(None, {**FOLDER, "output": value}, {})


def test_a_setting_of_other_tasks_is_not_taken_for_an_option_of_a_method() -> None:
    told = "'batch_size' is neither a setting of the task multi30k-en-de nor an option of a method; leave it out"
    with pytest.raises(SettingsError, match=told):
        read_settings(None, {"task": "multi30k-en-de", "batch_size": "8"}, {})


def test_facts_leave_out_where_things_are_and_keep_what_is_computed() -> None:
    one = TranslationSettings(**FOLDER, output="here").facts()
    assert one == TranslationSettings(**{**FOLDER, "data": "there"}, seeds=(5,)).facts()
    assert one != TranslationSettings(**FOLDER, vocabulary=9).facts()
