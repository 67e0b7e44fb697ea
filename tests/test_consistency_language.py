"""Runs on language models of the contests, with a tiny Llama: the data, the scores, the queue's
part, a run resumed.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import signal
import struct
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import gguf_weights
import language_runs
import numpy as np
import pack
import pytest
import torch
import torch.nn.functional as F
from contests import CONTESTS, LANGUAGE, STANDARD
from language_runs import (
    E2E,
    GSM8K,
    IGNORED,
    TEST,
    TRAIN,
    UNRELATED,
    VALID,
    Judge,
    LanguageRun,
    chance_of,
    load_model,
    make_trainer,
    number_in,
    prepared,
    unrelated_loss,
)
from sacrebleu.metrics import BLEU
from scipy.stats import binom
from scoring import above_chance, can_solve, primary_score, validation_score
from stages import RESULT, TUNE, Planned, Point
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from advreg.lab.kinds.calibration import expected_calibration_error, fit_temperature

FOOD = ["pizza", "sushi", "fish and chips", "English food", "pasta"]
FEW = {"epochs": 2, "batch_size": 4, "samples": 12, "evaluate_on": 6}
TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def problem(index: int) -> dict[str, Any]:
    return {
        "idx": index,
        "prompt": f"Ann has {index} apples and buys {index % 3} more. How many?",
        "completion": f"{index} + {index % 3} = {index + index % 3}\n#### {index + index % 3}",
    }


def restaurant(index: int, split: str) -> dict[str, Any]:
    food = FOOD[index % len(FOOD)]
    texts = [
        f"Place {index} serves {food}.",
        f"You get {food} at place {index}.",
        f"{food} is at place {index}.",
    ]
    row = {
        "idx": index,
        "prompt": f"Describe: name[place {index}], food[{food}]",
        "completion": texts[0],
    }
    return row if split == TRAIN else {**row, "references": texts[: 1 + index % 3]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for split, count in ((TRAIN, 16), (VALID, 8), (TEST, 8)):
        for task, row in (
            (GSM8K, problem),
            (E2E, lambda index, split=split: restaurant(index, split)),
        ):
            path = folder / "sft" / task / f"{split}.jsonl.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(
                gzip.compress("".join(json.dumps(row(n)) + "\n" for n in range(count)).encode())
            )
    news = folder / language_runs.NEWS
    news.parent.mkdir(parents=True)
    news.write_bytes(
        lzma.compress("\n".join(f"The council met on day {n} of May." for n in range(60)).encode())
    )
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with random weights, and a tokenizer of 300 pieces."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([str(restaurant(n, TRAIN)) for n in range(8)], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, tie_word_embeddings=True, pad_token_id=0, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _model_is_the_tiny_one(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(language_runs.MODEL_VARIABLE, str(model))


def plan(
    task: str, contestant: str = STANDARD, stage: str = TUNE, point: Point | None = None
) -> Planned:
    return Planned(LANGUAGE.name, task, stage, contestant, "x", 300, point or Point(STANDARD))


class Silent:
    def step(self, step: int, total: int, values: Any) -> None: ...

    def notice(self, text: str) -> None: ...


def run_of(planned: Planned, data: Path, scratch: Path, **changes: Any) -> LanguageRun:
    return LanguageRun(planned, data, tuple({**FEW, **changes}.items()), scratch)


def logits_of(network: Any, row: dict[str, list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one row without padding: logits in float64 and labels of the tokens that count."""
    with torch.no_grad():
        logits = network(torch.tensor([row["input_ids"]])).logits[0, :-1].double()
    labels = torch.tensor(row["labels"][1:])
    return logits[labels != IGNORED], labels[labels != IGNORED]


# ---- the data


def test_labels_are_the_answer_and_the_end_of_the_turn_and_each_reference_has_a_row(
    data: Path, model: Path
) -> None:
    found = prepared(E2E, data, model, 512)
    samples = [restaurant(index, TEST) for index in range(8)]
    texts = [(each["prompt"], reference) for each in samples for reference in each["references"]]
    assert len(found.rows[TEST]) == len(texts)
    for row, (prompt, answer) in zip(found.rows[TEST], texts, strict=True):
        whole = found.tokenizer.decode(row["input_ids"])
        assert whole == f"<s>user\n{prompt}</s>\n<s>assistant\n{answer}</s>"
        labelled = [
            token
            for token, label in zip(row["input_ids"], row["labels"], strict=True)
            if label != IGNORED
        ]
        assert labelled == [label for label in row["labels"] if label != IGNORED]
        assert found.tokenizer.decode(labelled) == f"{answer}</s>"
    assert len(found.rows[TRAIN]) == 16
    assert [len(question.references) for question in found.questions[TEST]] == [
        1 + n % 3 for n in range(8)
    ]


