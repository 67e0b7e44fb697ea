from __future__ import annotations

import ast
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from advreg.lab.kinds.classification.docstrings import _paragraphs, load_docstrings
from advreg.lab.kinds.classification.textdata import TextData
from advreg.lab.kinds.sources import DataError

WORDS = ("alpha", "beta", "gamma", "delta")


def write_package(root: Path, name: str, files: int = 4, sentences: int = 30) -> None:
    """A package whose sentences each say which file they are from."""
    (root / name).mkdir(parents=True)
    for file in range(files):
        lines = [
            f"Sentence {number} stands in {name} file {file}.\n" for number in range(sentences)
        ]
        (root / name / f"m{file}.py").write_text(f'"""{" ".join(lines)}"""\n')


def file_of(text: str) -> str:
    return text.rstrip(".").split()[-1]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for word in WORDS:
        write_package(tmp_path, word)
    return tmp_path


@pytest.fixture(scope="module")
def real() -> TextData:
    return load_docstrings()


def test_the_running_library_gives_several_hundred_balanced_sentences(real: TextData) -> None:
    assert real.labels is not None
    assert 3 <= real.num_labels <= 10
    assert real.labels == tuple(sorted(real.labels))
    for split in (real.train, real.dev):
        counts = Counter(example.label for example in split)
        assert set(counts) == set(range(real.num_labels))
        assert max(counts.values()) <= 100
        assert len(split) >= 60 * real.num_labels


def test_no_sentence_is_in_both_splits_whatever_its_case(real: TextData) -> None:
    texts = [example.text.lower() for example in real.train + real.dev]
    assert len(set(texts)) == len(texts)


def test_sentences_have_4_to_40_words_on_one_line_and_no_doctest(real: TextData) -> None:
    for example in real.train + real.dev:
        assert 4 <= len(example.text.split()) <= 40
        assert "\n" not in example.text
        assert not example.text.startswith(">>>")


def test_every_sentence_stands_in_a_docstring_of_its_package(real: TextData) -> None:
    assert real.labels is not None
    root = Path(sysconfig.get_paths()["stdlib"])
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    text = {}
    for package in real.labels[-2:]:
        trees = [ast.parse(path.read_bytes()) for path in sorted((root / package).rglob("*.py"))]
        nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, documented)]
        text[package] = " ".join(
            " ".join((ast.get_docstring(node) or "").split()) for node in nodes
        )
    for example in real.dev:
        package = real.labels[int(example.label)]
        if package in text:
            assert example.text in text[package]


def test_another_process_with_another_hash_seed_finds_the_same(library: Path) -> None:
    code = (
        "import pathlib, advreg.lab.kinds.classification.docstrings as docstrings; "
        "print(docstrings.load_docstrings(9, 9, "
        f"stdlib=pathlib.Path({str(library)!r})).fingerprint())"
    )
    source = str(Path(sys.modules["advreg"].__path__[0]).parent)
    environment = os.environ | {"PYTHONHASHSEED": "123", "PYTHONPATH": source}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == load_docstrings(9, 9, stdlib=library).fingerprint()


@pytest.mark.parametrize("seed", range(5))
def test_no_file_is_in_both_splits(library: Path, seed: int) -> None:
    data = load_docstrings(1000, 1000, seed, stdlib=library)
    assert data.labels == tuple(sorted(WORDS))
    for label in range(data.num_labels):
        kept = {file_of(example.text) for example in data.train if example.label == label}
        held = {file_of(example.text) for example in data.dev if example.label == label}
        assert kept.isdisjoint(held)
        assert len(kept) == 3
        assert len(held) == 1


def test_a_larger_split_holds_the_smaller_and_leaves_the_other_alone(library: Path) -> None:
    small, large = load_docstrings(5, 7, stdlib=library), load_docstrings(20, 7, stdlib=library)
    assert set(small.train) < set(large.train)
    assert small.dev == large.dev
    assert len(small.train) == 5 * len(WORDS)
    assert len(small.dev) == 7 * len(WORDS)


