from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch._dynamo.utils import counters
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TrainerCallback

from advreg.hf.patches.compile_layers import compile_layers
from advreg.hf.patches.layerdrop import layers_kept
from advreg.hf.view.head import IGNORED
from advreg.lab.kinds import training
from advreg.lab.kinds.architectures import build_translator
from advreg.lab.kinds.models import ModelError
from advreg.lab.kinds.translation.batching import PairCollator, Pairs
from advreg.lab.kinds.translation.decoding import Decoding
from advreg.lab.kinds.translation.job import (
    TranslationJob,
    TranslationTrainer,
    other_vectors,
    pair_loss,
)
from advreg.lab.kinds.translation.subwords import (
    END,
    PADDING,
    SPECIAL,
    SubwordError,
    learn_subwords,
)
from advreg.lab.kinds.translation.translator import Translator, cut
from advreg.methods import create
from number_words import in_digits, in_words
from observe import close

NUMBERS = range(1000, 1200)
SUBWORDS = learn_subwords(
    [in_words(number) for number in NUMBERS], [in_digits(number) for number in NUMBERS], 60
)


def small(seed: int = 0, **settings: Any) -> Any:
    sizes = {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn_dim": 32,
        "decoder_ffn_dim": 32,
    }
    return build_translator(
        "transformer-small", 60, seed=seed, special=SPECIAL, settings={**sizes, **settings}
    )


def talkative() -> Any:
    """With weights as large as these it says something else of each line; others end at once."""
    return small(seed=3, init_std=1.0)


def encoded(count: int = 12) -> Pairs:
    numbers = list(NUMBERS)[:count]
    return Pairs(
        SUBWORDS.source.encode([in_words(number) for number in numbers]),
        SUBWORDS.target.encode([in_digits(number) for number in numbers]),
    )


def test_a_saved_translator_translates_as_before(tmp_path: Path) -> None:
    lines = [in_words(number) for number in (1001, 1100, 1023)]
    before = Translator(talkative(), SUBWORDS, Decoding(3, 0.5, extra=4))
    assert len(set(before.translate(lines))) == 3
    before.save(tmp_path / "model")
    after = Translator.load(tmp_path / "model")
    assert after.decoding == before.decoding
    assert after.translate(lines) == before.translate(lines)
    assert Translator.load(str(tmp_path)).translate(lines) == before.translate(
        lines
    )  # the run's folder does as well


@pytest.mark.filterwarnings("ignore:Recommended")  # of sacremoses, which changes nothing
@pytest.mark.parametrize("beam", [1, 3])
def test_transformers_alone_translates_with_what_was_saved(tmp_path: Path, beam: int) -> None:
    lines = [in_words(number) for number in (1001, 1100, 1023)]
    limited = Decoding(beam, 0.5, ratio=0, extra=6)  # whatever the source
    Translator(talkative(), SUBWORDS, limited).save(tmp_path)
    tokenizer, model = (
        AutoTokenizer.from_pretrained(tmp_path),
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path),
    )
    found = model.generate(**tokenizer(lines, padding=True, return_tensors="pt"))
    assert found.shape == (3, 1 + 6)
    translations = tokenizer.batch_decode(found, skip_special_tokens=True)
    assert translations == Translator.load(tmp_path).translate(lines)
    assert len(set(translations)) == 3


def test_an_empty_line_stays_empty_and_lines_keep_their_places() -> None:
    translator = Translator(small(), SUBWORDS, Decoding(1, extra=4))
    lines = ["one hundred", "", "two", "   "]
    found = translator.translate(lines)
    assert [bool(line.strip()) for line in lines] == [index in (0, 2) for index in range(4)]
    assert (found[1], found[3]) == ("", "")
    assert [found[0], found[2]] == translator.translate([lines[0], lines[2]])
    assert translator.translate([]) == []


def test_a_line_longer_than_the_positions_is_cut_and_keeps_its_end() -> None:
    assert cut([[5, 6, 7, END], [5, END]], 3) == [[5, 6, END], [5, END]]
    assert Translator(small(), SUBWORDS, Decoding(1, ratio=0, extra=2)).translate(
        ["one hundred " * 400]
    )


