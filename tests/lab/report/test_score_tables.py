from __future__ import annotations

import io
import re

from rich.console import Console

from advreg.lab.report.compare import Results, results
from advreg.lab.report.score_tables import notes, tables, to_markdown
from advreg.lab.report.tables import to_rich
from comparisons import candidate, comparison, run_record

RUNS = {
    ("mrpc", "standard", 0): ({"accuracy": 0.840, "f1": 0.890}, 10.0),
    ("mrpc", "standard", 1): ({"accuracy": 0.850, "f1": 0.900}, 10.0),
    ("mrpc", "arch", 0): ({"accuracy": 0.880, "f1": 0.916}, 14.0),
    ("mrpc", "arch", 1): ({"accuracy": 0.870, "f1": 0.910}, 14.0),
    ("rte", "standard", 0): ({"accuracy": 0.700}, 2.0),
    ("rte", "standard", 1): ({"accuracy": 0.720}, 2.0),
    ("rte", "arch", 0): ({"accuracy": 0.710}, 3.0),
    ("rte", "arch", 1): ({"accuracy": 0.710}, 3.0),
}


def found(**changes: object) -> Results:
    record = comparison(
        {"mrpc": ["accuracy", "f1"], "rte": ["accuracy"]}, ["standard", "arch"], [0, 1], **changes
    )
    return results(record, {key: run_record(key[1], key[2], *value) for key, value in RUNS.items()})


def test_the_markdown_can_be_pasted_into_a_page() -> None:
    text = to_markdown(found())
    assert text.startswith(
        "Score on dev in percent, mean ± sd over 2 seeds; model small, no tuning. The best are "
        "bold.\n\n"
        "|  | MRPC | RTE | Average |\n"
        "|---|---:|---:|---:|\n"
        "| Standard | 87.0 ± 0.7 | 71.0 ± 1.4 | 79.0 ± 1.1 |\n"
        "| ARCH | **89.4 ± 0.6** | 71.0 ± 0.0 | **80.2 ± 0.3** |\n"
    )
    assert "| MRPC, f1 | 89.5 ± 0.7 | **91.3 ± 0.4** |" in text
    assert (
        "ARCH minus each method, in points; paired by seed, with the 95 % confidence interval of "
        "the mean" in text
    )
    assert "(Student's t, n = 2)" in text
    assert "| Standard | +2.4 [−9.0, +13.8] | 0.0 [−12.7, +12.7] | +1.2 [−10.9, +13.3] |" in text
    assert "| ARCH | 8.5 | 1.45 |" in text
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.splitlines()}) == 1


def test_bleu_is_no_percentage_and_goes_by_its_name() -> None:
    record = comparison(
        {"iwslt": ["tokenised_bleu"], "multi30k": ["bleu"]}, ["standard", "arch"], [0]
    )
    scores = {"iwslt": {"bleu": 28.0, "tokenised_bleu": 30.0}, "multi30k": {"bleu": 35.0}}
    keys = [(task, name, 0) for task in scores for name in ("standard", "arch")]
    text = to_markdown(
        results(record, {key: run_record(key[1], 0, scores[key[0]]) for key in keys})
    )
    assert "Tokenised BLEU or sacreBLEU on dev, one seed; model small" in text
    assert "Each metric.\n" in text
    assert "| iwslt data, sacreBLEU |" in text
    assert "percent" not in text


def test_one_seed_has_no_interval_and_says_so() -> None:
    record = comparison({"rte": ["accuracy"]}, ["standard", "arch"], [0])
    text = to_markdown(
        results(
            record,
            {
                ("rte", name, 0): run_record(name, 0, {"accuracy": score})
                for name, score in (("standard", 0.5), ("arch", 0.6))
            },
        )
    )
    assert "Score on dev in percent, one seed" in text
    assert "ARCH minus each method, in points; n = 1: no interval." in text
    assert "| Standard | +10.0 |" in text
    assert "±" not in text


def test_a_failed_run_is_in_the_table_and_in_the_notes() -> None:
    errors = {("rte", "arch", 0): "its process was ended by SIGKILL", ("rte", "arch", 1): "x" * 500}
    record = comparison({"rte": ["accuracy"]}, ["standard", "arch"], [0, 1], errors=errors)
    plain = {("rte", "standard", 0): run_record("standard", 0, {"accuracy": 0.5})}
    text = to_markdown(results(record, plain))
    assert "| Standard | 50.0 (1 of 2) |" in text
    assert "| ARCH | failed |" in text
    assert "- rte/arch/seed-0: no result: its process was ended by SIGKILL" in text
    assert "- rte/standard/seed-1: no result: not finished; the same command resumes it" in text
    assert max(map(len, text.splitlines())) < 250


def test_what_was_tuned_chosen_or_failed_is_told() -> None:
    tuning = {
        ("rte", "arch"): [
            candidate(3, 61.24),
            candidate(1, None, "NonFiniteLossError: the loss | is nan"),
        ]
    }
    record = comparison(
        {"rte": ["accuracy"]}, ["standard", "arch"], [0], tuning=tuning, notes=["candidates differ"]
    )
    choices = [
        choice if choice.method != "arch" else type(choice)(**{**vars(choice), "chosen": 0})
        for choice in record.choices
    ]
    text = to_markdown(results(type(record)(**{**vars(record), "choices": choices}), {}))
    chosen = (
        "- rte/arch: learning_rate 0.001, radius 0.5 (held-out score 61.2, best of 2 of 9 points)"
    )
    assert chosen in text
    assert "- candidates differ" in text
    failed = "- a/arch/candidate-0: candidate failed, and counts as the worst: NonFiniteLossError: the loss \\| is nan"
    assert failed in text
    assert "best of up to 2 candidates" in text


def test_an_unfinished_comparison_says_so() -> None:
    assert notes(found(status="interrupted")) == [
        "the comparison is interrupted: numbers cover the runs that finished"
    ]
    assert notes(found()) == []


def test_the_terminal_shows_the_cells_of_the_markdown() -> None:
    console = Console(file=io.StringIO(), width=160, force_terminal=True, color_system=None)
    for sheet in tables(found()):
        console.print(to_rich(sheet))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    cells = re.findall(r"\| ([^|]+?) (?=\|)", to_markdown(found()))
    assert len(cells) > 20
    assert all(cell.strip("*") in shown for cell in cells if set(cell) - set("-: "))
