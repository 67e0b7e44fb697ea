"""A parallel corpus made on the spot: numbers in words, and their digits."""

import random
from pathlib import Path

_ONES = (
    *(
        "zero",
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
    ),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")

SOURCE, TARGET = "words", "digits"


def in_words(number: int) -> str:
    """A number below ten thousand: 4305 is "four thousand three hundred and five"."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + (f" {_ONES[number % 10]}" if number % 10 else "")
    if number < 1000:
        return f"{_ONES[number // 100]} hundred" + (
            f" and {in_words(number % 100)}" if number % 100 else ""
        )
    rest = number % 1000
    return f"{_ONES[number // 1000]} thousand" + (
        f" {'' if rest >= 100 else 'and '}{in_words(rest)}" if rest else ""
    )


def in_digits(number: int) -> str:
    return " ".join(str(number))


def write_numbers(folder: Path, train: int, valid: int = 60, test: int = 60) -> Path:
    """Files train, valid and test of different four-digit numbers (BLEU counts four words in a
    row).
    """
    numbers = random.Random(0).sample(range(1000, 10_000), train + valid + test)
    parts = {
        "train": numbers[:train],
        "valid": numbers[train : train + valid],
        "test": numbers[train + valid :],
    }
    folder.mkdir(parents=True, exist_ok=True)
    for split, part in parts.items():
        for language, say in ((SOURCE, in_words), (TARGET, in_digits)):
            (folder / f"{split}.{language}").write_text(
                "".join(f"{say(number)}\n" for number in part)
            )
    return folder
