from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from advreg.cli.report import write_report
from report_runs import health, made_up, save

ROOT = Path(__file__).parents[2]


def told() -> Console:
    return Console(file=io.StringIO(), width=200)


def test_the_page_is_written_and_what_could_not_be_read_is_told(tmp_path: Path) -> None:
    save(tmp_path / "runs" / "arch-seed0", made_up(), health())
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "record.json").write_text("{")
    console, out = told(), tmp_path / "pages" / "report.html"
    write_report([tmp_path / "runs"], out, "Mine & yours", console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "left out: " in printed
    assert "bad/record.json: is not valid JSON" in printed
    assert f"report: {out} (1 run, " in printed
    page = out.read_text(encoding="utf-8")
    assert "<title>Mine &amp; yours</title>" in page
    assert "Made from the records of 1 run." in page
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_a_bench_has_a_section_of_its_own(tmp_path: Path) -> None:
    out, measured = tmp_path / "report.html", ROOT / "results" / "cost" / "bert-base.json"
    write_report([measured], out, "Cost", told())
    page = out.read_text(encoding="utf-8")
    assert '<section id="bench">' in page
    panel = json.loads(measured.read_bytes())["panels"][0]
    (row,) = (row for row in panel["rows"] if row["name"] == "arch, reuse")
    milliseconds, ratio = row["time"]["median"], row["ratio"]
    spread = f"{ratio['median']:.2f} ({ratio['quartile_1']:.2f}–{ratio['quartile_3']:.2f})"
    assert f'<th scope="row">arch, reuse</th><td>{milliseconds:.1f}</td><td>{spread}</td>' in page
    assert f"<h4>bert-base, {panel['batch']} × {panel['tokens']}, bf16, NVIDIA H200</h4>" in page


def test_the_page_must_be_html(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"output must end in \.html, got 'report\.pdf'"):
        write_report([tmp_path], Path("report.pdf"), "t", told())


def test_the_commands_for_records_load_no_models(tmp_path: Path) -> None:
    save(tmp_path / "arch-seed0", made_up())
    code = (
        "import sys; from advreg.cli.app import app\n"
        "for arguments in (['report', '.', '-o', 'r.html'], ['runs', '.']):\n"
        "    app(arguments, standalone_mode=False)\n"
        "print('transformers' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"
    assert (tmp_path / "r.html").is_file()


def test_lists_and_reports_of_runs_load_no_torch() -> None:
    code = (
        "import sys, advreg.cli.runs, advreg.cli.report\n"
        "print({'torch', 'transformers', 'numpy', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
