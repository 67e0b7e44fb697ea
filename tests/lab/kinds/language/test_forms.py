"""Forms of samples are guessed from the columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from advreg.lab.kinds.language.forms import find_form, form_of, is_unlabelled
from advreg.lab.kinds.sources import DataError, Table


@pytest.mark.parametrize(
    ("columns", "kind", "chosen"),
    [
        (("id", "messages", "prompt"), "chat", ("messages",)),
        (("Prompt", "Completion", "text"), "prompts", ("Prompt", "Completion")),
        (("instruction", "input", "output"), "prompts", ("instruction", "output")),
        (("text", "source"), "text", ("text",)),
    ],
)
def test_the_first_form_whose_columns_there_are_is_taken(
    columns: tuple[str, ...], kind: str, chosen: tuple[str, ...]
) -> None:
    form = form_of(columns)
    assert form is not None
    assert (form.kind, form.columns) == (kind, chosen)


def test_named_columns_win_over_a_guess() -> None:
    columns = ("text", "prompt", "completion", "notes", "turns")
    found = [
        form_of(columns, {"text": "notes"}),
        form_of(columns, {"completion": "notes"}),
        form_of(columns, {"messages": "turns"}),
    ]
    assert [(form.kind, form.columns) for form in found if form is not None] == [
        ("text", ("notes",)),
        ("prompts", ("prompt", "notes")),
        ("chat", ("turns",)),
    ]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (("text",), True),
        (("idx", "text"), True),
        (("text", "label"), False),
        (("text", "topic"), False),
        (("prompt", "completion", "label"), True),
        (("messages", "source"), True),
        (("question", "answer"), False),
    ],
)
def test_text_with_further_columns_is_left_to_classification(
    columns: tuple[str, ...], expected: bool
) -> None:
    assert is_unlabelled(columns) is expected


def test_columns_that_cannot_be_guessed_or_are_missing_are_named() -> None:
    table = Table(Path("a.csv"), ("question", "reply"), ())
    with pytest.raises(
        DataError, match=r"a.csv: must have a column messages.*got 'question', 'reply'; name them"
    ):
        find_form(table, {})
    with pytest.raises(
        DataError, match="--prompt-column must be one of 'question', 'reply', got 'ask'"
    ):
        find_form(table, {"prompt": "ask"})
