"""Pages and tables that quote measurements say what the records say."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from scoring import primary_score

from advreg.core.ascent import INERT_STEP
from advreg.lab.report.compare import Cell
from advreg.lab.report.labels import task_name
from advreg.lab.report.pictures.svg import short
from advreg.lab.report.statistics import Spread
from advreg.records import run as records
from advreg.records.compare import score_of
from advreg.records.log import RecordLog
from advreg.records.probe import ProbeRecord, ProbeResult
from advreg.records.sealed import save_as
from advreg.records.study import Panel, StudiedPoint, StudyRecord
from report_runs import made_up, save
from studies import Scores, study_record, variant

ROOT = Path(__file__).parent.parent


def experiment(name: str) -> ModuleType:
    place = importlib.util.spec_from_file_location(name, ROOT / "experiments" / f"{name}.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    sys.modules[name] = module  # dataclasses look their module up
    place.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cost_page() -> ModuleType:
    return experiment("cost_page")


def test_the_figures_of_the_scale_plan_are_those_of_the_record() -> None:
    scale = experiment("scale")
    record = json.loads((ROOT / "results" / "scale.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert len(record["commit"]) == 40
    assert scale.table(record) in page
    assert scale.scope_table(record) in page


def gain_of_eight(mine: dict[int, float], theirs: dict[int, float]) -> str:
    assert len(mine) == 8
    return gain_of(mine, theirs)


def gain_of(mine: dict[int, float], theirs: dict[int, float]) -> str:
    """The mean difference of runs with the same seed, and its 95 % confidence interval, as pages
    write them.
    """
    assert set(mine) == set(theirs)
    gains = [mine[seed] - theirs[seed] for seed in theirs]
    error = stats.t.ppf(0.975, len(gains) - 1) * statistics.stdev(gains) / len(gains) ** 0.5
    shown = [f"{statistics.mean(gains) + side * error:+.1f}" for side in (-1, 0, 1)]
    low, gain, high = (value.replace("-0.0", "0.0").replace("-", "−") for value in shown)
    return f"{gain} [{low}, {high}]"


def test_what_the_page_of_arch_says_of_borrowed_perturbations_is_on_record() -> None:
    text = (ROOT / "results" / "default_task_borrowed.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    page = " ".join((ROOT / "docs" / "methods" / "arch.md").read_text(encoding="utf-8").split())
    for every in (3, 6):
        mean, rescaled = (
            {
                line["seed"]: 100 * line["accuracy"]
                for line in lines
                if (line["point"]["options"]["refresh_every"], line["point"]["options"]["borrowed"])
                == (every, kind)
            }
            for kind in ("mean", "rescaled")
        )
        assert re.search(
            rf"{re.escape(gain_of_eight(rescaled, mean))} (points )?at T_c = {every}\b", page
        )


def test_what_each_reading_of_the_papers_recipe_does_is_on_record() -> None:
    text = (ROOT / "results" / "ascent_recipes.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    page = (ROOT / "docs" / "methods" / "arch.md").read_text(encoding="utf-8")
    recipes = experiment("ascent_recipes")
    assert recipes.table(lines) in page
    assert all(
        len(line["commit"]) == 40 and line["git"] == {**line["git"], "dirty": False}
        for line in lines
    )
    assert len({line["samples"] for line in lines}) == 1
    plain = [line for line in lines if line["options"].get("step_rule") == "gradient"]
    assert len(plain) == 3 * 4
    assert all(
        line["cosine_to_start"] > 0.9 for line in plain
    )  # what the ascent's concern says of such steps
    assert all(line["options"].get("step_size", 1e-4) <= INERT_STEP for line in plain)
    chosen, noise = (
        {(line["task"], line["dropout"]): line for line in lines if line["recipe"] == name}
        for name in (recipes.PRESET, recipes.NOISE)
    )
    assert all(line["kl"] > 5 * noise[place]["kl"] for place, line in chosen.items())


def test_what_is_said_of_perturbation_and_dropout_is_on_record() -> None:
    text = (ROOT / "results" / "default_task_dropout.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")

    def accuracies(method: str, masks: str | None) -> dict[int, float]:
        kind = method, masks
        found = [
            line for line in lines if (line["point"]["method"], masks_of(line["point"])) == kind
        ]
        return {line["seed"]: 100 * line["accuracy"] for line in found}

    def masks_of(point: dict[str, dict[str, str]]) -> str | None:
        return point.get("options", {}).get("dropout")

    def gain(method: str, masks: str | None) -> str:
        return gain_of_eight(accuracies(method, masks), accuracies("standard", None))

    assert f"next to no perturbation | {gain('r3f', None)} | – |" in page
    for method, label in (("arch", "ARCH, ε = 0.3, T_c = 3"), ("smart", "SMART, ε = 0.3")):
        assert f"| {label} | {gain(method, 'fresh')} | {gain(method, 'shared')} |" in page


# ---- where ARCH helps, and what dropout has to do with it


STSB = ("pearson", "spearman")


def runs_in(folder: str) -> dict[int, dict[str, Any]]:
    """The raw records of the runs with each seed in a folder."""
    found = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in (ROOT / "results").glob(f"{folder}/seed-*/record.json")
    ]
    assert found
    return {run["training"]["seed"]: run for run in found}


def scores_in(folder: str, *metrics: str) -> dict[int, float]:
    """The mean of some metrics, in percent, by seed."""
    return {
        seed: statistics.fmean(
            run["outcome"]["metrics"][name] * (1 if name == "bleu" else 100) for name in metrics
        )
        for seed, run in runs_in(folder).items()
    }


def pair_in(
    folder: str, *metrics: str, rest: str = ""
) -> tuple[dict[int, float], dict[int, float]]:
    """ARCH's and Standard's."""
    return scores_in(f"{folder}/arch{rest}", *metrics), scores_in(
        f"{folder}/standard{rest}", *metrics
    )


def built_in() -> tuple[dict[int, float], dict[int, float]]:
    text = (ROOT / "results" / "default_task.jsonl").read_text(encoding="utf-8")
    options = {"radius": 0.3, "step_size": 0.3, "refresh_every": 3, "cache_fraction": 0.1}
    points = ({"method": "arch", "options": options}, {"method": "standard"})
    lines = [json.loads(line) for line in text.splitlines()]
    mine, theirs = (
        {line["seed"]: 100 * line["accuracy"] for line in lines if line["point"] == each}
        for each in points
    )
    return mine, theirs


def mean_of_mpnet() -> tuple[dict[int, float], dict[int, float]]:
    tasks = {"rte": ["accuracy"], "mrpc": ["accuracy", "f1"], "stsb": [*STSB], "cola": ["matthews"]}
    pairs = [pair_in(f"understanding/mpnet/{task}", *metrics) for task, metrics in tasks.items()]
    mine, theirs = (
        {seed: statistics.fmean(scores[seed] for scores in side) for seed in side[0]}
        for side in zip(*pairs, strict=True)
    )
    return mine, theirs


def contest_pair(contest: str, *tasks: str) -> tuple[dict[int, float], dict[int, float]]:
    """ARCH's and Standard's in a contest of consistency methods, the mean of its tasks by seed."""
    found: dict[tuple[str, int], list[float]] = {}
    for record in RecordLog(ROOT / "results" / "consistency" / "runs.jsonl.gz").records():
        where, task, stage, name, _, seed = record.name.split("/")
        if (where, stage) == (contest, "result") and task in tasks:
            place = name, int(seed.removeprefix("seed-"))
            found.setdefault(place, []).append(primary_score(record))
    assert {len(scores) for (name, _), scores in found.items() if name == "arch"} == {len(tasks)}
    mine, theirs = (
        {seed: statistics.fmean(scores) for (name, seed), scores in found.items() if name == side}
        for side in ("arch", "standard")
    )
    return mine, theirs


def test_where_arch_helps_is_what_the_records_say() -> None:
    table = (
        (ROOT / "README.md")
        .read_text(encoding="utf-8")
        .partition("## Where it helps")[2]
        .partition("\n## ")[0]
    )
    rows = [
        line.strip("| ").split(" | ")[-2:] for line in table.splitlines() if line.startswith("| ")
    ][1:]
    contests = {
        "the built-in task": built_in(),
        "the same, equal tuning": contest_pair("builtin", "docstrings"),
        "translation, Multi30k": pair_in("studies/multi30k", "bleu", rest="/default"),
        "translation, a ninth": pair_in("translation/small-7/iwslt14-de-en", "bleu"),
        "STS-B, T_c = 3": pair_in("studies/stsb", *STSB, rest="/default"),
        "STS-B, T_c = 5": (
            scores_in("understanding/minilm-ten/stsb/arch", *STSB),
            scores_in("studies/stsb/standard/default", *STSB),
        ),
        "SST-2": pair_in("understanding/minilm-large/sst2", "accuracy"),
        "MNLI": pair_in("understanding/minilm-large/mnli", "accuracy", "mm_accuracy"),
        "ANLI": pair_in("understanding/minilm-anli/anli", "accuracy"),
        "RTE, on a CPU": pair_in("understanding/minilm-cpu/rte", "accuracy"),
        "mean of RTE, MRPC, CoLA": contest_pair("understanding", "rte", "mrpc", "cola", "stsb"),
        "mean of RTE, MRPC, STS": mean_of_mpnet(),
    }
    assert len(rows) == len(contests)
    for (task, shown), (beginning, pair) in zip(rows, contests.items(), strict=True):
        assert task.startswith(beginning)
        assert shown == gain_of(*pair), task


def test_sts_b_is_compared_at_equal_dropout_with_runs_of_the_same_data_and_settings() -> None:
    page = (ROOT / "docs" / "results" / "understanding.md").read_text(encoding="utf-8")
    compared, studied = "understanding/minilm-ten/stsb", "studies/stsb/standard/default"
    dropped, plain = (scores_in(folder, *STSB) for folder in (f"{compared}/standard", studied))
    one, other = (runs_in(folder)[0] for folder in (f"{compared}/standard", studied))
    assert one["task"]["fingerprint"] == other["task"]["fingerprint"]
    settings = {
        **one["training"]["more"],
        "torch_compile": True,
        "torch_compile_mode": "reduce-overhead",
    }
    assert {**settings, "encoder_dropout": 0.0} == other["training"]["more"]
    for method, label in {"freelb": "FreeLB", "arch": "ARCH, T_c = 5", "freeat": "FreeAT"}.items():
        mine = scores_in(f"{compared}/{method}", *STSB)
        assert runs_in(f"{compared}/{method}")[0]["training"]["more"]["encoder_dropout"] == 0.0
        (row,) = (line for line in page.splitlines() if line.startswith(f"| {label} | 0 |"))
        assert row.endswith(f" | {gain_of(mine, dropped)} | {gain_of(mine, plain)} |")
    for method in ("R3F", "SMART"):
        mine = scores_in(f"{compared}/{method.lower()}", *STSB)
        assert re.search(
            rf"\n\| {method} \| 0\.1 \| \S+ ± \S+ \| {re.escape(' | '.join(2 * [gain_of(mine, dropped)]))} \|",
            page,
        )
    assert f"| {gain_of(plain, dropped)} | – |" in page
    own = scores_in("studies/stsb/arch/default", *STSB)
    assert f"| {gain_of(own, dropped)} | {gain_of(own, plain)} |" in page


def test_a_comparison_says_where_methods_had_different_dropout() -> None:
    page = (ROOT / "docs" / "results" / "understanding.md").read_text(encoding="utf-8")
    for folder in sorted((ROOT / "results" / "understanding").glob("*/")):
        part = page.partition(f"## The comparison, {folder.name}\n")[2].partition("\n## ")[0]
        for task in (place for place in folder.iterdir() if place.is_dir()):
            paths = sorted(task.glob("*/seed-*/record.json"))
            found = {
                json.loads(path.read_text(encoding="utf-8"))["training"]["more"]["encoder_dropout"]
                for path in paths
            }
            assert (f"{task_name(task.name)}: 0 for " in part) == (len(found) > 1), task


def test_penalties_are_averaged_over_seeds_and_logs_of_one_task_and_method() -> None:
    logged_mean = experiment("pages").logged_mean
    logs = [
        {"epoch": 1.0, "penalty": 1.0},
        {"epoch": 2.0, "loss": 9.0},
        {"epoch": 3.05, "penalty": 4.0},
    ]
    logs.append({"epoch": 4.0, "penalty": 5.0})
    runs = {}
    for task, method, seed in (
        ("rte", "arch", 0),
        ("rte", "arch", 1),
        ("rte", "smart", 0),
        ("cola", "arch", 0),
    ):
        far = 0 if (task, method) == ("rte", "arch") else 100
        lines = [{name: value + far * (name == "penalty") + seed * (name == "penalty") for name, value in line.items()}
                 for line in logs]  # fmt: skip
        run = made_up(method, seed, task=task)
        runs[task, method, seed] = replace(run, outcome=replace(run.outcome, history=lines))
    assert logged_mean(runs, "rte", "arch", "penalty") == pytest.approx(10 / 3 + 0.5)
    assert logged_mean(runs, "rte", "arch", "penalty", last=True) == pytest.approx(5.5)
    assert math.isnan(logged_mean(runs, "rte", "r3f", "penalty"))


def test_the_cost_page_is_made_of_the_records(cost_page: ModuleType) -> None:
    assert cost_page.PAGE.read_text(encoding="utf-8") == cost_page.page(cost_page.RECORDS)


def test_the_cost_table_of_the_readme_is_made_of_the_records(cost_page: ModuleType) -> None:
    assert cost_page.summary(cost_page.RECORDS) in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_picture_shows_the_figures_of_the_table(cost_page: ModuleType) -> None:
    picture = (ROOT / "docs" / "results" / "cost.svg").read_text(encoding="utf-8")
    for name in cost_page.STEPS:
        for _, panel in cost_page.Records(cost_page.RECORDS).panels(name):
            for row in panel.rows:
                assert f">{short(row.ratio.median)} [" in picture


def test_records_are_whole_unedited_and_name_their_commit(cost_page: ModuleType) -> None:
    found = cost_page.Records(cost_page.RECORDS)  # a checksum that does not hold would have raised
    assert set(found.benches) >= {
        "bert-base.json",
        "bert-base-large.json",
        "peers.json",
        "tiers.json",
    }
    for record in found.benches.values():
        assert record.status == "finished"
        assert len(record.commit) == 40


def test_a_commit_that_is_not_that_of_the_tree_says_where_it_is_from(cost_page: ModuleType) -> None:
    def told(commit: str | None, dirty: bool | None, *arguments: str) -> str:
        git = {"of": "advreg", "commit": "a" * 40, "dirty": dirty}
        return cost_page.commit_of(
            SimpleNamespace(commit=commit, environment={"git": git, "arguments": arguments})
        )

    assert told("a" * 40, False) == "aaaaaaa"
    assert told("a" * 40, None) == "aaaaaaa, uncommitted changes not recorded"
    assert (
        told("b" * 40, False, "--commit", "b" * 40)
        == f"commit {'b' * 7} given on the command line, tree aaaaaaa"
    )
    assert told("b" * 40, True, "--commit", "COMMIT") == (
        "commit bbbbbbb entered by hand afterwards, tree aaaaaaa with uncommitted changes"
    )


def test_the_cost_page_names_each_record_of_a_tree_with_uncommitted_changes(
    cost_page: ModuleType,
) -> None:
    (said,) = (
        line
        for line in cost_page.PAGE.read_text(encoding="utf-8").splitlines()
        if "is not certain**" in line
    )
    for path in cost_page.RECORDS.glob("*.json"):
        git = json.loads(path.read_text(encoding="utf-8"))["environment"]["git"]
        assert (f"`{path.name}`" in said) == (git["dirty"] is True)
    assert (
        "`bert-base.json`, commit c6b0802 entered by hand afterwards, tree 9409ff5 with "
        "uncommitted changes" in said
    )


def test_commits_of_runs_are_counted_and_their_trees_told() -> None:
    def run(commit: str, dirty: bool | None) -> SimpleNamespace:
        return SimpleNamespace(environment={"git": {"commit": commit * 40, "dirty": dirty}})

    commits_of = experiment("pages").commits_of
    assert commits_of([run("a", False)] * 3) == "Commit aaaaaaa"
    assert commits_of([SimpleNamespace(environment={"git": None})]) == "Commit unknown"
    mixed = [run("b", True), run("a", False), run("a", False), run("a", None)]
    assert commits_of(mixed) == (
        "Commits aaaaaaa (2 runs); bbbbbbb with uncommitted changes (1 run); "
        "aaaaaaa, uncommitted changes not recorded (1 run)"
    )


def test_a_page_made_of_other_records_says_other_things(
    cost_page: ModuleType, tmp_path: Path
) -> None:
    for name in ("bert-base.json", "bert-base-large.json", "peers.json"):
        (tmp_path / name).write_bytes((cost_page.RECORDS / name).read_bytes())
    fewer = cost_page.page(tmp_path)
    assert "## A whole run" not in fewer
    assert "## Targets and results" in fewer


def test_the_page_on_understanding_is_made_of_the_records() -> None:
    understanding = experiment("understanding_page")
    page = understanding.PAGE.read_text(encoding="utf-8")
    assert page == understanding.page(understanding.RECORDS)
    pictures = re.findall(r"!\[.*\]\((.*)\)", page)
    assert pictures
    assert all(understanding.PAGE.with_name(name).is_file() for name in pictures)


def test_a_gain_in_the_search_is_over_standard_with_the_same_seed(tmp_path: Path) -> None:
    understanding = experiment("understanding_page")
    plain, tried = understanding.PLAIN, {"method": "r3f", "weight": 5.0}
    scores = [(plain, 0, 80.0), (plain, 1, 70.0), (tried, 1, 71.5)]
    same = {
        "task": "rte",
        "model": "m",
        "epochs": 1,
        "learning_rate": 1e-4,
        "error": None,
        "commit": "c",
        "device": "d",
    }
    lines = [
        {**same, "point": point, "seed": seed, "score": score, "command": "x"}
        for point, seed, score in scores
    ]
    (tmp_path / "search-m.jsonl").write_text("\n".join(map(json.dumps, lines)))
    page = understanding.page(tmp_path)
    assert "| standard, dropout 0.1 | 75.0 |" in page
    assert "| r3f, λ 5 | +1.5 (1) |" in page


def test_rounds_of_anli_stand_beside_the_paper_s() -> None:
    understanding = experiment("understanding_page")
    names = [f"r{number}_{split}_accuracy" for split in ("dev", "test") for number in (1, 2, 3)]
    metrics = {
        name: Spread.of([30.0 + place, 32.0 + place])
        for place, name in enumerate(["accuracy", *names, "all_test_accuracy"])
    }
    cells = {
        ("anli", "arch"): Cell(metrics, metrics["accuracy"], 2, failed=False),
        ("anli", "freelb"): Cell({}, None, 2, failed=True),
    }
    found = SimpleNamespace(tasks=["anli"], methods=["arch", "freelb"], cells=cells)
    text = understanding.anli(found)
    assert (
        "| ARCH | 32.0 ± 1.4 (54.0) | 33.0 ± 1.4 (46.1) | 34.0 ± 1.4 (46.0) | 31.0 ± 1.4 (48.5) |"
        in text
    )
    assert (
        "| ARCH | 35.0 ± 1.4 (53.8) | 36.0 ± 1.4 (46.6) | 37.0 ± 1.4 (47.4) | 38.0 ± 1.4 (49.2) |"
        in text
    )
    assert text.count("| FreeLB | failed | failed | failed | failed |") == 2
    assert understanding.anli(SimpleNamespace(tasks=["rte"])) == ""


def test_a_probing_has_its_table_and_its_violins(tmp_path: Path) -> None:
    understanding = experiment("understanding_page")
    found = {
        ("standard", "rte"): [60.0, 62.0],
        ("arch", "rte"): [63.0, 64.0],
        ("arch", "mrpc"): [80.0, 81.0],
    }
    probed = [
        ProbeResult(
            encoder="e", label=label, trained_on="sst2", task=task, scores=scores, metrics=[]
        )
        for (label, task), scores in found.items()
    ]
    environment = {"device": "a GPU", "arguments": ["probe", "x"]}
    record = ProbeRecord(
        settings={"seeds": 2},
        commit="abcdefgh",
        environment=environment,
        started="t",
        finished="t",
        results=probed,
    )
    save_as(tmp_path / "probe-minilm.json", record)
    page = understanding.page(tmp_path)
    assert "## Probing, minilm\n\nThe encoders were trained on SST-2 and are frozen;" in page
    assert "| Standard | 61.0 ± 1.4 | – |" in page
    assert "| ARCH | **63.5 ± 0.7** | 80.5 ± 0.7 |" in page
    assert "Commit abcdefg, a GPU; `advreg probe x`." in page
    understanding.draw(tmp_path, tmp_path)
    assert "(understanding-probe-minilm.svg)" in page
    assert (tmp_path / "understanding-probe-minilm.svg").is_file()


# ---- studies


@pytest.fixture(scope="module")
def studies_page() -> ModuleType:
    return experiment("studies_page")


PANELS = {
    "ema": {"0": "ema=0", "0.01": "default", "0.1": "ema=0.1"},
    "refresh": {"5": "refresh_every=5", "15": "default", "once": "refresh_every=none"},
    "neighbours": {"1": "default", "10": "neighbours=10", "random 1": "neighbour_choice=random"},
    "fraction": {"0.01": "cache_fraction=0.01", "0.1": "default", "1": "cache_fraction=1"},
}
DEFAULT = [38.0, 38.2, 38.4]


def write_study(folder: Path, gains: dict[str, list[float]], metric: str = "bleu") -> StudyRecord:
    """A study of four panels with its runs' records; ``gains`` are points over the default, seed by
    seed.
    """
    scores: dict[str, Scores] = {
        name: [score + gain for score, gain in zip(DEFAULT, gains.get(name, []), strict=False)]
        for panel in PANELS.values()
        for name in panel.values()
    }
    scores = {name: [*values, *[None] * (3 - len(values))] for name, values in scores.items()} | {
        "default": [*DEFAULT]
    }
    record = study_record(scores["default"], scores["refresh_every=none"], [37.0, 37.5, 38.0])
    task = replace(
        record.task, name="multi30k-en-de", main_metrics=[metric], scored_on="test",
        settings={"model": "…/tiny", "epochs": 45, "options": {"arch": {"ema": 0.01, "refresh_every": None}}},
    )  # fmt: skip
    record = replace(
        record,
        task=task,
        panels=[
            Panel(name=name, title=f"{name} title", points=[
                StudiedPoint(label=label, variant=f"arch/{point}") for label, point in points.items()
            ])
            for name, points in PANELS.items()
        ],
        variants=[record.variants[0], *(variant(f"arch/{name}", values) for name, values in scores.items())],
        environment={"arguments": ["study", "--jobs", "8"]},
    )  # fmt: skip
    record.save(folder)
    for each in record.variants:
        for run in each.runs:
            if run.score is not None:
                save(
                    folder / run.folder, made_up(each.method, run.seed, metrics={metric: run.score})
                )
    return record


def rows_of(page: str) -> dict[str, str]:
    """The claims' table: what the paper says, and the last cell."""
    table = page.partition("## The paper's claims and our results")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {row[0].strip(): row[-1].strip() for row in rows}


