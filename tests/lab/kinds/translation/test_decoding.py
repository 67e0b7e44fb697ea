from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import MarianConfig, MarianMTModel

from advreg.lab.kinds.translation.decoding import Decoding, batches_of, decode
from tiny_models import tiny

END = 2
LONGEST = 4


def toy(seed: int) -> Any:
    """A translator of six words, three of which mean something, with strong opinions."""
    config = MarianConfig(
        vocab_size=6, decoder_vocab_size=6, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=32, init_std=0.5,
        bos_token_id=0, pad_token_id=1, eos_token_id=END, decoder_start_token_id=END, forced_eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    return MarianMTModel(config).eval()


def exhaustive(model: Any, source: list[int], penalty: float) -> list[int]:
    """The best of all translations that end, or are as long as they may be."""
    best, chosen = float("-inf"), []
    for length in range(1, LONGEST + 1):
        for words in itertools.product((END, 3, 4, 5), repeat=length):
            if END in words[:-1] or (words[-1] != END and length < LONGEST):
                continue
            with torch.no_grad():
                inputs = torch.tensor([[END, *words[:-1]]])
                logits = model(input_ids=torch.tensor([source]), decoder_input_ids=inputs).logits[0]
            steps = logits.log_softmax(-1)[torch.arange(length), torch.tensor(words)]
            score = float(steps.sum()) / length**penalty
            if score > best:
                best, chosen = score, list(words)
    return chosen


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_beam_as_wide_as_all_translations_finds_the_best_of_them(
    seed: int, penalty: float
) -> None:
    model = toy(seed)
    sources = [[3, 4, END], [5, END], [4, 4, 3, END]]
    wide = Decoding(beam=120, length_penalty=penalty, ratio=0, extra=LONGEST)
    assert decode(model, sources, wide) == [
        exhaustive(model, source, penalty) for source in sources
    ]


def test_a_beam_of_one_takes_the_likeliest_word_each_time() -> None:
    model, source = toy(0), [3, 5, END]
    words: list[int] = []
    while len(words) < LONGEST and (not words or words[-1] != END):
        with torch.no_grad():
            logits = model(
                input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[END, *words]])
            ).logits
        words.append(max((END, 3, 4, 5), key=lambda word: float(logits[0, -1, word])))
    assert decode(model, [source], Decoding(beam=1, ratio=0, extra=LONGEST)) == [words]


def sources(count: int = 14) -> list[list[int]]:
    draw = torch.Generator().manual_seed(0)
    return [
        [
            *torch.randint(
                5, 45, (int(torch.randint(1, 30, (), generator=draw)),), generator=draw
            ).tolist(),
            0,
        ]
        for _ in range(count)
    ]


@pytest.mark.parametrize("beam", [1, 4])
def test_a_translation_depends_neither_on_its_company_nor_on_the_order(beam: int) -> None:
    model, texts = tiny("marian"), sources()
    search = Decoding(beam=beam, ratio=1.0, extra=3)
    together = decode(model, texts, search, max_tokens=10_000)
    assert decode(model, texts[::-1], search, max_tokens=10_000)[::-1] == together
    assert decode(model, texts, search, max_tokens=1) == together
    assert [decode(model, [text], search)[0] for text in texts] == together
    assert len({tuple(row) for row in together}) > 5


def test_decoding_leaves_the_model_and_the_random_numbers_as_they_were() -> None:
    model = tiny("marian", dropout=0.5)
    before = torch.get_rng_state()
    first = decode(model, sources(3), Decoding(beam=2))
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)
    assert decode(model, sources(3), Decoding(beam=2)) == first


def test_progress_counts_every_sentence() -> None:
    done: list[int] = []
    decode(
        tiny("marian"),
        sources(9),
        Decoding(beam=1, extra=2, ratio=0),
        max_tokens=40,
        advance=done.append,
    )
    assert sum(done) == 9
    assert len(done) > 1


