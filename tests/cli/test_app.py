from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from advreg import __version__, cli
from advreg.lab.runs.settings import TrainSettings
from advreg.methods import create, describe, registry
from advreg.records import run as records
from command_server import CommandServer, Done
from little_tables import scored, sentiment, write_table


def cells(printed: str) -> dict[str, list[str]]:
    """The rows of a printed table by their first cell."""
    rows = [
        [cell.strip() for cell in line.strip("│ ").split("│")]
        for line in printed.splitlines()
        if line[:1] == "│"
    ]
    return {row[0]: row[1:] for row in rows}


def one_line(printed: str) -> str:
    """Text that was wrapped to the width of a terminal, in one line."""
    return " ".join(printed.split())


# ---- the version, help, and ways out


def test_the_version_is_printed_by_the_installed_command_without_loading_transformers() -> None:
    code = (
        "import sys; sys.argv = ['advreg', '--version']\n"
        "from importlib.metadata import entry_points\n"
        "(command,) = entry_points(group='console_scripts', name='advreg')\n"
        "try: command.load()()\n"
        "except SystemExit as leaving: print(leaving.code, 'transformers' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split("\n")[:2] == [f"advreg {__version__}", "0 False"]


def test_train_help_shows_a_flag_for_every_setting_and_every_option_of_every_method(
    advreg: CommandServer, tmp_path: Path
) -> None:
    done = advreg("train", "--help", cwd=tmp_path, env={"COLUMNS": "200"})
    shown = set(done.out.split())
    singular = {"methods": "method", "label_kind": "kind"}
    settings = {field.name for field in dataclasses.fields(TrainSettings)} - {"options", "training"}
    options = {option.name for name in registry for option in describe(name)}
    wanted = {"config", "set", "resume", *(singular.get(name, name) for name in settings | options)}
    assert done.code == 0
    assert {f"--{name.replace('_', '-')}" for name in wanted} - shown == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["methods", "ach"],
            "error: unknown method 'ach' (did you mean 'arch'?); there are standard, ",
        ),
        (["train", "--epochs", "0"], "error: epochs must be a whole number of 1 or more, got 0"),
        (["train", "--radius", "wide"], "error: radius must be a number, got 'wide'"),
        (
            ["train", "--train", "nowhere.csv"],
            "error: nowhere.csv: must be a file, got nothing; check the path",
        ),
        (["train", "--config", "nowhere.toml"], "error: config file 'nowhere.toml' does not exist"),
        (["train", "--set", "weight_decay"], "error: --set takes NAME=VALUE, got 'weight_decay'"),
        (
            ["doctor", "/no/model"],
            "error: model '/no/model' is neither a folder here nor reachable on the hub: ",
        ),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    advreg: CommandServer, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = advreg(*arguments, cwd=tmp_path)
    assert done.code == 2
    assert done.err.startswith(message)
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_flag_is_refused_by_name(advreg: CommandServer, tmp_path: Path) -> None:
    done = advreg("train", "--radios", "1", cwd=tmp_path)
    assert done.code == 2
    told = one_line(done.err)
    assert "No such option: --radios" in told
    assert "--radius" in told
    assert "--arch.radius" not in told


def test_debugging_shows_where_an_error_came_from(advreg: CommandServer, tmp_path: Path) -> None:
    done = advreg("methods", "ach", cwd=tmp_path, env={"ADVREG_DEBUG": "1"})
    assert done.code == 1
    assert done.err.startswith("Traceback")
    assert "in entry_of" in done.err
    assert "ValueError: unknown method 'ach' (did you mean 'arch'?)" in done.err


# ---- train


@pytest.fixture
def arguments(model: Path, table: Path) -> list[object]:
    return [
        "train",
        "--train",
        table,
        "--model",
        model,
        "--batch-size",
        8,
        "--learning-rate",
        "1e-3",
        "--seed",
        1,
    ]


@pytest.fixture(scope="module")
def compared(
    advreg: CommandServer, model: Path, table: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Done, Path]:
    """Standard and ARCH on two seeds for one cycle of refreshing, every one of whose texts is
    cut.
    """
    home = tmp_path_factory.mktemp("compared")
    done = advreg(
        "train", "--train", table, "--model", model, "--batch-size", 8, "--seed", 1, "--seed", 2, "--epochs", 2,
        "--method", "standard", "--method", "arch", "--refresh-every", 2, "--cache-fraction", 0.5, "--max-length", 5,
        "--output", "out", cwd=home,
    )  # fmt: skip
    return done, home / "out"


