from __future__ import annotations

import csv
import gzip
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advreg.lab.kinds.classification.tables import check_columns, load_tables
from advreg.lab.kinds.classification.textdata import Example
from advreg.lab.kinds.sources import DataError

ROWS = [
    {"text": 'He said "no", twice', "label": "neg"},
    {"text": "good — über", "label": "pos"},
    {"text": "dull", "label": "neg"},
]
EXAMPLES = (
    Example('He said "no", twice', None, 0),
    Example("good — über", None, 1),
    Example("dull", None, 0),
)


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write a table by its suffix, with other code than the reader's."""
    kind = path.name.split(".")[1]
    if kind == "parquet":
        pandas = pytest.importorskip("pandas")
        pandas.DataFrame(rows).to_parquet(path)
        return path
    if kind == "jsonl":
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    elif kind == "tsv":
        content = "".join(
            "\t".join(map(str, line)) + "\n"
            for line in [list(rows[0]), *(row.values() for row in rows)]
        )
    else:
        target = io.StringIO()
        writer = csv.DictWriter(target, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        content = target.getvalue()
    packed = gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode()
    path.write_bytes(packed)
    return path


def labelled(folder: Path, labels: Sequence[object]) -> Path:
    return write(
        folder / "train.jsonl",
        [{"text": f"text {n}", "label": label} for n, label in enumerate(labels)],
    )


@pytest.mark.parametrize(
    "name",
    ["t.csv", "t.tsv", "t.jsonl", "t.csv.gz", "t.tsv.gz", "t.jsonl.gz", "t.parquet", "t.CSV"],
)
def test_every_format_gives_the_same_data(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, ROWS)
    data = load_tables(path, path)
    assert data.train == data.dev == EXAMPLES
    assert data.labels == ("neg", "pos")
    assert data.name == "t"


def test_a_byte_order_mark_and_blank_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbftext,label\r\na,x\r\n\r\nb,y\r\n")
    assert load_tables(path, path).train == (Example("a", None, 0), Example("b", None, 1))


def test_quoted_cells_may_hold_commas_and_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('text,label\n"one,\ntwo",x\nb,y\n')
    assert load_tables(path, path).train[0].text == "one,\ntwo"


@pytest.mark.parametrize(
    ("columns", "text", "pair"),
    [
        (("text", "label"), "text", None),
        (("id", "Sentence", "label"), "Sentence", None),
        (("id", "review", "score"), "review", None),
        (("tweet", "class"), "tweet", None),
        (("sentence1", "sentence2", "y"), "sentence1", "sentence2"),
        (("hypothesis", "premise", "target"), "premise", "hypothesis"),
        (("id", "question", "sentence", "label"), "question", "sentence"),
        (("text", "text_b", "labels"), "text", "text_b"),
        (("content", "label", "score"), "content", None),
    ],
)
def test_columns_are_guessed_by_their_names(
    tmp_path: Path, columns: tuple[str, ...], text: str, pair: str | None
) -> None:
    label = next(
        name for name in ("label", "labels", "target", "class", "score", "y") if name in columns
    )
    rows = [{name: f"{name} {number}" for name in columns} for number in range(2)]
    path = write(tmp_path / "t.csv", rows)
    data = load_tables(path, path)
    assert data.labels == (f"{label} 0", f"{label} 1")
    assert data.train[1] == Example(f"{text} 1", None if pair is None else f"{pair} 1", 1)


def test_named_columns_win_over_guesses(tmp_path: Path) -> None:
    rows = [
        {"text": "a", "label": 0, "other": f"o{n}", "more": f"m{n}", "stars": f"s{n}"}
        for n in range(2)
    ]
    path = write(tmp_path / "t.csv", rows)
    data = load_tables(path, path, text="other", pair="more", label="stars")
    assert data.train == (Example("o0", "m0", 0), Example("o1", "m1", 1))


def test_a_pair_is_not_guessed_for_a_named_text(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv", [{"premise": "p", "hypothesis": "h", "label": n} for n in range(2)]
    )
    assert not load_tables(path, path, text="hypothesis").has_pairs
    assert load_tables(path, path, pair="hypothesis").train[0] == Example("p", "h", 0)


@pytest.mark.parametrize(
    ("columns", "named", "message"),
    [
        (
            ("text", "mood", "id"),
            {},
            "the label column must be named with --label-column or be called one of label,",
        ),
        (
            ("a", "b", "label"),
            {},
            "the text column must be named with --text-column or be called one of text,",
        ),
        (
            ("a", "b", "label"),
            {},
            "got the columns 'a', 'b', 'label'; is the first row the header?",
        ),
        (("a", "label"), {"text": "b"}, "--text-column must be one of 'a', 'label', got 'b'"),
        (("a", "label"), {"pair": "b"}, "--pair-column must be one of 'a', 'label', got 'b'"),
        (("a", "label"), {"label": "b"}, "--label-column must be one of 'a', 'label', got 'b'"),
        (
            ("a", "label"),
            {"text": "a", "pair": "a"},
            "text and pair must be different columns, got 'a', 'a'",
        ),
    ],
)
def test_a_column_that_cannot_be_found_is_asked_for_by_its_flag(
    tmp_path: Path, columns: tuple[str, ...], named: dict[str, str], message: str
) -> None:
    path = write(tmp_path / "t.csv", [dict.fromkeys(columns, "x")])
    with pytest.raises(DataError, match=re.escape(message)):
        load_tables(path, path, **named)


@pytest.mark.parametrize(
    ("labels", "names", "first"),
    [
        (["b", "a", "b"], ("a", "b"), 1),
        ([1, 0, 2], ("0", "1", "2"), 1),
        (["1", "0", "2.0"], ("0", "1", "2"), 1),
        ([1.0, 0.0, 1.0], ("0", "1"), 1),
        ([5, 1, 3], ("1", "3", "5"), 2),
        ([-1, 1, -1], ("-1", "1"), 0),
        ([True, False, True], ("false", "true"), 1),
        (["1_0", "a", "a"], ("1_0", "a"), 0),
        (list(range(20)), tuple(map(str, range(20))), 0),
        ([2.5, 1, 0], None, 2.5),
        (["2.5", "1", "0"], None, 2.5),
    ],
)
def test_the_task_is_told_from_the_labels(
    tmp_path: Path, labels: list[object], names: tuple[str, ...] | None, first: float
) -> None:
    path = labelled(tmp_path, labels)
    data = load_tables(path, path)
    assert data.labels == names
    assert data.train[0].label == first
    assert isinstance(data.train[0].label, float if names is None else int)


def test_one_broken_score_in_dev_makes_both_files_a_regression(tmp_path: Path) -> None:
    train = labelled(tmp_path, [0, 1, 2])
    dev = write(tmp_path / "dev.csv", [{"text": "a", "label": 0.5}])
    data = load_tables(train, dev)
    assert data.is_regression
    assert [example.label for example in data.train] == [0.0, 1.0, 2.0]


def test_names_and_numbers_do_not_mix(tmp_path: Path) -> None:
    path = labelled(tmp_path, ["1", "2", "unknown"])
    with pytest.raises(
        DataError, match=r"all names or all numbers, got 'unknown' \(.*row 3\) and 1 \(.*row 1\)"
    ):
        load_tables(path)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, "row 2: label must not be empty, got None; fill it in or drop the row"),
        (" ", "row 2: label must not be empty, got ' '"),
        (float("nan"), "row 2: label must be a finite number, got nan"),
        ("nan", "row 2: label must be a finite number, got nan"),
        ([1], "row 2: label must be a name or a number, got [1]; is it the right column?"),
    ],
)
def test_a_missing_label_is_named_with_its_row(tmp_path: Path, label: object, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        load_tables(labelled(tmp_path, [0, label, 1]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "row 2: text must not be empty, got nothing"),
        ("  ", "row 2: text must not be empty, got '  '; fill it in or drop the row"),
        (3, "row 2: text must be a text, got 3; is it the right column?"),
    ],
)
def test_a_missing_text_is_named_with_its_row(tmp_path: Path, text: object, message: str) -> None:
    rows = [{"text": "a", "label": 0}, {"text": text, "label": 1}]
    with pytest.raises(DataError, match=re.escape(message)):
        load_tables(write(tmp_path / "t.jsonl", rows))


