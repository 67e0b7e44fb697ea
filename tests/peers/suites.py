"""The suites, and how one is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from peers.records import OUTCOMES, TRAININGS

STOCK = "stock"
HERE = Path(__file__).resolve().parent
TESTED, NOTHING_SELECTED = (0, 1), 5  # exit codes of pytest after all tests ran
LOG, LAST_LINES = "pytest.log", 30


@dataclass(frozen=True)
class Suite:
    """Tests of a library.

    Args:
        name: the library.
        tests: what pytest runs, below the checkout.
        helpers: more files of the checkout whose imports may be of another version.
        linked: what of the checkout the tests look for around them.
        ignored: tests that need several processes.
    """

    name: str
    tests: str
    helpers: tuple[str, ...]
    linked: tuple[str, ...]
    ignored: tuple[str, ...] = ()

    def files(self, checkout: Path) -> list[Path]:
        """The files that may import names the installed library does not have."""
        tests = checkout / self.tests
        mine = sorted(tests.glob("*.py")) if tests.is_dir() else [tests]
        return [*mine, *(checkout / helper for helper in self.helpers)]


TRANSFORMERS = Suite(
    name="transformers",
    tests="tests/trainer",
    helpers=(),
    linked=("conftest.py", "pyproject.toml", "tests", "examples"),
    ignored=("tests/trainer/distributed",),
)
TRL = Suite(
    name="trl",
    tests="tests/test_sft_trainer.py",
    helpers=("tests/conftest.py", "tests/testing_utils.py"),
    linked=("pyproject.toml", "tests"),
)
SUITES = (TRANSFORMERS, TRL)


@dataclass(frozen=True)
class Bench:
    """Where and with what suites are run.

    Args:
        checkouts: the folder that holds a checkout of each library.
        out: where records, logs and stand-ins go.
        code: the checkout of advreg whose ``src`` is under test.
        workers: processes that share the tests; 0 runs them in one, in order.
        timeout: seconds for a test.
        select: an expression of ``pytest -k``; empty for all tests.
    """

    checkouts: Path
    out: Path
    code: Path
    workers: int
    timeout: int
    select: str = ""

    def checkout(self, suite: Suite) -> Path:
        return self.checkouts / suite.name

    def found(self) -> list[Suite]:
        """The suites whose checkouts are there."""
        return [suite for suite in SUITES if self.checkout(suite).joinpath(suite.tests).exists()]

    def folder(self, suite: Suite, method: str) -> Path:
        """Where the records of a run go."""
        return self.out / f"{suite.name}-{method}"

    def hub(self, suite: Suite) -> Path:
        return self.out / f"hub-{suite.name}"

    def make_stand_ins(self, suite: Suite) -> None:
        """Make the models and data that the tests would fetch."""
        shutil.rmtree(self.hub(suite), ignore_errors=True)
        log = self.out / f"hub-{suite.name}.log"
        command = ["-m", "peers.hub", suite.name, str(self.hub(suite)), str(self.checkout(suite))]
        code = self._python(command, self.out, {}, log)
        if code != 0:
            raise RuntimeError(f"the stand-ins of {suite.name} could not be made:\n{_tail(log)}")

    def run(self, suite: Suite, method: str) -> float:
        """Run a suite with a method, or with the stock trainer; return how many seconds it took."""
        folder = self.folder(suite, method)
        shutil.rmtree(folder, ignore_errors=True)
        (folder / TRAININGS).mkdir(parents=True)
        (folder / OUTCOMES).touch()
        work = self._work_folder(suite, folder)
        told = {
            "PEERS_SUITE": suite.name,
            "PEERS_METHOD": method,
            "PEERS_RECORD": str(folder),
            "PEERS_FILES": os.pathsep.join(map(str, suite.files(self.checkout(suite)))),
            # tests that run pytest in a process of their own take it too
            "PYTEST_ADDOPTS": "-p peers.plugin",
        }
        begun = time.monotonic()
        code = self._python(self._pytest(suite), work, told, folder / LOG)
        if code not in TESTED and not (code == NOTHING_SELECTED and self.select):
            raise RuntimeError(
                f"pytest of {suite.name} with {method} ended with {code}:\n{_tail(folder / LOG)}"
            )
        shutil.rmtree(work.parent)
        return time.monotonic() - begun

    def _work_folder(self, suite: Suite, folder: Path) -> Path:
        """A working directory with tests and stand-ins side by side, so that hub ids are folders
        below it.
        """
        work = folder / "scratch" / "work"  # a test that writes to .. writes to scratch
        work.mkdir(parents=True)
        for source in (
            *map(self.checkout(suite).joinpath, suite.linked),
            *self.hub(suite).iterdir(),
        ):
            (work / source.name).symlink_to(source)
        return work

    def _pytest(self, suite: Suite) -> list[str]:
        command = [
            "-m",
            "pytest",
            "-p",
            "peers.outcomes",
            "-p",
            "no:cacheprovider",
            "--quiet",
            "--tb=long",
        ]
        command += ["--timeout", str(self.timeout), *(f"--ignore={path}" for path in suite.ignored)]
        command += ["-n", str(self.workers)] if self.workers else []
        command += ["-k", self.select] if self.select else []
        return [*command, suite.tests]

    def _python(self, arguments: list[str], cwd: Path, told: dict[str, str], log: Path) -> int:
        """Run Python offline, on one core and without a GPU, and return its exit code."""
        settings = {
            "PYTHONPATH": os.pathsep.join([str(self.code / "src"), str(HERE.parent)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_HOME": str(self.out / "cache"),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        with (
            log.open("w", encoding="utf-8") as output,
            tempfile.TemporaryDirectory(prefix="peers-") as temporary,
        ):
            environment = {**os.environ, **settings, **told, "TMPDIR": temporary}
            command = [sys.executable, *arguments]
            return subprocess.run(
                command, cwd=cwd, env=environment, stdout=output, stderr=subprocess.STDOUT
            ).returncode


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-LAST_LINES:])
