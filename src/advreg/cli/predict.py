"""``advreg predict``: texts in, predictions out; ``translate`` is one case of it."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, get_args

from advreg.core.checks import check_choice
from advreg.lab.kinds.classification.columns import find_texts
from advreg.lab.kinds.predictor import PREDICTION, Form, Text
from advreg.lab.kinds.sources import DataError, Table, decoded, parse_table, read_table
from advreg.lab.kinds.training import quiet_libraries
from advreg.lab.runs.plans import RECORD_FILE
from advreg.lab.runs.predictors import load_predictor
from advreg.records import run as records

# bytes that are not UTF-8 become surrogates, which can be turned back into the bytes
_ESCAPE = "surrogateescape"
_STDIN = Path("input")  # what errors call it
ROWS_AT_ONCE = 10_000  # so that a long stream needs little memory, and its first rows come early


@dataclass(frozen=True)
class Order:
    """What to predict, from what and into what.

    Args:
        model: folder of a run, or of a model.
        input: a table or a text file; none: standard input.
        output: a file; none: standard output.
        input_form: of standard input and of files without one of the known suffixes.
        output_form: by default the suffix of the output decides, else what suits the model.
        text_column, pair_column: of a table; by default the columns of the training, else guessed.
        options: of the model's kind.
    """

    model: Path
    input: Path | None = None
    output: Path | None = None
    input_form: str | None = None
    output_form: str | None = None
    text_column: str | None = None
    pair_column: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("input_form", "output_form"):
            if getattr(self, name) is not None:
                check_choice(name.replace("form", "format"), getattr(self, name), get_args(Form))
        if self.output is not None and self.output == self.input:
            raise ValueError(f"output must be another file than input, got '{self.output}' twice")

    @property
    def written(self) -> str | None:
        """The output's format where it is asked for, or the file's name tells it."""
        suffix = "" if self.output is None else self.output.suffix.lower().lstrip(".")
        return self.output_form or (suffix if suffix in get_args(Form) else None)


@dataclass(frozen=True)
class Rows:
    """Some rows of the input: all their cells, and the texts among them."""

    cells: Sequence[Mapping[str, Any]]
    texts: Sequence[Text]


def predict(order: Order, source: TextIO, output: TextIO, errors: TextIO | None = None) -> int:
    """Predict for each row of the input, in its order. Returns how many there were.

    Args:
        order: what to predict.
        source, output: text streams, used where the order names no files.
        errors: a stream for the progress; none if not given.
    """
    quiet_libraries()
    folder, columns = find_model(order.model)
    predictor = load_predictor(folder, order.options)
    done, empty = 0, 0
    with ExitStack() as files:
        if order.output is not None:
            output = files.enter_context(order.output.open("w", encoding="utf-8", newline=""))
        write = writer(order.written or predictor.form, output)
        for part in read_rows(order, columns, source):
            found = predictor.predict_all(part.texts, _Counter(errors, done))
            write(part.cells, found)
            output.flush()
            done += len(found)
            empty += sum(text.is_empty for text in part.texts)
    if errors is not None:
        left = f", {empty} of them empty" if empty else ""
        errors.write(f"\r{done} rows predicted{left}\n")
    return done


def predict_standard_streams(order: Order) -> int:
    """:func:`predict` from stdin to stdout, UTF-8 whatever the locale, progress on stderr."""
    for stream, errors in ((sys.stdin, _ESCAPE), (sys.stdout, "strict")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                encoding="utf-8", errors=errors, newline="\n"
            )  # only a line feed ends a line
    return predict(order, sys.stdin, sys.stdout, sys.stderr)


def find_model(place: Path) -> tuple[Path, Mapping[str, str | None]]:
    """The model's folder, and the columns that its run was trained on, where they are recorded."""
    runs = sorted(path.parent.parent.name for path in place.glob("*/model/config.json"))
    if runs:
        raise ValueError(
            f"'{place}' holds {len(runs)} runs; name one of them: "
            f"{', '.join(str(place / name) for name in runs)}"
        )
    is_run = not (place / "config.json").is_file() and (place / "model").is_dir()
    folder = place / "model" if is_run else place
    record = folder.parent / RECORD_FILE
    details = records.load(record).task.details if record.is_file() else {}
    return folder, details.get("columns", {})


# ---- reading


