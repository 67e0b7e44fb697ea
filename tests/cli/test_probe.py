from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from advreg.lab.kinds.wordpieces import train_tokenizer
from advreg.lab.report.sections.probing import by_task, scores_table
from advreg.lab.report.tables import Cell
from advreg.records.probe import ProbeRecord, ProbeResult
from advreg.records.sealed import load_as
from command_server import CommandServer
from tiny_models import tiny

WORDS = {0: "dull awful poor grim", 1: "fine lovely great bright"}
QUICK = ("--seeds", "2", "--epochs", "1", "--data", "data", "--task", "mr")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task and two encoders."""
    folder = tmp_path_factory.mktemp("probe")
    for split, size in (("train", 20), ("dev", 10)):
        path = folder / "data" / "mr" / f"{split}.jsonl.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") as file:
            for index in range(size):
                file.write(
                    json.dumps({"idx": index, "text_a": WORDS[index % 2], "label": index % 2})
                    + "\n"
                )
    tokenizer = train_tokenizer(list(WORDS.values()) * 5, max_length=16)
    for seed, name in enumerate(("one", "two")):
        tiny("bert", vocab_size=len(tokenizer), num_labels=2, seed=seed).save_pretrained(
            folder / name
        )
        tokenizer.save_pretrained(folder / name)
    return folder


def test_encoders_are_probed_and_the_scores_printed_recorded_and_drawn(
    folder: Path, advreg: CommandServer
) -> None:
    done = advreg(
        "probe", "one", "two", *QUICK, "--out", "probe.json", "--picture", "probe.svg", cwd=folder
    )
    assert done.code == 0, done.err
    record = load_as(folder / "probe.json", ProbeRecord)
    assert [(result.encoder, result.task, len(result.scores)) for result in record.results] == [
        ("one", "mr", 2),
        ("two", "mr", 2),
    ]
    for result in record.results:
        assert f"{sum(result.scores) / 2:.1f} ±" in done.out
    assert ">one<" in (folder / "probe.svg").read_text()

    again = advreg("probe", "one", "two", *QUICK, "--out", "probe.json", cwd=folder)
    assert again.code != 0
    assert "exists already; add --resume" in again.err
    other = advreg(
        "probe", "one", *QUICK, "--epochs", "2", "--out", "probe.json", "--resume", cwd=folder
    )
    assert "epochs was 1, is 2" in other.err
    resumed = advreg("probe", "one", "two", *QUICK, "--out", "probe.json", "--resume", cwd=folder)
    assert resumed.code == 0, resumed.err
    assert load_as(folder / "probe.json", ProbeRecord).results == record.results
    shown = advreg("probe", "--from", "probe.json", "--picture", "again.svg", cwd=folder)
    assert shown.code == 0, shown.err
    assert (folder / "again.svg").read_text() == (folder / "probe.svg").read_text()


def test_a_single_head_has_no_deviation() -> None:
    scores = {"one": [49.8], "two": [40.0, 42.0]}
    about = {"trained_on": None, "task": "mr", "metrics": []}
    results = [
        ProbeResult(encoder=name, label=name, scores=values, **about)
        for name, values in scores.items()
    ]
    assert [row[1] for row in scores_table(results).cells] == [
        Cell("49.8", bold=True),
        Cell("41.0 ± 1.4"),
    ]


def test_methods_stand_in_the_order_of_tables_and_their_encoders_together() -> None:
    given = [
        ("a", "arch", [3.0]),
        ("b", "minilm", [9.0]),
        ("c", "standard", [1.0]),
        ("d", "arch", [4.0]),
    ]
    about = {"trained_on": "sst2", "metrics": []}
    results = [
        ProbeResult(encoder=encoder, label=label, scores=scores, task=task, **about)
        for encoder, label, scores in given
        for task in ("rte", "mr")
    ]
    expected = [("standard", [1.0]), ("arch", [3.0, 4.0]), ("minilm", [9.0])]
    assert [list(methods.items()) for methods in by_task(results).values()] == [expected, expected]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "mr"), "encoders must name at least one, got none"),
        (("one",), "tasks must name at least one, got none"),
        (("one", "--task", "mrr"), "unknown task 'mrr' (did you mean 'mr'?)"),
        (("one", *QUICK, "--picture", "violins.gif"), "picture must end in .svg"),
        (("nowhere", *QUICK), "model 'nowhere' is neither a folder here nor reachable on the hub"),
    ],
)
def test_mistakes_are_named(
    folder: Path, advreg: CommandServer, arguments: tuple[str, ...], message: str
) -> None:
    done = advreg("probe", *arguments, "--out", "none.json", cwd=folder)
    assert done.code != 0
    assert message in " ".join(done.err.split())
    assert not (folder / "none.json").exists()
