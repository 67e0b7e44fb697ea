from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advreg.lab.kinds.classification.textdata import Example, TextData, make_text_data
from advreg.lab.kinds.sources import DataError

TEXTS = st.text(min_size=1).filter(str.strip)
FEW = [Example("good film", None, 1), Example("bad film", None, 0), Example("fine film", None, 1)]


@st.composite
def text_data(draw: st.DrawFn) -> TextData:
    """Classification data in which every class occurs in both splits."""
    classes = draw(st.integers(2, 4))
    labels = [*range(classes), *draw(st.lists(st.integers(0, classes - 1), max_size=12))]
    train = [Example(draw(TEXTS), None, label) for label in draw(st.permutations(labels))]
    return make_text_data(
        "drawn", train, train[:3], [f"class {number}" for number in range(classes)]
    )


def is_subsequence(short: tuple[Example, ...], long: tuple[Example, ...]) -> bool:
    rest = iter(long)
    return all(any(example == other for other in rest) for example in short)


def test_classification_has_an_output_for_each_class_and_regression_has_one() -> None:
    classes = make_text_data("films", FEW, FEW, ["bad", "good"])
    scores = make_text_data("films", FEW, FEW, None)
    assert (classes.num_labels, classes.is_regression) == (2, False)
    assert (scores.num_labels, scores.is_regression) == (1, True)


def test_pairs_are_told_from_single_texts() -> None:
    pairs = [dataclasses.replace(example, pair="a second text") for example in FEW]
    assert make_text_data("films", pairs, pairs, ["bad", "good"]).has_pairs
    assert not make_text_data("films", FEW, FEW, ["bad", "good"]).has_pairs


def test_the_fingerprint_is_the_hash_of_the_canonical_json() -> None:
    data = make_text_data("films", FEW, FEW[:1], ["bad", "good"])
    canonical = (
        '{"dev":[["good film",null,1]],"labels":["bad","good"],'
        '"train":[["good film",null,1],["bad film",null,0],["fine film",null,1]]}'
    )
    assert json.loads(canonical)
    assert data.fingerprint() == hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.parametrize(
    "train",
    [
        FEW[:2],
        FEW[::-1],
        [FEW[0], FEW[1], Example("fine films", None, 1)],
        [FEW[0], FEW[1], Example("fine film", None, 0)],
    ],
    ids=["shorter", "another order", "another text", "another label"],
)
def test_the_fingerprint_changes_with_the_examples(train: list[Example]) -> None:
    labels = ["bad", "good"]
    assert make_text_data("films", train, FEW, labels).fingerprint() != (
        make_text_data("films", FEW, FEW, labels).fingerprint()
    )


def test_the_fingerprint_ignores_the_name_and_whether_a_score_is_written_as_a_whole_number() -> (
    None
):
    floats = [dataclasses.replace(example, label=float(example.label)) for example in FEW]
    one = make_text_data("films", FEW, FEW, None)
    other = make_text_data("movies", floats, floats, None)
    assert one.fingerprint() == other.fingerprint()


@given(text_data(), st.data(), st.integers(0, 5))
def test_a_subset_is_in_order_holds_every_class_and_grows_with_its_size(
    data: TextData, draws: st.DataObject, seed: int
) -> None:
    least = len({example.label for example in data.train})
    small = draws.draw(st.integers(least, len(data.train)))
    large = draws.draw(st.integers(small, len(data.train)))
    fewer, more = data.subset(small, seed), data.subset(large, seed)
    assert (len(fewer.train), len(more.train)) == (small, large)
    assert is_subsequence(fewer.train, more.train)
    assert is_subsequence(more.train, data.train)
    assert {example.label for example in fewer.train} == {example.label for example in data.train}
    assert fewer.dev == data.dev
    assert fewer == data.subset(small, seed)


def test_another_seed_draws_another_subset() -> None:
    many = [Example(f"text {number}", None, number / 7) for number in range(50)]
    data = make_text_data("scores", many, many, None)
    assert data.subset(10, seed=0) != data.subset(10, seed=1)


@pytest.mark.parametrize("size", [0, 1, 4])
def test_a_subset_must_hold_every_class_and_no_more_than_there_is(size: int) -> None:
    data = make_text_data("films", FEW, FEW, ["bad", "good"])
    with pytest.raises(DataError, match=rf"train must be between 2 .* and 3 .*, got {size}$"):
        data.subset(size, seed=0)


