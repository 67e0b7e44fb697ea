"""The page of the consistency contests: its statistics, the rules of PLAN.md, and that it says what
the records say.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import bootstrap
import numpy as np
import page
import pytest
import texts
from cells import Cell, Records, sessions
from contests import BUILTIN, CONTESTS, NOISY, STANDARD, TRANSLATION, UNDERSTANDING, Contest
from hypothesis import given
from hypothesis import strategies as st
from inference import (
    DOES_NOT,
    PAYS,
    UNDECIDED,
    Gain,
    differences,
    holm,
    pays_for_price,
    replaces,
    verdict,
)
from outcomes import Entry, Outcome, groups, key_of, outcomes
from pages import differing
from picture import apart
from sacrebleu.metrics import BLEU
from scipy import stats
from scoring import validation_score
from sklearn.isotonic import IsotonicRegression
from stages import TUNE, Planned, Point, planned
from translation_runs import bleu_counts
from wording import advice, answer, costs, guide, helps, in_text, label

from advreg.lab.kinds.classification.metrics import METRICS
from advreg.lab.report.statistics import Spread
from advreg.records.log import RecordLog
from advreg.records.run import RunRecord
from report_runs import made_up

# ---- statistics

NUMBERS = st.lists(st.floats(-100, 100).map(lambda value: round(value, 3)), min_size=3, max_size=20)


@given(NUMBERS, NUMBERS)
def test_gains_are_scipys_paired_t_test(one: list[float], other: list[float]) -> None:
    size = min(len(one), len(other))
    gains = differences(dict(enumerate(one[:size])), dict(enumerate(other[:size])))
    if len(set(gains.values())) == 1:
        return
    found, test = Gain.of(gains), stats.ttest_rel(one[:size], other[:size])
    assert found is not None
    assert found.p == pytest.approx(test.pvalue, rel=1e-6, abs=1e-12)
    assert (found.low, found.high) == pytest.approx(
        test.confidence_interval(0.95), rel=1e-6, abs=1e-9
    )


def test_differences_that_are_all_equal_leave_no_doubt() -> None:
    same, none = Gain.of({0: 1.0, 1: 1.0}), Gain.of({0: 0.0, 1: 0.0})
    assert same is not None and none is not None  # noqa: PT018
    assert (same.p, none.p) == (0.0, 1.0)
    assert Gain.of({0: 1.0}) is None
    assert Gain.of({}) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(0, 3))
def test_holms_procedure_is_closed_testing_with_bonferronis(values: list[float], more: int) -> None:
    def closed(place: int) -> float:
        """The largest Bonferroni p value of all intersections that a hypothesis takes part in."""
        every = [*values, *[1.0] * more]
        sets = (
            each
            for size in range(1, len(every) + 1)
            for each in itertools.combinations(range(len(every)), size)
        )
        return max(
            min(1.0, len(each) * min(every[other] for other in each))
            for each in sets
            if place in each
        )

    found = holm(dict(enumerate(values)), len(values) + more)
    assert [found[place] for place in range(len(values))] == pytest.approx(
        [closed(n) for n in range(len(values))]
    )


# ---- verdicts


def gain(low: float, high: float) -> Gain:
    return Gain(Spread((low + high) / 2, 1.0, 16), low, high, 0.01)


@pytest.mark.parametrize(
    ("low", "high", "corrected", "diverged", "expected"),
    [
        (0.1, 3.0, 0.049, 0, PAYS),
        (0.0, 3.0, 0.01, 0, UNDECIDED),  # the bound must be above 0
        (0.1, 3.0, 0.05, 0, UNDECIDED),  # p must be below 0.05
        (0.1, 3.0, 0.01, 1, UNDECIDED),  # a run that diverged has no gain
        (-1.0, 0.99, 0.9, 0, DOES_NOT),
        (-1.0, 1.0, 0.9, 0, UNDECIDED),  # a third of the deviation is not below it
        (-3.0, -2.0, 0.001, 1, DOES_NOT),
        (0.1, 0.5, 0.2, 0, DOES_NOT),
    ],
)
def test_a_verdict_follows_the_plan(
    low: float, high: float, corrected: float, diverged: int, expected: str
) -> None:
    assert verdict(gain(low, high), corrected, 3.0, diverged) == expected


def test_a_method_pays_for_its_price_if_it_is_cheap_or_beats_twice_the_epochs() -> None:
    better, worse = (gain(0.1, 2.0), 0.01), (gain(-0.1, 2.0), 0.01)
    assert pays_for_price(PAYS, 1.1, worse) is True
    assert pays_for_price(PAYS, 1.11, worse) is False
    assert pays_for_price(PAYS, 2.2, better) is True
    assert pays_for_price(PAYS, 2.3, better) is None  # the control had less time
    assert pays_for_price(PAYS, None, better) is None
    assert pays_for_price(PAYS, 3.0, (gain(0.1, 2.0), 0.05)) is False
    assert pays_for_price(PAYS, 1.11, None) is None
    assert pays_for_price(UNDECIDED, 1.0, better) is False
    assert pays_for_price(DOES_NOT, 1.0, None) is False


def test_a_method_replaces_another_with_more_than_three_quarters_of_its_gain() -> None:
    other = {0: 4.0, 1: 8.0, 2: 12.0}
    found = replaces({0: 4.0, 1: 7.2, 2: 9.8}, other)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(
        stats.ttest_1samp([1.0, 1.2, 0.8], 0).confidence_interval()
    )
    even = replaces({seed: 0.75 * value for seed, value in other.items()}, other)
    assert even is not None and even.low == 0.0  # noqa: PT018 - which is not above 0


# ---- outcomes of made-up records

Scores = Callable[[Planned], float]


def run(
    each: Planned, score: float, seconds: float = 1.0, nll: float = 1.0, kind: str = "text"
) -> RunRecord:
    """A run with one score, in percent, by the measure of its task."""
    names = ("accuracy", "f1", "matthews", "pearson", "spearman") if kind == "text" else ()
    metrics = {f"{prefix}{name}": score / 100 for prefix in ("", "valid_") for name in names}
    if kind == "translation":
        metrics = {name: score for name in ("valid_bleu", "bleu_2016", "bleu_2017")}
    if each.task != "stsb":
        tests = ("",) if kind == "text" else ("_2016", "_2017")
        metrics |= {
            f"{name}{test}": nll
            for test in tests
            for name in ("nll", "ece", "scaled_nll", "scaled_ece")
        }
    details = (
        {"predictions": f"{score}"} if kind == "text" else {"bleu_statistics": {"test": f"{score}"}}
    )
    record = made_up(
        each.point.method,
        each.seed,
        task=each.task,
        metrics=metrics,
        seconds=20 * seconds,
        details=details,
    )
    passes = {
        "forward": 1.0 if each.point.method in (STANDARD, "temporal", "ols") else 2.0,
        "backward": 1.0,
    }
    environment = {**record.environment, "arguments": ["--jobs", "15"], "cpu_count": 16}
    outcome = replace(record.outcome, passes=passes)
    return replace(record, name=each.key, environment=environment, outcome=outcome)


def work_off(
    contest: Contest, score: Scores, known: Iterable[RunRecord] = (), **others: Any
) -> list[RunRecord]:
    """All runs of a contest; ``others`` give the seconds or the likelihood of a run."""
    made = {record.name: record for record in known}
    while True:
        scores = {name: validation_score(record) for name, record in made.items()}
        fresh = [each for each in planned(contest, scores) if each.key not in made]
        if not fresh:
            return list(made.values())
        for each in fresh:
            more = {name: of(each) for name, of in others.items()}
            made[each.key] = run(each, score(each), kind=contest.kind, **more)


def noise(each: Planned) -> float:
    """The noise of a run, nearly the same for all contestants with one seed."""
    shared, own = random.Random(f"{each.task} {each.seed}"), random.Random(each.key)
    return shared.gauss(0, 2) + own.gauss(0, 0.5)


def gaining(**gains: float) -> Scores:
    """Standard scores 50, others more by their gain. Candidates all score alike, so the first are
    chosen.
    """
    return lambda each: (
        50.0 if each.stage == TUNE else 50 + noise(each) + gains.get(each.contestant, 0.0)
    )


@pytest.fixture(scope="module")
def builtin() -> list[RunRecord]:
    """The cached prediction gains most and is free; R-Drop and SMART pay, SMART more than twice the
    epochs.
    """
    gains = gaining(
        **{"temporal": 6.0, "rdrop": 2.0, "smart": 5.0, "r3f": -2.0, "twice the epochs": 2.0}
    )
    seconds = {STANDARD: 1.0, "temporal": 1.05, "ols": 1.0, "smart": 4.0}
    return work_off(
        BUILTIN,
        gains,
        seconds=lambda each: seconds.get(each.point.method, 2.0),
        nll=lambda each: (
            1 + noise(each) / 100 + {"temporal": -0.2, "rdrop": 0.2}.get(each.contestant, 0.0)
        ),
    )


def only(records: Iterable[RunRecord], contest: Contest) -> Outcome:
    (found,) = outcomes(Records(records), contest)
    return found


def test_verdicts_of_a_contest_that_is_complete(builtin: list[RunRecord]) -> None:
    found = only(builtin, BUILTIN)
    assert found.complete
    assert set(found.verdicts) == {
        each.name for each in BUILTIN.contestants if each.method != STANDARD
    }
    told = {name: (each.text, each.for_price) for name, each in found.verdicts.items()}
    assert told["temporal"] == (PAYS, True)
    assert told["smart"] == (
        PAYS,
        None,
    )  # it takes more time than the control with twice the epochs
    assert told["rdrop"] == (PAYS, False)
    assert told["r3f"] == (DOES_NOT, False)
    entry = found.entries["smart"]
    assert (entry.step_time, entry.run_time) == pytest.approx((4.0, 4.0))
    mine, theirs = ([cell.scores[seed] for seed in BUILTIN.seeds] for cell in
                    (entry.cells["docstrings"], found.standard["docstrings"]))  # fmt: skip
    assert entry.gain is not None
    assert entry.gain.p == pytest.approx(stats.ttest_rel(mine, theirs).pvalue)
    naive = sorted(each.gain.p for each in found.methods.values() if each.gain)
    assert found.verdicts["smart"].corrected == pytest.approx(
        (7 - naive.index(entry.gain.p)) * entry.gain.p, rel=1e-6
    )
    replaced = found.replaced()
    assert {one for one, _ in replaced} == {"temporal", "ols"}
    assert replaced["temporal", "smart"].low > 0 > replaced["ols", "smart"].low


def test_a_contestant_without_all_seeds_has_no_verdict(builtin: list[RunRecord]) -> None:
    fewer = [
        record
        for record in builtin
        if "/result/smart/" not in record.name or not record.name.endswith("-415")
    ]
    found = only(fewer, BUILTIN)
    assert not found.complete
    assert found.entries["smart"].gain is None
    assert set(found.methods) - set(found.verdicts) == {"smart"}
    whole = only(builtin, BUILTIN)
    assert (
        found.verdicts["rdrop"].corrected >= whole.verdicts["rdrop"].corrected
    )  # a missing p value counts as 1
    less = [record for record in builtin if not record.name.endswith("/standard/plain/seed-400")]
    assert only(less, BUILTIN).verdicts == {}


def test_runs_of_a_candidate_that_was_not_chosen_do_not_count(builtin: list[RunRecord]) -> None:
    ours = [record for record in builtin if "/result/ols/" in record.name]
    others = [replace(record, name=record.name.replace("/ols/3/", "/ols/20/")) for record in ours]
    found = only([record for record in builtin if record not in ours] + others, BUILTIN)
    assert found.entries["ols"].cells["docstrings"].done == 0
    assert "ols" not in found.verdicts


def test_a_run_that_diverged_is_done_and_has_no_gain(builtin: list[RunRecord]) -> None:
    def lost(record: RunRecord) -> RunRecord:
        failed = replace(record.outcome, status="failed", metrics={}, error="loss is nan")
        return (
            replace(record, outcome=failed)
            if record.name.endswith("/temporal/3/seed-401")
            else record
        )

    found = only(map(lost, builtin), BUILTIN)
    entry = found.entries["temporal"]
    assert (entry.diverged, len(entry.gains), entry.complete) == (1, 15, True)
    assert found.verdicts["temporal"].text == UNDECIDED
    assert "(1 diverged)" in page.gains(found, bootstrap.BootstrapRecord())


@pytest.fixture(scope="module")
def understanding() -> list[RunRecord]:
    return work_off(
        UNDERSTANDING,
        gaining(temporal=1.0, ema=0.5),
        seconds=lambda each: 1.0 + (each.point.method == "smart"),
    )


def test_the_outcome_of_understanding_is_the_mean_gain_in_deviations_of_standard(
    understanding: list[RunRecord],
) -> None:
    found = only(understanding, UNDERSTANDING)
    assert set(found.methods) == set(found.verdicts)
    assert "ema" in found.entries and "ema" not in found.verdicts  # noqa: PT018
    scores = {
        (name, task): cell.scores
        for name, entry in found.entries.items()
        for task, cell in entry.cells.items()
    }
    plain = {task: cell.scores for task, cell in found.standard.items()}
    for name, tasks in (("temporal", UNDERSTANDING.tasks), ("ols", ("rte", "mrpc", "cola"))):
        naive = [
            statistics.mean(
                (scores[name, task][seed] - plain[task][seed])
                / statistics.stdev(plain[task].values())
                for task in tasks
            )
            for seed in UNDERSTANDING.seeds
        ]
        assert list(found.entries[name].gains.values()) == pytest.approx(naive)
    third = {
        name for name, entry in found.methods.items() if entry.gain and entry.gain.high < 1 / 3
    }
    assert third == {name for name, each in found.verdicts.items() if each.text == DOES_NOT}
    assert (
        found.verdicts["temporal"].for_price is True
    )  # a cheap one; there is no control with twice the epochs
    assert {each.over_twice for each in found.verdicts.values()} == {None}


def test_holms_correction_is_over_all_tasks_of_a_contest(builtin: list[RunRecord]) -> None:
    runs = work_off(NOISY, gaining(temporal=6.0, rdrop=0.4), builtin)
    noisy, clear = outcomes(Records(runs), NOISY)
    values = {
        (each.key, name): entry.gain.p
        for each in (noisy, clear)
        for name, entry in each.methods.items()
        if entry.gain
    }
    assert len(values) == 14
    corrected = {
        (each.key, name): found.corrected
        for each in (noisy, clear)
        for name, found in each.verdicts.items()
    }
    assert corrected == pytest.approx(holm(values))


def test_only_finalists_have_rows_once_they_are_known() -> None:
    first = [
        record
        for record in work_off(TRANSLATION, gaining(), ())
        if "/tune/standard/" in record.name
    ]
    waiting = only(first, TRANSLATION)
    assert set(waiting.entries) == {"rdrop", "simcut", "temporal", "twice the epochs"}
    assert waiting.asked == 8 * 4
    best = {"rdrop": 3.0, "temporal": 2.0}
    known = only(
        work_off(TRANSLATION, lambda each: 40 + best.get(each.contestant, 0.0) + noise(each) / 100),
        TRANSLATION,
    )
    assert set(known.entries) == {"rdrop", "temporal", "twice the epochs"}
    assert known.asked == 8 * 4
    assert known.complete


def test_times_compare_within_a_session_only(builtin: list[RunRecord]) -> None:
    """The second half of the seeds of the cached prediction is made later, on a machine half as
    fast.
    """

    def later(record: RunRecord) -> RunRecord:
        if "/result/temporal/" not in record.name or record.training.seed < 408:
            return record
        outcome = replace(record.outcome, timing={**record.outcome.timing, "seconds_per_step": 2.1})
        return replace(record, outcome=outcome, started="2026-01-01T01:30:00+00:00")

    found = only(map(later, builtin), BUILTIN)
    assert found.entries["temporal"].step_time == pytest.approx(1.05)
    assert found.entries["twice the epochs"].step_time == pytest.approx(1.0)
    assert found.entries["twice the epochs"].run_time == pytest.approx(
        1.0
    )  # made-up runs all have 20 steps
    alone = [record if "/temporal/" in record.name else replace(record, started="2026-01-03T00:00:00+00:00")
             for record in builtin]  # fmt: skip
    entry = only(alone, BUILTIN).entries["temporal"]
    assert (entry.step_time, entry.run_time) == (None, None)
    assert only(alone, BUILTIN).verdicts["temporal"].for_price is None  # its time is not known
    assert "| – | 1 + 1 |" in page.gains(only(alone, BUILTIN), bootstrap.BootstrapRecord())


def test_a_session_ends_with_a_break_of_an_hour_or_another_machine(
    builtin: list[RunRecord],
) -> None:
    stamps = ("00:00", "00:59", "01:58", "02:58")
    runs = [
        replace(run, started=f"2026-01-01T{at}:00+00:00")
        for run, at in zip(builtin, stamps, strict=False)
    ]
    other = replace(builtin[5], environment={**builtin[5].environment, "device": "NVIDIA H200"})
    found = sessions([*reversed(runs), other])
    first, second, third, fourth = (found[run.name] for run in runs)
    assert first == second == third != fourth
    assert found[other.name] not in (first, fourth)


# ---- the bootstrap


def resampled(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.repeat(values, weights.astype(int))


@pytest.mark.parametrize("name", ["accuracy", "f1", "matthews", "pearson", "spearman"])
def test_scores_of_weighted_samples_are_those_of_the_samples_drawn(name: str) -> None:
    draw = np.random.default_rng(1)
    weights = bootstrap.drawn("task", 60, 20)
    assert weights.sum(1).tolist() == [60] * 20
    if name in ("pearson", "spearman"):
        labels = draw.integers(0, 6, 60) / 2
        guesses = np.round(labels + draw.normal(0, 1, 60), 1)  # with equals on both sides
    else:
        labels = draw.integers(0, 2, 60).astype(float)
        guesses = np.where(draw.random(60) < 0.7, labels, 1 - labels)
    naive = [METRICS[name](resampled(each, guesses), resampled(each, labels)) for each in weights]
    assert bootstrap.MEASURES[name](weights, guesses, labels) == pytest.approx(naive)


def test_a_side_that_does_not_vary_has_no_correlation() -> None:
    same, labels = np.full(4, 0.3), np.arange(4.0)
    assert (
        bootstrap.pearson(np.ones((1, 4)), same, labels)
        == [METRICS["pearson"](same, labels)]
        == [0.0]
    )


def test_bleu_of_weighted_sentences_is_sacrebleus() -> None:
    lines = [
        "a man is riding a red horse .",
        "two dogs play in the snow",
        "a girl in a blue dress sings a song .",
    ]
    references = [
        "a man rides a red horse .",
        "two dogs are playing in the snow .",
        "a girl in a blue dress sings a song",
    ]
    weights = np.array([[1, 1, 1], [2, 0, 1], [0, 2, 3]], dtype=float)
    found = bootstrap.bleu(weights, bootstrap.counts(bleu_counts(lines, references)))
    for each, score in zip(weights, found, strict=True):
        chosen = [place for place, count in enumerate(each) for _ in range(int(count))]
        naive = (
            BLEU().corpus_score([lines[n] for n in chosen], [[references[n] for n in chosen]]).score
        )
        assert score == pytest.approx(naive)


def test_a_translation_is_scored_by_the_mean_of_its_test_sets() -> None:
    lines = [
        "a man is riding a red horse .",
        "two dogs play in the snow",
        "a girl in a blue dress sings a song .",
    ]
    references = [
        "a man rides a red horse .",
        "two dogs play in the snow .",
        "a girl in a blue dress sings a song",
    ]
    sets = {"valid": lines[::-1], "test": lines, "test_2017_flickr": [*references[:2], lines[2]]}
    bleus = {name: BLEU().corpus_score(found, [references]).score for name, found in sets.items()}
    metrics = {
        "valid_bleu": bleus["valid"],
        "bleu_2016": bleus["test"],
        "bleu_2017": bleus["test_2017_flickr"],
    }
    details = {
        "bleu_statistics": {name: bleu_counts(found, references) for name, found in sets.items()}
    }
    record = made_up("rdrop", 400, task="multi30k-en-de", metrics=metrics, details=details)
    scorer = bootstrap.Scorer("multi30k-en-de", None)
    scorer.check(record)
    assert scorer(record, 0) == pytest.approx([(bleus["test"] + bleus["test_2017_flickr"]) / 2])
    assert scorer(record, 7).shape == (7,)


SEEDS = (400, 401, 402)
LABELS = np.random.default_rng(5).integers(0, 3, 80).astype(float)


def predicting(method: str, right: float) -> Cell:
    """Runs that predict this share of 80 samples right."""
    runs = {}
    for seed in SEEDS:
        draw = np.random.default_rng([seed, len(method)])
        guesses = np.where(draw.random(80) < right, LABELS, (LABELS + 1) % 3).astype(int)
        accuracy = float((guesses == LABELS).mean())
        details = {"predictions": "".join(map(str, guesses))}
        runs[seed] = made_up(
            method, seed, task="docstrings", metrics={"accuracy": accuracy}, details=details
        )
    return Cell("plain", Point(method), runs, dict.fromkeys(runs, 1), 0)


@pytest.fixture
def judged() -> Outcome:
    """Two of three samples right, and half of them."""
    contest = replace(BUILTIN, seeds=SEEDS)
    standard = {"docstrings": predicting(STANDARD, 0.5)}
    contestant = next(each for each in BUILTIN.contestants if each.name == "temporal")
    entry = Entry(contestant, {"docstrings": predicting("temporal", 0.67)}, standard, False, 1, 3)
    return Outcome(contest, ("docstrings",), standard, {"temporal": entry}, {})


def test_the_interval_over_test_samples_is_that_of_the_mean_gain(judged: Outcome) -> None:
    (made,) = (
        bootstrap.Bootstrap(bootstrap.BootstrapRecord(), lambda task: LABELS, 500)
        .record([judged])
        .intervals
    )
    entry = judged.entries["temporal"]
    gains = []
    for weights in bootstrap.drawn("docstrings", 80, 500):
        chosen = np.repeat(np.arange(80), weights.astype(int))
        scores = [
            100
            * statistics.mean(
                np.mean(bootstrap.numbers(bootstrap.predicted(run))[chosen] == LABELS[chosen])
                for run in cell.runs.values()
            )
            for cell in (entry.cells["docstrings"], entry.standard["docstrings"])
        ]
        gains.append(scores[0] - scores[1])
    assert (made.low, made.high) == pytest.approx(np.percentile(gains, [2.5, 97.5]))
    assert entry.gain is not None
    assert made.low < entry.gain.mean < made.high


def test_intervals_of_the_same_runs_are_kept_and_others_are_not_shown(judged: Outcome) -> None:
    def refuse(task: str) -> np.ndarray:
        raise AssertionError(task)

    made = bootstrap.Bootstrap(bootstrap.BootstrapRecord(), lambda task: LABELS, 50).record(
        [judged]
    )
    assert bootstrap.Bootstrap(made, refuse, 50).record([judged]) == made
    entry = judged.entries["temporal"]
    other = replace(entry, cells={"docstrings": predicting("temporal", 0.7)})
    assert made.find(judged, entry) == made.intervals[0]
    assert made.find(judged, other) is None


def test_right_answers_that_contradict_the_recorded_scores_are_refused(judged: Outcome) -> None:
    with pytest.raises(
        SystemExit, match="data must be what the runs read, got docstrings on which"
    ):
        bootstrap.Bootstrap(
            bootstrap.BootstrapRecord(), lambda task: LABELS[::-1].copy(), 50
        ).record([judged])


def test_an_interval_of_several_tasks_is_in_deviations_of_standard(judged: Outcome) -> None:
    entry = judged.entries["temporal"]
    pooled = replace(entry, pooled=True)
    scorers = {"docstrings": bootstrap.Scorer("docstrings", LABELS)}
    one, other = (bootstrap.interval(judged, each, scorers, 200) for each in (entry, pooled))
    unit = statistics.stdev(entry.standard["docstrings"].scores.values())
    assert (other.low * unit, other.high * unit) == pytest.approx((one.low, one.high))


# ---- the page


def test_the_page_and_its_picture_are_made_of_the_records() -> None:
    found, intervals = Records(RecordLog(page.RUNS).records()), bootstrap.read()
    text = page.page(found, intervals)
    old = differing(
        page.PAGE, text, lambda folder: page.draw(page.all_outcomes(found), folder / page.PICTURE)
    )
    assert old == [], "run experiments/consistency/page.py"
    assert f"]({page.PICTURE})" in text
    assert "Intervals over test samples" not in text, (
        "run experiments/consistency/bootstrap.py, then page.py"
    )


def test_every_gain_on_the_page_is_on_record() -> None:
    """Read from the file of records without the page's own code."""
    text, scores = page.PAGE.read_text(encoding="utf-8"), dict[str, dict[str, float]]()
    section = text.partition("\n## Built-in task, from scratch\n")[2].partition("\n## ")[0]
    for record in RecordLog(page.RUNS).records():
        contest, task, stage, name, _, seed = record.name.split("/")
        if (contest, task, stage) == ("builtin", "docstrings", "result"):
            scores.setdefault(name, {})[seed] = 100 * (
                record.outcome.metrics["accuracy"] or math.nan
            )
    complete = {name: runs for name, runs in scores.items() if len(runs) == 16}
    assert {"standard", "temporal", "rdrop", "simcut", "ols", "r3f"} <= set(complete)
    for name in complete.keys() - {"standard"}:
        gains = [
            complete[name][seed] - complete["standard"][seed]
            for seed in sorted(complete["standard"])
        ]
        low, high = stats.ttest_1samp(gains, 0).confidence_interval()
        shown = [f"{value:+.1f}".replace("-", "−").replace("+0.0", "0.0").replace("−0.0", "0.0")
                 for value in (statistics.mean(gains), low, high)]  # fmt: skip
        (row,) = (
            line
            for line in section.splitlines()
            if line.startswith(f"| {label(name)} | ") and " + " in line
        )
        assert f"| {shown[0]} [{shown[1]}, {shown[2]}] |" in row