def test_a_folder_that_is_no_translator_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"folder of a translation run, got .*, which does not exist"
    ):
        Translator.load(tmp_path / "none")
    with pytest.raises(SubwordError, match=r"must hold source\.spm, target\.spm, vocab\.json"):
        Translator.load(tmp_path)
    Translator(small(), SUBWORDS, Decoding()).save(tmp_path)
    (tmp_path / "decoding.json").write_text('{"beams": 3}')
    with pytest.raises(
        ModelError, match=r"decoding\.json: must hold settings of the decoding, got: .*beams"
    ):
        Translator.load(tmp_path)


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_read(
    device: str, tmp_path: Path
) -> None:
    with pytest.raises(
        ValueError, match=rf"device must be cpu.* here, got '{device}', .*; leave it out"
    ):
        Translator.load(tmp_path / "none", device)


@pytest.mark.parametrize(
    "error", [AssertionError("not compiled with CUDA"), RuntimeError("no NVIDIA driver")]
)
def test_a_machine_without_cuda_has_the_cpu_alone(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "empty", without)
    with pytest.raises(
        ValueError,
        match="device must be cpu here, got 'cuda', a CUDA device that torch does not find",
    ):
        Translator.load(Path("none"), "cuda")


def test_subwords_of_another_model_are_refused(tmp_path: Path) -> None:
    Translator(small(), SUBWORDS, Decoding()).save(tmp_path)
    learn_subwords([in_words(number) for number in NUMBERS], ["1 2 3"], 50).save(tmp_path)
    with pytest.raises(SubwordError, match="subwords must be 60 and 60, got 50 and 50"):
        Translator.load(tmp_path)


@pytest.mark.parametrize("multiple", [1, 8])
def test_the_loss_is_the_mean_over_target_tokens_whatever_the_batches(multiple: int) -> None:
    model, pairs = small(dropout=0.5), encoded()
    collate = PairCollator(PADDING, END)
    with torch.no_grad():
        total = count = 0.0
        for index in range(len(pairs)):
            batch = collate([pairs[index]])
            length = int((batch["labels"] != IGNORED).sum())
            total += float(model.eval()(**batch).loss) * length
            count += length
    model.train()
    for budget in (1, 50, 10_000):
        found = pair_loss(model, pairs, PairCollator(PADDING, END, multiple), budget)
        assert found == pytest.approx(total / count, rel=1e-5)
    assert model.training


# ---- other embeddings for the neighbours


def test_sentence_vectors_are_mean_embeddings_of_the_other_model(tmp_path: Path) -> None:
    other, pairs = small(seed=7), encoded()
    other.save_pretrained(tmp_path)
    found = other_vectors(tmp_path, pairs, PairCollator(PADDING, END), ("encoder", "decoder"))
    table = other.get_input_embeddings().weight.detach()
    assert set(found) == {"encoder", "decoder"}
    assert torch.allclose(
        found["encoder"][3], table[pairs[3]["input_ids"].long()].mean(0), atol=1e-6
    )


def test_sentence_vectors_come_from_a_file_too(tmp_path: Path) -> None:
    vectors = {"encoder": torch.randn(12, 5), "decoder": torch.randn(12, 7)}
    save_file(vectors, tmp_path / "v.safetensors")
    found = other_vectors(tmp_path / "v.safetensors", encoded(), None, ("encoder", "decoder"))
    assert all(torch.equal(found[stream], vectors[stream]) for stream in vectors)


def test_vectors_that_do_not_fit_the_data_are_named(tmp_path: Path) -> None:
    save_file({"encoder": torch.randn(11, 5)}, tmp_path / "v.safetensors")
    with pytest.raises(
        ValueError, match=r"'encoder', a vector for each of the 12 training samples, got \(11, 5\)"
    ):
        other_vectors(tmp_path / "v.safetensors", encoded(), None, ("encoder", "decoder"))
    with pytest.raises(
        ValueError, match=r"must be a model folder or a safetensors file, got '.*none'"
    ):
        other_vectors(tmp_path / "none", encoded(), None, ("encoder",))


# ---- compiled

SETTINGS: dict[str, dict[str, Any]] = {"arch": {"refresh_every": 2, "cache_fraction": 0.5}}
# Graphs of a whole run: of each kind of pass one, and a second once shapes vary; SMART and ARCH
# make three kinds.
GRAPHS = {"r3f": 2, "freelb": 2, "smart": 6, "arch": 6}