def with_third(text: str = "fine film", pair: str | None = None, label: float = 1) -> list[Example]:
    return [*FEW[:2], Example(text, pair, label)]


@pytest.mark.parametrize(
    ("train", "labels", "message"),
    [
        ([], ["bad", "good"], "a.csv must hold at least one example, got none"),
        (
            with_third(text=" \t"),
            ["bad", "good"],
            r"a.csv, row 3: text must not be empty, got ' \t'; fill it in or",
        ),
        (
            with_third(pair="b"),
            ["bad", "good"],
            "a.csv, row 3: pair must be given in every row or in none",
        ),
        (
            with_third(label=2),
            ["bad", "good"],
            "a.csv, row 3: label must be a class number between 0 and 1, got 2",
        ),
        (
            with_third(label=-1),
            ["bad", "good"],
            "a.csv, row 3: label must be a class number between 0 and 1, got -1",
        ),
        (
            with_third(label=0.5),
            ["bad", "good"],
            "a.csv, row 3: label must be a class number between 0 and 1, got 0.5",
        ),
        (
            with_third(label=float("nan")),
            ["bad", "good"],
            "a.csv, row 3: label must be a class number",
        ),
        (
            with_third(label=float("nan")),
            None,
            "a.csv, row 3: label must be a finite number, got nan",
        ),
        (
            with_third(label=float("inf")),
            None,
            "a.csv, row 3: label must be a finite number, got inf",
        ),
        (FEW, ["good"], "a.csv: labels must be at least two classes, got ['good']"),
        (FEW, ["good", "good"], "a.csv: labels must be different names, got ['good', 'good']"),
    ],
)
def test_bad_training_data_is_named_with_its_file_and_row(
    train: list[Example], labels: list[str] | None, message: str
) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        make_text_data("films", train, FEW, labels, train_source="a.csv", dev_source="b.csv")


def test_an_empty_second_text_is_named_with_its_file_and_row() -> None:
    pairs = [Example("a", "b", 0), Example("c", "", 1)]
    with pytest.raises(
        DataError, match=r"a\.csv, row 2: pair must not be empty, got ''; fill it in"
    ):
        make_text_data("films", pairs, pairs, ["bad", "good"], train_source="a.csv")


def test_dev_may_not_be_empty() -> None:
    with pytest.raises(DataError, match=r"b\.csv must hold at least one example, got none"):
        make_text_data("films", FEW, [], ["bad", "good"], dev_source="b.csv")


def test_a_class_that_only_dev_holds_is_an_error() -> None:
    dev = [*FEW, Example("odd film", None, 2)]
    with pytest.raises(
        DataError, match=r"b, row 4: every class must occur in a, got 'odd', which does not"
    ):
        make_text_data("films", FEW, dev, ["bad", "good", "odd"], train_source="a", dev_source="b")


def test_a_class_that_dev_lacks_is_fine() -> None:
    assert len(make_text_data("films", FEW, FEW[:1], ["bad", "good"]).dev) == 1


def test_pairs_in_one_split_only_are_an_error() -> None:
    pairs = [dataclasses.replace(example, pair="a second text") for example in FEW]
    with pytest.raises(DataError, match="train and dev must both hold pairs or both single texts"):
        make_text_data("films", FEW, pairs, ["bad", "good"])


# ---- further evaluation sets


def test_further_sets_are_in_the_fingerprint_by_name_and_content() -> None:
    labels = ["bad", "good"]
    plain = make_text_data("films", FEW, FEW, labels)
    sets = [{}, {"test": FEW}, {"tests": FEW}, {"test": FEW[:2]}, {"test": FEW, "more": FEW}]
    found = [
        make_text_data("films", FEW, FEW, labels, evaluations=each).fingerprint() for each in sets
    ]
    assert found[0] == plain.fingerprint()
    assert len(set(found)) == len(found)


