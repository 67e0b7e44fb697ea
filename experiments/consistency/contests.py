"""The contests as data: tasks, settings, candidates of Standard and of each method, controls,
seeds. See PLAN.md.

A candidate is a point: options of the method, and settings of the task that differ from the
contest's own. Standard's candidates vary regularisation and length. A method's have options, most
of all the weight λ, and train as Standard's best candidate does (``regularisation`` 0) or as its
second best of the same length (1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]

STANDARD = "standard"
BEST, SECOND = 0, 1


@dataclass(frozen=True)
class Candidate:
    """One setting of Standard's tuning.

    Args:
        name: in records and tables.
        settings: in addition to the contest's settings.
        without: tasks that it cannot train.
    """

    name: str
    settings: Values = field(default_factory=dict)
    without: Sequence[str] = ()


@dataclass(frozen=True)
class Variant:
    """One setting of a method's tuning: its options, on top of one of Standard's
    regularisations.
    """

    name: str
    options: Values = field(default_factory=dict)
    settings: Values = field(default_factory=dict)
    regularisation: int = BEST


@dataclass(frozen=True)
class Contestant:
    """A method, or a control, and what is tried for it.

    Args:
        name: in records and tables; two contestants may share a method.
        method: of the registry.
        variants: the candidates; one alone needs no tuning.
        needs_dropout: trained with at least 0.1.
        without: tasks that it cannot do.
    """

    name: str
    method: str
    variants: Sequence[Variant]
    needs_dropout: bool = False
    without: Sequence[str] = ()


@dataclass(frozen=True)
class Contest:
    """What is compared on which tasks.

    Args:
        name: of the contest.
        kind: of runs: ``text``, ``translation`` or ``language``.
        tasks: names that text_runs, translation_runs or language_runs know.
        base: settings of all runs.
        standard: Standard's candidates; none where ``follows`` names where they come from.
        contestants: the others.
        tuning_seed: of all candidates; never one of ``seeds``.
        seeds: of the results.
        follows: the contest whose choices are taken over unchanged.
        finalists: how many tuned methods, those with the best validation scores, have results
            in addition to Standard and untuned contestants; none: all.
        device: ``cpu``, or ``best``: a GPU where there is one.
        guess: seconds of a Standard run while none has been measured.
    """

    name: str
    kind: str
    tasks: Sequence[str]
    base: Values
    standard: Sequence[Candidate] = ()
    contestants: Sequence[Contestant] = ()
    tuning_seed: int = 0
    seeds: Sequence[int] = ()
    follows: str | None = None
    finalists: int | None = None
    device: str = "best"
    guess: float = 30.0


def over(weights: Sequence[float], options: Values | None = None, **settings: Any) -> list[Variant]:
    """Weights λ with Standard's best and second-best regularisation."""
    return [
        Variant(
            f"{weight:g}{'' if place == BEST else ' second'}",
            {**(options or {}), "weight": weight},
            settings,
            place,
        )
        for place in (BEST, SECOND)
        for weight in weights
    ]


def temporal(best: Sequence[float], rising: float, second: Sequence[float]) -> list[Variant]:
    """Constant weights, and one that rises over the training."""
    return [
        *(Variant(f"{weight:g}", {"weight": weight}) for weight in best),
        Variant(f"{rising:g} rising", {"weight": rising, "ramp": "linear"}),
        *(
            Variant(f"{weight:g} second", {"weight": weight}, regularisation=SECOND)
            for weight in second
        ),
    ]


def averages(decays: Sequence[float]) -> list[Variant]:
    return [
        Variant(
            f"{decay:g}{'' if place == BEST else ' second'}",
            settings={"ema": decay},
            regularisation=place,
        )
        for place in (BEST, SECOND)
        for decay in decays
    ]


# ---- the built-in task, and small models from scratch

_BALL = {"radius": 0.3, "step_size": 0.3}
_CACHED = {**_BALL, "refresh_every": 3}

