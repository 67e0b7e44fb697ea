"""The command ``advreg``, from a table of sentences to a page of results."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from advreg import __version__
from advreg.methods import registry
from advreg.records import run as records
from command_server import CommandServer, Done
from ends import differences
from little_tables import sentiment, tiny_folder, write_table

pytestmark = pytest.mark.smoke

STEPS = 10  # 40 samples in batches of 8, two epochs


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table and a model."""
    folder = tmp_path_factory.mktemp("home")
    write_table(folder / "train.csv", sentiment())
    tiny_folder(folder / "tiny-bert")
    return folder


@pytest.fixture(scope="module")
def advreg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandServer]:
    server = CommandServer(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


def train(advreg: CommandServer, home: Path, output: str, *more: object, **fault: object) -> Done:
    return advreg(
        "train", "--train", "train.csv", "--model", home / "tiny-bert", "--method", "standard", "--method", "arch",
        "--cache-fraction", 0.5, "--seed", 7, "--epochs", 2, "--batch-size", 8, "--learning-rate", 3e-3,
        "--set", "save_strategy=steps", "--set", "save_steps=3", "--output", output, *more,
        cwd=home, fault=fault or None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(advreg: CommandServer, home: Path) -> Done:
    return train(advreg, home, "runs")


def test_methods_are_listed_and_shown_with_their_options(advreg: CommandServer, home: Path) -> None:
    listed = advreg("methods", cwd=home)
    assert listed.code == 0, listed.err
    assert all(f"│ {name}" in listed.out for name in registry)
    shown = advreg("methods", "arch", cwd=home)
    assert "cache_fraction" in shown.out
    assert advreg("--version", cwd=home).out == f"advreg {__version__}\n"


def test_help_names_the_options_of_every_method(advreg: CommandServer, home: Path) -> None:
    done = advreg("train", "--help", cwd=home)
    assert done.code == 0, done.err
    assert all(
        flag in done.out for flag in ("--cache-fraction", "--noise-scale", "--replays", "--train")
    )


def test_training_leaves_a_record_of_each_method_and_prints_them_side_by_side(
    trained: Done, home: Path
) -> None:
    assert trained.code == 0, trained.err
    for method in ("standard", "arch"):
        record = records.load(home / "runs" / f"{method}-seed7" / "record.json")
        assert record.method.name == method
        assert record.outcome.status == "finished"
        assert record.outcome.timing["steps"] == STEPS
        assert record.outcome.metrics["accuracy"] is not None
        assert f"│ {method}" in trained.out


def test_a_killed_run_goes_on_to_the_same_end(
    advreg: CommandServer, trained: Done, home: Path
) -> None:
    """Killed in the second save of ARCH, in the second epoch; Standard is done by then."""
    saves = len(list((home / "runs" / "standard-seed7").glob("checkpoint-*")))
    killed = train(advreg, home, "killed", kind="save", count=saves + 2)
    assert killed.code == -signal.SIGKILL
    assert not (home / "killed" / "arch-seed7" / "record.json").exists()
    done = train(advreg, home, "killed", "--resume")
    assert done.code == 0, done.err
    for method in ("standard", "arch"):
        assert (
            differences(
                home / "runs" / f"{method}-seed7", home / "killed" / f"{method}-seed7", STEPS
            )
            == []
        )


def test_the_report_draws_every_run(advreg: CommandServer, trained: Done, home: Path) -> None:
    done = advreg("report", "runs", "-o", "page.html", cwd=home)
    assert done.code == 0, done.err
    page = (home / "page.html").read_text(encoding="utf-8")
    assert "Made from the records of 2 runs." in page
    assert advreg("runs", "runs", cwd=home).out.count("train") >= 2


def test_an_unknown_flag_is_refused_by_name(advreg: CommandServer, home: Path) -> None:
    done = advreg("train", "--radios", "1", cwd=home)
    assert done.code == 2
    assert "No such option" in done.err
    assert "--radios" in done.err
