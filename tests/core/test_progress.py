"""Increments told as totals."""

from advreg.core.progress import counting


def test_what_is_told_piece_by_piece_is_added_up() -> None:
    told: list[tuple[str, int, int]] = []
    advance = counting(lambda *report: told.append(report), "survey", 7)
    for more in (3, 3, 1):
        advance(more)
    assert told == [("survey", 3, 7), ("survey", 6, 7), ("survey", 7, 7)]


def test_nothing_is_counted_when_nobody_listens() -> None:
    assert counting(None, "survey", 7) is None