def test_places_and_texts_cover_all_contests() -> None:
    assert set(texts.CONTESTS) == set(CONTESTS)
    assert set(texts.PLACES) == {
        key_of(each, tasks) for each in CONTESTS.values() for tasks in groups(each)
    }


def test_the_answer_without_records_is_that_there_is_none() -> None:
    text = page.page(Records([]), bootstrap.BootstrapRecord())
    assert "**No verdict yet**: no contestant has all its seeds." in text
    assert "## Built-in task" not in text
    assert "![" not in text
    assert "- **R-Drop: open.**" in text
    assert "- No runs yet: `builtin`, `noisy`, `scratch`, `snli`, `understanding`, " in text


def test_the_answer_says_what_pays_where_and_at_what_price(builtin: list[RunRecord]) -> None:
    found = only(builtin, BUILTIN)
    text = answer([found])

    def told(name: str) -> str:
        each = found.entries[name]
        assert each.step_time is not None
        time = f"at {each.step_time:.2f} × Standard's time a step"
        return f"on the built-in task ({statistics.mean(each.gains.values()):+.1f} points), {time}."

    assert text.startswith("- **Cached prediction** pays for its price on")
    assert f"**Cached prediction** pays for its price {told('temporal')}" in text
    assert f"**SMART** pays at a price that is not tested {told('smart')}" in text
    assert f"**R-Drop** pays, but not for its price, {told('rdrop')}" in text
    assert "**R3F** does not pay on the built-in task." in text
    assert "no method pays" not in text
    assert "No verdict yet" not in text
    assert "so far" not in text
    partly = answer([found, replace(found, verdicts={})])
    assert partly.startswith("1 of 2 comparisons are complete so far.\n\n- **Cached prediction**")
    assert partly.endswith("No verdict yet, for lack of runs: all methods on the built-in task.")


