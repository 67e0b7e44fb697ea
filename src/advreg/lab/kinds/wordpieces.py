"""A small WordPiece tokenizer trained on given texts, for models from scratch; no downloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

PADDING, UNKNOWN, START, SEPARATOR, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PADDING, UNKNOWN, START, SEPARATOR, MASK)
INSIDE_A_WORD = "##"
MIN_VOCABULARY = 16


def train_tokenizer(
    texts: Iterable[str], vocabulary: int = 4000, max_length: int = 64
) -> PreTrainedTokenizerFast:
    """A lower-cased WordPiece tokenizer of at most `vocabulary` pieces; the same texts give the
    same pieces and ids.

    One text becomes `[CLS] a [SEP]`, two become `[CLS] a [SEP] b [SEP]` with token types 0 and 1.
    With `truncation=True` it cuts at `max_length` tokens. The characters of `texts` are pieces, so
    their words (up to 100 characters long) are known; only where there are very many of them are
    the rarest left out (see `_characters`).
    """
    if max_length < 5:
        raise ValueError(
            f"max_length must be at least 5, the length of [CLS] a [SEP] b [SEP], got {max_length}"
        )
    if vocabulary < MIN_VOCABULARY:
        raise ValueError(f"vocabulary must be at least {MIN_VOCABULARY}, got {vocabulary}")
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=_framed(_train(list(texts), vocabulary)),
        pad_token=PADDING,
        unk_token=UNKNOWN,
        cls_token=START,
        sep_token=SEPARATOR,
        mask_token=MASK,
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=True,
    )


def _train(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """Learn the pieces, and hold them in a fresh tokenizer.

    The trainer numbers the characters inside words in the order of a randomly seeded hash map, and
    breaks ties between merges by these numbers: two runs would learn different pieces. Handed in as
    special tokens they have fixed numbers; the fresh tokenizer then knows them as the ordinary
    pieces they are.
    """
    from tokenizers import Tokenizer, models, trainers

    learner = _splitter(Tokenizer(models.WordPiece(unk_token=UNKNOWN)))
    characters = _characters(learner, texts, at_most=vocabulary // 4)
    if not characters:
        raise ValueError(f"texts must hold at least one word, got {len(texts)} texts without any")
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=[*SPECIAL_TOKENS, *(INSIDE_A_WORD + character for character in characters)],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        continuing_subword_prefix=INSIDE_A_WORD,
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    pieces = models.WordPiece(
        learner.get_vocab(),
        unk_token=UNKNOWN,
        continuing_subword_prefix=INSIDE_A_WORD,
        max_input_chars_per_word=100,
    )
    return _splitter(Tokenizer(pieces))


def _splitter(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with BERT's rules: lower case, no accents, split at spaces and punctuation."""
    from tokenizers import normalizers, pre_tokenizers

    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _characters(tokenizer: Tokenizer, texts: Iterable[str], at_most: int) -> list[str]:
    """The most frequent characters of the texts' words, as the tokenizer sees them, in order of
    their code points.

    A character costs two pieces, at the start of a word and inside one; `at_most` a quarter of the
    vocabulary, they leave half of it for longer pieces.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(
            tokenizer.normalizer.normalize_str(text)
        ):
            counts.update(word)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted(ranked[:at_most])


def _framed(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with special tokens around the texts, token types, and joining of pieces on the
    way back.
    """
    from tokenizers import decoders, processors

    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START}:0 $A:0 {SEPARATOR}:0",
        pair=f"{START}:0 $A:0 {SEPARATOR}:0 $B:1 {SEPARATOR}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (START, SEPARATOR)],
    )
    tokenizer.decoder = decoders.WordPiece(prefix=INSIDE_A_WORD)
    return tokenizer