def test_a_batch_too_much_for_the_memory_is_searched_in_parts_and_so_are_those_after_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, texts, search = tiny("marian"), sources(), Decoding(beam=2, ratio=1.0, extra=3)
    whole = decode(model, texts, search, max_tokens=10_000)
    generate, fitted = model.generate, list[bool]()

    def in_little_memory(input_ids: torch.Tensor, generation_config: Any, **rest: Any) -> Any:
        positions = len(input_ids) * generation_config.num_beams * generation_config.max_new_tokens
        fitted.append(positions <= 140)
        if not fitted[-1]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(input_ids=input_ids, generation_config=generation_config, **rest)

    monkeypatch.setattr(model, "generate", in_little_memory)
    done: list[int] = []
    assert decode(model, texts, search, max_tokens=10_000, advance=done.append) == whole
    assert sum(done) == len(texts)
    assert fitted.count(False) == 1, "once, not with every batch"
    assert any("decoding continues with" in record.getMessage() for record in caplog.records)


def test_a_sentence_too_much_for_the_memory_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_no_memory(**_: Any) -> Any:
        raise torch.OutOfMemoryError("not even one")

    model = tiny("marian")
    monkeypatch.setattr(model, "generate", in_no_memory)
    with pytest.raises(torch.OutOfMemoryError, match="not even one"):
        decode(model, sources(3), Decoding(beam=1))


def test_attention_takes_batches_of_any_shape_without_a_plan_for_each() -> None:
    planned: list[bool] = []
    told = lambda _: planned.append(torch.backends.cuda.cudnn_sdp_enabled())  # noqa: E731
    decode(
        tiny("marian"), sources(9), Decoding(beam=1, extra=2, ratio=0), max_tokens=40, advance=told
    )
    assert set(planned) == {False}


def test_batches_share_a_length_limit_and_keep_the_budget() -> None:
    texts = [tuple(range(length)) for length in (1, 8, 9, 16, 30, 31, 7, 25)]
    search = Decoding(beam=2, ratio=2.0, extra=10)
    found = list(batches_of(texts, search, max_tokens=200))
    assert sorted(text for batch in found for text in batch) == sorted(texts)
    for batch in found:
        assert len({search.limit(len(text)) for text in batch}) == 1
        assert len(batch) == 1 or len(batch) * 2 * search.limit(max(map(len, batch))) <= 200
    assert len(found[0][0]) == max(map(len, texts))


@given(st.permutations([(length % 7 + 1) * (length,) for length in range(20)]))
def test_batches_are_the_same_in_whatever_order_the_sources_come(
    texts: list[tuple[int, ...]],
) -> None:
    search = Decoding(beam=2)
    assert list(batches_of(texts, search, 300)) == list(batches_of(sorted(texts), search, 300))


def test_a_source_that_comes_twice_is_translated_once_and_counted_twice() -> None:
    model, texts, done = tiny("marian"), sources(3), list[int]()
    rows: list[int] = []
    seen = model.get_encoder().register_forward_hook(
        lambda _, __, out: rows.append(len(out.last_hidden_state))
    )
    found = decode(
        model, [*texts, texts[1]], Decoding(beam=1, extra=3, ratio=0), advance=done.append
    )
    seen.remove()
    assert (sum(rows), sum(done)) == (3, 4)
    assert found == [*decode(model, texts, Decoding(beam=1, extra=3, ratio=0)), found[1]]


def test_a_translation_is_no_longer_than_its_limit_or_the_positions() -> None:
    model: Any = tiny("marian", eos_token_id=48)  # an end it has not learnt to use
    rows = decode(model, [[5, 6, 48]], Decoding(beam=1, ratio=2.0, extra=1))
    assert len(rows[0]) <= 2 * 8 + 1
    assert len(decode(model, [[5] * 60], Decoding(beam=1, ratio=9.0, extra=1))[0]) <= 63
    assert Decoding().limit(9) == 2 * 16 + 10


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"beam": 0}, "beam must be 1 or more, got 0"),
        ({"length_penalty": float("nan")}, "length_penalty must be a finite number, got nan"),
        ({"extra": 0}, r"the length limit must be positive, got 2\.0 × source length \+ 0"),
    ],
)
def test_settings_that_make_no_sense_are_named(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Decoding(**wrong)


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(ValueError, match="precision of decoding must be fp32 or bf16, got 'int8'"):
        decode(tiny("marian"), [[5, 0]], Decoding(), precision="int8")