def test_row_numbers_count_the_header_and_blank_lines_of_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("text,label\na,x\n\n ,y\n")
    with pytest.raises(DataError, match=r"t\.csv, row 4: text must not be empty"):
        load_tables(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "must hold at least one row of data, got none"),
        ("t.csv", b"text,label\n", "must hold at least one row of data, got none"),
        ("t.jsonl", b"\n\n", "must hold at least one row of data, got none"),
        (
            "t.csv",
            b"text,label\na,0\nb,1,2\n",
            "row 3: must have 2 columns like the header, got 3; check the sep",
        ),
        ("t.tsv", b"text\tlabel\na\n", "row 2: must have 2 columns like the header, got 1"),
        (
            "t.csv",
            b"text,label,text\na,0,b\n",
            "row 1: column names must differ, got 'text' more than once",
        ),
        (
            "t.csv",
            b'text,label\n"a,0\nb,1\n',
            "row 2: must be valid csv, got: unexpected end of data; check the quotes",
        ),
        (
            "t.jsonl",
            b'{"text": "a", "label": 0}\n{"text": \n',
            "row 2: must be a JSON object, got '{\"text\":' (Expecting value",
        ),
        ("t.jsonl", b'["a", 0]\n', "row 1: must be a JSON object, got '[\"a\", 0]'; correct it"),
        (
            "t.csv",
            b"text,label\na,0\ncaf\xe9,1\n",
            "line 3: must be UTF-8, got the byte 0xe9; convert it first",
        ),
        ("t.csv.gz", b"text,label\n", "cannot be unpacked: Not a gzipped file"),
        (
            "t.csv.gz",
            gzip.compress(b"text,label\na,0\n", mtime=0)[:-9],
            "cannot be unpacked: Compressed file ended",
        ),
        ("t.parquet", b"text,label\n", "must be a parquet file, got: "),
        (
            "t.xlsx",
            b"",
            "must end in one of .csv, .csv.gz, .tsv, .tsv.gz, .jsonl, .jsonl.gz, .parquet, got "
            "'t.xlsx'",
        ),
    ],
)
def test_a_broken_file_is_named_with_the_place_and_the_remedy(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(str(path)) + ".*" + re.escape(message)):
        load_tables(path)


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"missing\.csv: must be a file, got nothing"):
        load_tables(tmp_path / "missing.csv")
    with pytest.raises(DataError, match=r"folder\.csv: must be a file, got a folder"):
        load_tables(tmp_path / "folder.csv")