def test_another_seed_draws_other_sentences(library: Path) -> None:
    assert load_docstrings(5, 5, 0, stdlib=library) != load_docstrings(5, 5, 1, stdlib=library)


def test_a_sentence_that_two_packages_share_is_dropped(tmp_path: Path) -> None:
    for word in WORDS:
        write_package(tmp_path, word)
        mark = "!" if word == "beta" else "."
        (tmp_path / word / "shared.py").write_text(f'"""This stands in each of them{mark}"""')
    data = load_docstrings(1000, 1000, stdlib=tmp_path)
    assert not [example for example in data.train + data.dev if "in each of them" in example.text]


def test_a_sentence_repeated_in_a_package_is_kept_once(library: Path) -> None:
    for name in ("x.py", "y.py"):
        (library / "alpha" / name).write_text('"""This stands in two modules."""')
    data = load_docstrings(1000, 1000, stdlib=library)
    assert sum("in two modules" in example.text for example in data.train + data.dev) == 1


def test_installed_packages_tests_and_small_packages_are_no_classes(library: Path) -> None:
    for name in ("site-packages", "test", "config-3", "alpha/tests"):
        write_package(library, name)
    write_package(library, "onefile", files=1, sentences=500)
    write_package(library, "sparse", sentences=2)
    data = load_docstrings(1000, 1000, stdlib=library)
    assert data.labels == tuple(sorted(WORDS))
    assert not [example for example in data.train + data.dev if "tests" in example.text]


def test_doctests_and_what_they_print_are_dropped() -> None:
    docstring = "First line\n  goes on.\n\nExample:\n>>> f(1)\n... # more\nis printed\n\nLast line."
    assert list(_paragraphs(docstring)) == ["First line goes on.", "Example:", "Last line."]


def test_definitions_are_found_wherever_they_are_nested(library: Path) -> None:
    source = """
try:
    import nothing
except ImportError:
    async def one():
        'Words stand in one handler.'
        with open(0) as file:
            class Two:
                'Words stand in two blocks.'
else:
    match one:
        case 1:
            def three(): 'Words stand in three cases.'
"""
    (library / "alpha" / "nested.py").write_text(source)
    data = load_docstrings(1000, 1000, stdlib=library)
    found = {example.text for example in data.train + data.dev if example.text.startswith("Words")}
    assert found == {
        "Words stand in one handler.",
        "Words stand in two blocks.",
        "Words stand in three cases.",
    }


def test_a_library_without_sources_is_explained(tmp_path: Path) -> None:
    write_package(tmp_path, "alpha")
    with pytest.raises(
        DataError, match="at least 3 packages with docstrings, got 1; is this interpreter's lib"
    ):
        load_docstrings(stdlib=tmp_path)


@pytest.mark.parametrize("name", ["python.zip", "missing"])
def test_a_library_that_is_no_folder_is_explained(tmp_path: Path, name: str) -> None:
    (tmp_path / "python.zip").write_bytes(b"")
    with pytest.raises(
        DataError, match=rf"{name}: must hold at least 3 packages .*, got 0; .* Use a full Python"
    ):
        load_docstrings(stdlib=tmp_path / name)


def test_a_file_that_does_not_parse_is_named(library: Path) -> None:
    (library / "alpha" / "broken.py").write_text("def")
    with pytest.raises(
        DataError, match=r"broken\.py: must be Python that this interpreter reads, got"
    ):
        load_docstrings(stdlib=library)


@pytest.mark.parametrize(
    ("train", "dev", "name"), [(0, 5, "train_per_class"), (5, -1, "dev_per_class")]
)
def test_sizes_are_at_least_one(train: int, dev: int, name: str) -> None:
    with pytest.raises(DataError, match=f"{name} must be at least 1, got {min(train, dev)}"):
        load_docstrings(train, dev)
