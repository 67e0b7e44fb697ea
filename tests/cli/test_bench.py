from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from advreg.cli.bench import INTERRUPTED, choose_file, measure
from advreg.lab.bench import loop as loops
from advreg.lab.bench.settings import BenchSettings
from advreg.lab.drawing import PictureError
from advreg.lab.report.labels import bytes_text
from advreg.records.bench import load
from command_server import CommandServer

QUICK = ("--device", "cpu", "--shape", "2x4", "--samples", "20", "--warmup", "0", "--steps", "1", "--rounds", "2",
         "--no-trainers")  # fmt: skip


def cells(printed: str) -> dict[str, list[str]]:
    """The rows of the first printed table by their first cell."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    return {row[0]: row[1:] for row in reversed(rows) if len(row) > 2}


@pytest.fixture(scope="module")
def folder(advreg: CommandServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one bench in it, and what it printed."""
    folder = tmp_path_factory.mktemp("bench")
    done = advreg(
        "bench",
        *QUICK,
        "--method",
        "arch",
        "--method",
        "smart:ascent_steps=1",
        "--out",
        "bench.json",
        cwd=folder,
    )
    assert done.code == 0, done.err
    (folder / "printed.txt").write_text(done.out)
    return folder


def test_a_table_shows_time_ratio_passes_and_cache_as_in_the_record(folder: Path) -> None:
    shown = cells((folder / "printed.txt").read_text())
    panel = load(folder / "bench.json").panels[0]
    assert len(panel.rows) == 5
    for row in panel.rows:
        assert row.time is not None
        assert row.ratio is not None
        time, ratio, passes, peak, cache = shown[row.name]
        assert time == f"{row.time.median:.1f}"
        assert ratio.startswith(f"{row.ratio.median:.2f} (")
        assert passes == f"{row.forward:g}/{row.backward:g} ({row.arithmetic:.2f})"
        assert (peak, cache) == ("–", bytes_text(row.cache_bytes))
    assert "smart (ascent_steps=1)" in shown


def test_a_table_projects_times_to_a_whole_run(folder: Path) -> None:
    printed = (folder / "printed.txt").read_text()
    _, _, whole = printed.partition("a whole run of 150 epochs")
    runs = cells(whole)
    assert runs["arch"][0] == "10"
    assert runs["standard"][:2] == ["–", "1.00 (1.00–1.00)"]
    assert runs["smart (ascent_steps=1)"][2] == "1.00 (1.00–1.00)"


def test_a_picture_is_redrawn_from_records_without_measuring(
    folder: Path, advreg: CommandServer
) -> None:
    files = ("--from", "bench.json", "--from", "bench.json")
    done = advreg("bench", *files, "--picture", "again.svg", cwd=folder)
    assert done.code == 0, done.err
    assert done.out.count("a whole run of 150 epochs") == 2
    assert (folder / "again.svg").read_text().count(", 2 × 4, ") == 2
    assert sorted(path.name for path in folder.iterdir()) == [
        "again.svg",
        "bench.json",
        "printed.txt",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shape", "32by64"), "shape must be BATCHxTOKENS, for example 32x64, got '32by64'"),
        (("--method", "archh"), "unknown method 'archh' (did you mean 'arch'?)"),
        (
            ("--method", "arch:radus=1"),
            "method 'arch' has no option 'radus' (did you mean 'radius'?)",
        ),
        (("--precision", "fp16"), "precision must be fp32 or bf16 on a CPU, got 'fp16'"),
        (("--picture", "bench.gif"), "picture must end in .svg, got 'bench.gif'"),
        (
            ("--out", "bench.json"),
            "out 'bench.json' exists already, and records are not overwritten",
        ),
        (
            ("--from", "none.json"),
            "none.json: is not a file; give the record that `advreg bench --out` wrote",
        ),
        (("--from", "printed.txt"), "printed.txt: is not valid JSON"),
    ],
)
def test_mistakes_are_told_in_one_line_before_anything_is_measured(
    arguments: tuple[str, ...], message: str, folder: Path, advreg: CommandServer
) -> None:
    done = advreg("bench", "--device", "cpu", *arguments, cwd=folder)
    assert done.code == 2
    assert done.err.startswith(f"error: {message}")
    assert done.err.count("\n") == 1


def test_without_out_the_record_goes_to_the_next_free_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first = choose_file(None, "models/bert")
    assert first == Path("runs/bench-bert.json")
    first.parent.mkdir()
    first.touch()
    assert choose_file(None, "models/bert") == Path("runs/bench-bert-1.json")


SETTINGS = BenchSettings(
    shapes=("2x4",),
    methods=("standard",),
    device="cpu",
    trainers=False,
    samples=8,
    warmup=0,
    steps=1,
    rounds=3,
)


def test_an_interruption_leaves_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, turns = loops.Contender.turn, 0

    def turn(self: loops.Contender, loop: loops.Loop, steps: int) -> float:
        nonlocal turns
        turns += 1
        if turns == 4:
            raise KeyboardInterrupt
        return whole(self, loop, steps)

    monkeypatch.setattr(loops.Contender, "turn", turn)
    out = io.StringIO()
    code = measure(SETTINGS, tmp_path / "bench.json", None, None, Console(file=out, width=200))
    record = load(tmp_path / "bench.json")
    assert (code, record.status) == (INTERRUPTED, "interrupted")
    assert sorted(len(row.rounds) for row in record.panels[0].rows) == [1, 2]
    assert "interrupted; results so far:" in out.getvalue()


def test_a_crash_leaves_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, turns = loops.Contender.turn, 0

    def turn(self: loops.Contender, loop: loops.Loop, steps: int) -> float:
        nonlocal turns
        turns += 1
        if turns == 4:
            raise RuntimeError("the machine is on fire")
        return whole(self, loop, steps)

    monkeypatch.setattr(loops.Contender, "turn", turn)
    with pytest.raises(RuntimeError, match="on fire"):
        measure(SETTINGS, tmp_path / "bench.json", None, None, Console(file=io.StringIO()))
    record = load(tmp_path / "bench.json")
    assert record.status == "failed"
    assert sorted(len(row.rounds) for row in record.panels[0].rows) == [1, 2]


def test_a_picture_of_another_format_is_refused_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    with pytest.raises(PictureError, match=r"picture must end in \.svg"):
        measure(
            SETTINGS,
            tmp_path / "bench.json",
            tmp_path / "bench.png",
            None,
            Console(file=io.StringIO()),
        )
    assert list(tmp_path.iterdir()) == []


def test_the_command_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "advreg.cli", "--version"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith("advreg ")
