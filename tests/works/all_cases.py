"""All rows of the table, in its order."""

from __future__ import annotations

from works import head_cases, loop_cases, sentence_cases, trainer_cases, trl_cases
from works.cases import Case

CASES: list[Case] = [
    *trainer_cases.CASES,
    *head_cases.CASES,
    *trl_cases.CASES,
    *loop_cases.CASES,
    *sentence_cases.CASES,
]
