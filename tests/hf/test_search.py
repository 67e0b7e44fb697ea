"""A model that is made anew for each training, and a search over options of the method."""

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainingArguments

from advreg.hf.trainer import AdversarialTrainer
from advreg.methods import Method, create
from observe import Padded, batch_of, features_of
from tiny_models import tiny

OPTIONS: dict[str, dict[str, Any]] = {
    "r3f": {"noise_scale": 0.1},
    "smart": {"radius": 0.5, "ascent_steps": 1},
    "arch": {"radius": 0.5, "ascent_steps": 1, "cache_fraction": 0.5, "refresh_every": 1},
}


def logs_of(trainer: AdversarialTrainer) -> list[dict[str, Any]]:
    return [line for line in trainer.state.log_history if "loss" in line]


def trainer_of(folder: Path, method: Method, **fields: Any) -> AdversarialTrainer:
    rows = features_of(batch_of("bert", 8))
    settings = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "num_train_epochs": 2, "save_strategy": "no",
        "logging_steps": 1, "report_to": "none", "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    return AdversarialTrainer(
        model_init=lambda: tiny("bert"),
        args=TrainingArguments(**settings | fields),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=Padded(0),
        method=method,
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_a_model_made_by_model_init_is_the_one_that_is_perturbed(name: str, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, create(name, **OPTIONS[name]))
    trainer.train()
    assert all(line["penalty"] > 0 for line in logs_of(trainer))
    assert trainer.task.core is trainer.model


@pytest.mark.parametrize("name", OPTIONS)
def test_each_trial_of_a_search_has_a_fresh_method_with_the_options_drawn(
    name: str, tmp_path: Path
) -> None:
    given = create(name, **OPTIONS[name])
    trainer = trainer_of(tmp_path, given, num_train_epochs=1)
    seen: list[tuple[Method, float, float]] = []
    train = trainer._inner_training_loop

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(
            (trainer.method, trainer.method.options()["weight"], trainer.args.learning_rate)
        )
        return train(*args, **kwargs)

    trainer._inner_training_loop = watched  # type: ignore[method-assign]
    best = trainer.hyperparameter_search(
        hp_space=lambda trial: {
            "learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-3),
            "method.weight": trial.suggest_float("method.weight", 0.5, 5.0),
        },
        backend="optuna",
        n_trials=2,
        direction="minimize",
    )
    methods = [method for method, *_ in seen]
    assert len({id(method) for method in (given, *methods)}) == 3
    assert given.options()["weight"] == 1.0
    drawn = {(weight, rate) for _, weight, rate in seen}
    assert len(drawn) == 2
    found = best.hyperparameters
    assert (found["method.weight"], found["learning_rate"]) in drawn


def test_an_option_that_the_method_does_not_have_is_named(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, create("r3f"), num_train_epochs=1)
    with pytest.raises(ValueError, match="method 'r3f' has no option 'radius'"):
        trainer.hyperparameter_search(
            hp_space=lambda trial: {
                "method.radius": trial.suggest_float("method.radius", 0.1, 1.0)
            },
            backend="optuna",
            n_trials=1,
        )
