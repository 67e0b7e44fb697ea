from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from advreg.cli import translate
from advreg.cli.train import comparison, run_all
from advreg.cli.translate import translate_stream
from advreg.lab.kinds.architectures import build_translator
from advreg.lab.kinds.models import ModelError
from advreg.lab.kinds.sources import DataError
from advreg.lab.kinds.translation.decoding import Decoding
from advreg.lab.kinds.translation.subwords import SPECIAL, learn_subwords
from advreg.lab.kinds.translation.translator import Translator
from advreg.lab.runs.bases import read_settings
from advreg.records.run import TaskInfo
from comparisons import run_record
from number_words import SOURCE, TARGET, in_digits, in_words, write_numbers

LINES = [in_words(number) for number in (1001, 1100)] + ["", in_words(1234)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    numbers = range(1000, 1200)
    subwords = learn_subwords(
        [in_words(number) for number in numbers], [in_digits(number) for number in numbers], 60
    )
    folder = tmp_path_factory.mktemp("model")
    untrained = build_translator("transformer-small", 60, special=SPECIAL)
    Translator(untrained, subwords, Decoding(2, extra=3, ratio=0.5)).save(folder)
    return folder


def translated(model: Path, text: str, **more: float) -> list[str]:
    output = io.StringIO()
    count = translate_stream(model, io.StringIO(text), output, **more)  # type: ignore[arg-type]
    assert count == len(output.getvalue().splitlines())
    return output.getvalue().split("\n")[:-1]


def test_lines_come_out_in_their_order_and_empty_ones_stay(model: Path) -> None:
    found = translated(model, "".join(f"{line}\n" for line in LINES))
    assert found == Translator.load(model).translate(LINES)
    assert found[2] == ""
    assert (
        translated(model, "\r\n".join(LINES)) == found
    )  # whatever ends the lines, the last one too
    assert translated(model, "") == []


def test_a_long_stream_goes_in_parts_and_comes_out_the_same(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(f"{line}\n" for line in LINES)
    whole = translated(model, text)
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 2)
    assert translated(model, text) == whole


def test_another_beam_may_be_asked_for(model: Path) -> None:
    wanted = Translator.load(model).translate(LINES, Decoding(1, extra=3, ratio=0.5))
    assert translated(model, "".join(f"{line}\n" for line in LINES), beam=1) == wanted


def test_progress_is_told_apart_from_the_output(model: Path) -> None:
    output, errors = io.StringIO(), io.StringIO()
    translate_stream(model, io.StringIO("one\ntwo\n"), output, errors=errors)
    assert errors.getvalue() == "\r2 lines translated\n"
    assert "translated" not in output.getvalue()


@pytest.mark.slow
def test_standard_streams_are_utf8_whatever_the_locale(model: Path) -> None:
    code = "import sys, pathlib, advreg.cli.translate as t; t.translate_standard_streams(pathlib.Path(sys.argv[1]))"
    text = "one\u2028hundred ä\n\ntwo\r\n"
    call = [sys.executable, "-c", code, str(model)]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        call, input=text.encode(), capture_output=True, check=True, timeout=120, env=environment
    )
    lines = text.replace("\r", "").split("\n")[:-1]
    assert done.stdout.decode().split("\n")[:-1] == Translator.load(model).translate(lines)
    assert b"3 lines translated" in done.stderr


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"must be the model folder of a translation run, got '.*none'"
    ):
        translate_stream(tmp_path / "none", io.StringIO(), io.StringIO())


def test_bytes_that_are_not_utf8_are_named_with_their_line(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translate, "LINES_AT_ONCE", 2)
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ncaf\xe9 two\n"), encoding="ascii")
    )
    with pytest.raises(
        DataError,
        match=r"input, line 3: must be UTF-8, got the byte 0xe9; convert it first \(iconv",
    ):
        translate.translate_standard_streams(model)


@pytest.mark.parametrize("budget", [0, -5])
def test_a_budget_that_no_sentence_fits_in_is_refused(budget: int, model: Path) -> None:
    with pytest.raises(
        ValueError, match=f"max_tokens must be a whole number of 1 or more, got {budget}"
    ):
        translated(model, "one\n", max_tokens=budget)


def test_training_prints_scores_and_costs_of_every_method(tmp_path: Path) -> None:
    folder = write_numbers(tmp_path / "numbers", train=40, valid=5, test=5)
    printed = io.StringIO()
    given = {
        "task": "translation", "data": str(folder), "source": SOURCE, "target": TARGET, "model": "transformer-small",
        "vocabulary": "55", "max_ratio": "5", "epochs": "1", "max_tokens": "200", "methods": ["standard", "r3f"],
        "output": str(tmp_path / "runs"), "tokenised": "yes",
    }  # fmt: skip
    run_all(read_settings(None, given, {}), False, Console(file=printed, width=80))
    told = printed.getvalue()
    assert "numbers: test scores, mean ± sd over seeds" in told
    assert "tokenised BLEU" in told
    assert "tok:none" in told
    rows = {
        line.split("│")[1].strip(): line.split("│")
        for line in told.splitlines()
        if line.startswith("│")
    }
    assert {"standard", "r3f"} <= set(rows)
    assert [cell.strip() for cell in rows["r3f"][6:8]] == ["2.00", "1.00"]
    assert (tmp_path / "runs" / "r3f-seed0" / "model" / "source.spm").is_file()


def test_the_table_has_both_kinds_of_bleu_where_text_is_tokenised_and_two_decimals() -> None:
    details = {
        "languages": ["en", "vi"],
        "tokenised": True,
        "scored": "test",
        "signatures": {"tokenised_bleu": "tok:none"},
        "subset": 100,
    }
    scores = [(31.5, 30.0), (31.75, 31.0)]
    done = []
    for seed, (tokenised, plain) in enumerate(scores):
        made = run_record("arch", seed, {"tokenised_bleu": tokenised, "bleu": plain})
        outcome = dataclasses.replace(
            made.outcome, passes={"forward": 2.0, "backward": 1.5}, cache_bytes=2 * 10**6
        )
        done.append(
            dataclasses.replace(made, task=TaskInfo(name="iwslt", details=details), outcome=outcome)
        )
    table = comparison(done)
    assert (table.title, table.caption) == (
        "iwslt, a subset: test scores, mean ± sd over seeds",
        "tok:none\ntime: of a step, relative to Standard",
    )
    assert {str(column.header): list(column.cells) for column in table.columns} == {
        "method": ["arch"],
        "n": ["2"],
        "tokenised BLEU": ["31.62 ± 0.18"],
        "sacreBLEU": ["30.50 ± 0.71"],
        "time": ["–"],
        "forward": ["2.00"],
        "backward": ["1.50"],
        "cache": ["2.0 MB"],
    }
