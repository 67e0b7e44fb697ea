"""The doctor: passes where δ arrives and does what it should, and says why where it does not."""

from typing import Any

import peft
import pytest
import torch
import transformers
from torch import Tensor, nn

from advreg.core.perturbation import Perturbation
from advreg.hf.view.view import HFModelView
from advreg.lab.doctor import Finding, examine, only, random_batch
from tiny_models import CAUSAL_LMS, ENCODER_DECODERS, FAMILIES, lora_targets, tiny, tiny_batch

every_family = pytest.mark.parametrize("family", FAMILIES)

CANNOT_CHECKPOINT = ("albert", "mpnet")

PER_STREAM = (
    "hook fires once per pass",
    "δ ≠ 0 changes the output",
    "∇_δ is finite and not zero",
    "δ is above the dtype's resolution",
)
PER_MODEL = ("δ = 0 equals the clean pass", "fused pass equals two passes")


def lora(model: Any, targets: list[str], **settings: Any) -> Any:
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets, **settings))


def failures(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings if not finding.passed}


def require_healthy(model: Any, **ways: Any) -> None:
    """Every check was made, for every stream, and passed."""
    findings = examine(model, **ways)
    assert failures(findings) == {}
    config = model.config if not hasattr(model, "get_base_model") else model.get_base_model().config
    streams = ("encoder", "decoder") if config.is_encoder_decoder else ("tokens",)
    expected = [(stream, check) for stream in streams for check in PER_STREAM] + [
        ("model", c) for c in PER_MODEL
    ]
    assert sorted((finding.stream, finding.check) for finding in findings) == sorted(expected)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)  # M2M100 drops whole layers, with bad luck both of the decoder's


# ---- healthy models


@every_family
def test_every_family_is_healthy(family: str) -> None:
    require_healthy(tiny(family))


@every_family
def test_every_family_is_healthy_with_lora(family: str) -> None:
    require_healthy(lora(tiny(family), lora_targets(family), fan_in_fan_out="gpt2" in family))


@pytest.mark.parametrize(
    ("family", "embedding"), [("bert", "word_embeddings"), ("t5", "shared"), ("gpt2", "wte")]
)
def test_lora_on_the_embedding_itself_is_healthy(family: str, embedding: str) -> None:
    require_healthy(lora(tiny(family), ["embed_tokens" if family == "t5" else embedding]))


def test_an_embedding_that_peft_keeps_a_copy_of_is_healthy() -> None:
    require_healthy(lora(tiny("bert"), ["query"], modules_to_save=["word_embeddings"]))


@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family not in CANNOT_CHECKPOINT]
)
def test_every_family_is_healthy_under_non_reentrant_checkpointing(family: str) -> None:
    model = tiny(family)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    require_healthy(model)


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bart", "BartForSequenceClassification"),
        ("t5", "T5ForSequenceClassification"),
        ("bert", "BertForTokenClassification"),
        ("bert", "BertForMaskedLM"),
        ("gpt2", "GPT2ForTokenClassification"),
    ],
)
def test_other_heads_are_healthy(family: str, head: str) -> None:
    config = tiny(family).config
    config.num_labels = 3
    require_healthy(getattr(transformers, head)(config))


def test_regression_and_several_labels_are_healthy() -> None:
    require_healthy(tiny("bert", num_labels=1))
    model = tiny("bert", problem_type="multi_label_classification")
    batch = random_batch(model)
    require_healthy(model, batch={**batch, "labels": torch.ones(4, 3)})


@every_family
def test_the_random_batch_fits_the_model_and_is_ragged(family: str) -> None:
    model = tiny(family)
    batch = random_batch(model)
    lengths = batch["attention_mask"].sum(1)
    assert len(set(lengths.tolist())) > 1
    assert torch.isfinite(model(**batch).loss)
    special = {
        value for name, value in model.config.to_dict().items() if name.endswith("_token_id")
    }
    real = batch["input_ids"][batch["attention_mask"] == 1].tolist()
    assert not special & set(real)
    if family in CAUSAL_LMS + ENCODER_DECODERS:
        assert bool((batch["labels"] == -100).any())


# ---- one module for both streams


@pytest.mark.parametrize("family", ["bart", "t5", "marian"])
def test_after_resizing_each_stream_still_gets_its_own_perturbation(family: str) -> None:
    """`resize_token_embeddings` leaves encoder and decoder one module, called twice: first by the
    encoder.
    """
    model = tiny(family, dropout=0.0)
    model.resize_token_embeddings(60, mean_resizing=False)
    shared = model.get_encoder().get_input_embeddings()
    assert shared is model.get_decoder().get_input_embeddings()
    require_healthy(model)
    task, batch = HFModelView(model), tiny_batch(model)
    torch.manual_seed(0)
    noise = task.zeros(batch).map(lambda values, _: torch.randn_like(values))
    zeros = task.zeros(batch)
    for delta in (noise, only("encoder", noise, zeros), only("decoder", noise, zeros)):
        assert torch.allclose(
            task.bare_logits(batch, delta), by_embeddings(task, batch, delta), atol=1e-5
        )


def by_embeddings(task: HFModelView, batch: dict[str, Tensor], delta: Perturbation) -> Tensor:
    """The same by the other door: embeddings looked up and perturbed outside, and handed in."""
    model: Any = task.model
    tokens = task.tokens(batch)
    table = model.get_input_embeddings().weight
    streams = {stream: table[ids] + delta.values[stream] for stream, (ids, _) in tokens.items()}
    streams["encoder"] *= getattr(
        model.get_encoder(), "embed_scale", 1.0
    )  # Marian's decoder scales by itself
    logits: Tensor = model(
        inputs_embeds=streams["encoder"],
        decoder_inputs_embeds=streams["decoder"],
        attention_mask=batch["attention_mask"],
        use_cache=False,
    ).logits
    return logits


