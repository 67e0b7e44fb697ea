"""What several commands say in the same words."""

from __future__ import annotations

from rich.console import Console


class Notices:
    """Prints each notice once, however many runs have it to say."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.said: set[str] = set()

    def __call__(self, text: str) -> None:
        if text not in self.said:
            self.said.add(text)
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)
