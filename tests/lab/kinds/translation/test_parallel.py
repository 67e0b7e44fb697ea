from __future__ import annotations

import gzip
import lzma
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from advreg.lab.kinds.sources import DataError
from advreg.lab.kinds.translation.parallel import (
    Bitext,
    ParallelData,
    filter_pairs,
    load_files,
    read_bitext,
    read_folder,
    read_lines,
)
from parallel_files import write

# ---- files


def test_plain_and_packed_files_hold_the_same_lines(tmp_path: Path) -> None:
    text = "eins\nzwei ä\n\ndrei"
    (tmp_path / "a.de").write_text(text, encoding="utf-8")
    (tmp_path / "b.de.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "c.de.xz").write_bytes(lzma.compress(text.encode()))
    for name in ("a.de", "b.de.gz", "c.de.xz"):
        assert read_lines(tmp_path / name) == ["eins", "zwei ä", "", "drei"]


def test_only_a_line_feed_ends_a_line(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes("\ufeffone\u2028still one\r\ntwo\x0bstill two\x85\n".encode())
    assert read_lines(tmp_path / "a.en") == ["one\u2028still one", "two\x0bstill two\x85"]


def test_pairs_with_an_empty_side_are_dropped_together_and_counted(tmp_path: Path) -> None:
    write(tmp_path, a__en="one\n\nthree\nfour\n", a__de="eins\nzwei\n  \nvier\n")
    found = read_bitext(tmp_path / "a.en", tmp_path / "a.de")
    assert (found.source, found.target, found.dropped) == (("one", "four"), ("eins", "vier"), 2)


def test_files_of_different_length_are_named_with_their_counts(tmp_path: Path) -> None:
    write(tmp_path, a__en="one\ntwo\n", a__de="eins\nzwei\ndrei\n")
    with pytest.raises(
        DataError, match=r"got 2 in .*a\.en and 3 in .*a\.de; they must be aligned line by line"
    ):
        read_bitext(tmp_path / "a.en", tmp_path / "a.de")


def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes(b"fine\ncaf\xe9\n")
    with pytest.raises(
        DataError, match=r"a\.en, line 2: must be UTF-8, got the byte 0xe9; convert it first"
    ):
        read_lines(tmp_path / "a.en")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"none\.en: must be a text file .* got nothing; check the path"
    ):
        read_lines(tmp_path / "none.en")
    (tmp_path / "a.en.xz").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"a\.en\.xz: cannot be unpacked: .*; fetch the file again"):
        read_lines(tmp_path / "a.en.xz")
    write(tmp_path, b__en="\n", b__de="\n")
    with pytest.raises(
        DataError, match="must hold at least one pair of sentences, got 1 empty ones"
    ):
        read_bitext(tmp_path / "b.en", tmp_path / "b.de")


def test_a_folder_gives_every_split_with_both_languages(tmp_path: Path) -> None:
    write(
        tmp_path,
        train__en="a\n",
        train__de="b\n",
        valid__en="c\n",
        valid__de="d\n",
        test__en="e\n",
        test__de="f\n",
    )
    write(tmp_path, test_2017__en="g\n", test_2017__de="h\n", alone__en="i\n", README__txt="j\n")
    found = read_folder(tmp_path, "de", "en")
    assert list(found) == ["train", "valid", "test", "test_2017"]
    assert found["train"] == Bitext(("b",), ("a",))
    data = ParallelData("x", ("de", "en"), found)
    assert list(data.tests()) == ["test", "test_2017"]
    assert list(
        ParallelData("x", ("de", "en"), {"train": found["train"], "valid": found["valid"]}).tests()
    ) == ["valid"]


def test_a_folder_without_validation_text_says_what_it_has(tmp_path: Path) -> None:
    write(tmp_path, train__en="a\n", train__de="b\n")
    with pytest.raises(
        DataError, match=r"must hold valid\.en and valid\.de .* got train\.de, train\.en"
    ):
        read_folder(tmp_path, "en", "de")


@pytest.mark.parametrize(
    ("stem", "name"), [("news/train", "news"), ("texts/news", "news"), ("texts/news.train", "news")]
)
def test_files_by_split_are_a_corpus_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stem: str, name: str
) -> None:
    folder = tmp_path / Path(stem).parent
    folder.mkdir()
    for language in "ab":
        (tmp_path / f"{stem}.{language}").write_text("x\n")
    data = load_files(
        {"train": (str(tmp_path / f"{stem}.a"), str(tmp_path / f"{stem}.b"))},
        ("a", "b"),
        tokenised=True,
    )
    assert (data.name, data.tokenised, len(data.splits["train"])) == (name, True, 1)
    monkeypatch.chdir(folder)
    here = {"train": (f"{Path(stem).name}.a", f"{Path(stem).name}.b")}
    assert load_files(here, ("a", "b"), tokenised=True).name == name


