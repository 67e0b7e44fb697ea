from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from advreg.lab.report.gather import gather
from advreg.lab.report.page.parts import Bullets, Folded
from advreg.lab.report.sections.contents import sections
from advreg.records.run import RunRecord
from comparisons import comparison
from report_runs import made_up, parts_of, reported, save, sections_of


def told(folder: Path, scores: dict[str, list[float]]) -> str:
    """The sentence of runs on one task, by method and seed."""
    records = [
        made_up(method, seed, value / 100)
        for method, values in scores.items()
        for seed, value in enumerate(values)
    ]
    (part,) = parts_of(reported(folder, records)["verdict"], Bullets)
    (sentence,) = part.lines
    return sentence


def test_the_winner_is_named_with_a_corrected_interval(tmp_path: Path) -> None:
    standard, arch = [70.0, 71.0, 72.0, 70.5], [73.0, 74.1, 74.9, 73.6]
    smart = [72.0, 71.0, 73.0, 72.5]
    sentence = told(tmp_path, {"standard": standard, "smart": smart, "arch": arch})
    gaps = [mine - theirs for mine, theirs in zip(arch, standard, strict=True)]
    low, high = stats.t.interval(0.975, 3, loc=sum(gaps) / 4, scale=stats.sem(gaps))
    assert sentence == (
        f"reviews: ARCH is ahead of Standard by +{sum(gaps) / 4:.1f} [+{low:.1f}, +{high:.1f}] "
        "points (73.9 against 70.9, 4 seeds)."
    )


def test_an_interval_around_zero_is_undecided(tmp_path: Path) -> None:
    sentence = told(tmp_path, {"standard": [70.0, 72.0, 71.0], "arch": [72.0, 70.0, 72.0]})
    assert sentence.startswith("reviews: undecided; ARCH minus Standard is +0.3 [−")


def test_standard_can_win(tmp_path: Path) -> None:
    sentence = told(tmp_path, {"standard": [70.0, 71.0, 72.0], "arch": [60.0, 61.2, 62.1]})
    assert sentence.startswith("reviews: Standard is ahead of every other method; ARCH minus")


@pytest.mark.parametrize(("scores", "why"), [
    ({"standard": [70.0], "arch": [72.0]}, "one seed, so no interval"),
    ({"standard": [70.0, 71.0], "arch": [72.0, 73.0]}, "all seeds agree, so no interval"),
])  # fmt: skip
def test_what_has_no_interval_is_not_called_a_lead(
    scores: dict[str, list[float]], why: str, tmp_path: Path
) -> None:
    sentence = told(tmp_path, scores)
    assert "ahead" not in sentence
    assert sentence.endswith(f"{why}.")


def perplexities(folder: Path, scores: dict[str, list[float]]) -> str:
    records = [
        replace(made, outcome=replace(made.outcome, metrics={"perplexity": value}))
        for method, values in scores.items()
        for seed, value in enumerate(values)
        for made in [made_up(method, seed)]
    ]
    for number, record in enumerate(records):
        save(folder / f"run-{number}", record)
    found = {each.key: each for each in sections(gather([folder]))}
    (part,) = parts_of(found["verdict"], Bullets)
    return part.lines[0]


def test_the_lowest_perplexity_wins_on_its_own_scale(tmp_path: Path) -> None:
    high, low = [2.31, 2.32, 2.33], [2.21, 2.22, 2.232]
    told = perplexities(tmp_path / "a", {"standard": high, "arch": low})
    assert told.startswith("reviews: ARCH is ahead of Standard by −0.099 [−0.102, −0.096] points")
    assert told.endswith("(2.221 against 2.320, 3 seeds).")
    told = perplexities(tmp_path / "b", {"standard": low, "arch": high})
    assert told.startswith("reviews: Standard is ahead of every other method; ARCH minus")


def test_one_method_has_no_verdict(tmp_path: Path) -> None:
    assert "verdict" not in reported(tmp_path, [made_up()])


def test_several_tasks_have_one_sentence_about_their_average(tmp_path: Path) -> None:
    comparison({"rte": ["accuracy"], "mrpc": ["accuracy"]}, ["standard", "arch"], [0, 1]).save(
        tmp_path
    )
    for task, gain in (("rte", 0.1), ("mrpc", 0.3)):
        for method, more in (("standard", 0.0), ("arch", gain)):
            for seed in (0, 1):
                record: RunRecord = made_up(method, seed, 0.5 + more + seed * more / 100, task=task)
                save(tmp_path / task / method / f"seed-{seed}", record)
    (part,) = parts_of(sections_of(tmp_path)["verdict"], Bullets)
    assert part.title == "Comparison with small"
    assert [line.partition(":")[0] for line in part.lines] == ["average of 2 tasks"]


def test_runs_of_different_length_are_marked(tmp_path: Path) -> None:
    records = [made_up("standard", seed, 0.7 + seed / 50, epochs=3) for seed in (0, 1, 2)]
    records += [made_up("arch", seed, 0.8 + seed / 70, epochs=1) for seed in (0, 1, 2)]
    (part,) = parts_of(reported(tmp_path, records)["verdict"], Bullets)
    assert "ARCH, epochs 1 is ahead of Standard, epochs 3 by" in part.lines[0]


def test_many_sentences_are_folded(tmp_path: Path) -> None:
    records = [
        made_up(method, 0, task=f"task-{number}", epochs=number + 1)
        for number in range(12)
        for method in ("standard", "arch")
    ]
    records.append(made_up("smart", 0, task="alone", epochs=5))  # so that nothing has an average
    found = reported(tmp_path, records)["verdict"]
    first, others = parts_of(found, Bullets)
    assert (len(first.lines), len(others.lines)) == (8, 4)
    (folded,) = parts_of(found, Folded)
    assert folded.title == "4 more"