def test_parquet_whose_text_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame({"text": ["QQQQ fine", "good"], "label": ["a", "b"]}).to_parquet(
        path, compression=None
    )
    path.write_bytes(path.read_bytes().replace(b"QQQQ", b"QQ\x80Q"))
    with pytest.raises(
        DataError, match=r"t\.parquet: must be a parquet file, got: .*0x80.*; write it again"
    ):
        load_tables(path, path)


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(
        DataError, match="needs pyarrow, which is not installed; pip install pyarrow, or save"
    ):
        load_tables(path)


def test_a_dev_file_with_other_columns_is_an_error(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", ROWS)
    dev = write(tmp_path / "dev.csv", [{"sentence": "a", "label": "pos"}])
    with pytest.raises(
        DataError,
        match=r"dev\.csv: must have a column 'text' like the training table, got 'sentence'",
    ):
        load_tables(train, dev)


def test_a_class_that_only_the_dev_file_holds_is_an_error(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", ROWS)
    dev = write(tmp_path / "dev.csv", [{"text": "a", "label": "odd"}])
    with pytest.raises(
        DataError,
        match=r"dev\.csv, row 2: every class must occur in .*train\.csv, got 'odd', which",
    ):
        load_tables(train, dev)


@given(
    labels=st.lists(st.sampled_from(["a", "b", "c"]), min_size=3, max_size=40).filter(
        lambda labels: 1 < len(set(labels)) < len(labels)
    ),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 3),
)
def test_a_split_loses_no_row_empties_no_class_and_repeats_with_its_seed(
    tmp_path_factory: pytest.TempPathFactory, labels: list[str], fraction: float, seed: int
) -> None:
    path = labelled(tmp_path_factory.mktemp("split"), labels)
    data = load_tables(path, dev_fraction=fraction, seed=seed)
    assert Counter(data.train + data.dev) == Counter(load_tables(path, path).train)
    assert {example.label for example in data.train} == set(range(len(set(labels))))
    assert 1 <= len(data.dev) <= max(1, round(fraction * len(labels)))
    assert data == load_tables(path, dev_fraction=fraction, seed=seed)


def test_a_tenth_is_held_out_and_another_seed_holds_out_others(tmp_path: Path) -> None:
    path = labelled(tmp_path, [number / 3 for number in range(100)])
    zero, one = load_tables(path, seed=0), load_tables(path, seed=1)
    assert (len(zero.train), len(zero.dev)) == (90, 10)
    assert zero.dev != one.dev


@pytest.mark.parametrize("labels", [["a", "b"], [0.5]])
def test_a_table_too_small_to_split_asks_for_a_development_file(
    tmp_path: Path, labels: list[object]
) -> None:
    with pytest.raises(
        DataError,
        match=rf"more than one example .*got {len(labels)} in all; add rows or give a dev",
    ):
        load_tables(labelled(tmp_path, labels))


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=4).filter(lambda s: sum(s) > len(s)),
    seed=st.integers(0, 3),
)
def test_each_class_is_held_out_by_its_share(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    labels = [f"class {number}" for number, size in enumerate(sizes) for _ in range(size)]
    data = load_tables(labelled(tmp_path_factory.mktemp("split"), labels), seed=seed)
    held = Counter(example.label for example in data.dev)
    share = len(data.dev) / (len(labels) - len(sizes))
    for number, size in enumerate(sizes):
        assert abs(held[number] - share * (size - 1)) < 1


def test_held_out_rows_are_said_and_recorded(tmp_path: Path) -> None:
    data = load_tables(labelled(tmp_path, ["a", "b"] * 20))
    assert (
        "train: no --dev, so 4 of 40 rows are held out to evaluate on, of each class alike"
        in data.notes
    )
    assert data.details["dev_from_train"] == {"rows": 4, "of": 40, "seed": 0}
    assert "held_out" not in data.details  # that is how a run that only tunes is recognised


@pytest.mark.parametrize(
    ("header", "used"),
    [
        ("review,sentiment", ("review", "sentiment")),
        ("id,text,rating", ("text", "rating")),
        ("id,text,Category", ("text", "Category")),
        ("text,mood", ("text", "mood")),
        ("utterance,intent", ("utterance", "intent")),
        ("mood,message", ("message", "mood")),
    ],
)
def test_the_label_is_guessed_by_its_name_or_as_the_other_of_two_columns(
    tmp_path: Path, header: str, used: tuple[str, str]
) -> None:
    path = tmp_path / "t.csv"
    names = header.split(",")
    path.write_text("\n".join([header, *(",".join(f"{n} {row}" for n in names) for row in "abc")]))
    data = load_tables(path, path)
    assert (data.details["columns"]["text"], data.details["columns"]["label"]) == used
    assert data.train[0].text == f"{used[0]} a"
    assert f"text in column '{used[0]}', label in column '{used[1]}'" in data.notes[-1]


def test_a_pair_is_no_label_because_it_is_the_other_column(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [{"premise": "p", "hypothesis": "h"}])
    with pytest.raises(DataError, match="the label column must be named"):
        load_tables(path)


@pytest.mark.parametrize(("mark", "told"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_the_separator_is_guessed_from_a_header_without_commas(
    tmp_path: Path, mark: str, told: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        f'\ufefftext{mark}label\n"a, {mark} b",x\n'.replace(",x", f"{mark}x") + f"c{mark}y\n"
    )
    check_columns(path)
    data = load_tables(path, path)
    assert data.train[0] == Example(f"a, {mark} b", None, 0)
    assert data.notes[0] == f"{path}: the columns are separated by {told}"


def test_many_whole_numbers_are_classes_or_scores_only_when_the_user_says_so(
    tmp_path: Path,
) -> None:
    path = labelled(tmp_path, [7, *range(10, 30)])
    with pytest.raises(
        DataError,
        match=r"train\.jsonl: 21 different whole numbers as labels may be classes or scores; add --k",
    ):
        load_tables(path, path)
    assert load_tables(path, path, kind="regression").train[0].label == 7.0
    assert load_tables(path, path, kind="classification").labels == (
        "7", *map(str, range(10, 30))
    )  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "kind", "told"),
    [
        (["a", "b"], None, "classification, because the labels are 2 names"),
        (
            [1, 2, 5],
            None,
            "classification, because the labels are 3 different whole numbers (o",
        ),
        ([1, 2, 5], "regression", "regression, because --kind says so"),
        ([0.5, 2], None, "regression, because the labels are not whole numbers"),
        ([0.5, 2], "classification", "classification, because --kind says so"),
    ],
)
def test_why_the_task_was_chosen_is_said(
    tmp_path: Path, labels: list[object], kind: Any, told: str
) -> None:
    path = labelled(tmp_path, labels)
    data = load_tables(path, path, kind=kind)
    assert told in data.notes[-1]
    assert data.is_regression == told.startswith("regression")


def test_names_are_no_regression(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must be numbers with --kind regression, got 'a' .*row 1"):
        load_tables(labelled(tmp_path, ["a", "b"]), kind="regression")


def test_empty_rows_are_dropped_where_that_is_asked_for_and_counted(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "a", "label": "x"},
        {"text": " ", "label": "x"},
        {"text": "b", "label": None},
        {"text": "c", "label": "y"},
        {"label": "y"},
        {"text": "d", "label": float("nan")},
    ]
    path = write(tmp_path / "t.jsonl", rows)
    with pytest.raises(DataError, match=r"row 2: text must not be empty.*--drop-empty"):
        load_tables(path, path)
    data = load_tables(path, path, drop_empty=True)
    assert [example.text for example in data.train] == ["a", "c"]
    assert f"{path}: 4 rows without a text or a label are left out" in data.notes
    assert data.details["dropped_rows"] == 8  # of both files
    only = write(tmp_path / "only.jsonl", rows[1:3])
    with pytest.raises(DataError, match="must hold a row with text and label, got none"):
        load_tables(only, drop_empty=True)


def test_a_single_class_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"labels must be at least two classes, got \['a'\]; is it the right column"
    ):
        load_tables(labelled(tmp_path, ["a", "a", "a"]))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_the_held_out_fraction_is_between_zero_and_one(tmp_path: Path, fraction: float) -> None:
    with pytest.raises(
        DataError, match=f"dev_fraction must be between 0 and 1, both excluded, got {fraction}"
    ):
        load_tables(labelled(tmp_path, ["a", "b", "a"]), dev_fraction=fraction)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_columns_are_checked_by_the_header_alone(tmp_path: Path, name: str) -> None:
    path, tab = tmp_path / name, "\t" if name == "a.tsv" else ","
    content = f"text{tab} label \nbroken".encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    check_columns(path)
    check_columns(path, text="text", label="label")
    with pytest.raises(
        DataError, match="--label-column must be one of 'text', 'label', got 'lable'"
    ):
        check_columns(path, label="lable")
    with pytest.raises(DataError, match="must be a file, got nothing"):
        check_columns(tmp_path / "b.csv")


def test_a_file_whose_header_cannot_be_read_is_left_to_the_reader(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe,label\n")
    (tmp_path / "b.csv.gz").write_bytes(b"no gzip")
    (tmp_path / "c.jsonl").write_text("{}")
    for name in ("a.csv", "b.csv.gz", "c.jsonl"):
        check_columns(tmp_path / name, label="lable")