def read_rows(order: Order, columns: Mapping[str, str | None], source: TextIO) -> Iterator[Rows]:
    """The input, some rows at a time."""
    path = order.input or _STDIN
    is_text = order.input is None or path.suffix.lower() == ".txt"
    form = order.input_form or ("txt" if is_text else None)
    if form is None:
        yield from _table_rows(read_table(path), order, columns)
        return
    with ExitStack() as files:
        if order.input is not None:
            opened = order.input.open(encoding="utf-8", errors=_ESCAPE, newline="\n")
            source = files.enter_context(opened)
        if form == "txt":
            yield from _line_rows(source, path, bool(columns.get("pair")))
            return
        text = decoded(source.read().encode("utf-8", _ESCAPE), path)
        yield from _table_rows(parse_table(form, text, path), order, columns)


def _line_rows(source: TextIO, path: Path, pairs: bool) -> Iterator[Rows]:
    """Lines without their ends; with ``pairs``, each has a tab between its two texts."""
    numbered = enumerate(source, start=1)
    while part := list(islice(numbered, ROWS_AT_ONCE)):
        lines = [
            decoded(line.encode("utf-8", _ESCAPE), path, number).rstrip("\r\n")
            for number, line in part
        ]
        first = part[0][0]
        texts = [
            _pair_of(line, path, number) if pairs and line.strip() else Text(line)
            for number, line in enumerate(lines, start=first)
        ]
        yield Rows([{"text": line} for line in lines], texts)


def _pair_of(line: str, path: Path, number: int) -> Text:
    text, tab, pair = line.partition("\t")
    if not tab:
        raise DataError(
            f"{path}, line {number}: must hold two texts with a tab between them, because the "
            f"model was trained on pairs, got {line[:40]!r}; or give a csv or jsonl file"
        )
    return Text(text, pair)


def _table_rows(table: Table, order: Order, columns: Mapping[str, str | None]) -> Iterator[Rows]:
    """The rows of a table; its columns are those of the training if it has them."""
    known = {name: columns.get(name) for name in ("text", "pair")}
    usual = known if set(filter(None, known.values())) <= set(table.columns) else {}
    text, pair = find_texts(
        table, order.text_column or usual.get("text"), order.pair_column or usual.get("pair")
    )
    if columns and bool(columns.get("pair")) != (pair is not None):
        has = "pairs of texts" if columns.get("pair") else "single texts"
        raise DataError(
            f"{table.path}: the model was trained on {has}, got the columns {table.listed}; name "
            "them with --text-column and --pair-column"
        )
    taken = next((name for name in table.columns if name == PREDICTION), None)
    if taken is not None:
        raise DataError(
            f"{table.path}: must not have a column '{taken}', which is written; rename it"
        )
    rows = iter(table.rows)
    while part := list(islice(rows, ROWS_AT_ONCE)):
        yield Rows(
            [{name: cells.get(name) for name in table.columns} for _, cells in part],
            [
                Text(
                    _cell(cells, text, number, table.path),
                    None if pair is None else _cell(cells, pair, number, table.path),
                )
                for number, cells in part
            ],
        )


def _cell(cells: Mapping[str, Any], column: str, number: int, path: Path) -> str:
    value = cells.get(column)
    if not isinstance(value, str | None):
        raise DataError(
            f"{path}, row {number}: {column} must be a text, got {value!r}; is it the right column?"
        )
    return value or ""


# ---- writing


Write = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], None]


def writer(form: str, output: TextIO) -> Write:
    """What writes rows and their predictions: as lines with predictions alone, as csv, or as
    jsonl.
    """
    found: dict[str, Callable[[TextIO], Write]] = {
        "txt": _Lines,
        "csv": _Csv,
        "jsonl": _JsonLines,
    }
    return found[form](output)


@dataclass
class _Lines:
    output: TextIO

    def __call__(
        self, cells: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
    ) -> None:
        for row in found:
            value = row[PREDICTION]
            self.output.write(f"{'' if value is None else value}\n")


@dataclass
class _JsonLines:
    output: TextIO

    def __call__(
        self, cells: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
    ) -> None:
        for mine, row in zip(cells, found, strict=True):
            line = json.dumps({**mine, **row}, ensure_ascii=False, default=str)
            self.output.write(f"{line}\n")


@dataclass
class _Csv:
    output: TextIO
    table: Any = None

    def __call__(
        self, cells: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]
    ) -> None:
        if self.table is None:
            names = list(dict.fromkeys([*cells[0], *max(found, key=len)]))
            self.table = csv.DictWriter(self.output, names, lineterminator="\n")
            self.table.writeheader()
        for mine, row in zip(cells, found, strict=True):
            self.table.writerow({**mine, **row})


class _Counter:
    """Reports how many rows are done."""

    def __init__(self, errors: TextIO | None, done: int) -> None:
        self.errors, self.done = errors, done

    def __call__(self, more: int) -> None:
        self.done += more
        if self.errors is not None and self.errors.isatty():
            self.errors.write(f"\r{self.done} rows predicted")
            self.errors.flush()