# ---- models that are not


@pytest.mark.parametrize(("family", "name"), [("bart", "model.shared"), ("t5", "shared")])
def test_a_module_that_is_never_called_is_found_out(family: str, name: str) -> None:
    """What NEFTune hooks in the stock Trainer."""
    (finding,) = examine(tiny(family), site=f"encoder={name},decoder={name}")
    assert not finding.passed
    assert "was called 0 times" in finding.remedy
    assert "site='name'" in finding.remedy


def test_a_module_that_is_called_twice_is_found_out() -> None:
    layer = "albert.encoder.albert_layer_groups.0.albert_layers.0.full_layer_layer_norm"
    (finding,) = examine(tiny("albert"), site=layer)
    assert not finding.passed
    assert "was called 2 times" in finding.remedy


class Deaf(transformers.BertForSequenceClassification):  # type: ignore[misc]
    """Looks its words up, and predicts from other ones."""

    def forward(self, input_ids: Tensor, **inputs: Any) -> Any:
        self.get_input_embeddings()(input_ids)
        return super().forward(
            inputs_embeds=torch.ones(*input_ids.shape, self.config.hidden_size), **inputs
        )


def test_a_model_that_does_not_use_its_embeddings_is_found_out() -> None:
    found = failures(examine(Deaf(tiny("bert").config)))
    assert set(found) == {"δ ≠ 0 changes the output", "∇_δ is finite and not zero"}
    assert "a module whose output is not used" in found["δ ≠ 0 changes the output"].remedy


class Sociable(transformers.BertForSequenceClassification):  # type: ignore[misc]
    """Every sample sees the mean of the batch, as with batch statistics."""

    def forward(self, **inputs: Any) -> Any:
        output = super().forward(**inputs)
        output.logits = output.logits - 0.5 * output.logits.mean(0)
        return output


def test_a_model_whose_samples_influence_each_other_is_found_out() -> None:
    found = failures(examine(Sociable(tiny("bert").config), radius=1.0))
    assert set(found) == {"fused pass equals two passes"}
    assert "use fuse=False" in found["fused pass equals two passes"].remedy


class Noisy(transformers.BertForSequenceClassification):  # type: ignore[misc]
    """Random also in evaluation mode."""

    def forward(self, **inputs: Any) -> Any:
        output = super().forward(**inputs)
        output.logits = output.logits + torch.rand_like(output.logits)
        return output


def test_a_model_with_noise_of_its_own_is_found_out() -> None:
    assert "δ = 0 equals the clean pass" in failures(examine(Noisy(tiny("bert").config)))


@pytest.mark.parametrize("keywords", [{"use_reentrant": True}, {}])
@pytest.mark.parametrize("family", ["bert", "marian", "llama"])
def test_reentrant_checkpointing_is_found_out(family: str, keywords: dict[str, Any]) -> None:
    """No keyword at all is reentrant too: that is torch's default."""
    model = tiny(family)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=keywords)
    (finding,) = examine(model)
    assert not finding.passed
    assert "gradient_checkpointing_kwargs={'use_reentrant': False}" in finding.remedy


@pytest.mark.filterwarnings("ignore:only .* survives rounding")
def test_a_radius_below_the_resolution_of_half_precision_is_found_out() -> None:
    model = tiny("bert", dtype=torch.float16)
    assert "δ is above the dtype's resolution" not in failures(examine(model, radius=1.0))
    finding = failures(examine(model, radius=1e-4))["δ is above the dtype's resolution"]
    assert "rounded away in torch.float16" in finding.remedy
    assert "raise radius" in finding.remedy
    assert failures(examine(tiny("bert"), radius=1e-4)) == {}


def test_infinite_gradients_are_found_out() -> None:
    model = tiny("bert")
    nn.init.constant_(model.classifier.weight, float("inf"))
    assert "∇_δ is finite and not zero" in failures(examine(model))


@pytest.mark.parametrize(
    ("family", "site", "reason"),
    [
        (
            "bert",
            "bert.embedings",
            "is no module of BertForSequenceClassification.*bert.embeddings",
        ),
        ("bart", "model.encoder.embed_tokens", "each of the streams encoder, decoder"),
        ("bart", "encoder=model.encoder.embed_tokens", "encoder=module.name,decoder=module.name"),
        ("t5", "block", "no embedding block for stream 'encoder'"),
        ("bert", "bert.pooler", r"must output one tensor \(B, T, D\), got \(4, 32\)"),
        ("bert", "bert.encoder", r"must output one tensor \(B, T, D\), got BaseModelOutput"),
    ],
)
def test_a_site_that_cannot_be_hooked_is_found_out(family: str, site: str, reason: str) -> None:
    (finding,) = examine(tiny(family), site=site)
    assert not finding.passed
    with pytest.raises(ValueError, match=reason):
        raise ValueError(finding.remedy)


def test_examining_leaves_the_model_as_it_was() -> None:
    model = tiny("bart")
    model.get_encoder().eval()  # a mixed state
    flags = {name: module.training for name, module in model.named_modules()}
    hooks = {name: len(module._forward_hooks) for name, module in model.named_modules()}
    examine(model)
    assert flags == {name: module.training for name, module in model.named_modules()}
    assert hooks == {name: len(module._forward_hooks) for name, module in model.named_modules()}
    assert all(value.grad is None and value.requires_grad for value in model.parameters())