def test_the_table_compares_the_methods(compared: tuple[Done, Path]) -> None:
    done, folder = compared
    assert done.code == 0, done.err
    preset, columns, held_out, runs = done.out.splitlines()[:4]
    assert preset.startswith("preset fine-tuning: sets options that you do not give")
    assert runs == (
        "train: 40 training and 4 dev samples, 2 classes; model tiny-bert; 4 runs of 2 epochs"
    )
    assert columns == (
        "train: text in column 'text', label in column 'label'; classification, because the labels "
        "are 2 names"
    )
    assert held_out == (
        "train: no --dev, so 4 of 44 rows are held out to evaluate on, of each class alike"
    )
    table = cells(done.out)
    assert list(table) == ["standard", "arch", "majority"]
    seeds, accuracy, time, forward, backward, cache = table["standard"]
    assert (seeds, time, forward, backward, cache) == ("2", "1.00", "1.00", "1.00", "–")
    assert " ± " in accuracy
    expected = create("arch", refresh_every=2, ascent_steps=1).passes()  # of fine-tuning
    assert table["arch"][3:5] == [f"{expected.forward:.2f}", f"{expected.backward:.2f}"]
    record = records.load(folder / "arch-seed1" / "record.json")
    assert table["arch"][5] == f"{(record.outcome.cache_bytes or 0) / 1000:.1f} kB"
    assert float(table["arch"][2]) > 0


def test_every_run_leaves_a_record_a_model_and_a_plan(compared: tuple[Done, Path]) -> None:
    _, folder = compared
    names = [f"{method}-seed{seed}" for method in ("arch", "standard") for seed in (1, 2)]
    assert sorted(path.name for path in folder.iterdir()) == names
    for name in names:
        assert records.load(folder / name / "record.json").name == name
        assert json.loads((folder / name / "plan.json").read_text())["seed"] == int(name[-1])
        assert (folder / name / "model" / "model.safetensors").is_file()


def test_what_all_runs_have_to_say_is_said_once(compared: tuple[Done, Path]) -> None:
    done, _ = compared
    assert done.out.count("train texts are longer than 5 tokens and were cut") == 1


def test_a_used_folder_is_refused_without_resume_and_finished_runs_are_not_repeated_with_it(
    advreg: CommandServer, compared: tuple[Done, Path], arguments: list[object]
) -> None:
    first, folder = compared
    again: list[object] = [
        *arguments, "--seed", 2, "--epochs", 2, "--method", "standard", "--method", "arch", "--refresh-every", 2,
        "--cache-fraction", 0.5, "--max-length", 5, "--learning-rate", "5e-5", "--output", "out",
    ]  # fmt: skip
    refused = advreg(*again, cwd=folder.parent)
    assert (refused.code, refused.err) == (
        2, "error: output 'out' holds runs already; add --resume to resume them, or choose another folder\n",
    )  # fmt: skip
    done = advreg(*again, "--resume", cwd=folder.parent)
    assert done.code == 0, done.err
    assert done.out.count("finished before, not repeated") == 4
    assert cells(done.out) == cells(first.out)


@pytest.mark.parametrize("suffix", ["tsv", "jsonl", "parquet"])
def test_every_format_of_table_trains_to_the_same_record(
    advreg: CommandServer, arguments: list[object], tmp_path: Path, suffix: str
) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    write_table(tmp_path / f"one.{suffix}", sentiment())
    arguments[2] = f"one.{suffix}"
    done = advreg(
        *arguments, "--method", "standard", "--epochs", 1, "--output", suffix, cwd=tmp_path
    )
    assert done.code == 0, done.err
    assert cells(done.out)["standard"][2:] == ["1.00", "1.00", "1.00", "–"]
    # written here as csv by other code: the same samples
    from advreg.lab.kinds.classification.tables import load_tables

    expected = load_tables(write_table(tmp_path / "one.csv", sentiment())).fingerprint()
    assert (
        records.load(tmp_path / suffix / "standard-seed1" / "record.json").task.fingerprint
        == expected
    )