def test_the_page_on_studies_and_its_pictures_are_made_of_the_records(
    studies_page: ModuleType, tmp_path: Path
) -> None:
    kept = studies_page.PAGE.read_text(encoding="utf-8") if studies_page.PAGE.exists() else ""
    assert kept == studies_page.page(studies_page.RECORDS)
    drawn = {
        path.name: path.read_bytes() for path in studies_page.draw(studies_page.RECORDS, tmp_path)
    }
    assert drawn == {
        path.name: path.read_bytes() for path in studies_page.PAGE.parent.glob("studies-*.svg")
    }


def test_the_scores_of_the_studies_are_those_of_their_runs(studies_page: ModuleType) -> None:
    for name, record in studies_page.read(studies_page.RECORDS).items():
        for run in (run for each in record.variants for run in each.runs if run.score is not None):
            saved = records.load(studies_page.RECORDS / name / run.folder / "record.json")
            assert score_of(saved.outcome.metrics, record.task.main_metrics) == pytest.approx(
                run.score
            )


def test_intervals_decide_whether_a_study_agrees_with_the_paper(
    studies_page: ModuleType, tmp_path: Path
) -> None:
    gains = {
        "ema=0": [-0.3, -0.32, -0.28],  # surely worse
        "ema=0.1": [0.01, -0.01, 0.0],  # surely within 0.3
        "refresh_every=5": [0.5, 0.52, 0.48],  # surely better, where the paper says worse
        "refresh_every=none": [-1.0, 1.0, 0.3],  # who knows
        "neighbours=10": [0.9, 0.91, 0.92],  # surely not within 0.3
        "neighbour_choice=random": [-8.0, 0.0, 7.0],
        "cache_fraction=1": [0.2, 0.5, 0.8],
    }
    write_study(tmp_path / "multi30k", gains)
    page = studies_page.page(tmp_path)
    found = rows_of(page)
    assert found["without the moving average about 0.3 BLEU are lost"] == (
        "0.01 minus 0: +0.30 [+0.25, +0.35]; agrees"
    )
    assert found["α from 0.01 to 0.1 changes nothing"].endswith("; agrees")
    assert found["too frequent refreshes (T_c = 5, not 15) are worse"].endswith("; disagrees")
    assert found["caching once is worse"].endswith("; open")
    assert found["the number of neighbours hardly matters"].endswith("; disagrees")
    assert found["a random neighbour is worse"].endswith("; open")
    assert found["1 % cached is nearly as good as 100 %"] == "–"  # nothing is known of 1 %
    ratio = statistics.stdev([30.0, 38.2, 45.4]) / statistics.stdev(DEFAULT)
    reach = stats.f.ppf(0.975, 2, 2) ** 0.5
    assert found["… and varies far more from seed to seed"] == (
        f"sd of random 1 / sd of 1: {ratio:.1f} [{ratio / reach:.1f}, {ratio * reach:.1f}]; agrees"
    )
    assert (
        "27 of 30 runs are done. Scores are sacreBLEU on test. Shared settings: epochs 45." in page
    )
    assert "Default settings of ARCH: T_c = none, α = 0.01." in page
    assert "within a margin: 0.3 BLEU" in page
    assert "\n0.3 on Multi30k En-De, tiny.\n" in page
    assert "`advreg study --jobs 8`" in page
    assert "| 0 | 37.9 ± 0.2 | 2.0 | −0.3 [−0.3, −0.3] |" in page.replace("**", "")