def test_further_sets_are_checked_as_dev_is() -> None:
    labels, pairs = ["bad", "good", "odd"], [Example("a", "b", 0), Example("c", "d", 1)]
    with pytest.raises(DataError, match="test must hold at least one example, got none"):
        make_text_data("films", FEW, FEW, labels, evaluations={"test": []})
    with pytest.raises(
        DataError, match="train and test must both hold pairs or both single texts, got one of each"
    ):
        make_text_data("films", FEW, FEW, labels, evaluations={"test": pairs})
    with pytest.raises(
        DataError, match=r"test, row 1: every class must occur in train, got 'odd', which"
    ):
        make_text_data(
            "films", FEW, FEW, labels, evaluations={"test": [Example("odd film", None, 2)]}
        )
    with pytest.raises(DataError, match="test, row 1: text must not be empty"):
        make_text_data("films", FEW, FEW, labels, evaluations={"test": [Example("", None, 1)]})


def test_scores_of_further_sets_are_floats_too() -> None:
    data = make_text_data("films", FEW, FEW, None, evaluations={"test": FEW})
    assert [type(example.label) for example in data.evaluations["test"]] == [float, float, float]


def test_blank_texts_pass_only_where_they_are_known_to_be_there() -> None:
    blank = [*FEW, Example("", None, 0)]
    assert (
        make_text_data("films", blank, FEW, ["bad", "good"], blank_texts=True).train[3].text == ""
    )


# ---- held out


@given(text_data(), st.floats(0.05, 0.95), st.integers(0, 5))
def test_holding_out_splits_train_by_class_in_order_and_leaves_dev_alone(
    data: TextData, share: float, seed: int
) -> None:
    by_class: dict[int | float, int] = {}
    for example in data.train:
        by_class[example.label] = by_class.get(example.label, 0) + 1
    wanted = {label: min(round(share * count), count - 1) for label, count in by_class.items()}
    if not any(wanted.values()):
        with pytest.raises(
            DataError, match="share must be large enough to hold an example out, got"
        ):
            data.held_out(share, seed)
        return
    part = data.held_out(share, seed)
    assert part == data.held_out(share, seed)
    assert sorted(map(repr, (*part.train, *part.dev))) == sorted(map(repr, data.train))
    assert is_subsequence(part.train, data.train)
    assert is_subsequence(part.dev, data.train)
    assert {
        label: sum(example.label == label for example in part.dev) for label in wanted
    } == wanted
    assert part.evaluations == {}
    assert part.details["held_out"] == {"share": share, "seed": seed, "of": len(data.train)}


def test_of_scores_a_share_of_all_is_held_out_and_another_seed_draws_others() -> None:
    many = [Example(f"text {number}", None, number / 7) for number in range(50)]
    data = make_text_data(
        "scores", many, [Example("dev", None, 0.5)], None, evaluations={"test": many}
    )
    part = data.held_out(0.2, seed=0)
    assert (len(part.train), len(part.dev), part.evaluations) == (40, 10, {})
    assert part.dev != data.held_out(0.2, seed=1).dev
    assert not {example.text for example in part.dev} & {example.text for example in part.train}
    assert "dev" not in {example.text for example in part.dev}


@given(text_data(), st.data())
def test_a_number_of_rows_is_held_out_exactly_and_spread_over_the_classes(
    data: TextData, draw: st.DataObject
) -> None:
    counts = Counter(example.label for example in data.train)
    most = len(data.train) - len(counts)
    if most < 1:
        with pytest.raises(DataError, match="rows must be between 1 and 0"):
            data.held_out(0.1, 0, rows=1)
        return
    rows = draw.draw(st.integers(1, most))
    part = data.held_out(0.1, 3, rows=rows)
    assert part == data.held_out(0.9, 3, rows=rows)
    assert (len(part.dev), len(part.train)) == (rows, len(data.train) - rows)
    held = Counter(example.label for example in part.dev)
    for label, count in counts.items():
        assert abs(held[label] - rows * (count - 1) / most) < 1
    assert part.details["held_out"] == {"rows": rows, "seed": 3, "of": len(data.train)}


@pytest.mark.parametrize("rows", [0, 2, -1])
def test_rows_that_cannot_be_held_out_are_refused(rows: int) -> None:
    with pytest.raises(DataError, match=f"films: rows must be between 1 and 1, .* got {rows}"):
        make_text_data("films", FEW, FEW, ["bad", "good"]).held_out(0.5, 0, rows)


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(
        DataError, match=f"share must be between 0 and 1, both excluded, got {share}"
    ):
        make_text_data("films", FEW, FEW, ["bad", "good"]).held_out(share, seed=0)
