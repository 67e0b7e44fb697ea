from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
from rich.console import Console

from advreg.cli import predict as predicting
from advreg.cli.predict import Order, predict
from advreg.cli.train import comparison, run_all
from advreg.lab.kinds.architectures import build_translator
from advreg.lab.kinds.registry import KINDS
from advreg.lab.kinds.sources import DataError
from advreg.lab.kinds.translation.decoding import Decoding
from advreg.lab.kinds.translation.subwords import SPECIAL, learn_subwords
from advreg.lab.kinds.translation.translator import Translator
from advreg.lab.runs.bases import read_settings
from advreg.records.run import TaskInfo
from comparisons import run_record
from little_tables import scored, sentiment, tiny_folder, write_table
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
    count = predict(Order(model, options=more), io.StringIO(text), output)
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
    monkeypatch.setattr(predicting, "ROWS_AT_ONCE", 2)
    assert translated(model, text) == whole


def test_another_beam_may_be_asked_for(model: Path) -> None:
    wanted = Translator.load(model).translate(LINES, Decoding(1, extra=3, ratio=0.5))
    assert translated(model, "".join(f"{line}\n" for line in LINES), beam=1) == wanted


def test_progress_is_told_apart_from_the_output(model: Path) -> None:
    output, errors = io.StringIO(), io.StringIO()
    predict(Order(model), io.StringIO("one\n\n"), output, errors=errors)
    assert errors.getvalue() == "\r2 rows predicted, 1 of them empty\n"
    assert "predicted" not in output.getvalue()


@pytest.mark.slow
def test_standard_streams_are_utf8_whatever_the_locale(model: Path) -> None:
    code = "import sys, pathlib, advreg.cli.predict as p; p.predict_standard_streams(p.Order(pathlib.Path(sys.argv[1])))"
    text = "one\u2028hundred ä\n\ntwo\r\n"
    call = [sys.executable, "-c", code, str(model)]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        call, input=text.encode(), capture_output=True, check=True, timeout=120, env=environment
    )
    lines = text.replace("\r", "").split("\n")[:-1]
    assert done.stdout.decode().split("\n")[:-1] == Translator.load(model).translate(lines)
    assert b"3 rows predicted, 1 of them empty" in done.stderr


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none' must be the folder of a run or of a model"):
        predict(Order(tmp_path / "none"), io.StringIO(), io.StringIO())


def test_an_option_that_the_model_does_not_have_is_named(model: Path) -> None:
    with pytest.raises(
        ValueError, match=r"no option 'beams' \(did you mean 'beam'\?\).*length_penalty, max_tokens"
    ):
        translated(model, "one\n", beams=1)


def test_bytes_that_are_not_utf8_are_named_with_their_line(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\n\ncaf\xe9 two\n"), encoding="ascii")
    )
    with pytest.raises(
        DataError,
        match=r"input, line 3: must be UTF-8, got the byte 0xe9; convert it first \(iconv",
    ):
        predicting.predict_standard_streams(Order(model))


@pytest.mark.parametrize("budget", [0, -5])
def test_a_budget_that_no_sentence_fits_in_is_refused(budget: int, model: Path) -> None:
    with pytest.raises(
        ValueError, match=f"max_tokens must be a whole number of 1 or more, got {budget}"
    ):
        translated(model, "one\n", max_tokens=budget)