def test_scores_are_compared_by_pearson_and_without_standard_there_is_no_relative_time(
    advreg: CommandServer, arguments: list[object], tmp_path: Path
) -> None:
    arguments[2] = write_table(tmp_path / "pairs.csv", scored())
    done = advreg(*arguments, "--method", "r3f", "--epochs", 1, "--output", "out", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "pairs: dev pearson, mean ± sd over seeds" in done.out
    assert cells(done.out)["r3f"][2:5] == ["–", "2.00", "1.00"]


def test_a_config_file_flags_and_set_reach_the_run(
    advreg: CommandServer, model: Path, table: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(
        f"train = '{table}'\nmodel = '{model}'\nmethods = ['freeat']\nseeds = [4]\nepochs = "
        "3\nbatch_size = 8\n"
        "output = 'out'\n[freeat]\nreplays = 2\nradius = 0.5\n[training]\nweight_decay = "
        "0.5\nsave_total_limit = 1\n"
    )
    done = advreg(
        "train",
        "--config",
        "mine.toml",
        "--epochs",
        1,
        "--radius",
        0.25,
        "--set",
        "weight_decay=0.125",
        cwd=tmp_path,
    )
    assert done.code == 0, done.err
    assert cells(done.out)["freeat"][3:5] == ["2.00", "2.00"]
    record = records.load(tmp_path / "out" / "freeat-seed4" / "record.json")
    assert (record.method.settings["replays"], record.method.settings["radius"]) == (2, 0.25)
    assert (record.training.epochs, record.training.more["weight_decay"]) == (1, 0.125)
    assert record.training.more["save_total_limit"] == 1
    assert record.environment["arguments"][:3] == ["train", "--config", "mine.toml"]


def test_ctrl_c_exits_130_with_a_hint_and_resume_needs_no_other_setting(
    advreg: CommandServer, arguments: list[object], tmp_path: Path
) -> None:
    run = [*arguments, "--method", "standard", "--epochs", 2]
    stopped = advreg(
        *run,
        cwd=tmp_path,
        fault={"kind": "step", "count": 8, "method": "standard", "sign": "SIGINT"},
    )
    assert stopped.code == 128 + signal.SIGINT
    assert stopped.err.strip().splitlines() == [
        "SIGINT: stopping after this step, with a checkpoint; send it again to leave at once",
        "interrupted; finished steps are in the last checkpoint. Resume with the same command and "
        "--resume",
    ]
    output = Path("runs") / "train-tiny-bert"  # called by the data
    done = advreg("train", "--resume", "--output", output, "--set", "logging_steps=1", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "standard-seed1: resumed from step 8" in done.out
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["train-tiny-bert"]


def test_sigterm_exits_143_with_a_checkpoint_and_the_second_one_at_once(
    advreg: CommandServer, arguments: list[object], tmp_path: Path
) -> None:
    run = [*arguments, "--method", "standard", "--epochs", 2, "--output", "out"]
    fault = {"kind": "step", "count": 8, "method": "standard", "sign": "SIGTERM"}
    stopped = advreg(*run, cwd=tmp_path, fault=fault)
    assert stopped.code == 128 + signal.SIGTERM
    assert "Traceback" not in stopped.err
    assert (tmp_path / "out" / "standard-seed1" / "checkpoint-8").is_dir()
    again = advreg(*run, "--resume", cwd=tmp_path, fault={**fault, "count": 1, "times": 2})
    assert again.code == 128 + signal.SIGTERM
    assert not (tmp_path / "out" / "standard-seed1" / "checkpoint-9").exists()


def test_a_run_that_fails_exits_2_with_the_reason_and_leaves_it_in_the_record(
    advreg: CommandServer, arguments: list[object], tmp_path: Path
) -> None:
    done = advreg(
        *arguments, "--method", "r3f", "--weight", "1e300", "--output", "out", cwd=tmp_path
    )
    assert done.code == 2
    assert "error: the loss is inf at step 0 (epoch 0), sample ids [" in done.err
    assert "Traceback" not in done.err
    record = records.load(tmp_path / "out" / "r3f-seed1" / "record.json")
    assert record.outcome.status == "failed"
    assert (record.outcome.error or "").startswith("NonFiniteLossError: the loss is inf at step 0")


def test_ctrl_c_while_the_commands_are_imported_ends_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "advreg.cli.app", Interrupted("advreg.cli.app"))
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 130


@pytest.mark.parametrize(
    "given",
    [
        ("compare", "--task", "rte", "--jobs", "two"),
        ("translate", "model", "--beam", "two"),
        ("bench", "--steps", "two"),
    ],
)
def test_a_number_that_is_none_is_refused_by_flag_and_value(
    advreg: CommandServer, tmp_path: Path, given: Sequence[str]
) -> None:
    ended = advreg(*given, cwd=tmp_path)
    told = " ".join(ended.err.replace("│", " ").split())
    assert ended.code == 2
    assert f"Invalid value for '{given[-2]}'" in told
    assert "'two'" in told


# ---- help


def test_the_flags_that_matter_most_come_first_and_the_others_in_groups(
    advreg: CommandServer, tmp_path: Path
) -> None:
    told = advreg("train", "--help", cwd=tmp_path, env={"COLUMNS": "80"}).out
    panels = {line.strip("╭─╮ "): [] for line in told.splitlines() if line.startswith("╭─")}
    panel = ""
    for line in told.splitlines():
        panel = line.strip("╭─╮ ") if line.startswith("╭─") else panel
        if line.startswith("│ --"):
            panels[panel].append(line.split()[1])
    first, *others = panels
    assert panels[first] == [
        "--train", "--dev", "--task", "--model", "--method", "--seeds", "--epochs", "--learning-rate", "--output",
        "--resume", "--help",
    ]  # fmt: skip
    assert others == [
        "Data", "Training", "Translation (--task translation, or a known corpus)",
        "Language (--task language, or a known corpus)", "Configuration", "Options of the methods",
    ]  # fmt: skip


@pytest.mark.parametrize("command", ["compare", "study"])
def test_a_word_in_brackets_is_shown(advreg: CommandServer, tmp_path: Path, command: str) -> None:
    assert "[grid]" in advreg(command, "--help", cwd=tmp_path).out


def test_an_abbreviation_is_answered_with_the_option_it_stands_for(
    advreg: CommandServer, tmp_path: Path
) -> None:
    told = one_line(advreg("train", "--lr", "1", cwd=tmp_path, env={"COLUMNS": "200"}).err)
    assert "No such option: --lr" in told
    assert "--learning-rate" in told
    assert "--norm" not in told