def test_only_training_samples_are_cut_and_the_cut_ones_are_counted(
    data: Path, model: Path
) -> None:
    whole, short = (prepared(GSM8K, data, model, length) for length in (512, 60))
    lengths = [len(row["input_ids"]) for row in whole.rows[TRAIN]]
    assert short.cut == sum(length > 60 for length in lengths) > 0
    assert [len(row["labels"]) for row in short.rows[TRAIN]] == [
        min(length, 60) for length in lengths
    ]
    assert short.rows[TEST] == whole.rows[TEST]
    assert whole.cut == 0


def test_a_folder_without_the_model_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(language_runs.MODEL_VARIABLE)
    with pytest.raises(ValueError, match=r"ADVREG_SMOLLM2 must be a folder .*pack\.py"):
        language_runs.model_folder()


def test_the_order_of_the_batches_depends_on_seed_and_epoch_alone(
    data: Path, model: Path, tmp_path: Path
) -> None:
    samples = prepared(GSM8K, data, model, 512)

    def batches(seed: int, method: str, options: dict[str, Any]) -> list[list[list[str]]]:
        planned = replace(plan(GSM8K, point=Point(method, options)), seed=seed)
        loader = make_trainer(
            planned, {**LANGUAGE.base, **FEW}, samples, tmp_path
        ).get_train_dataloader()
        found = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            found.append([samples.tokenizer.batch_decode(batch["input_ids"]) for batch in loader])
            torch.rand(epoch + seed + len(method))  # what a method draws
        return found

    one, other = batches(1, STANDARD, {}), batches(1, "r3f", {"noise_scale": 0.01})
    assert one == other
    assert one[0] != one[1]
    assert batches(2, STANDARD, {}) != one
    texts = [text.replace("<pad>", "") for text in chain.from_iterable(one[0])]
    assert sorted(texts) == sorted(
        samples.tokenizer.batch_decode([row["input_ids"] for row in samples.rows[TRAIN]])
    )


# ---- scores


def judged(data: Path, model: Path, task: str, **changes: Any) -> tuple[Any, Judge]:
    few = language_runs.fewer(prepared(task, data, model, 512), {"evaluate_on": 6, **changes})
    network = load_model().eval()
    return network, Judge(network, few, plan(task), False)


@pytest.mark.parametrize("task", [GSM8K, E2E])
def test_likelihood_and_calibration_are_those_of_rows_one_by_one(
    data: Path, model: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_runs, "_TOKENS_AT_ONCE", 150)  # batches of two or three rows
    network, judge = judged(data, model, task)
    found = judge.found(0.0)
    rows = judge.data.rows
    alone = {
        name: [logits_of(network, row) for row in rows[name]] for name in (VALID, TEST, UNRELATED)
    }
    sums = [
        float(F.cross_entropy(logits, labels, reduction="sum")) for logits, labels in alone[TEST]
    ]
    tokens = [len(labels) for _, labels in alone[TEST]]
    joined = {
        name: [torch.cat(parts) for parts in zip(*pairs, strict=True)]
        for name, pairs in alone.items()
    }
    temperature = fit_temperature(*joined[VALID])
    assert found.metrics["nll"] == pytest.approx(sum(sums) / sum(tokens), rel=1e-5)
    assert found.metrics["ece"] == pytest.approx(
        expected_calibration_error(*joined[TEST]), abs=1e-5
    )
    assert found.metrics["temperature"] == pytest.approx(temperature, rel=1e-4)
    scaled = float(F.cross_entropy(joined[TEST][0] / temperature, joined[TEST][1]))
    assert found.metrics["scaled_nll"] == pytest.approx(scaled, rel=1e-5)
    assert found.metrics["valid_nll"] == pytest.approx(
        float(F.cross_entropy(*joined[VALID])), rel=1e-5
    )
    assert found.metrics["unrelated_nll"] == pytest.approx(
        float(F.cross_entropy(*joined[UNRELATED])), rel=1e-5
    )
    assert found.metrics["forgetting"] == found.metrics["unrelated_nll"]  # it was 0 before
    assert found.details["answer_tokens"] == tokens
    assert found.details["answer_losses"] == pytest.approx([1000 * each for each in sums], abs=1)


