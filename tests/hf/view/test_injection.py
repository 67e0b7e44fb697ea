"""Where δ enters: at every family's embeddings, once, in full precision, and with no hook left
behind.
"""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advreg.core.perturbation import Cut, Perturbation
from advreg.hf.view.injection import (
    InjectionError,
    add,
    bare,
    find_sites,
    surviving_share,
)
from advreg.hf.view.view import HFModelView
from tiny_models import EMBEDDING_WIDTH, ENCODER_DECODERS, FAMILIES, WIDTH, tiny, tiny_batch

every_family = pytest.mark.parametrize("family", FAMILIES)


def hooks(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )


def noise_of(task: HFModelView, batch: dict[str, Tensor], scale: float = 0.1) -> Perturbation:
    torch.manual_seed(0)
    return task.zeros(batch).map(lambda values, _: scale * torch.randn_like(values))


# ---- adding


@every_family
def test_zero_is_the_clean_pass_bit_for_bit(family: str) -> None:
    """In training mode too: adding nothing draws nothing."""
    model, batch = tiny(family), tiny_batch(family)
    task = HFModelView(model)
    zeros = task.zeros(batch)
    for training in (False, True):
        model.train(training)
        outputs = []
        for delta in (None, zeros):
            torch.manual_seed(0)
            outputs.append(task.bare_logits(batch, delta))
        assert torch.equal(*outputs)


@every_family
def test_every_stream_moves_the_output_by_itself_and_by_what_was_added(family: str) -> None:
    """Adding c to every real token's embedding is the same as adding c to its row of the table."""
    model = tiny(family, dropout=0.0, dtype=torch.float64)
    batch = tiny_batch(family, lengths=[6, 6])  # no padding: the table's change would reach it
    task = HFModelView(model)
    outputs = {}
    offset = torch.randn(
        next(iter(task.widths(batch).values())), generator=torch.Generator().manual_seed(0)
    ).double()
    for stream in task.zeros(batch).values:
        values = {s: v + offset * (s == stream) for s, v in task.zeros(batch).values.items()}
        outputs[stream] = task.bare_logits(batch, Perturbation(values, task.masks(batch)))
        assert not torch.allclose(outputs[stream], task.bare_logits(batch), atol=1e-4)
    if family in ENCODER_DECODERS:
        assert not torch.allclose(outputs["encoder"], outputs["decoder"], atol=1e-4)
        return
    with torch.no_grad():
        table = model.get_input_embeddings().weight
        head = model.get_output_embeddings()
        if head is not None and head.weight is table:  # tied: the head must not move along
            head.weight = nn.Parameter(table.clone())
        table += offset
    assert torch.allclose(task.bare_logits(batch), outputs["tokens"], atol=1e-5)


def test_the_sum_is_taken_in_the_wider_precision_and_cast_back() -> None:
    """δ must not be rounded to half before it is added, only the sum."""
    output = torch.tensor([[[1.0, 512.0]]], dtype=torch.float16)
    delta = torch.tensor(
        [[[0.00048843, 0.2501]]]
    )  # just above half a unit; rounded to half first, exactly on it
    summed = add(output, delta, "tokens")
    assert summed.dtype == torch.float16
    assert torch.equal(summed, (output.double() + delta.double()).half())
    assert not torch.equal(summed, output + delta.half())
    assert (
        add(torch.zeros(1, 1, 1, dtype=torch.float64), delta[..., :1], "tokens").dtype
        == torch.float64
    )


def test_the_gradient_of_a_half_precision_site_is_single() -> None:
    output = torch.ones(1, 2, 3, dtype=torch.float16)
    delta = torch.zeros(1, 2, 3, requires_grad=True)
    (2 * add(output, delta, "tokens").float()).sum().backward()
    assert delta.grad is not None
    assert delta.grad.dtype == torch.float32
    assert torch.equal(delta.grad, torch.full((1, 2, 3), 2.0))


def test_a_perturbation_of_another_shape_is_refused() -> None:
    task, batch = HFModelView(tiny("bert")), tiny_batch("bert")
    wider = tiny_batch("bert", pad_to=12)
    with pytest.raises(
        InjectionError, match=r"must have the embeddings' shape \(4, 10, 32\), got \(4, 12, 32\)"
    ):
        task.bare_logits(batch, task.zeros(wider))


def test_widths_follow_the_embeddings_and_not_the_layers() -> None:
    for family, width in {
        "albert": EMBEDDING_WIDTH,
        "electra": EMBEDDING_WIDTH,
        "bert": WIDTH,
    }.items():
        assert HFModelView(tiny(family)).widths(tiny_batch(family)) == {"tokens": width}


# ---- hooks


