"""Settings by family of tasks: of ARCH, of SMART, which shares the inner maximisation, and of the
training itself.

``translation`` and ``understanding`` are from ARCH's paper; ``fine-tuning`` is the default of our own study
of a pretrained encoder (docs/results/studies.md). Other methods have only the settings without which they
do not work.

By the paper's text alone the ascent of ``understanding`` is inert: a plain gradient times 1e-4
leaves δ at its random start. The paper refers to MT-DNN for details, so the rest is from its code:
δ enters behind the LayerNorm of the embeddings (``site="block"``, a setting of the training), each
word's gradient is divided by its largest entry (until August 2020), and δ is rescaled to ε (since
then). docs/methods/arch.md shows what each reading does.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from advreg.core.checks import check_choice
from advreg.methods.base import by_part, describe

Preset = Literal["translation", "understanding", "fine-tuning"]

_HAVE_PRESETS = ("arch", "smart")

# Zuo et al. 2021, appendix "Machine Translation Experiments" and "Natural Language Understanding
# Experiments".
_PAPER: dict[str, dict[str, Any]] = {
    "translation": {
        "start": "uniform",
        "norm": "l2",
        "scope": "sample",
        "radius": 0.1,
        "step_size": 0.1,
        "step_rule": "normalised",
        "ascent_steps": 3,
        "refresh_every": 15,
        "ema": 0.01,
        "cache_fraction": 0.1,
        "neighbours": 1,
    },
    "understanding": {
        "start": "normal",
        "start_scale": 1e-5,
        "norm": "linf",
        "scope": "token",
        "radius": 1.0,
        "step_size": 1e-4,
        "step_rule": "normalised",
        "step_end": "rescale",
        "ascent_steps": 1,
        "refresh_every": None,
    },
}
_OPTIONS: dict[str, dict[str, Any]] = {
    **_PAPER,
    # cached once, perturbations were worth nothing
    "fine-tuning": {**_PAPER["translation"], "ascent_steps": 1, "refresh_every": 3},
}
_NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    # They train on perturbed text alone: in their own balls a model that starts from nothing learnt
    # nothing of the
    # source (docs/results/translation.md).
    ("translation", "freelb"): {"radius": 0.03, "step_size": 0.03},
    ("translation", "freeat"): {
        "norm": "l2",
        "scope": "sample",
        "radius": 0.03,
        "step_size": 0.03,
        "step_rule": "normalised",
    },
}


def preset(family: str, method: str) -> dict[str, Any]:
    """The options of a family for a method; nothing for methods that have none.

    Example:
        >>> preset("understanding", "smart")["norm"], preset("understanding", "r3f"), preset("translation", "freelb")
        ('linf', {}, {'radius': 0.03, 'step_size': 0.03})
    """
    check_choice("preset", family, get_args(Preset))
    return by_part(method, lambda part: _of_one(family, part))


def _of_one(family: str, method: str) -> dict[str, Any]:
    if method not in _HAVE_PRESETS:
        return dict(_NEEDED.get((family, method), {}))
    known = {option.name for option in describe(method)}
    return {name: value for name, value in _OPTIONS[family].items() if name in known}


# The same appendix; of what was chosen per task, a middle value for tasks without an entry below.
_TRAINING: dict[str, dict[str, Any]] = {
    "translation": {},
    "understanding": {
        "epochs": 10,
        "warmup": 0.1,
        "batch_size": 32,
        "learning_rate": 1e-4,
        "encoder_dropout": 0.1,
        "head_dropout": 0.1,
        "site": "block",
    },
    "fine-tuning": {
        "epochs": 10,  # in five penalised runs were not done
        "warmup": 0.1,
        "training": {"train_sampling_strategy": "group_by_length"},  # or much of a batch is padding
    },
}
# Batch size, learning rate and dropout of BERT by task: a table that the paper's source holds,
# commented out.
_CHOSEN: dict[str, tuple[int, float, float]] = {
    "rte": (16, 1e-4, 0.0),
    "mrpc": (8, 2e-4, 0.1),
    "cola": (16, 5e-5, 0.1),
    "sst2": (32, 8e-5, 0.1),
    "stsb": (32, 2e-4, 0.0),
    "qnli": (32, 1e-4, 0.1),
    "qqp": (64, 2e-4, 0.1),
    "mnli": (128, 1e-4, 0.1),
}


def training_preset(family: str, task: str) -> dict[str, Any]:
    """The settings of the training for a task, by the names that ``advreg train`` has for them.

    ``training`` holds fields of ``TrainingArguments``.

    Example:
        >>> training_preset("understanding", "rte")["batch_size"], training_preset("understanding", "mr")["batch_size"]
        (16, 32)
    """
    check_choice("preset", family, get_args(Preset))
    chosen = _CHOSEN.get(task) if family == "understanding" else None
    named = zip(("batch_size", "learning_rate", "encoder_dropout"), chosen or (), strict=False)
    return {**_TRAINING[family], **dict(named)}