def test_the_summary_has_all_verdicts(builtin: list[RunRecord]) -> None:
    found = only(builtin, BUILTIN)
    header, _, row = page.summary([found, replace(found, verdicts={})]).splitlines()[-3:]
    cells = dict(zip(header.split(" | "), row.split(" | "), strict=True))
    for name, told in (("temporal", "**pays"), ("rdrop", "pays"), ("r3f", "does not pay")):
        mean = f"{statistics.mean(found.entries[name].gains.values()):+.1f}".replace("-", "−")
        assert cells[label(name)].startswith(f"{told}, {mean} [")
    fewer = replace(
        found, verdicts={name: each for name, each in found.verdicts.items() if name != "r3f"}
    )
    assert "| runs missing |" in page.summary([fewer])


def test_where_no_method_pays_the_answer_names_the_closest(understanding: list[RunRecord]) -> None:
    flat = work_off(
        UNDERSTANDING,
        gaining(temporal=-1.0, ols=-1.5, r3f=-2.0, rdrop=-0.5, simcut=-3.0, arch=-2, smart=-1),
    )
    found = only(flat, UNDERSTANDING)
    assert {each.text for each in found.verdicts.values()} <= {DOES_NOT, UNDECIDED}
    best = max(found.methods.values(), key=lambda each: statistics.mean(each.gains.values()))
    place = "In fine-tuning MiniLM on four tasks"
    assert f"{place} no method pays; the closest is {in_text(best.contestant.name)} (" in answer(
        [found]
    )