BUILTIN = Contest(
    name="builtin",
    kind="text",
    tasks=("docstrings",),
    base={
        "model": "small",
        "epochs": 12,
        "learning_rate": 1e-3,
        "max_length": 32,
        "train_size": 1000,
    },
    standard=(
        Candidate("plain"),
        Candidate("dropout 0.3", {"encoder_dropout": 0.3, "head_dropout": 0.3}),
        Candidate("smoothing 0.3", {"label_smoothing": 0.3}),
        Candidate("decay 0.1", {"weight_decay": 0.1}),
        Candidate(
            "dropout 0.3, smoothing 0.1",
            {"encoder_dropout": 0.3, "head_dropout": 0.3, "label_smoothing": 0.1},
        ),
        Candidate("24 epochs", {"epochs": 24}),
    ),
    contestants=(
        Contestant("temporal", "temporal", temporal((3, 10, 20), 10, (3, 10))),
        Contestant("ols", "ols", over((3, 10, 20))),
        Contestant("r3f", "r3f", over((1, 3, 10))),
        Contestant("rdrop", "rdrop", over((0.5, 1, 3)), needs_dropout=True),
        Contestant("simcut", "simcut", over((0.5, 1, 3))),
        Contestant("arch", "arch", over((1, 3, 10), _CACHED)),
        Contestant("smart", "smart", over((1, 3, 10), _BALL)),
        Contestant("ema", STANDARD, averages((0.9, 0.98, 0.995))),
        Contestant(
            "neftune", STANDARD, [Variant(f"{a:g}", settings={"neftune": a}) for a in (5, 15)]
        ),
        Contestant(
            "smoothing",
            STANDARD,
            [Variant(f"{a:g}", settings={"label_smoothing": a}) for a in (0.5, 0.7)],
        ),
        Contestant("twice the epochs", STANDARD, [Variant("x2", settings={"epochs_factor": 2})]),
    ),
    tuning_seed=300,
    seeds=tuple(range(400, 416)),
    device="cpu",
    guess=8.0,
)

# the same settings, unchanged
NOISY = Contest("noisy", "text", ("docstrings-noisy", "docstrings-clear"), BUILTIN.base, seeds=tuple(range(400, 416)),
                follows="builtin", device="cpu", guess=8.0)  # fmt: skip
SCRATCH = Contest("scratch", "text", ("mr", "sst2"), {**BUILTIN.base, "max_length": 64, "train_size": 3000},
                  seeds=tuple(range(400, 408)), follows="builtin", device="cpu", guess=40.0)  # fmt: skip
SNLI = Contest("snli", "text", ("snli",), {**BUILTIN.base, "max_length": 64, "train_size": None},
               seeds=tuple(range(400, 404)), follows="builtin", device="cpu", guess=500.0)  # fmt: skip


# ---- understanding, a pretrained encoder

_PAPER = {"preset": "understanding"}
_SMART = {"ascent_steps": 1, "radius": 0.3, "step_size": 0.3}
_ARCH = {**_SMART, "refresh_every": 3}


def ascents(options: Values) -> list[Variant]:
    """λ in our ball, and the recipe of the paper and of MT-DNN."""
    return [
        *(Variant(f"{weight:g}", {**options, "weight": weight}) for weight in (1, 3, 10)),
        Variant("paper 1", {"weight": 1}, _PAPER),
        *(
            Variant(f"{weight:g} second", {**options, "weight": weight}, regularisation=SECOND)
            for weight in (1, 3)
        ),
    ]


UNDERSTANDING = Contest(
    name="understanding",
    kind="text",
    tasks=("rte", "mrpc", "cola", "stsb"),
    base={
        "model": "minilm", "epochs": 10, "learning_rate": 1e-4, "encoder_dropout": 0.1, "head_dropout": 0.1,
        "train_size": 1000,
    },
    standard=(
        Candidate("plain"),
        Candidate("dropout 0", {"encoder_dropout": 0.0, "head_dropout": 0.0}),
        Candidate("dropout 0.2, smoothing 0.1", {"encoder_dropout": 0.2, "label_smoothing": 0.1}, without=("stsb",)),
        Candidate("decay 0.1", {"weight_decay": 0.1}),
        Candidate("20 epochs", {"epochs": 20}),
        Candidate("dropout 0, 20 epochs", {"encoder_dropout": 0.0, "head_dropout": 0.0, "epochs": 20}),
    ),
    contestants=(
        Contestant("temporal", "temporal", temporal((1, 3, 10), 10, (1, 3))),
        Contestant("ols", "ols", over((1, 3, 10)), without=("stsb",)),
        Contestant("r3f", "r3f", over((1, 3, 10))),
        Contestant("rdrop", "rdrop", over((0.5, 1, 3)), needs_dropout=True),
        Contestant("simcut", "simcut", over((0.5, 1, 3))),
        Contestant("arch", "arch", ascents(_ARCH)),
        Contestant("smart", "smart", ascents(_SMART)),
        Contestant("ema", STANDARD, averages((0.9, 0.98, 0.995))),
    ),
    tuning_seed=300,
    seeds=tuple(range(400, 420)),
    guess=25.0,
)  # fmt: skip

