"""The page of what works with which method is made of the cases that are tested."""

from works_with_page import PAGE, page


def test_the_page_says_what_the_cases_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