@pytest.mark.parametrize(
    ("missing", "flag"), [("train.a", "--train-source"), ("valid.b", "--valid-target")]
)
def test_a_missing_file_is_named_with_its_flag(missing: str, flag: str, tmp_path: Path) -> None:
    write(tmp_path, train__a="x\n", train__b="y\n", valid__a="x\n", valid__b="y\n")
    (tmp_path / missing).unlink()
    paths = {
        name: (str(tmp_path / f"{name}.a"), str(tmp_path / f"{name}.b"))
        for name in ("train", "valid")
    }
    with pytest.raises(
        DataError, match=f"^{flag} .*{missing}: must be a text file .*, got nothing; check the path"
    ):
        load_files(paths, ("a", "b"), tokenised=True)


def test_the_fingerprint_follows_every_sentence(tmp_path: Path) -> None:
    def data(*lines: str) -> ParallelData:
        return ParallelData("x", ("a", "b"), {"train": Bitext(lines, lines)})

    assert data("a", "b").fingerprint() == data("a", "b").fingerprint()
    assert (
        len({data(*lines).fingerprint() for lines in (("a", "b"), ("b", "a"), ("a",), ("a b",))})
        == 4
    )


# ---- filtering


def test_long_and_unlike_pairs_are_filtered_and_counted() -> None:
    kept = filter_pairs([3, 251, 10, 20, 0, 5], [3, 9, 5, 9, 4, 10], longest=250, ratio=2.0)
    assert (kept.indices, kept.too_long, kept.too_unlike) == ([0, 2, 5], 2, 1)
    assert kept.note(250, 2.0) == (
        "3 of 6 training pairs kept: 2 longer than 250 subwords, 1 with one side more than 2 times "
        "as long as the other"
    )
    assert filter_pairs([1], [2], 250, 2.0).note(250, 2.0) is None


def test_a_filter_that_leaves_nothing_says_what_to_raise() -> None:
    with pytest.raises(
        DataError,
        match=r"no training pair of 2 is left: 1 are longer .* 1 have .* raise --longest or",
    ):
        filter_pairs([300, 1], [3, 9], 250, 2.0)


# ---- holding out


def corpus(train: int, valid: int) -> ParallelData:
    def text(name: str, size: int) -> Bitext:
        return Bitext(
            *(
                tuple(f"{name} {side} {number}" for number in range(size))
                for side in ("one", "other")
            )
        )

    return ParallelData(
        "toy", ("a", "b"), {"train": text("train", train), "valid": text("valid", valid)}
    )


@given(st.integers(2, 60), st.integers(1, 20), st.floats(0.02, 0.9), st.integers(0, 9))
def test_what_is_held_out_and_what_is_left_are_the_training_pairs_in_their_order(
    train: int, valid: int, share: float, seed: int
) -> None:
    whole = corpus(train, valid)
    assume(0 < min(round(share * train), valid) < train)
    parts = whole.held_out(share, seed)
    assert set(parts.splits) == {"train", "valid"}
    assert len(parts.splits["valid"]) == min(round(share * train), valid)
    pairs = {
        name: list(zip(text.source, text.target, strict=True))
        for name, text in parts.splits.items()
    }
    before = list(zip(whole.splits["train"].source, whole.splits["train"].target, strict=True))
    for part in pairs.values():
        assert part == sorted(part, key=before.index)
    assert sorted(pairs["train"] + pairs["valid"]) == sorted(before)
    assert whole.held_out(share, seed).fingerprint() == parts.fingerprint() != whole.fingerprint()


def test_test_sets_are_left_out_of_what_is_tuned_on_and_another_seed_holds_others_out() -> None:
    whole = corpus(40, 10)
    with_test = replace(whole, splits={**whole.splits, "test": whole.splits["valid"]})
    assert list(with_test.held_out(0.1, 0).tests()) == ["valid"]
    assert whole.held_out(0.1, 0).splits["valid"] != whole.held_out(0.1, 1).splits["valid"]


def test_a_number_of_pairs_is_held_out_though_the_validation_set_has_fewer() -> None:
    part = corpus(40, 5).held_out(0.1, 0, rows=12)
    assert {name: len(text) for name, text in part.splits.items()} == {"train": 28, "valid": 12}
    assert part.details["held_out"] == {"rows": 12, "seed": 0, "of": 40}
    with pytest.raises(DataError, match="toy: rows must be at least 1 and leave one pair, got 40"):
        corpus(40, 5).held_out(0.1, 0, rows=40)


@pytest.mark.parametrize(("train", "share"), [(4, 0.1), (1, 0.9)])
def test_too_few_pairs_to_hold_any_out_are_refused(train: int, share: float) -> None:
    with pytest.raises(
        DataError, match=rf"toy: share must hold at least one pair out .* got {share} of {train}"
    ):
        corpus(train, 5).held_out(share, 0)