CONFIRMATION = Contest("confirmation", "text", ("sst2", "mr"), UNDERSTANDING.base, seeds=tuple(range(400, 420)),
                       follows="understanding", guess=25.0)  # fmt: skip


# ---- translation

TRANSLATION = Contest(
    name="translation",
    kind="translation",
    tasks=("multi30k-en-de",),
    base={"epochs": 64, "dropout": 0.3, "label_smoothing": 0.1, "learning_rate": 1e-3},
    standard=(
        Candidate("plain"),
        Candidate("dropout 0.4", {"dropout": 0.4}),
        Candidate("dropout 0.2", {"dropout": 0.2}),
        Candidate("smoothing 0.2", {"label_smoothing": 0.2}),
        Candidate("decay 0.01", {"weight_decay": 0.01}),
        Candidate("96 epochs", {"epochs": 96}),
    ),
    contestants=(
        Contestant("rdrop", "rdrop", over((0.5, 1, 2.5)), needs_dropout=True),
        Contestant("simcut", "simcut", over((0.5, 1, 3))),
        Contestant("temporal", "temporal", [
            *(Variant(f"{weight:g}", {"weight": weight}) for weight in (1, 3)),
            *(Variant(f"{weight:g} rising", {"weight": weight, "ramp": "linear"}) for weight in (3, 10)),
            Variant("1 drawn", {"weight": 1, "sketch": "drawn"}),
            Variant("1 second", {"weight": 1}, regularisation=SECOND),
        ]),
        Contestant("twice the epochs", STANDARD, [Variant("x2", settings={"epochs_factor": 2})]),
    ),
    tuning_seed=300,
    seeds=tuple(range(400, 408)),
    finalists=2,
    guess=500.0,
)  # fmt: skip

FRENCH = Contest("french", "translation", ("multi30k-en-fr",), TRANSLATION.base, seeds=tuple(range(400, 404)),
                 follows="translation", guess=500.0)  # fmt: skip


# ---- fine-tuning a language model; see PLAN-language.md

LANGUAGE = Contest(
    name="language",
    kind="language",
    tasks=("gsm8k", "e2e_low"),
    base={
        "model": "smollm2", "epochs": 3, "batch_size": 32, "learning_rate": 1e-4, "weight_decay": 0.0, "dropout": 0.0,
        "max_length": 512,
    },
    standard=(
        Candidate("lr 1e-4"),
        Candidate("lr 3e-5", {"learning_rate": 3e-5}),
        Candidate("lr 3e-4", {"learning_rate": 3e-4}),
    ),
    contestants=(
        Contestant("temporal", "temporal", [
            *(Variant(f"{weight:g}", {"weight": weight, "sketch": "lumped"}) for weight in (1, 3)),
            Variant("1 drawn", {"weight": 1, "sketch": "drawn"}),
        ]),
        Contestant("simcut", "simcut", [Variant(f"{weight:g}", {"weight": weight}) for weight in (0.3, 1, 3)]),
        Contestant("r3f", "r3f", [
            Variant(f"{weight:g}, noise {scale:g}", {"weight": weight, "noise_scale": scale})
            for weight, scale in ((1, 0.03), (1, 0.1), (3, 0.1))
        ]),
        Contestant("rdrop", "rdrop", [Variant(f"{weight:g}", {"weight": weight}) for weight in (0.3, 1, 3)], True),
        Contestant("neftune", STANDARD, [Variant(f"{a:g}", settings={"neftune": a}) for a in (5, 10, 15)]),
        Contestant("dropout", STANDARD, [Variant("0.1")], needs_dropout=True),
        Contestant("twice the epochs", STANDARD, [Variant("x2", settings={"epochs_factor": 2})]),
    ),
    tuning_seed=300,
    seeds=tuple(range(400, 404)),
    guess=90.0,
)  # fmt: skip

CONTESTS = {
    contest.name: contest
    for contest in (
        BUILTIN,
        NOISY,
        SCRATCH,
        SNLI,
        UNDERSTANDING,
        CONFIRMATION,
        TRANSLATION,
        FRENCH,
        LANGUAGE,
    )
}
