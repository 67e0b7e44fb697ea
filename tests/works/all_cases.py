"""All rows of the table, in its order."""

from __future__ import annotations

from works import trainer_cases
from works.cases import Case

CASES: list[Case] = [*trainer_cases.CASES]
