"""The page of translation results says what the records say, of which any part may be missing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from advreg.lab.runs.plans import run_facts
from advreg.lab.runs.settings import decisive
from advreg.lab.search.compare_settings import read_compare
from advreg.lab.search.study_settings import read_study
from advreg.methods import create, preset
from advreg.records.bench import load as load_bench
from advreg.records.compare import load
from advreg.records.run import MethodInfo, RunRecord
from comparisons import comparison, run_record
from studies import study_record
from test_results import ROOT, experiment

TASK = "iwslt15-en-vi"
BENCH = ROOT / "results" / "cost" / "translation.json"
SIGNATURES = {"tokenised_bleu": "tok:none", "bleu": "tok:13a", "chrf": "nc:6"}
ENVIRONMENT = {
    "git": {"commit": "c" * 40},
    "packages": {"torch": "2.0"},
    "arguments": ["compare", "--seeds", "2"],
}


@pytest.fixture(scope="module")
def translation() -> ModuleType:
    return experiment("translation_page")


def translated(
    method: str, seed: int, bleu: float, passes: tuple[float, float], **settings: Any
) -> RunRecord:
    """A run of 10 steps; the norm of its gradient is 9, then 1 and 3 in turns."""
    metrics = {
        "tokenised_bleu": bleu,
        "bleu": bleu - 2,
        "chrf": 50.0,
        "loss": 2.0,
        "valid_bleu": 1.0,
    }
    norms = [9.0, 9.0, *([1.0, 3.0] * 4)]
    run = run_record(method, seed, metrics, 1.0, norms)
    details = {
        "signatures": SIGNATURES,
        "scored": "test",
        "decoding": {"beam": 10, "length_penalty": 1.0},
    }
    return replace(
        run,
        method=MethodInfo(name=method, settings=settings),
        task=replace(run.task, name=TASK, details=details, sizes={"train": 133_000, "test": 1268}),
        training=replace(
            run.training,
            epochs=4,
            more={"warmup_steps": 2, "model": "small", "learning_rate": 1e-3},
        ),
        environment={**ENVIRONMENT, "device": "a GPU"},
        outcome=replace(
            run.outcome, passes=dict(zip(("forward", "backward"), passes, strict=True))
        ),
    )


RUNS = [
    translated("standard", 0, 30.0, (1.0, 1.0)),
    translated("standard", 1, 31.0, (1.0, 1.0)),
    translated("smart", 0, 31.5, (5.0, 4.0)),
    translated("r3f", 0, 31.0, (2.0, 1.0)),
    translated("arch", 0, 32.0, (2.36, 1.36), refresh_every=2),
    translated("arch", 1, 33.0, (2.36, 1.36), refresh_every=2),
]


def write_bench(
    path: Path, translation: ModuleType, model: str, names: Mapping[str, str] | None = None
) -> Path:
    """Two rounds, the second twice as slow as the first; 9 epochs, a refresh every 3; some rows
    under other names.
    """
    bench = load_bench(BENCH)
    rounds = {
        **{"standard": [10.0, 20.0], "r3f": [15.0, 30.0], "smart": [40.0, 80.0]},
        **{"arch, reuse": [12.0, 24.0], "arch, refresh": [36.0, 72.0]},
    }
    rows = [
        replace(
            row,
            name=(names or {}).get(row.name, row.name),
            rounds=rounds[row.name],
            settings={**row.settings, **({"refresh_every": 3} if row.method == "arch" else {})},
        )
        for row in bench.panels[0].rows
        if row.name in rounds
    ]
    settings = {**bench.settings, "model": model, "epochs": 9, "refresh_every": 3}
    replace(bench, settings=settings, panels=[replace(bench.panels[0], rows=rows)]).save(path)
    return path


def write_comparison(
    folder: Path, runs: list[RunRecord] = RUNS, epochs: int = 3, task: str = TASK, **more: Any
) -> None:
    methods = list(dict.fromkeys(run.method.name for run in runs))
    record = comparison({task: ["tokenised_bleu"]}, methods, [0, 1], environment=ENVIRONMENT)
    rate = runs[0].training.more["learning_rate"]
    shared = {
        "epochs": epochs,
        "max_tokens": 16_384,
        "warmup_steps": None,
        "learning_rate": rate,
        **more,
    }
    record = replace(record, tasks=[replace(record.tasks[0], scored_on="test", settings=shared)])
    record.save(folder)
    for run in runs:
        run.save(folder / task / run.method.name / f"seed-{run.training.seed}" / "record.json")


@pytest.fixture(scope="module")
def page(translation: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("records")
    write_comparison(folder / "iwslt15")
    return str(translation.page(folder, [write_bench(folder / "bench.json", translation, "small")]))


def test_the_page_on_translation_is_made_of_the_records(translation: ModuleType) -> None:
    page = translation.PAGE.read_text(encoding="utf-8")
    assert page == translation.page(translation.RECORDS)
    assert translation.PAGE.with_name(translation.PICTURE).is_file() == (
        translation.PICTURE in page
    )


def test_scores_stand_beside_time_and_the_papers_figures(page: str) -> None:
    assert "Shared settings: learning_rate 0.001, warmup_steps 2.\n" in page
    assert (
        "Commits and commands:\n\n- commit ccccccc, a GPU, torch 2.0: `advreg compare --seeds 2`\n"
        in page
    )
    assert (
        "|  | tokenised BLEU | sacreBLEU | chrF | passes per step | time, × Standard | paper |"
        in page
    )
    # of four epochs, two refresh: (36 + 12) / 2 beside Standard's 10
    assert (
        "| ARCH | 32.5 ± 0.7 | 30.5 ± 0.7 | 50.0 ± 0.0 | 2.36 + 1.36 | 2.40 (2.40–2.40) | 32.0 |"
        in page
    )
    assert (
        "| SMART | 31.5 (1 of 2) | 29.5 (1 of 2) | 50.0 (1 of 2) | 5 + 4 | 4.00 (4.00–4.00) | 31.5 "
        "|" in page
    )
    assert (
        "Trained on 133,000 pairs, scored on test (1,268 sentences), beam 10, length penalty 1."
        in page
    )
    assert "tokenised BLEU `tok:none`; sacreBLEU `tok:13a`; chrF `nc:6`." in page
    assert "ARCH minus each method, in points;" in page
    assert (
        "\n- iwslt15-en-vi/smart/seed-1, iwslt15-en-vi/r3f/seed-1: no result: not finished; "
        in page
    )


def test_the_time_of_a_model_that_no_bench_took_is_left_open(
    translation: ModuleType, tmp_path: Path
) -> None:
    write_comparison(tmp_path / "iwslt15")
    for benches in ([write_bench(tmp_path / "bench.json", translation, "another")], []):
        assert "| 50.0 (1 of 2) | 5 + 4 | – | 31.5 |" in translation.page(tmp_path, benches)


def test_of_several_benches_each_times_its_own_model(
    translation: ModuleType, page: str, tmp_path: Path
) -> None:
    write_comparison(tmp_path / "iwslt15")
    benches = [
        write_bench(tmp_path / f"{model}.json", translation, model)
        for model in ("another", "small")
    ]
    both = translation.page(tmp_path, benches)
    assert set(page.splitlines()) < set(both.splitlines())
    assert "another, 9 epochs, a refresh every 3:" in both
    assert "| ARCH / SMART, whole schedule, another | ≤ 0.35 | 0.500 (0.500–0.500) |" in both


def test_epochs_that_refresh_are_timed_apart_from_the_others(page: str) -> None:
    assert "small, 9 epochs, a refresh every 3:" in page
    # a third of the epochs refreshes: (36 + 2 · 12) / 3 = 20, beside 10, 40 and 15
    whole = "2.00 (2.00–2.00) | 0.50 (0.50–0.50) | 1.33 (1.33–1.33) |"
    assert f"| ARCH | 3.60 (3.60–3.60) | 1.20 (1.20–1.20) | {whole}" in page
    assert (
        "| SMART | – | 4.00 (4.00–4.00) | 4.00 (4.00–4.00) | 1.00 (1.00–1.00) | 2.67 (2.67–2.67) |"
        in page
    )
    assert "| ARCH / SMART, whole schedule, small | ≤ 0.35 | 0.500 (0.500–0.500) |" in page
    assert "| ARCH / R3F, whole schedule, small | ≤ 1.10 | 1.333 (1.333–1.333) |" in page


def test_a_method_that_the_bench_took_with_options_of_its_own_is_still_that_method(
    translation: ModuleType, page: str, tmp_path: Path
) -> None:
    write_comparison(tmp_path / "iwslt15")
    bench = write_bench(
        tmp_path / "bench.json", translation, "small", {"smart": "smart (ascent_steps=2)"}
    )
    assert translation.page(tmp_path, [bench]) == page


def test_a_run_that_failed_in_one_part_and_not_in_another_did_not_fail(
    translation: ModuleType, tmp_path: Path
) -> None:
    write_comparison(tmp_path / "1", RUNS[:2])
    record = load(tmp_path / "1")
    spoilt = [replace(entry, error="out of memory") for entry in record.runs]
    one, other = (translation.Compared(name, record, {}) for name in ("1", "2"))
    broken = replace(one, record=replace(record, runs=spoilt))
    for joined in (broken.joined(other), other.joined(broken)):
        assert [entry.error for entry in joined.record.runs] == [None, None]


def test_a_comparison_is_finished_once_each_run_is_there_in_one_of_its_parts(
    translation: ModuleType, tmp_path: Path
) -> None:
    runs = {
        (TASK, run.method.name, run.training.seed): run
        for run in RUNS
        if run.method.name in ("standard", "arch")
    }
    write_comparison(tmp_path / "1", [*runs.values()])
    record = replace(load(tmp_path / "1"), status="running")
    first, second = (
        {key: run for key, run in runs.items() if key[1] == name} for name in ("standard", "arch")
    )
    one, other = (
        translation.Compared(name, record, part) for name, part in (("1", first), ("2", second))
    )
    assert one.joined(other).record.status == "finished"
    assert one.joined(replace(other, runs={})).record.status == "running"


def test_what_the_runs_of_a_task_share_with_no_other_task_stands_below_its_scores(
    translation: ModuleType, tmp_path: Path
) -> None:
    write_comparison(tmp_path / "1")
    other = "iwslt15-vi-en"
    slow = [
        replace(
            run,
            task=replace(run.task, name=other),
            training=replace(run.training, more={**run.training.more, "warmup_steps": 7}),
        )
        for run in RUNS[:2]
    ]
    write_comparison(tmp_path / "2", slow, task=other)
    page = translation.page(tmp_path, [])
    assert "Shared settings: learning_rate 0.001.\n" in page
    assert page.count("Trained on 133,000 pairs, warmup_steps 2, scored on") == 1
    assert page.count("Trained on 133,000 pairs, warmup_steps 7, scored on") == 1
    assert page.count("| Standard | 30.5 ± 0.7 |") == 2


def test_a_comparison_made_in_parts_reads_as_one(
    translation: ModuleType, page: str, tmp_path: Path
) -> None:
    bench = write_bench(tmp_path / "bench.json", translation, "small")
    cheap, dear = (
        [run for run in RUNS if (run.method.name == "smart") is mine] for mine in (False, True)
    )
    write_comparison(tmp_path / "1", cheap)
    write_comparison(tmp_path / "2", dear)
    assert translation.page(tmp_path, [bench]) == page
    write_comparison(
        tmp_path / "2", dear, short_attention=True
    )  # changes how it is computed, not what
    assert translation.page(tmp_path, [bench]) == page
    write_comparison(
        tmp_path / "3", [replace(dear[0], method=MethodInfo(name="freelb", settings={}))], epochs=4
    )
    parts = translation.Records(tmp_path, [bench]).comparisons
    assert [each.methods(TASK) for each in parts] == [
        ["standard", "smart", "r3f", "arch"],
        ["freelb"],
    ]


def test_a_part_may_have_a_learning_rate_of_its_own_which_its_row_names(
    translation: ModuleType, tmp_path: Path
) -> None:
    write_comparison(tmp_path / "1")
    slow = {**RUNS[2].training.more, "learning_rate": 7e-4}
    slower = replace(RUNS[2], method=MethodInfo(name="freelb", settings={}))
    write_comparison(
        tmp_path / "2", [replace(slower, training=replace(slower.training, more=slow))]
    )
    page = translation.page(tmp_path, [])
    assert "Shared settings: warmup_steps 2.\n" in page
    assert "Trained on 133,000 pairs, scored on" in page  # what is a row's own is not the task's
    assert "| FreeLB, learning_rate 0.0007 | 31.5 (1 of 2) |" in page
    assert "| SMART, learning_rate 0.001 | 31.5 (1 of 2) |" in page


def test_norms_vary_by_what_they_were_after_the_warm_up(
    translation: ModuleType, page: str, tmp_path: Path
) -> None:
    assert "| SMART | 1.14 (1.00) |" in page  # 1, 3, 1, 3 …: 8 / 7
    runs = [
        *RUNS[:4],
        replace(RUNS[4], outcome=replace(RUNS[4].outcome, history=RUNS[4].outcome.history[:5])),
    ]
    write_comparison(tmp_path / "one", runs)
    assert "| ARCH | 1.33 (1.17) |" in translation.page(tmp_path, [])  # 1, 3, 1: 4 / 3
    assert translation.draw(translation.Records(tmp_path), tmp_path / "norms.svg")
    assert "IWSLT'15 En-Vi, small" in (tmp_path / "norms.svg").read_text(encoding="utf-8")
    assert not translation.draw(translation.Records(tmp_path / "empty"), tmp_path / "none.svg")


def test_penalties_are_shown_with_the_loss_and_the_perturbation_they_are_of(
    translation: ModuleType, page: str, tmp_path: Path
) -> None:
    lines = [
        {"epoch": 1.0, "penalty": 0.1, "task_loss": 4.0, "delta_norm": 0.1},
        {"epoch": 4.0, "penalty": 0.2, "task_loss": 2.0, "delta_norm": 0.05},
    ]
    history = [
        {**line, **logged} for line, logged in zip(RUNS[4].outcome.history, lines, strict=False)
    ]
    logged = replace(RUNS[4], outcome=replace(RUNS[4].outcome, history=history))
    write_comparison(tmp_path / "one", [RUNS[0], logged])
    told = translation.page(tmp_path, [])
    assert (
        "| IWSLT'15 En-Vi, small, ARCH | 5.0 % | 2.000 | 0.200 | 0.050 |" in told
    )  # (0.1 + 0.2) / (4 + 2)
    assert "small, Standard |" not in told
    assert "| IWSLT'15 En-Vi, small, ARCH | – |" in page  # nothing was logged


def test_a_part_without_records_is_left_out(
    translation: ModuleType, page: str, tmp_path: Path
) -> None:
    nothing = translation.page(tmp_path, [])
    assert [line for line in nothing.splitlines() if line.startswith("#")] == [
        "# Machine translation",
        "## How to read it",
    ]
    write_comparison(tmp_path / "old")
    assert "## Scores, small" in translation.page(tmp_path, [])
    assert "## Wall time" not in translation.page(tmp_path, [])
    assert "## Wall time" in page
    for heading in (
        "## Choice of neighbours",
        "## Training speed",
        "## Attention over",
        "## Decoding",
    ):
        assert heading not in page


def test_the_bench_of_a_whole_schedule_is_counted_by_its_rounds(
    translation: ModuleType, tmp_path: Path
) -> None:
    bench = load_bench(BENCH)
    rows = {row.name: row.rounds for row in bench.panels[0].rows}
    share = 10 / 150  # 150 epochs, a refresh every 15
    mine = [
        share * dear + (1 - share) * calm
        for dear, calm in zip(rows["arch, refresh"], rows["arch, reuse"], strict=True)
    ]
    ratios = sorted(one / other for one, other in zip(mine, rows["r3f"], strict=True))
    median = (ratios[2] + ratios[3]) / 2
    assert len(ratios) == 6
    assert (
        f"| ARCH / R3F, whole schedule, transformer-base | ≤ 1.10 | {median:.3f} ("
        in translation.page(tmp_path)
    )


def test_speed_and_decoding_are_told_from_their_lines(
    translation: ModuleType, tmp_path: Path
) -> None:
    same = {
        "task": TASK,
        "model": "base",
        "precision": "bf16",
        "commit": "d" * 40,
        "device": "a GPU",
        "command": "x y",
    }
    speed = {
        **same, "max_tokens": 8192, "batches_per_update": 8, "bare_tokens_per_second": [1000.0, 3000.0, 2000.0],
        "our_tokens_per_second": [990.0, 2900.0, 1940.0], "share": {"median": 0.97, "least": 0.9667, "most": 0.99},
    }  # fmt: skip
    graphs = {
        "bare_tokens_per_second": [4000.0],
        "our_tokens_per_second": [3920.0],
        "graphs": {"warm-up": 2},
    }
    share = {"share": {"median": 0.98, "least": 0.98, "most": 0.98}}
    wide = {**speed, "round_lengths": 8, "compiled": {"layers": graphs | share}}
    order = {
        "order": "as it is",
        "max_tokens": None,
        "seconds": 20.4,
        "scores": {"bleu": 30.0, "chrf": 50.0},
        "differing": 0,
    }
    other = {**order, "order": "shuffled, 0", "max_tokens": 32_768, "seconds": 31.0, "differing": 2}
    decoding = {**same, "sentences": 1268, "beam": 10, "orders": [order, other]}
    before = {**speed, "commit": "e" * 40, "share": {"median": 0.5, "least": 0.4, "most": 0.6}}
    (tmp_path / "speed.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in (before, speed, wide))
    )
    (tmp_path / "decoding.jsonl").write_text(json.dumps(decoding))
    page = translation.page(tmp_path, [])
    what = "IWSLT'15 En-Vi, base, bf16, 8,192 tokens × 8 per update"
    assert f"| {what} (ddddddd) | 2,000 | 1,940 | 0.970 (0.967–0.990) |" in page
    assert (
        f"| trainer / bare loop, target tokens per second, {what} (ddddddd) | ≥ 0.95 | 0.970 "
        "(0.967–0.990) |" in page
    )
    assert (
        page.count("0.500 (0.400–0.600)") == 1
    )  # beside all that was measured, and not as what the aim has come to
    assert f"| {what}, widths of 8 (ddddddd) | 2,000 | 1,940 | 0.970 (0.967–0.990) |" in page
    assert (
        f"| {what}, widths of 8, compiled layers (ddddddd) | 4,000 | 3,920 | 0.980 (0.980–0.980) |"
        in page
    )
    assert (
        f"per second, {what}, widths of 8, compiled layers (ddddddd) | ≥ 0.95 | 0.980 (0.980–0.980) |"
        in page
    )
    assert f"{what}, compiled" not in page
    assert "| decoding of 1,268 sentences, beam 10, IWSLT'15 En-Vi | < 60 s | 20–31 s |" in page
    assert (
        "| sacreBLEU in 2 batch orders, 1,268 sentences, beam 10, IWSLT'15 En-Vi | the same | "
        "30.00 |" in page
    )
    assert "| shuffled, 0 | 32,768 | 31.0 | 30.00 | 50.00 | 2 |" in page
    assert "- commit ddddddd, a GPU: `x y`\n" in page
    other["scores"] = {"bleu": 30.02, "chrf": 50.0}
    (tmp_path / "decoding.jsonl").write_text(json.dumps(decoding))
    assert "| the same | 30.00–30.02 |" in translation.page(tmp_path, [])


def test_kernels_of_attention_are_timed_on_the_gpu_and_call_by_call(
    translation: ModuleType, tmp_path: Path
) -> None:
    ways = {
        "short": {"kernels_ms": 0.07, "wall_ms": 0.93},
        "usual": {"kernels_ms": 0.19, "wall_ms": 0.431},
    }
    rows = {
        "length": 32,
        "padded": ways,
        "causal": {**ways, "usual": {"kernels_ms": 0.48, "wall_ms": 0.5}},
    }
    same = {"commit": "d" * 40, "device": "a GPU", "command": "x y"}
    line = {**same, "positions": 16_384, "heads": 8, "width": 64, "lengths": [rows]}
    (tmp_path / "attention.jsonl").write_text(json.dumps(line))
    page = translation.page(tmp_path, [])
    assert "16,384 positions, 8 heads of width 64, bf16, ms forward and backward:\n" in page
    header = "GPU, PyTorch | GPU, short | call by call, PyTorch | call by call, short |"
    assert f"| tokens per row | {header}" in page
    assert (
        "| 32, padded | 0.19 | 0.07 | 0.43 | 0.93 |\n| 32, causal | 0.48 | 0.07 | 0.50 | 0.93 |\n"
        in page
    )


def test_a_schedule_that_was_tried_stands_beside_the_papers_figure_with_its_command(
    translation: ModuleType, tmp_path: Path
) -> None:
    run = translated("standard", 0, 30.04, (1.0, 1.0))
    facts = {"epochs": 20, "update_tokens": 16_384, "learning_rate": 1.4e-3}
    run = replace(run, training=replace(run.training, more=facts))
    run.save(tmp_path / "schedules" / "en-vi" / "record.json")
    page = translation.page(tmp_path, [])
    assert "| IWSLT'15 En-Vi, Standard | 20 | 16,384 | 10 | 0.0014 | 30.0 | 30.3 |" in page
    assert "- commit ccccccc, a GPU, torch 2.0: `advreg compare --seeds 2`\n" in page


def test_a_run_on_a_cpu_is_told_with_the_size_of_its_model(
    translation: ModuleType, tmp_path: Path
) -> None:
    run = translated("standard", 0, 36.72, (1.0, 1.0))
    steps = replace(run.outcome, timing={"steps": 2448.0})
    run = replace(run, model=replace(run.model, name="tiny", parameters=1_436_672), outcome=steps)
    run.save(tmp_path / "cpu" / "en-vi" / "record.json")
    page = translation.page(tmp_path, [])
    assert "| IWSLT'15 En-Vi, tiny, Standard | 1,436,672 | 4 | 2,448 | 34.7 | 50.0 |" in page


def test_borrowed_perturbations_stand_beside_dropout_and_a_random_neighbours(
    translation: ModuleType, tmp_path: Path
) -> None:
    line = {
        "task": TASK, "model": "small", "method": "standard", "epochs": 18, "bleu": 31.25, "dropout": 0.1,
        "radius": 0.1, "cached": 2900, "pairs": 5000, "commit": "d" * 40, "device": "a CPU", "command": "x y",
        "trained": {"commit": "e" * 40, "device": "a GPU", "command": "advreg train"},
        "ways": {
            "own": {"norm": 0.1414, "moved": 0.05},
            "borrowed: nearest": {
                "norm": 0.06, "moved": 0.0015, "more_than_random": {"mean": 0.00052, "interval": [-0.0001, 0.0012]},
            },
            "none, other dropout masks": {"norm": 0.0, "moved": 0.1},
        },
    }  # fmt: skip
    (tmp_path / "borrowed.jsonl").write_text(json.dumps(line))
    page = translation.page(tmp_path, [])
    assert (
        "IWSLT'15 En-Vi, small, Standard for 18 epochs (sacreBLEU 31.2), dropout 0.1, ε 0.1; 2,900 "
        "pairs are" in page
    )
    assert "| own | 0.141 | 50 | 50.00 % | – |" in page
    assert "| borrowed: nearest | 0.060 | 1.5 | 1.50 % | +0.52 [-0.1, +1.2] |" in page
    assert "| none, other dropout masks | 0.000 | 100 | 100.00 % | – |" in page
    assert "- commit eeeeeee, a GPU: `advreg train`\n- commit ddddddd, a CPU: `x y`\n" in page


def test_a_study_of_neighbours_is_told_as_it_is(translation: ModuleType, tmp_path: Path) -> None:
    study_record([60.0, 62.0], [63.0, 65.0], [58.0, 58.0]).save(tmp_path / "neighbours")
    page = translation.page(tmp_path, [])
    assert "## Choice of neighbours" in page
    assert "| once | **64.0 ± 1.4** | 2.0 |" in page
    assert "## Effect without dropout" not in page
    study_record([60.0, 62.0], [63.0, 65.0], [58.0, 58.0]).save(tmp_path / "dropout")
    assert "## Effect without dropout" in translation.page(tmp_path, [])


# ---- the experiments


def command_of(config: Path) -> dict[str, str]:
    """The options of the command that a config file is for, from its comment."""
    comment = " ".join(
        line.lstrip("# ").rstrip("\\")
        for line in config.read_text("utf-8").splitlines()
        if line[:1] == "#"
    )
    words = comment.split("advreg ", 1)[1].split()
    return {
        word.removeprefix("--"): words[place + 1]
        for place, word in enumerate(words)
        if word.startswith("--")
    }


@pytest.mark.parametrize("name", ["translation-iwslt15", "translation-small"])
def test_a_comparison_trains_all_methods_alike_and_arch_as_the_paper_does_but_for_three_refreshes(
    name: str,
) -> None:
    config = ROOT / "experiments" / f"{name}.toml"
    given = command_of(config)
    assert given["config"] == f"experiments/{name}.toml"
    flags = {key: given[key] for key in ("task", "seeds", "output")}
    settings = read_compare(config, {**flags, "methods": given["method"]}, {})
    assert settings.candidates == 0
    assert set(settings.methods) >= {"standard", "r3f", "freelb", "smart", "arch"}
    for base in settings.bases.values():
        every = base.method("arch").options()["refresh_every"]
        paper = {**preset("translation", "arch"), "refresh_every": every}
        assert base.method("arch").options() == create("arch", **paper).options()
        assert -(-base.epochs // every) == 3
        assert base.epochs % base.validate_every == 0  # the last weights are judged too


def test_the_study_of_neighbours_varies_nothing_else() -> None:
    config = ROOT / "experiments" / "translation-neighbours.toml"
    given = command_of(config)
    settings = read_study(
        config, ROOT / given["grid"], [], {"task": given["task"], "seeds": given["seeds"]}, {}
    )
    changes = [
        dict(variant.changes)
        for variant in settings.variants().values()
        if variant.method == "arch"
    ]
    lender = "runs/translation/small/multi30k-en-de/standard/seed-0/model"
    assert changes == [{}, {"neighbour_embeddings": lender}, {"neighbour_choice": "random"}]
    lent = read_compare(
        ROOT / "experiments" / "translation-small.toml",
        {"task": given["task"], "methods": "standard"},
        {},
    )
    assert {
        **lent.bases[given["task"]].facts()
    } == settings.base.facts()  # same subwords, same training


def test_the_study_of_dropout_varies_the_masks_alone_and_may_take_over_runs_of_the_parameter_study() -> (
    None
):
    folder = ROOT / "experiments"
    settings, studied = (
        read_study(folder / f"{name}.toml", None, [], {}, {})
        for name in ("translation-dropout", "studies-multi30k")
    )
    changes = [
        dict(variant.changes)
        for variant in settings.variants().values()
        if variant.method == "arch"
    ]
    assert changes == [{}, {"dropout": "shared"}]
    for method in ("standard", "arch"):
        runs = settings.variant(method, {}).settings, studied.variant(method, {}).settings
        one, other = (decisive(run_facts(each, "", method, 0)) for each in runs)
        assert one == other


def test_runs_of_the_parameter_study_may_be_copied_into_the_comparison() -> None:
    task, folder = "multi30k-en-de", ROOT / "experiments"
    compared = read_compare(
        folder / "translation-small.toml", {"task": task, "methods": "standard,smart,arch"}, {}
    )
    studied = read_study(folder / "studies-multi30k.toml", None, [], {}, {})
    for method in ("standard", "smart", "arch"):
        runs = compared.settings_for(task, method, {}), studied.variant(method, {}).settings
        one, other = (decisive(run_facts(settings, "", method, 0)) for settings in runs)
        assert one == other