def test_the_guide_recommends_keeps_drops_and_leaves_open(
    builtin: list[RunRecord], understanding: list[RunRecord]
) -> None:
    one, other = only(builtin, BUILTIN), only(understanding, UNDERSTANDING)
    assert advice([one], "temporal").startswith(
        "keep as a recommended setting from scratch with ten classes (+5."
    )
    assert advice([one], "rdrop").startswith("keep as a baseline (+")
    assert advice([one], "r3f").startswith("drop (at best −")
    waiting = replace(other, verdicts={})
    assert advice([one, waiting], "r3f").startswith("open (at best −")
    assert advice([waiting], "r3f") == "open."
    assert helps([one, waiting], "r3f").endswith("lacks runs in 1 of 2 comparisons.")
    task = "calibration on the built-in task."
    assert costs([one], "temporal") == f"A step takes 1.05 × Standard's time; it helps {task}"
    assert costs([one], "rdrop") == f"A step takes 2.00 × Standard's time; it harms {task}"
    assert costs([waiting], "rdrop") == "Its cost is not measured yet."
    for line in guide([one, other]).splitlines():
        assert len(re.findall(r"\.(?:\*\*)?(?: |$)", line)) == 3  # what to do, and two sentences


def test_a_page_of_made_up_contests_has_every_part(
    builtin: list[RunRecord], understanding: list[RunRecord]
) -> None:
    runs = [*builtin, *understanding]
    text = page.page(Records(runs), bootstrap.BootstrapRecord())
    assert "2 of 12 comparisons are complete so far." in text
    assert (
        "| SMART | S 1, ε 0.3" not in text.partition("## What was tuned")[0]
    )  # settings by task are below
    assert "The best control is twice the epochs (+" in text
    assert "Likelihood and calibration on RTE" in text
    assert "Likelihood and calibration on STS-B" not in text  # which has no classes
    assert "| Online label smoothing for SMART |" in text
    assert "Intervals over test samples on the built-in task: " in text  # none were made
    assert "Commit" not in text
    assert "uncommitted" not in text