def test_the_temperature_is_fitted_on_every_nth_token_where_there_are_too_many(
    data: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_runs, "_FIT_ON", 50)
    network, judge = judged(data, model, GSM8K)
    seen = []
    monkeypatch.setattr(
        language_runs,
        "fit_temperature",
        lambda logits, labels: seen.append((logits, labels)) or 1.0,
    )
    judge._temperature()
    rows = judge.data.rows[VALID]
    ordered = sorted(rows, key=lambda row: -len(row["input_ids"]))
    logits, labels = (
        torch.cat(parts)
        for parts in zip(*(logits_of(network, row) for row in ordered), strict=True)
    )
    step = -(-len(labels) // 50)
    assert 25 < len(seen[0][1]) <= 50
    assert torch.equal(seen[0][1], labels[::step])
    torch.testing.assert_close(seen[0][0].double(), logits[::step], atol=1e-4, rtol=1e-4)


def test_unrelated_text_is_scored_token_by_token_and_nothing_is_left_out(
    data: Path, model: Path
) -> None:
    found = prepared(GSM8K, data, model, 512)
    text = lzma.decompress((data / language_runs.NEWS).read_bytes()).decode()
    read = chain.from_iterable(row["input_ids"] for row in found.rows[UNRELATED])
    assert list(read) == found.tokenizer(text)["input_ids"]
    assert {len(row["input_ids"]) for row in found.rows[UNRELATED][:-1]} == {language_runs.WINDOW}
    network = load_model().eval()
    total, count = 0.0, 0
    for row in found.rows[UNRELATED]:
        logits, labels = logits_of(network, row)
        total, count = (
            total + float(F.cross_entropy(logits, labels, reduction="sum")),
            count + len(labels),
        )
    assert unrelated_loss(network, found) == pytest.approx(total / count, rel=1e-5)


def test_answers_are_greedy_and_those_of_prompts_one_by_one(data: Path, model: Path) -> None:
    network, judge = judged(data, model, E2E)
    questions = judge.data.questions[TEST]
    assert len({len(question.prompt) for question in questions}) > 1  # so that there is padding
    eos = judge.data.tokenizer.eos_token_id
    expected = []
    for question in questions:
        ids = list(question.prompt)
        while len(ids) < len(question.prompt) + language_runs._LONGEST[E2E] and ids[-1] != eos:
            with torch.no_grad():
                ids.append(int(network(torch.tensor([ids])).logits[0, -1].argmax()))
            if ids[-1] == eos:
                break
        answer = judge.data.tokenizer.decode(ids[len(question.prompt) :], skip_special_tokens=True)
        expected.append(answer.strip())
    assert judge._written(questions) == expected


def test_bleu_takes_all_references_and_its_statistics_give_it_again(
    data: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, judge = judged(data, model, E2E)
    samples = [restaurant(index, TEST) for index in range(6)]
    lines = [each["references"][-1].replace("serves", "has") for each in samples]
    monkeypatch.setattr(Judge, "_written", lambda self, questions: lines)
    found = language_runs.Found()
    judge._describe(found)
    third = [each["references"][2] if len(each["references"]) > 2 else None for each in samples]
    second = [each["references"][1] if len(each["references"]) > 1 else None for each in samples]
    wanted = BLEU().corpus_score(
        lines, [[each["references"][0] for each in samples], second, third]
    )
    assert found.metrics["bleu"] == wanted.score > 50
    assert "nrefs:var" in found.details["signature"]
    rows = [
        [int(n) for n in row.split(",")]
        for row in found.details["bleu_statistics"][TEST].split(";")
    ]
    sums = np.array(rows).sum(0).tolist()
    again = BLEU().compute_bleu(
        correct=sums[2:6], total=sums[6:], sys_len=sums[0], ref_len=sums[1], max_ngram_order=4
    )
    assert again.score == pytest.approx(wanted.score)


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("so 3\n#### 24", 24.0),
        ("#### 1,000", 1000.0),
        ("####-3.5 dollars", -3.5),
        ("24", None),
        ("#### $7", 7.0),
    ],
)
def test_the_number_of_an_answer_stands_behind_four_hashes(
    answer: str, number: float | None
) -> None:
    assert number_in(answer) == number


def test_chance_is_how_often_other_problems_have_the_answer() -> None:
    given: Sequence[float | None] = [1.0, 2.0, None, 2.0]
    assert chance_of(given, [2.0, 2.0, 3.0, 1.0]) == pytest.approx((1 + 1 + 0 + 2) / 12)