class GraphsPerStep(TrainerCallback):
    """How many graphs there are after each update, and after each validation."""

    def __init__(self) -> None:
        self.updates, self.validations = list[int](), list[int]()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.updates.append(counters["stats"]["unique_graphs"])

    def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self.validations.append(counters["stats"]["unique_graphs"])


def of_many_lengths() -> Pairs:
    """Sentences of one to six numbers."""
    draw = random.Random(0)
    rows = [[draw.choice(NUMBERS) for _ in range(1 + index % 6)] for index in range(48)]
    sides = ((SUBWORDS.source, in_words), (SUBWORDS.target, in_digits))
    return Pairs(*(side.encode([" ".join(map(say, row)) for row in rows]) for side, say in sides))


def translation_run(
    name: str,
    folder: Path,
    compile_layers: bool = False,
    **fields: Any,
) -> tuple[TranslationTrainer, GraphsPerStep]:
    """Two epochs, each with a validation and a checkpoint."""
    lines = [in_words(number) for number in list(NUMBERS)[:4]]
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_steps": 100}
    epochs = {
        "num_train_epochs": 2,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "learning_rate": 1e-3,
    }
    job = TranslationJob(
        model=small(dropout=0.0),
        subwords=SUBWORDS,
        train=of_many_lengths(),
        valid=encoded(),
        valid_lines=lines,
        score_lines=lambda found: {"bleu": float(len(found))},
        method=create(name, **SETTINGS.get(name, {})),
        folder=folder,
        max_tokens=150,
        decoding=Decoding(2, extra=2),
        compile_layers=compile_layers,
        fields={**quiet, **epochs, **fields},
    )
    trainer, watch = TranslationTrainer(job), GraphsPerStep()
    trainer.add_callback(watch)
    return trainer, watch


def weights_of(trainer: TranslationTrainer) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trainer.job.model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_a_compiled_run_ends_with_the_weights_of_an_eager_one(
    name: str, tmp_path: Path, graphs: Any
) -> None:
    """Few graphs, however many shapes; and neither validation nor decoding makes another."""
    eager, _ = translation_run(name, tmp_path / "eager")
    batches = [
        eager.job.collator()([eager.job.train[index] for index in rows])
        for rows in eager.job.batches()
    ]
    shapes = {(batch["input_ids"].shape, batch["labels"].shape) for batch in batches}
    assert len(shapes) > 8
    with layers_kept():  # the draws of noise are the same then
        eager.train()
    assert not graphs["stats"]

    compiled, watch = translation_run(
        name, tmp_path / "compiled", torch_compile=True, torch_compile_backend="aot_eager"
    )
    compiled.train()
    assert close(weights_of(compiled), weights_of(eager), 1e-4)
    assert not close(weights_of(compiled), dict(small(dropout=0.0).named_parameters()), 1e-3)
    assert watch.updates[-1] <= GRAPHS[name]
    assert watch.updates[-1] == watch.updates[len(batches) // 2]
    assert [watch.updates[len(batches) - 1], watch.updates[-1]] == watch.validations
    assert not graphs["graph_break"]
    (saved,) = (tmp_path / "compiled" / f"checkpoint-{2 * len(batches)}").glob("model.safetensors")
    assert load_file(saved).keys() <= compiled.job.model.state_dict().keys()


@pytest.mark.parametrize("name", ["standard", pytest.param("arch", marks=pytest.mark.slow)])
def test_a_run_with_compiled_layers_ends_with_the_weights_of_an_eager_one(
    name: str, tmp_path: Path, graphs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of encoder and decoder layers a graph with and one without a mask, for each kind of pass; no
    more later.
    """
    monkeypatch.setattr(training, "compile_layers", partial(compile_layers, backend="aot_eager"))
    eager, _ = translation_run(name, tmp_path / "eager")
    eager.train()
    assert not graphs["stats"]
    compiled, watch = translation_run(name, tmp_path / "compiled", compile_layers=True)
    compiled.train()
    assert close(weights_of(compiled), weights_of(eager), 1e-4)
    assert not close(weights_of(compiled), dict(small(dropout=0.0).named_parameters()), 1e-3)
    assert 2 <= watch.updates[-1] <= {"standard": 4, "arch": 12}[name]
    assert watch.updates[-1] == watch.updates[len(watch.updates) // 2] == watch.validations[-1]
    assert not graphs["graph_break"]