@every_family
def test_hooks_are_there_during_a_pass_and_gone_after_it(family: str) -> None:
    model, batch = tiny(family), tiny_batch(family)
    task = HFModelView(model)
    delta = task.zeros(batch)
    before = hooks(model)
    with task.streams.injection.adding(delta):
        assert hooks(model) > before
        model(**task.inputs.without_labels(batch))
    assert hooks(model) == before


def test_hooks_are_gone_when_the_forward_pass_raises() -> None:
    model, batch = tiny("marian"), tiny_batch("marian")
    task = HFModelView(model)
    delta = task.zeros(batch)
    before = hooks(model)
    clean = task.bare_logits(batch, delta)
    broken = model.lm_head.register_forward_hook(
        lambda *_: (_ for _ in ()).throw(ZeroDivisionError())
    )
    for call in (lambda: task.bare_logits(batch, delta), lambda: task.streams.embeddings(batch)):
        with pytest.raises(ZeroDivisionError):
            call()
        assert hooks(model) == before + 1
    broken.remove()
    assert clean.shape == task.bare_logits(batch, delta).shape  # and the next pass works


def test_a_pass_that_is_left_out_or_made_twice_is_noticed() -> None:
    model, batch = tiny("bert"), tiny_batch("bert")
    task = HFModelView(model)
    delta = task.zeros(batch)
    for passes in (0, 2):
        message = (
            rf"must enter once per pass, .* \(Embedding, site 'tokens'\) was called {passes} times"
        )
        with pytest.raises(InjectionError, match=message), task.streams.injection.adding(delta):
            [model(**task.inputs.without_labels(batch)) for _ in range(passes)]


def test_without_a_perturbation_nothing_is_hooked() -> None:
    model = tiny("bert")
    with HFModelView(model).streams.adding(None, tiny_batch("bert")):
        assert hooks(model) == 0


# ---- resolution (trap 18)


def warned(task: HFModelView, batch: dict[str, Tensor], scale: float) -> list[str]:
    delta = noise_of(task, batch, scale)
    with warnings.catch_warnings(record=True) as caught, torch.no_grad():
        warnings.simplefilter("always")
        task.bare_logits(batch, delta)
    return [
        str(warning.message) for warning in caught if "survives rounding" in str(warning.message)
    ]


def test_a_perturbation_below_the_resolution_is_warned_of_once() -> None:
    batch = tiny_batch("bart")
    task = HFModelView(tiny("bart", dtype=torch.float16))
    messages = warned(task, batch, 1e-6)
    assert [message.split("'")[1] for message in messages] == ["encoder", "decoder"]
    assert "survives rounding to torch.float16; raise radius or the noise scale" in messages[0]
    assert warned(task, batch, 1e-6) == []
    assert warned(HFModelView(tiny("bart", dtype=torch.float16)), batch, 0.1) == []
    assert warned(HFModelView(tiny("bart")), batch, 1e-6) == []


def test_the_surviving_share_counts_the_entries_that_change() -> None:
    output = torch.full((1, 1, 4), 1.0, dtype=torch.bfloat16)  # the next number above is 1 + 2⁻⁷
    delta = torch.tensor([[[0.01, 0.001, 0.0, -0.5]]])
    assert surviving_share(output, delta) == pytest.approx(2 / 3)
    assert surviving_share(output, torch.zeros(1, 1, 4)) == 1.0
    assert surviving_share(output.float(), delta) == 1.0


# ---- sites

BLOCKS = {
    "bert": "bert.embeddings",
    "roberta": "roberta.embeddings",
    "deberta-v2": "deberta.embeddings",
    "albert": "albert.embeddings",
    "electra": "electra.embeddings",
    "distilbert": "distilbert.embeddings",
    "mpnet": "mpnet.embeddings",
    "modernbert": "model.embeddings",
    "gpt2": "transformer.drop",
    "gpt2-lm": "transformer.drop",
}


@pytest.mark.parametrize("family", BLOCKS)
def test_the_block_is_where_positions_and_norm_are_in(family: str) -> None:
    model, batch = tiny(family, dropout=0.0), tiny_batch(family)
    assert find_sites(model, "block") == {"tokens": model.get_submodule(BLOCKS[family])}
    task = HFModelView(model, site="block")
    delta = noise_of(task, batch)
    assert not torch.allclose(task.bare_logits(batch), task.bare_logits(batch, delta), atol=1e-4)
    assert torch.equal(task.bare_logits(batch), task.bare_logits(batch, task.zeros(batch)))


def test_the_block_of_bart_is_its_embedding_norm_on_both_sides() -> None:
    model, batch = tiny("bart", dropout=0.0), tiny_batch("bart")
    encoder, decoder = model.get_encoder(), model.get_decoder()
    sites = {"encoder": encoder.layernorm_embedding, "decoder": decoder.layernorm_embedding}
    assert find_sites(model, "block") == sites
    task = HFModelView(model, site="block")
    assert not torch.allclose(
        task.bare_logits(batch), task.bare_logits(batch, noise_of(task, batch)), atol=1e-4
    )