def test_departures_are_seen_in_the_records(builtin: list[RunRecord]) -> None:
    def elsewhere(record: RunRecord) -> RunRecord:
        git = {"of": "advreg", "commit": "d" * 40, "dirty": None}
        return replace(
            record, environment={**record.environment, "git": git, "device": "NVIDIA H200"}
        )

    text = page.departures(Records([*builtin[:-1], elsewhere(builtin[-1])]))
    assert "The runs of `builtin` come from 2 commits." in text
    assert "Some runs of `builtin` come from a tree that may have had uncommitted changes." in text
    assert "The runs of `builtin` are on NVIDIA H200 and cpu." in text
    assert "`builtin`" not in page.departures(Records(builtin))


def test_without_a_gain_there_is_no_picture(tmp_path: Path) -> None:
    path = tmp_path / "none.svg"
    assert not page.draw(page.all_outcomes(Records([])), path)
    assert not path.exists()


@given(
    st.lists(st.floats(-2, 2).map(lambda value: round(value, 2)), min_size=1, max_size=8),
    st.floats(0.01, 1),
)
def test_points_of_the_picture_lie_apart_and_are_moved_as_little_as_can_be(
    values: list[float], least: float
) -> None:
    found, order = apart(values, least), sorted(range(len(values)), key=values.__getitem__)
    steps = least * np.arange(len(values))
    naive = (
        IsotonicRegression().fit_transform(np.arange(len(values)), np.array(values)[order] - steps)
        + steps
    )
    assert np.array(found)[order] == pytest.approx(naive)
    assert np.all(np.diff(np.array(found)[order]) >= least - 1e-9)