# ---- classes and scores


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Little trained models: a classifier, and a regressor of pairs."""
    folder = tmp_path_factory.mktemp("runs")
    encoder = tiny_folder(folder / "encoder")
    for name, table in (("classes", sentiment()), ("scores", scored())):
        given = {
            "train": str(write_table(folder / f"{name}.csv", table)),
            "model": str(encoder), "methods": ["standard"], "seeds": "1", "epochs": "1", "preset": "none",
            "max_length": "8", "output": str(folder / name),
        }  # fmt: skip
        run_all(read_settings(None, given, {}), False, Console(file=io.StringIO()))
    return folder


@pytest.fixture
def classifier(runs: Path) -> Path:
    return runs / "classes" / "standard-seed0"


@pytest.fixture
def regressor(runs: Path) -> Path:
    return runs / "scores" / "standard-seed0"


TEXTS = ["good film", "bad 😡 story and quite a dull one, much longer than eight tokens", "fine"]
PAIRS = [("good film", "lovely story"), ("bad film", "the story was good and quite fine, it was")]


def predicted(text: str, order: Order) -> str:
    output = io.StringIO()
    predict(order, io.StringIO(text), output)
    return output.getvalue()


def as_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_classes_and_probabilities_are_those_of_the_pipeline_that_the_card_names(
    classifier: Path,
) -> None:
    found = as_rows(predicted("\n".join(TEXTS), Order(classifier)))
    line = KINDS["classification"].one_line.format(model=classifier / "model")
    wanted = eval(line, {"transformers": transformers})(TEXTS)
    assert [row["text"] for row in found] == TEXTS
    assert [row["prediction"] for row in found] == [each["label"] for each in wanted]
    assert [float(row["probability"]) for row in found] == pytest.approx(
        [each["score"] for each in wanted], abs=1e-5
    )


def test_the_card_shows_code_that_predicts(
    classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(classifier / "model")
    card = (classifier / "model" / "README.md").read_text()
    (code,) = re.findall("```python\n(.*?)```", card, re.DOTALL)
    assert "truncation=True" in code
    exec(code, {})


def test_scores_of_pairs_are_those_of_the_pipeline(regressor: Path) -> None:
    lines = "".join(f"{text}\t{pair}\n" for text, pair in PAIRS)
    found = as_rows(predicted(lines, Order(regressor)))
    line = KINDS["classification"].one_line.format(model=regressor / "model")
    wanted = eval(line, {"transformers": transformers})(
        [{"text": text, "text_pair": pair} for text, pair in PAIRS]
    )
    assert [float(row["prediction"]) for row in found] == pytest.approx(
        [each["score"] for each in wanted], abs=1e-5
    )
    with pytest.raises(DataError, match="input, line 1: must hold two texts with a tab between"):
        predicted("alone\n", Order(regressor))


@pytest.mark.parametrize("size", [1, 2, 64])
def test_batches_do_not_change_predictions(classifier: Path, size: int) -> None:
    whole = as_rows(predicted("\n".join(TEXTS), Order(classifier)))
    some = as_rows(predicted("\n".join(TEXTS), Order(classifier, options={"batch_size": size})))
    for one, other in zip(whole, some, strict=True):
        assert one["prediction"] == other["prediction"]
        assert float(one["probability"]) == pytest.approx(float(other["probability"]), abs=1e-5)


@pytest.mark.parametrize("name", ["in.csv", "in.tsv", "in.jsonl", "in.parquet", "in.txt"])
@pytest.mark.parametrize("to", ["out.csv", "out.jsonl", "out.txt"])
def test_files_of_every_format_give_the_same_predictions(
    classifier: Path, tmp_path: Path, name: str, to: str
) -> None:
    texts = [row["text"] for row in sentiment(6)]
    path = tmp_path / name
    if name == "in.txt":
        path.write_text("".join(f"{text}\n" for text in texts))
    else:
        write_table(path, [{"id": number, "text": text} for number, text in enumerate(texts)])
    assert predicted("", Order(classifier, path, tmp_path / to)) == ""
    content = (tmp_path / to).read_text()
    wanted = [row["prediction"] for row in as_rows(predicted("\n".join(texts), Order(classifier)))]
    if to == "out.txt":
        assert content.splitlines() == wanted
        return
    rows = as_rows(content) if to == "out.csv" else list(map(json.loads, content.splitlines()))
    assert [row["prediction"] for row in rows] == wanted
    assert [row["text"] for row in rows] == texts
    if name != "in.txt":
        assert [int(row["id"]) for row in rows] == list(range(6))


def test_the_columns_of_the_training_are_used_and_others_may_be_named(
    classifier: Path, tmp_path: Path
) -> None:
    rows = [{"review": "bad", "text": "good", "label": "pos"}]
    path = write_table(tmp_path / "t.csv", rows)
    by_training, by_name, alone = (
        as_rows(predicted("", Order(classifier, path)))[0]["probability"],
        as_rows(predicted("", Order(classifier, path, text_column="review")))[0]["probability"],
        as_rows(predicted("good\n", Order(classifier)))[0]["probability"],
    )
    assert by_training == alone != by_name
    other = write_table(tmp_path / "o.csv", [{"message": "good", "id": "1"}])
    assert as_rows(predicted("", Order(classifier, other)))[0]["probability"] == alone


def test_empty_rows_stay_in_their_place(classifier: Path) -> None:
    rows = as_rows(predicted('{"text": "good"}\n{"text": null}\n{"text": " "}\n{"text": "bad"}\n',
                             Order(classifier, input_form="jsonl")))  # fmt: skip
    assert [bool(row["prediction"]) for row in rows] == [True, False, False, True]
    only = predicted("\n", Order(classifier, output_form="jsonl"))
    assert json.loads(only) == {"text": "", "prediction": None}


def test_each_class_may_have_its_probability(classifier: Path) -> None:
    (row,) = as_rows(predicted("good\n", Order(classifier, options={"all_classes": True})))
    shares = {name: float(row[f"p({name})"]) for name in ("neg", "pos")}
    assert sum(shares.values()) == pytest.approx(1)
    assert float(row["probability"]) == max(shares.values())
    assert row["prediction"] == max(shares, key=lambda name: shares[name])


def test_what_cannot_be_predicted_from_is_refused(
    runs: Path, classifier: Path, regressor: Path, tmp_path: Path
) -> None:
    single = write_table(tmp_path / "t.csv", [{"text": "a", "label": "b"}])
    with pytest.raises(
        DataError, match=r"was trained on pairs of texts, got the columns 'text', 'l"
    ):
        predicted("", Order(regressor, single))
    numbers = write_table(tmp_path / "n.jsonl", [{"text": "a"}, {"text": 5}])
    with pytest.raises(DataError, match=r"n\.jsonl, row 2: text must be a text, got 5"):
        predicted("", Order(classifier, numbers))
    taken = write_table(tmp_path / "p.csv", [{"text": "a", "prediction": "b"}])
    with pytest.raises(DataError, match="must not have a column 'prediction'"):
        predicted("", Order(classifier, taken))
    with pytest.raises(ValueError, match=r"holds 1 runs; name one of them: .*standard-seed0"):
        predicted("", Order(runs / "classes"))
    with pytest.raises(
        ValueError, match=r"config\.json: a model to predict with must be of a class"
    ):
        predicted("", Order(runs / "encoder"))
    with pytest.raises(ValueError, match="output must be another file than input"):
        Order(classifier, single, single)
    with pytest.raises(ValueError, match="output_format must be one of txt, csv, jsonl, got 'xml'"):
        Order(classifier, output_form="xml")


def test_a_model_folder_alone_predicts_as_its_run_does(classifier: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(classifier / "model", tmp_path / "moved")
    lines = "\n".join(TEXTS)
    assert predicted(lines, Order(moved)) == predicted(lines, Order(classifier))


# ---- training of translations


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
