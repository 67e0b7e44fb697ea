from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advreg.records.paths import stays_inside, without_paths


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/models/roberta-base", "…/roberta-base"),
        ("/data/models/roberta-base/", "…/roberta-base"),
        ("/data//models/x", "…/x"),
        ("--data=/srv/glue/sst2.tsv", "--data=…/sst2.tsv"),
        ("file:///srv/glue/sst2.tsv", "file://…/sst2.tsv"),
        (
            "No such file: '/srv/a/b.txt' and \"/srv/c/d.txt\"",
            "No such file: '…/b.txt' and \"…/d.txt\"",
        ),
        ('File "/opt/lib/x.py", line 3\n  in /opt/lib/y.py', 'File "…/x.py", line 3\n  in …/y.py'),
        ("/a/b:/c/d", "…/b:…/d"),
        ("/users/ann lee/models/x y", "…/x y"),
        ("/users/ann lee", "…/~"),
        ("C:\\Users\\ann\\glue\\sst2.tsv", "…/sst2.tsv"),
        # and what is no path of the machine stays
        ("FacebookAI/roberta-base", "FacebookAI/roberta-base"),
        ("results/run.json", "results/run.json"),
        ("../results/run.json", "../results/run.json"),
        ("data/users/ann lee", "data/users/ann lee"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("loss 1/2/3, and/or", "loss 1/2/3, and/or"),
        ("/", "/"),
    ],
)
def test_absolute_paths_are_shortened_and_other_texts_are_not(
    text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/users/ann lee")
    monkeypatch.setenv("USERPROFILE", "/users/ann lee")
    assert without_paths(text) == expected
    assert without_paths(expected) == expected


@settings(max_examples=300, deadline=None)
@given(text=st.text(alphabet="/\\:~….=aC \n", max_size=24))
def test_shortening_twice_changes_nothing(text: str) -> None:
    once = without_paths(text)
    assert without_paths(once) == once


@pytest.mark.parametrize("name", ["a", "a/b.json", "./a", "a..b", "..."])
def test_names_below_a_folder_stay_inside(name: str) -> None:
    assert stays_inside(name)


@pytest.mark.parametrize("name", ["/a", "..", "a/../../b", "C:\\a", "..\\a", "a\\..\\..\\b"])
def test_absolute_names_and_steps_upward_do_not_stay_inside(name: str) -> None:
    assert not stays_inside(name)