def test_what_is_alike_depends_on_the_score_and_translation_comes_first(
    studies_page: ModuleType, tmp_path: Path
) -> None:
    gains = {"ema=0.1": [0.5, 0.52, 0.48]}
    write_study(tmp_path / "a-task", gains, "accuracy")
    write_study(tmp_path / "b-task", gains)
    (tmp_path / "c-task").mkdir()
    study_record([None], [None], [None]).save(tmp_path / "c-task")  # nothing has finished
    assert list(studies_page.read(tmp_path)) == ["b-task", "a-task"]
    (row,) = (
        line
        for line in studies_page.page(tmp_path).splitlines()
        if line.startswith("| α from 0.01 to 0.1")
    )
    assert [cell.strip().rpartition("; ")[2] for cell in row.split(" | ")[1:]] == [
        "disagrees",
        "agrees |",
    ]
    drawn = studies_page.draw(tmp_path, tmp_path / "pictures")
    assert [path.name for path in drawn] == ["studies-b-task.svg", "studies-a-task.svg"]
    assert all("*: default settings" in path.read_text() for path in drawn)


def test_without_a_finished_run_there_is_no_page(studies_page: ModuleType, tmp_path: Path) -> None:
    assert studies_page.page(tmp_path) == ""


@given(
    st.lists(st.floats(0, 100), min_size=2, max_size=6),
    st.lists(st.floats(0, 100), min_size=2, max_size=6),
)
def test_swapping_two_samples_inverts_the_ratio_of_their_deviations(
    one: list[float], other: list[float]
) -> None:
    ratio_of = experiment("studies_page").deviation_ratio
    assume(min(statistics.stdev(one), statistics.stdev(other)) > 1e-6)
    ratio, (low, high) = ratio_of(one, other)
    back, (least, most) = ratio_of(other, one)
    assert (ratio, low, high) == pytest.approx((1 / back, 1 / most, 1 / least))
    assert low < ratio < high
