"""`make peers` without the suites: what is compared, grouped and held to the bars."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from peers import bars
from peers.__main__ import missing_packages, parsed
from peers.absent import Absent, fill, imported
from peers.compare import (
    Comparison,
    Figures,
    cause,
    compare,
    counts,
    figures,
    grouped,
    pass_rate,
    relative,
)
from peers.hub import data_card
from peers.records import (
    FAILED,
    OUTCOMES,
    PASSED,
    SKIPPED,
    TRAININGS,
    Outcome,
    Run,
    Training,
    Trainings,
    append,
    read,
)  # fmt: skip
from peers.report import MethodReport, SuiteReport
from peers.suites import TRANSFORMERS, TRL, Bench

ROOT = Path(__file__).resolve().parent.parent


def ended(**ends: str) -> dict[str, Outcome]:
    return {test: Outcome(test, outcome) for test, outcome in ends.items()}


def trained(test: str, **given: object) -> Trainings:
    """One training by R3F of two updates."""
    usual = {
        "method": "r3f",
        "begun": 2,
        "steps": 2,
        "log": [{"loss": 2.0, "step": 1}],
        "norm": 3.0,
        "digest": "d",
    }
    return {(test, 0): Training(test, 0, **{**usual, **given})}  # type: ignore[arg-type]


def compared(
    stock: dict[str, Outcome], other: dict[str, Outcome], after: Trainings | None = None
) -> Comparison:
    return compare(Run(stock), Run(other, after or {}), "r3f")


# ---- records


def test_the_worst_of_what_setup_call_and_teardown_say_is_the_outcome(tmp_path: Path) -> None:
    for end in (PASSED, FAILED, SKIPPED):
        append(tmp_path / OUTCOMES, Outcome("a", end))
    append(tmp_path / OUTCOMES, Outcome("b", SKIPPED))
    append(tmp_path / OUTCOMES, Outcome("b", PASSED))
    assert {test: outcome.outcome for test, outcome in read(tmp_path).outcomes.items()} == {
        "a": FAILED,
        "b": PASSED,
    }


def test_trainings_are_read_from_the_files_of_all_processes(tmp_path: Path) -> None:
    (tmp_path / TRAININGS).mkdir()
    (tmp_path / OUTCOMES).touch()
    one, two = Training("a", 0, log=[{"loss": math.inf}]), Training("a", 1, error="ValueError: no")
    append(tmp_path / TRAININGS / "17.jsonl", one)
    append(tmp_path / TRAININGS / "18.jsonl", two)
    assert read(tmp_path).trainings == {("a", 0): one, ("a", 1): two}


SUITE = '''
import pytest
from advreg.core.checks import check_choice

class UnsupportedError(ValueError):
    """Named as advreg's."""

def test_passes():
    pass

def test_is_skipped():
    pytest.skip("needs a GPU")

def test_fails_in_advreg():
    check_choice("colour", "red", ("blue",))

class MoreUnsupportedError(UnsupportedError):
    pass

def test_is_refused():
    raise UnsupportedError("cannot train this\\nremedy")

def test_is_refused_by_a_special_error_that_another_hides():
    try:
        raise MoreUnsupportedError("nor this")
    except ValueError as error:
        raise RuntimeError("gave up") from error

def test_fails_beside_a_refusal():
    try:
        raise OSError("another")
    except UnsupportedError:
        pass

@pytest.fixture
def broken():
    yield
    raise OSError("teardown")

def test_fails_in_teardown(broken):
    pass