@pytest.mark.parametrize("count", [200, 1319])
@pytest.mark.parametrize(
    ("right", "chance"),
    [(0, 0.0), (0, 0.1), (1, 0.0), (5, 0.02), (6, 0.005), (9, 0.01), (20, 0.05)],
)
def test_a_rate_is_above_chance_where_the_binomial_tail_is_below_a_hundredth(
    right: int, chance: float, count: int
) -> None:
    assert above_chance(right, count, chance) is bool(
        right > 0 and binom.sf(right - 1, count, chance) < 0.01
    )


def test_only_standards_candidates_and_results_of_a_model_that_can_solve_are_decoded(
    data: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, judge = judged(data, model, GSM8K)
    asked: list[int] = []

    def written(self: Judge, questions: Sequence[Any]) -> list[str]:
        asked.append(len(questions))
        return ["#### 0", "#### 2", *["?"] * 4]

    monkeypatch.setattr(Judge, "_written", written)

    def of(contestant: str, stage: str, solves: bool) -> language_runs.Found:
        found = language_runs.Found()
        replace(judge, planned=plan(GSM8K, contestant, stage), solves=solves)._solve(found)
        return found

    tuned = of(STANDARD, TUNE, False)
    assert tuned.metrics["valid_exact_match"] == pytest.approx(100 * 2 / 6)
    assert tuned.metrics["valid_chance"] == 0.0
    assert tuned.details["above_chance"] is True
    assert of(STANDARD, RESULT, False).metrics == of("simcut", TUNE, True).metrics == {}
    assert of("simcut", RESULT, True).details["solved"] == "110000"
    assert len(asked) == 2


# ---- runs


@pytest.mark.parametrize(
    ("name", "task"),
    [(each.name, (E2E, GSM8K)[number % 2]) for number, each in enumerate(LANGUAGE.contestants)],
)
def test_every_contestant_trains_and_is_scored(
    name: str, task: str, data: Path, tmp_path: Path
) -> None:
    each = next(each for each in LANGUAGE.contestants if each.name == name)
    variant = each.variants[-1]
    settings = {**variant.settings, **({"dropout": 0.1} if each.needs_dropout else {})}
    settings.pop("epochs_factor", None)
    run = run_of(
        plan(task, name, RESULT, Point(each.method, variant.options, settings)), data, tmp_path
    )
    record = run(Silent())
    assert record.outcome.status == "finished"
    metrics = record.outcome.metrics
    shared = {
        f"{prefix}{score}"
        for prefix in ("", "valid_")
        for score in ("nll", "ece", "scaled_nll", "scaled_ece")
    }
    assert shared | {"temperature", "unrelated_nll", "unrelated_nll_before", "forgetting"} <= set(
        metrics
    )
    assert ("bleu" in metrics) == (task == E2E)
    assert metrics["forgetting"] == metrics["unrelated_nll"] - metrics["unrelated_nll_before"] != 0
    assert record.outcome.timing["steps"] == 6
    doubled = 2 if each.method in ("simcut", "r3f", "rdrop") else 1
    assert record.outcome.passes["forward"] == doubled
    assert (record.outcome.cache_bytes > 0) == (each.method == "temporal")
    assert record.training.more["attention_dropout"] == (0.1 if each.needs_dropout else 0.0)
    assert record.training.more["neftune_noise_alpha"] == variant.settings.get("neftune")
    assert primary_score(record) == -100 * metrics["nll"]
    assert validation_score(record) == -100 * metrics["valid_nll"]
    assert not can_solve([record])
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_diverges_says_so_and_is_never_chosen(data: Path, tmp_path: Path) -> None:
    record = run_of(plan(GSM8K), data, tmp_path, learning_rate=1e30)(Silent())
    assert record.outcome.status == "failed"
    assert validation_score(record) == float("-inf")


def test_a_run_that_is_stopped_goes_on_and_ends_as_if_it_had_not_been(
    data: Path, tmp_path: Path
) -> None:
    class Stopping(Silent):
        def step(self, step: int, total: int, values: Any) -> None:
            if step == 4:
                os.kill(os.getpid(), signal.SIGTERM)

    point = Point("temporal", {"weight": 3, "sketch": "drawn"})
    run = run_of(plan(GSM8K, "temporal", RESULT, point), data, tmp_path / "stopped")
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        run(Stopping())
    assert [path.name for path in (tmp_path / "stopped").glob("*/checkpoint-*")] == ["checkpoint-4"]
    seen: list[int] = []

    class Watching(Silent):
        def step(self, step: int, total: int, values: Any) -> None:
            seen.append(step)

    resumed = run(Watching())
    assert seen == [5, 6]
    whole = run_of(plan(GSM8K, "temporal", RESULT, point), data, tmp_path / "whole")(Silent())
    assert resumed.outcome.metrics == whole.outcome.metrics


def test_the_contest_has_three_candidates_of_each_and_the_controls_have_one() -> None:
    counts = {each.name: len(each.variants) for each in LANGUAGE.contestants}
    assert counts == {
        "temporal": 3, "simcut": 3, "r3f": 3, "rdrop": 3, "neftune": 3, "dropout": 1, "twice the epochs": 1,
    }  # fmt: skip
    assert CONTESTS["language"] is LANGUAGE


# ---- the weights


@pytest.mark.parametrize("size", [1, 10, 11, 29, 30])
def test_parts_joined_are_the_file_and_none_is_too_large(size: int) -> None:
    content = bytes(range(size))
    parts = pack.in_parts(content, 10)
    assert b"".join(parts) == content
    assert max(map(len, parts)) <= 10
    assert len(parts) == -(-size // 10)


def gguf_file(
    tensors: dict[str, tuple[int, tuple[int, ...], bytes]], facts: dict[str, int]
) -> bytes:
    """A file as the format describes it, with facts that are 32-bit numbers."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts) + 1)
    head += text("general.tags") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc")
    for name, value in facts.items():
        head += text(name) + struct.pack("<II", 4, value)
    body = b""
    for name, (kind, shape, raw) in tensors.items():
        head += text(name) + struct.pack(
            f"<I{len(shape)}QIQ", len(shape), *shape[::-1], kind, len(body)
        )
        body += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + body


def test_blocks_are_decoded_as_the_format_says_number_by_number() -> None:
    draw = np.random.default_rng(0)
    packed = draw.integers(0, 256, (2, 16), dtype=np.uint8)
    bytes_ = draw.integers(-128, 128, (2, 32), dtype=np.int8)
    q4 = b"".join(struct.pack("<ee", 0.5 + row, -3.25) + packed[row].tobytes() for row in range(2))
    q8 = b"".join(struct.pack("<e", 0.25 + row) + bytes_[row].tobytes() for row in range(2))
    plain = draw.normal(size=5).astype(np.float32)
    content = gguf_file(
        {"a": (3, (2, 32), q4), "b": (8, (1, 64), q8), "c": (0, (5,), plain.tobytes())},
        {"x.y": 7},
    )
    facts, found = gguf_weights.read(content)
    assert facts == {"general.tags": ["a", "bc"], "x.y": 7}
    for row in range(2):
        for column in range(32):
            half = int(packed[row, column % 16])
            number = half % 16 if column < 16 else half // 16
            assert found["a"][row, column] == (0.5 + row) * number - 3.25
            assert found["b"][0, 32 * row + column] == (0.25 + row) * int(bytes_[row, column])
    assert found["c"].tolist() == plain.tolist()


def test_query_rows_come_back_from_the_order_of_llama_cpp() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(12, 2)
    theirs = (
        rows.reshape(3, 2, 2, 2).swapaxes(1, 2).reshape(12, 2)
    )  # convert_hf_to_gguf.py's permute, three heads
    assert not np.array_equal(theirs, rows)
    assert np.array_equal(gguf_weights.halves_apart(theirs, 3), rows)


def test_a_file_gives_the_weights_of_a_llama_under_its_names(model: Path) -> None:
    network = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    names = {
        "embed_tokens": "token_embd", "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v",
        "o_proj": "attn_output", "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "norm": "output_norm",
    }  # fmt: skip
    tensors = {}
    wanted = {
        name: value for name, value in network.state_dict().items() if name != "lm_head.weight"
    }
    for name, value in wanted.items():
        parts = name.split(".")
        array = value.numpy()
        if parts[-2] in ("q_proj", "k_proj"):
            heads = 4 if parts[-2] == "q_proj" else 2
            array = array.reshape(heads, 2, -1, 32).swapaxes(1, 2).reshape(array.shape)
        short = f"{names[parts[-2]]}.weight"
        key = f"blk.{parts[2]}.{short}" if parts[1] == "layers" else short
        tensors[key] = (0, array.shape, array.tobytes())
    heads = {"llama.attention.head_count": 4, "llama.attention.head_count_kv": 2}
    found = gguf_weights.llama_weights(gguf_file(tensors, heads))
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert torch.equal(found[name], value.bfloat16())


def test_parts_in_the_wrong_order_and_unknown_types_are_refused() -> None:
    with pytest.raises(ValueError, match="must begin with 'GGUF'"):
        gguf_weights.read(b"????")
    with pytest.raises(ValueError, match="got type 14"):
        gguf_weights.read(gguf_file({"a": (14, (32,), bytes(32))}, {}))