@pytest.mark.parametrize(
    ("family", "stream"), [("marian", "encoder"), ("t5", "encoder"), ("llama", "tokens")]
)
def test_a_family_without_a_block_says_so_with_a_remedy(family: str, stream: str) -> None:
    message = (
        f"no embedding block for stream '{stream}'; choose site='tokens' or a module's dotted name"
    )
    with pytest.raises(InjectionError, match=message):
        find_sites(tiny(family), "block")


def test_a_module_can_be_named() -> None:
    model, batch = tiny("bert", dropout=0.0), tiny_batch("bert")
    assert find_sites(model, "bert.embeddings.LayerNorm") == {
        "tokens": model.bert.embeddings.LayerNorm
    }
    named, block = (
        HFModelView(model, site=site) for site in ("bert.embeddings.LayerNorm", "block")
    )
    delta = noise_of(named, batch)
    assert torch.equal(
        named.bare_logits(batch, delta), block.bare_logits(batch, delta)
    )  # what follows is dropout, which is off


@pytest.mark.parametrize(
    "site",
    [
        "encoder=model.encoder.layernorm_embedding,decoder=model.decoder.layernorm_embedding",
        "decoder = model.decoder.layernorm_embedding , encoder = model.encoder.layernorm_embedding",
    ],
)
def test_an_encoder_and_a_decoder_are_named_in_any_order(site: str) -> None:
    model = tiny("bart")
    found = find_sites(model, site)
    assert list(found.items()) == list(find_sites(model, "block").items())


@pytest.mark.parametrize(
    ("family", "site", "message"),
    [
        (
            "bart",
            "model.encoder.embed_tokens",
            "site must name a module for each of the streams encoder, decoder",
        ),
        (
            "bart",
            "encoder=model.encoder,source=model.encoder",
            "write it as encoder=module.name,decoder=module.name",
        ),
        (
            "bert",
            "embeddings",
            "site 'embeddings' is no module of BertForSequenceClassification; choose tokens, block",
        ),
        (
            "gpt2",
            "transformer.embd",
            "site 'transformer.embd' is no module of GPT2ForSequenceClassification",
        ),
    ],
)
def test_a_wrong_name_is_answered_with_names_that_exist(
    family: str, site: str, message: str
) -> None:
    with pytest.raises(InjectionError, match=message):
        find_sites(tiny(family), site)


def test_the_model_is_found_inside_whatever_wraps_it() -> None:
    class Ddp(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    class Compiled(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self._orig_mod = module

    model: Any = tiny("bert")
    assert bare(model) is model
    assert bare(Ddp(Compiled(model))) is model
    assert bare(Compiled(Ddp(model))) is model
    assert find_sites(Ddp(model)) == {"tokens": model.get_input_embeddings()}


# ---- cutting


@every_family
def test_a_cut_is_a_perturbation_by_minus_the_embedding(family: str) -> None:
    model, batch = tiny(family, dropout=0.0, dtype=torch.float64), tiny_batch(family)
    task = HFModelView(model)
    masks, embeddings = task.masks(batch), task.streams.embeddings(batch)
    gone = {stream: mask & (torch.arange(mask.shape[1]) % 3 == 1) for stream, mask in masks.items()}
    values = {stream: -embeddings[stream] * gone[stream][..., None] for stream in gone}
    cut = task.bare_logits(batch, Cut(gone))
    assert torch.allclose(cut, task.bare_logits(batch, Perturbation(values, masks)), atol=1e-12)
    assert not torch.allclose(cut, task.bare_logits(batch), atol=1e-4)
    assert hooks(model) == 0


def test_no_gradient_reaches_the_embedding_of_a_token_that_is_cut() -> None:
    model, batch = tiny("bert", dropout=0.0), tiny_batch("bert", lengths=[4])
    cut = torch.tensor([[False, True, False, False]])
    HFModelView(model).logits(batch, Cut({"tokens": cut})).sum().backward()
    slope = model.get_input_embeddings().weight.grad
    assert slope is not None
    assert not bool(slope[batch["input_ids"][0, 1]].any())
    assert bool(slope[batch["input_ids"][0, 2]].any())


def test_a_doubled_batch_is_cut_in_its_second_half() -> None:
    task, batch = (
        HFModelView(tiny("marian", dropout=0.0, dtype=torch.float64)),
        tiny_batch("marian"),
    )
    cut = Cut(
        {
            stream: mask & (torch.arange(mask.shape[1]) == 1)
            for stream, mask in task.masks(batch).items()
        }
    )
    clean, perturbed = task.paired_logits(batch, cut)
    assert torch.allclose(clean, task.bare_logits(batch), atol=1e-12)
    assert torch.allclose(perturbed, task.bare_logits(batch, cut), atol=1e-12)
    assert not torch.allclose(clean, perturbed, atol=1e-4)
