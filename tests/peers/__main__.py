"""Run transformers' and TRL's own tests with the stock trainer and with advreg's, and list the
difference.

    PYTHONPATH=tests python -m peers FOLDER
    PYTHONPATH=tests python -m peers FOLDER --methods r3f --code ../other-checkout

FOLDER holds a checkout of transformers or of TRL, or both.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import re
import subprocess
import sys
from pathlib import Path

from peers.bars import expected
from peers.compare import compare
from peers.records import Run, read
from peers.report import MethodReport, SuiteReport
from peers.suites import HERE, STOCK, SUITES, Bench, Suite

ROOT = HERE.parent.parent
REQUIREMENTS = HERE / "requirements.txt"
REPORT, RECORD = "report.txt", "report.json"


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m peers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "folder", type=Path, help="holds checkouts named transformers and trl, or one of them"
    )
    parser.add_argument(
        "--methods", default="standard,r3f", help="separated by commas (%(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes that share the tests (%(default)s)"
    )
    parser.add_argument("--timeout", type=int, default=600, help="seconds for a test (%(default)s)")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "peers", help="for records and logs"
    )
    parser.add_argument(
        "--code", type=Path, default=ROOT, help="the checkout of advreg that is tested (this one)"
    )
    parser.add_argument(
        "-k",
        dest="select",
        default="",
        help="only the tests that match, as pytest's -k; not held to the bars",
    )
    return parser.parse_args(arguments)


def missing_packages(requirements: str) -> list[str]:
    """The packages of a requirements file that are not installed."""
    names = [
        re.split(r"[=<>~!\[; ]", line)[0]
        for line in requirements.splitlines()
        if line and not line.startswith("#")
    ]
    return [name for name in names if not _version(name)]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def commit_of(checkout: Path) -> str:
    """The commit of a checkout, if it is a repository of its own, and whether there are changes
    since.
    """
    if not (checkout / ".git").exists():
        return ""
    command = [
        "git",
        "-C",
        str(checkout),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def run_suite(bench: Bench, suite: Suite, methods: list[str]) -> SuiteReport:
    """Run a suite with the stock trainer and with each method."""

    def run(method: str) -> tuple[float, Run]:
        print(f"{suite.name}, {method} …", flush=True)
        return bench.run(suite, method), read(bench.folder(suite, method))

    bench.make_stand_ins(suite)
    seconds, stock = run(STOCK)
    reports = []
    for method in methods:
        its_seconds, other = run(method)
        found, reasons = compare(stock, other, method), expected().get((suite.name, method), {})
        reports.append(
            MethodReport(
                method=method,
                seconds=its_seconds,
                outcomes=other.outcomes,
                found=found,
                reasons=reasons,
            )
        )
    return SuiteReport(
        suite=suite.name,
        version=_version(suite.name),
        commit=commit_of(bench.checkout(suite)),
        seconds=seconds,
        stock=stock.outcomes,
        methods=reports,
    )


def require(bench: Bench) -> None:
    """Leave, and say what to do, if there is no suite or no package to run it with."""
    if not bench.found():
        names = " or ".join(f"{suite.name}/{suite.tests}" for suite in SUITES)
        sys.exit(f"the folder must hold {names}, got {bench.checkouts}; clone the libraries there")
    if missing := missing_packages(REQUIREMENTS.read_text(encoding="utf-8")):
        sys.exit(
            f"{', '.join(missing)} not installed: pip install -c constraints.txt -r {REQUIREMENTS}"
        )


def publish(bench: Bench, reports: list[SuiteReport]) -> list[str]:
    """Write and print the report; return what does not hold. A selection of tests is not held to
    the bars.
    """
    faults = [] if bench.select else [fault for report in reports for fault in report.faults()]
    made_with = {
        "advreg": commit_of(bench.code),
        "torch": _version("torch"),
        "python": platform.python_version(),
    }
    sections = [", ".join(f"{name} {version}" for name, version in made_with.items())]
    sections += ["\n".join(report.lines()) for report in reports]
    if not bench.select:
        sections.append(
            "\n".join(f"✗ {fault}" for fault in faults) or "✓ no difference that is not wanted"
        )
    text = "\n\n".join(sections) + "\n"
    (bench.out / REPORT).write_text(text, encoding="utf-8")
    record = {**made_with, "suites": [report.record() for report in reports]}
    (bench.out / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")
    print(text)
    return faults


def main() -> int:
    given = parsed()
    bench = Bench(
        checkouts=given.folder.resolve(),
        out=given.out.resolve(),
        code=given.code.resolve(),
        workers=given.workers,
        timeout=given.timeout,
        select=given.select,
    )
    require(bench)
    bench.out.mkdir(parents=True, exist_ok=True)
    reports = [run_suite(bench, suite, given.methods.split(",")) for suite in bench.found()]
    return 1 if publish(bench, reports) else 0


if __name__ == "__main__":
    sys.exit(main())
