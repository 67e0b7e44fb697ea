"""The contests choose by rule: candidates first, Standard's before the methods', results with what
won.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from contests import (
    CONTESTS,
    LANGUAGE,
    STANDARD,
    UNDERSTANDING,
    Candidate,
    Contest,
    Contestant,
    Variant,
)
from stages import RESULT, TUNE, choices, planned, regularised

from advreg.methods.base import create

SMALL = Contest(
    name="small",
    kind="text",
    tasks=("rte", "stsb"),
    base={"epochs": 2, "encoder_dropout": 0.1},
    standard=(
        Candidate("plain"),
        Candidate("off", {"encoder_dropout": 0.0}),
        Candidate("long", {"epochs": 4}),
    ),
    contestants=(
        Contestant(
            "rdrop",
            "rdrop",
            [Variant("1", {"weight": 1}), Variant("3", {"weight": 3}, {}, 1)],
            True,
        ),
        Contestant(
            "ols",
            "ols",
            [Variant("1", {"weight": 1}), Variant("3", {"weight": 3})],
            without=("stsb",),
        ),
        Contestant("twice", STANDARD, [Variant("x2", settings={"epochs_factor": 2})]),
    ),
    tuning_seed=300,
    seeds=(400, 401),
)
AFTER = Contest("after", "text", ("mr",), SMALL.base, seeds=(400,), follows="small")


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONTESTS, "small", SMALL)


def made(contest: Contest, score: dict[str, float]) -> dict[str, float]:
    """Work a contest off; scores by contestant/candidate, 0 unless given."""
    scores: dict[str, float] = {}
    while fresh := [each for each in planned(contest, scores) if each.key not in scores]:
        scores |= {
            each.key: score.get(f"{each.contestant}/{each.candidate}", 0.0) for each in fresh
        }
    return scores


def test_only_standards_candidates_can_run_before_they_are_all_done() -> None:
    first = list(planned(SMALL, {}))
    assert {(each.contestant, each.stage, each.seed) for each in first} == {(STANDARD, TUNE, 300)}
    assert len(first) == 6
    most = {each.key: 1.0 for each in first if (each.task, each.candidate) != ("rte", "long")}
    assert all(each.task == "stsb" for each in planned(SMALL, most) if each.stage == RESULT)


def test_every_seed_has_all_contestants_with_what_won_and_tuning_seeds_never_come_back() -> None:
    scores = made(SMALL, {"standard/off": 1.0, "ols/3": 2.0})
    runs = list(planned(SMALL, scores))
    results = [each for each in runs if each.stage == RESULT]
    assert {each.seed for each in results} == {400, 401}
    assert {(each.contestant, each.candidate) for each in results if each.task == "rte"} == {
        ("standard", "off"), ("rdrop", "1"), ("ols", "3"), ("twice", "x2"),
    }  # fmt: skip
    assert "ols" not in {each.contestant for each in runs if each.task == "stsb"}
    assert len({each.key for each in runs}) == len(runs)
    twice = next(each for each in results if each.contestant == "twice")
    assert twice.point.settings == {"encoder_dropout": 0.0, "epochs": 4}
    assert [each.seed for each in results] == sorted(each.seed for each in results)


def test_a_candidate_that_a_task_cannot_train_is_left_out_there_and_ranks_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standard = (SMALL.standard[0], replace(SMALL.standard[1], without=("stsb",)), SMALL.standard[2])
    contest = replace(SMALL, standard=standard)
    monkeypatch.setitem(CONTESTS, "small", contest)
    scores = made(contest, {"standard/off": 2.0, "standard/long": 1.0})
    tried = {key.split("/")[4] for key in scores if key.startswith("small/stsb/tune/standard/")}
    assert tried == {"plain", "long"}
    assert choices(contest, "rte", scores)[STANDARD][0] == "off"
    assert choices(contest, "stsb", scores)[STANDARD][0] == "long"
    assert choices(AFTER, "mr", scores)[STANDARD][0] == "long"  # one win each, and the better ranks


def test_methods_train_as_standards_best_and_its_second_best_of_the_same_length() -> None:
    plain, off, long = SMALL.standard
    assert regularised(SMALL, [off, long, plain], False) == [{"encoder_dropout": 0.0}, {}]
    assert regularised(SMALL, [long, plain, off], False) == [
        {"epochs": 4},
        {"epochs": 4, "encoder_dropout": 0.2},
    ]


def test_a_method_that_needs_dropout_has_some() -> None:
    plain, off, long = SMALL.standard
    best, second = regularised(SMALL, [off, plain, long], True)
    assert best == {"encoder_dropout": 0.1}
    assert second == {}
    assert regularised(SMALL, [off, long], True)[1] == {"encoder_dropout": 0.2}


def test_a_run_that_diverged_is_never_chosen() -> None:
    lost = made(
        SMALL,
        {"standard/plain": float("-inf"), "standard/long": float("-inf"), "standard/off": -9.0},
    )
    assert choices(SMALL, "rte", lost)[STANDARD][0] == "off"


def test_a_contest_that_follows_takes_what_won_on_most_tasks() -> None:
    assert list(planned(AFTER, {})) == []
    scores = made(SMALL, {"standard/off": 1.0, "rdrop/3": 1.0})
    found = {each.contestant: each for each in planned(AFTER, scores)}
    assert set(found) == {STANDARD, "rdrop", "ols", "twice"}
    assert found[STANDARD].point.settings == {"encoder_dropout": 0.0}
    assert found["rdrop"].point.options == {"weight": 3}
    assert {each.seed for each in found.values()} == {400}


def test_only_the_best_tuned_methods_have_results_where_a_contest_says_how_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = replace(SMALL, tasks=("rte",), finalists=1)
    monkeypatch.setitem(CONTESTS, "small", few)
    scores = made(few, {"ols/1": 3.0, "rdrop/1": 2.0})
    names = {each.contestant for each in planned(few, scores) if each.stage == RESULT}
    assert names == {STANDARD, "ols", "twice"}
    assert {each.contestant for each in planned(AFTER, scores)} == names


@pytest.mark.parametrize("contest", CONTESTS.values(), ids=lambda contest: contest.name)
def test_every_method_has_the_options_that_a_contest_gives_it(contest: Contest) -> None:
    assert contest.tuning_seed not in contest.seeds
    count = 3 if contest is LANGUAGE else 6
    for each in contest.contestants:
        assert len(each.variants) <= count
        for variant in each.variants:
            create(each.method, **variant.options)
    if contest.standard:
        assert len(contest.standard) == count


def test_all_methods_of_a_tuned_contest_have_six_candidates() -> None:
    counts = {each.name: len(each.variants) for each in UNDERSTANDING.contestants}
    assert set(counts.values()) == {6}