'''


def run_pytest(folder: Path, *arguments: str, **told: str) -> Run:
    """What is recorded of the tests in a folder."""
    (folder / TRAININGS).mkdir()
    code = os.pathsep.join(str(ROOT / name) for name in ("src", "tests", "tests/helpers"))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "peers.outcomes",
        "-p",
        "no:cacheprovider",
        *arguments,
    ]
    command += ["--continue-on-collection-errors", "--rootdir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": code, "PEERS_RECORD": str(folder), **told}
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    return read(folder)


@pytest.mark.parametrize("workers", [[], ["-n", "1"]])
def test_outcomes_of_a_run_of_pytest_are_recorded_once(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "test_it.py").write_text(SUITE, encoding="utf-8")
    (tmp_path / "test_broken.py").write_text("import no_such_module", encoding="utf-8")
    found = run_pytest(tmp_path, *workers).outcomes
    ends = {
        test.partition("::")[2] or test: (outcome.outcome, outcome.message)
        for test, outcome in found.items()
    }
    assert ends.pop("test_broken.py")[0] == FAILED
    assert ends == {
        "test_passes": (PASSED, ""),
        "test_is_skipped": (SKIPPED, "Skipped: needs a GPU"),
        "test_fails_in_advreg": (FAILED, "ValueError: colour must be one of blue, got 'red'"),
        "test_fails_beside_a_refusal": (FAILED, "OSError: another"),
        "test_is_refused": (FAILED, "test_it.UnsupportedError: cannot train this"),
        "test_is_refused_by_a_special_error_that_another_hides": (FAILED, "RuntimeError: gave up"),
        "test_fails_in_teardown": (FAILED, "OSError: teardown"),
    }
    assert found["test_it.py::test_fails_in_advreg"].place == "core/checks.py"
    assert [test.partition("::")[2] for test, outcome in found.items() if outcome.refused] == [
        "test_is_refused",
        "test_is_refused_by_a_special_error_that_another_hides",
    ]


TRAINS = """
import gc
import random
from transformers import Trainer, TrainingArguments
from transformers.trainer import Trainer as Same
from transformers import gone
from observe import Padded, features_of
from tiny_models import tiny, tiny_batch

gc.freeze()  # each run of the Trainer collects garbage, which modules are not
STOCK = next(kind for kind in Trainer.__mro__ if kind.__name__ == "Trainer" and "train" in vars(kind))

class Own(Trainer):
    pass

def train(kind, folder, **given):
    model = tiny("bert", dropout=0.1)
    kind(
        model=model,
        args=TrainingArguments(str(folder), max_steps=2, logging_steps=1, report_to="none", use_cpu=True),
        train_dataset=features_of(tiny_batch("bert", batch=4)),
        **{"data_collator": Padded(model.config.pad_token_id), **given},
    ).train()

def test_swapped(tmp_path):
    assert Same is Trainer is not STOCK
    for kind in (Own, STOCK):
        train(kind, tmp_path)

def test_fails(tmp_path):
    train(Trainer, tmp_path, data_collator=lambda rows: 1 / 0)

def test_numbers():
    assert random.random() == random.Random(0).random()

def test_of_another_version():
    gone()
"""


def test_the_plugin_swaps_the_trainer_and_records_each_training(tmp_path: Path) -> None:
    file = tmp_path / "test_trains.py"
    file.write_text(TRAINS, encoding="utf-8")
    told = {"PEERS_SUITE": "transformers", "PEERS_METHOD": "r3f", "PEERS_FILES": str(file)}
    found = run_pytest(tmp_path, "-p", "peers.plugin", **told)
    assert {
        test.partition("::")[2]: outcome.outcome for test, outcome in found.outcomes.items()
    } == {
        "test_swapped": PASSED,
        "test_fails": FAILED,
        "test_numbers": PASSED,
        "test_of_another_version": SKIPPED,
    }
    own, stock = (found.trainings["test_trains.py::test_swapped", number] for number in (0, 1))
    assert (own.trainer, own.method, own.begun, own.steps) == ("Own", "r3f", 2, 2)
    assert (stock.trainer, stock.method, stock.begun, stock.steps) == ("Trainer", None, 2, 2)
    assert all(
        "loss" in training.log[0] and "train_runtime" not in training.log[-1]
        for training in (own, stock)
    )
    assert own.norm == pytest.approx(stock.norm, rel=0.1)
    assert own.digest != stock.digest
    failed = found.trainings["test_trains.py::test_fails", 0]
    assert failed.error == "ZeroDivisionError: division by zero"


# ---- names of another version


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a module, a name and a subpackage."""
    folder = tmp_path / "little_library"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("here = 1", encoding="utf-8")
    (folder / "inner" / "__init__.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder.name


def test_a_name_that_the_library_does_not_have_is_filled_and_skips_the_test_that_calls_it(
    tmp_path: Path, package: str
) -> None:
    file = tmp_path / "tests_of_another_version.py"
    file.write_text(
        f"from {package} import here, inner, gone, is_gone_available\n"
        f"from {package}.nowhere import name\nfrom . import gone_too\nfrom os import path\n",
        encoding="utf-8",
    )
    assert ("os", "path") not in set(imported([file], package))
    assert fill([file], package) == [f"{package}.gone", f"{package}.is_gone_available"]
    library = __import__(package)
    assert library.here == 1
    assert library.is_gone_available() is False
    assert isinstance(library.gone, Absent)
    with pytest.raises(
        pytest.skip.Exception, match=rf"the installed library has no {package}\.gone"
    ):
        library.gone(1, two=2)


# ---- the comparison


def test_the_pass_rate_leaves_skipped_tests_out() -> None:
    outcomes = ended(a=PASSED, b=PASSED, c=PASSED, d=FAILED, e=SKIPPED)
    assert counts(outcomes) == {PASSED: 3, FAILED: 1, SKIPPED: 1}
    assert pass_rate(outcomes) == 0.75
    assert pass_rate(ended(e=SKIPPED)) == 0


def test_tests_that_stock_does_not_pass_are_not_compared() -> None:
    found = compared(ended(a=PASSED, b=FAILED, c=SKIPPED), ended(a=PASSED, b=FAILED, c=SKIPPED))
    assert (found.passed, found.failed, found.refused, found.gained) == (["a"], {}, {}, [])


def test_a_test_that_does_not_pass_only_with_the_method_is_lost_and_the_contrary_is_gained() -> (
    None
):
    stock = ended(a=PASSED, b=PASSED, c=PASSED, d=PASSED, e=FAILED)
    found = compared(stock, ended(a=PASSED, b=FAILED, c=SKIPPED, e=PASSED))
    assert found.passed == ["a"]
    assert {test: outcome.outcome for test, outcome in found.failed.items()} == {
        "b": FAILED,
        "c": SKIPPED,
        "d": FAILED,
    }
    assert found.failed["d"].message == "not run"
    assert found.gained == ["e"]


def test_a_refusal_counts_as_one_only_before_the_first_update() -> None:
    other = {
        test: Outcome(test, FAILED, refused=True) for test in ("at once", "in training", "later")
    }
    after = {
        **trained("in training", error="UnsupportedError: no", begun=1, steps=0),
        **trained("at once", error="UnsupportedError: no", begun=0, steps=0),
        **trained("later"),  # one training that went well, and one that never began
    }
    found = compared(dict.fromkeys(other, Outcome("", PASSED)), other, after=after)
    assert list(found.refused) == ["at once", "later"]
    assert list(found.failed) == ["in training"]


def test_only_trainings_by_the_method_that_made_updates_are_counted() -> None:
    after = (
        trained("a")
        | trained("b", method="standard")
        | trained("c", method=None)
        | trained("d", steps=0)
    )
    assert compared({}, {}, after=after).trainings == 1


def test_failures_of_one_cause_are_grouped_whatever_their_numbers_addresses_and_folders() -> None:
    def failure(test: str, number: float, address: str, folder: str) -> Outcome:
        message = f"ValueError: {number} in <Model object at {address}> of {folder} (t5 layer1)"
        return Outcome(test, FAILED, message, "hf/task.py")

    one = failure("a", 3, "0x7f01ab", "/tmp/x1/checkpoint-2")
    two = failure("b", -1.5e-3, "0x7fffff", "/home/me/y")
    other = Outcome("c", FAILED, "KeyError: 'labels'")
    common = "ValueError: N in <Model object at 0x…> of <path> (t5 layer1) [hf/task.py]"
    assert list(grouped([other, one, two]).items()) == [
        (common, ["a", "b"]),
        ("KeyError: 'labels'", ["c"]),
    ]
    assert cause(replace(one, place="")) == common.removesuffix(" [hf/task.py]")
    assert len(cause(Outcome("d", FAILED, "long " * 100))) == 200


def test_trainings_are_equal_close_or_different() -> None:
    one = (
        trained("same")
        | trained("rounded")
        | trained("bits")
        | trained("loss")
        | trained("weights")
    )
    two = (
        trained("same")
        | trained("rounded", log=[{"loss": 2.0 + 1e-6, "step": 1}])
        | trained("bits", digest="e")
        | trained("loss", log=[{"loss": 2.1, "step": 1}])
        | trained("weights", norm=3.1)
    )
    found = figures(one, two)
    assert (found.equal, found.close) == (1, 2)
    assert found.different == {
        "loss 0": "loss of step 1: 2.0 | 2.1",
        "weights 0": "norm of the weights: 3.0 | 3.1",
    }


def test_trainings_differ_by_error_steps_or_length_of_the_log_too() -> None:
    one = trained("error") | trained("steps") | trained("log") | trained("alone")
    two = (
        trained("error", error="KeyError: 'x'") | trained("steps", steps=1) | trained("log", log=[])
    )
    assert figures(one, two).different == {
        "error 0": "error:  | KeyError: 'x'",
        "log 0": "log entries: 1 | 0",
        "steps 0": "steps: 2 | 1",
    }


def test_keys_that_the_log_lacks_are_a_difference_and_keys_that_it_adds_are_none() -> None:
    one = trained("a", log=[{"loss": 2.0, "entropy": 1.0}]) | trained("b", log=[{"loss": 2.0}])
    two = trained("a", log=[{"loss": 2.0}]) | trained("b", log=[{"loss": 2.0, "penalty": 1.0}])
    found = figures(one, two)
    assert (found.equal, found.extra, found.lost) == (1, {"penalty": 1}, {"entropy": 1})
    assert found.different == {"a 0": "missing in the log: entropy"}


def test_errors_that_name_other_folders_are_the_same() -> None:
    one, two = (
        trained("a", error=f"OSError: no file in /tmp/{name}/checkpoint-1") for name in ("x", "y")
    )
    assert figures(one, two).equal == 1


@pytest.mark.parametrize(
    ("one", "two", "gap"),
    [
        (2, 2, 0),
        (2, 1, 0.5),
        (0, 1e-9, 1),
        (math.nan, math.nan, 0),
        (math.nan, 1, math.inf),
        (math.inf, 1, math.inf),
    ],
)
def test_the_relative_difference_of_two_figures(one: float, two: float, gap: float) -> None:
    assert relative(one, two) == gap == relative(two, one)


# ---- the bars


def comparison(**given: object) -> Comparison:
    usual = {
        "passed": ["a"],
        "refused": {},
        "failed": {},
        "gained": [],
        "trainings": 1,
        "figures": Figures(),
    }
    return Comparison(**{**usual, **given})  # type: ignore[arg-type]


def test_a_run_without_differences_has_no_faults() -> None:
    assert bars.faults("trl", "r3f", comparison(), {}) == []
    assert (
        bars.stock_faults("trl", ended(**{f"t{number}": PASSED for number in range(19)}, f=FAILED))
        == []
    )


def test_stock_must_pass_enough_for_the_comparison_to_say_something() -> None:
    few = ended(a=PASSED, b=FAILED, c=SKIPPED)
    assert bars.stock_faults("trl", few) == [
        "trl: stock passes 50.0% of what is not skipped, less than 95%"
    ]


def test_a_run_in_which_nothing_was_trained_by_the_method_is_a_fault() -> None:
    (fault,) = bars.faults("trl", "r3f", comparison(trainings=0), {})
    assert fault == "trl, r3f: no training went through the mixin, so the comparison says nothing"


def test_a_difference_needs_a_reason_and_a_reason_a_difference() -> None:
    lost = comparison(failed={"b": Outcome("b", FAILED)})
    assert bars.faults("trl", "r3f", lost, {}) == [
        "trl, r3f: tests that differ from stock without a reason in expected.toml: 1"
    ]
    assert bars.faults("trl", "r3f", lost, {"b": "wanted", "of another version": "wanted"}) == []
    assert bars.faults("trl", "r3f", lost, {"a": "wanted", "b": "wanted"}) == [
        "trl, r3f: tests of expected.toml that no longer differ, to be taken out: a"
    ]


def test_a_method_with_a_perturbation_may_refuse_and_has_other_figures_and_standard_may_and_has_not() -> (
    None
):
    other = comparison(
        refused={"b": Outcome("b", FAILED)}, figures=Figures(different={"c 0": "loss: 1 | 2"})
    )
    assert bars.differing("r3f", other) == {}
    assert bars.differing("standard", other) == {"b": "", "c": "loss: 1 | 2"}


def test_standard_may_not_lose_many_tests_even_with_reasons() -> None:
    lost = {test: Outcome(test, FAILED) for test in "bcdef"}
    reasons = dict.fromkeys(lost, "wanted")
    assert bars.faults("trl", "r3f", comparison(failed=lost), reasons) == []
    assert bars.faults("trl", "standard", comparison(failed=lost), reasons) == [
        "trl, standard: tests that fail only with it: 5, more than 4"
    ]


def test_the_list_of_wanted_differences_has_a_reason_for_each() -> None:
    for (suite, _), reasons in bars.expected().items():
        assert suite in {TRANSFORMERS.name, TRL.name}
        assert all(len(reason.split()) > 3 for reason in reasons.values())


# ---- report and driver


def report_of(
    found: Comparison, outcomes: dict[str, Outcome], reasons: bars.Reasons
) -> SuiteReport:
    method = MethodReport(
        method="r3f", seconds=9.0, outcomes=outcomes, found=found, reasons=reasons
    )
    stock = ended(a=PASSED, b=PASSED, c=PASSED, d=SKIPPED)
    return SuiteReport(
        suite="trl", version="1.0", commit="c0ffee", seconds=8.0, stock=stock, methods=[method]
    )


def test_the_report_names_tests_by_cause_and_says_what_is_wrong() -> None:
    lost = {test: Outcome(test, FAILED, "KeyError: 'x'", "hf/task.py") for test in ("b", "c")}
    found = comparison(
        failed=lost,
        figures=Figures(equal=1, different={"a 0": "loss: 1 | 2"}, extra={"penalty": 2}),
    )
    report = report_of(found, ended(a=PASSED) | lost, {"c": "is wanted here"})
    assert list(report.lines()) == [
        "trl 1.0, tests of c0ffee: 4 tests",
        "  stock: 3 passed, 0 failed, 1 skipped, 8 s; 100.0% of what is not skipped",
        "",
        "  r3f: 1 passed, 2 failed, 0 skipped, 9 s; 1 trainings through the mixin",
        "    of 3 that pass with stock: 1 passed, 0 refused, 2 failed; only here pass 0",
        "    failing only with it, not expected: 1",
        "      1 × KeyError: 'x' [hf/task.py]",
        "          b",
        "    expected: 1",
        "      c: is wanted here",
        "    figures of 2 trainings in both: 1 equal, 0 equal but for rounding, 1 different",
        "      a 0: loss: 1 | 2",
        "    only in its logs: penalty (2)",
    ]
    assert report.faults() == [
        "trl, r3f: tests that differ from stock without a reason in expected.toml: 1"
    ]


def test_the_record_holds_what_the_report_says_and_every_outcome() -> None:
    found = comparison(refused={"b": Outcome("b", FAILED, refused=True)})
    record = report_of(found, ended(a=PASSED, b=FAILED), {}).record()
    assert record["stock"]["counts"] == {PASSED: 3, FAILED: 0, SKIPPED: 1}
    method = record["methods"]["r3f"]
    assert (method["trainings_through_the_mixin"], method["refused"], method["expected"]) == (
        1,
        ["b"],
        {},
    )
    assert method["tests"]["b"]["outcome"] == FAILED


def test_a_suite_is_found_by_its_tests(tmp_path: Path) -> None:
    bench = Bench(checkouts=tmp_path, out=tmp_path, code=ROOT, workers=0, timeout=1)
    assert bench.found() == []
    (tmp_path / TRL.name / "tests").mkdir(parents=True)
    assert bench.found() == []
    (tmp_path / TRL.name / TRL.tests).write_text("", encoding="utf-8")
    assert bench.found() == [TRL]


def test_the_driver_says_what_is_missing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "peers", str(tmp_path), "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        "must hold transformers/tests/trainer or trl/tests/test_sft_trainer.py, got" in done.stderr
    )


def test_packages_of_the_requirements_that_are_not_installed_are_found() -> None:
    assert missing_packages("# a note\npytest\nno-such-package==1.0\nno.such_one>=2 ; x\n") == [
        "no-such-package",
        "no.such_one",
    ]


def test_usual_settings_are_both_methods_on_two_processes() -> None:
    given = parsed(["somewhere"])
    assert (given.folder, given.methods, given.workers) == (Path("somewhere"), "standard,r3f", 2)


def test_the_card_of_a_dataset_names_the_files_of_each_configuration(tmp_path: Path) -> None:
    for name in ("main/train", "main/test", "other/train"):
        file = tmp_path / f"{name}.parquet"
        file.parent.mkdir(exist_ok=True)
        file.touch()
    assert data_card(sorted(tmp_path.iterdir())).splitlines() == [
        "---",
        "configs:",
        "- config_name: main",
        "  data_files:",
        "  - split: test",
        "    path: main/test.parquet",
        "  - split: train",
        "    path: main/train.parquet",
        "- config_name: other",
        "  data_files:",
        "  - split: train",
        "    path: other/train.parquet",
        "---",
    ]
