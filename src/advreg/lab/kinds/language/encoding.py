"""Token ids and labels of samples: only answers are learnt, and every token of plain text.

Turns are written by the chat template of the tokenizer. A turn of the assistant is what the
template writes from its generation prompt up to the end of the turn; its tokens, the end included,
have labels, and all others are ignored. Prompts and answers become tokens separately, as they do
when the model generates.

Without a chat template, each turn is on a line, and an answer ends with the end-of-sequence token;
see `PLAIN_TEMPLATE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import DataCollatorForSeq2Seq

from advreg.hf.view.head import IGNORED
from advreg.lab.kinds.language.samples import ASSISTANT, Sample, Turn
from advreg.lab.kinds.sources import DataError

Row = dict[str, list[int]]

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{{ '\n' }}{% endfor %}"
)


@dataclass(frozen=True)
class Encoded:
    """Samples as rows of tokens.

    Args:
        rows: with labels.
        samples: the index of each row's sample. A sample has a row for each of its references;
            plain text has a row for each part of its length.
        cut: how many rows were longer than allowed.
    """

    rows: list[Row]
    samples: list[int]
    cut: int = 0

    @property
    def learnt(self) -> int:
        """How many tokens have labels."""
        return sum(label != IGNORED for row in self.rows for label in row["labels"])


@dataclass(frozen=True)
class Encoder:
    """Makes rows of samples.

    Args:
        tokenizer: with or without a chat template.
    """

    tokenizer: Any

    def encode(self, samples: Sequence[Sample], longest: int | None, cuts: bool) -> Encoded:
        """Rows of samples, none longer than ``longest``.

        Plain text is divided, so that no token is lost; other rows are cut, if ``cuts``.
        """
        rows, owners, cut = [], [], 0
        for index, sample in enumerate(samples):
            for row in self._rows(sample, longest):
                is_long = longest is not None and len(row["input_ids"]) > longest
                cut += is_long
                shortened = {name: ids[:longest] for name, ids in row.items()}
                rows.append(shortened if is_long and cuts else row)
                owners.append(index)
        return Encoded(rows, owners, cut)

    def prompt_ids(self, sample: Sample) -> list[int]:
        """The turns in front of the answer, up to where it begins."""
        return self.turn_ids(sample.prompt)

    def turn_ids(self, turns: Sequence[Turn]) -> list[int]:
        """Turns, up to where the next answer begins."""
        return self._ids(self._written(turns, begins_answer=True))

    def _rows(self, sample: Sample, longest: int | None) -> Iterator[Row]:
        if not sample.turns[0][0]:
            yield from self._parts(sample.turns[0][1], longest)
            return
        for answer in sample.answers:
            yield self._row((*sample.prompt, (ASSISTANT, answer)))

    def _parts(self, text: str, longest: int | None) -> Iterator[Row]:
        """Plain text in parts; every token but the first of a part is predicted."""
        ids = [*self.tokenizer(text)["input_ids"]]
        if ids[-1:] != [self.tokenizer.eos_token_id]:
            ids.append(self.tokenizer.eos_token_id)
        size = longest or len(ids)
        for first in range(0, len(ids), size):
            part = ids[first : first + size]
            if len(part) > 1:
                yield {"input_ids": part, "labels": list(part)}

    def _row(self, turns: Sequence[Turn]) -> Row:
        row: Row = {"input_ids": [], "labels": []}
        for text, is_learnt in self._pieces(turns):
            ids = self._ids(text)
            row["input_ids"] += ids
            row["labels"] += ids if is_learnt else [IGNORED] * len(ids)
        return row

    def _pieces(self, turns: Sequence[Turn]) -> Iterator[tuple[str, bool]]:
        """The text of a chat in pieces, and whether each of them is learnt."""
        done = ""
        for index, (role, content) in enumerate(turns):
            if role != ASSISTANT:
                continue
            before = self._written(turns[:index], begins_answer=True)
            after = self._written(turns[: index + 1], begins_answer=False)
            if not after.startswith(before) or not before.startswith(done):
                raise DataError(
                    "the chat template must write a chat turn by turn, without changing what it "
                    f"wrote before, got {after!r} after {before!r}; give chats with one answer, or "
                    "another template"
                )
            answer = after[len(before) :].rstrip()
            if answer.endswith(content.rstrip()):  # the template does not end the turn
                answer += self.tokenizer.eos_token
            yield before[len(done) :], False
            yield answer, True
            done = before + answer

    def _written(self, turns: Sequence[Turn], begins_answer: bool) -> str:
        written: str = self.tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in turns],
            tokenize=False,
            add_generation_prompt=begins_answer,
        )
        return written

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def collator(tokenizer: Any, multiple: int) -> DataCollatorForSeq2Seq:
    """Pads rows and labels on the right, to a multiple of a width."""
    return DataCollatorForSeq2Seq(
        tokenizer, pad_to_multiple_of=multiple, label_pad_token_id=IGNORED
    )


def prepared_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer of a model, padding on the right; without a template it gets `PLAIN_TEMPLATE`,
    after the token that the tokenizer begins texts with.
    """
    tokenizer.padding_side = "right"
    if tokenizer.eos_token is None:
        raise DataError(
            "the tokenizer must have an end-of-sequence token, which ends answers, got none; set "
            "eos_token in its tokenizer_config.json"
        )
    if tokenizer.chat_template is None:
        first = tokenizer("a")["input_ids"][:1]
        begins = tokenizer.bos_token if first == [tokenizer.bos_token_id] else ""
        tokenizer.chat_template = f"{begins}{PLAIN_TEMPLATE}"
    return tokenizer
