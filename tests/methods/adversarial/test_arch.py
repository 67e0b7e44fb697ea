import math
import re
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import naive
from advreg.core.shard import Shard
from advreg.hf.checkpoint.state import load_method, save_method
from advreg.hf.survey import survey
from advreg.hf.view.view import HFModelView
from advreg.memory.corpus import Corpus
from advreg.methods import Arch, Method, create, preset, registry
from naive import Inner, Rows
from observe import (
    Batch,
    Padded,
    batch_of,
    close,
    exact,
    features_of,
    gradients,
    ready,
    step,
    take,
    watched,
)
from padded import perturbation

INNER = {"radius": 0.5, "ascent_steps": 2, "step_size": 0.4, "weight": 2.0}
SETTINGS = INNER | {"refresh_every": 2, "ema": 0.4, "cache_fraction": 0.5, "neighbours": 2}
NLU = {
    "norm": "linf",
    "scope": "token",
    "start": "normal",
    "start_scale": 0.01,
    "step_rule": "gradient",
    "step_size": 0.5,
    "radius": 0.02,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "half cached, two neighbours": {},
    "all cached": {"cache_fraction": 1.0},
    "one neighbour, two passes, symmetric": {
        "neighbours": 1,
        "fuse": False,
        "divergence": "symmetric_kl",
    },
    "cached once, as for understanding": NLU | {"refresh_every": None, "detach_clean": True},
    "cached once, normalised and rescaled": NLU
    | {"refresh_every": None, "step_rule": "normalised", "step_end": "rescale", "step_size": 0.05},
    "on disk": {"cache_device": "disk"},
}


def used(passes: list[Any], task: HFModelView, batch: Batch) -> list[list[Rows]]:
    """δ of each perturbed pass of a step, sample by sample; the clean copies of a fused pass are
    split off.
    """
    whole = [
        one.second_half() if one.rows == 2 * len(batch["input_ids"]) else one for one in passes
    ]
    return [one.samples(task, batch) for one in whole if one.perturbed]


def trained(method: Method, task: HFModelView, batch: Batch, **ways: Any) -> list[Rows]:
    """One step, and the δ it trained on."""
    with watched(task.model) as passes:
        step(method, task, batch, **ways)
    task.model.zero_grad()
    return used(passes, task, batch)[-1]


def same(mine: Rows, theirs: Rows, tolerance: float = 1e-6) -> bool:
    return all(
        bool((mine[stream] - rows).abs().max() < tolerance) for stream, rows in theirs.items()
    )


def far(mine: Rows, theirs: Rows) -> bool:
    return all(bool((mine[stream] - rows).abs().max() > 1e-3) for stream, rows in theirs.items())


def setting(family: str, size: int = 6, **options: Any) -> tuple[Method, HFModelView, Batch]:
    method, task, batch = (
        create("arch", **SETTINGS | options),
        HFModelView(exact(family).eval()),
        batch_of(family, size),
    )
    ready(method, task, batch)
    return method, task, batch


@pytest.mark.parametrize(
    ("family", "variant"),
    [("bert", variant) for variant in VARIANTS] + [("marian", "half cached, two neighbours")],
)
def test_arch_agrees_with_its_reference(family: str, variant: str) -> None:
    """Three epochs of two batches in an order that changes, the weights moving all the while."""
    options = VARIANTS[variant]
    method, task, batch = setting(family, **options)
    # Evaluation mode, since Marian draws a number per layer in training (for layer drop) even where
    # it drops none.
    model, reference = task.model, exact(family).eval()
    names = set(Inner.__dataclass_fields__)
    other = naive.Arch(
        Inner(**{name: value for name, value in (SETTINGS | options).items() if name in names}),
        refresh_every=(SETTINGS | options)["refresh_every"],
        ema=SETTINGS["ema"],
        neighbours=(SETTINGS | options)["neighbours"],
        cached=set(method.memory.state().tensors["cache.ids"].tolist()),
        corpus=naive.sentences(reference, batch),
    )
    other.prepare(reference)
    for epoch in range(3):
        order = torch.randperm(6, generator=torch.Generator().manual_seed(epoch)).tolist()
        for number, ids in enumerate((order[:3], order[3:])):
            part = take(batch, ids)
            with watched(model) as passes:
                report = step(method, task, part, epoch=epoch, seed=10 * epoch + number)
            torch.manual_seed(10 * epoch + number)
            expected = other.step(reference, ids, epoch)
            for name in ("loss", "task_loss", "penalty"):
                assert float(getattr(report, name)) == pytest.approx(
                    getattr(expected, name), abs=1e-6
                )
            paths = used(passes, task, part)
            assert len(paths) == len(expected.path)
            for mine, theirs in zip(paths, expected.path, strict=True):
                assert all(same(*pair) for pair in zip(mine, theirs, strict=True))
            assert close(gradients(model), gradients(reference))
            for one in (model, reference):
                torch.optim.SGD(one.parameters(), lr=0.02).step()
                one.zero_grad()


def test_refreshes_fall_on_the_multiples_of_the_gap_and_nowhere_else() -> None:
    method, task, batch = setting("bert", refresh_every=2)
    passes_of = {}
    for epoch in range(5):
        with watched(task.model) as passes:
            step(method, task, batch, epoch=epoch)
        passes_of[epoch] = [one.rows for one in passes]
    refresh, reuse = [6] * 4, [12]  # clean, two ascents and the trained pass; or one fused pass
    assert passes_of == {0: refresh, 1: reuse, 2: refresh, 3: reuse, 4: refresh}


def test_without_a_gap_only_epoch_zero_refreshes() -> None:
    method, task, batch = setting("bert", refresh_every=None)
    found = [trained(method, task, batch, epoch=epoch, seed=epoch) for epoch in range(4)]
    assert all(same(one[i], two[i]) for one, two in pairwise(found[1:]) for i in range(6))


def kinds_of(method: Method, task: HFModelView, batch: Batch, epochs: range) -> dict[int, str]:
    """What each epoch does with the cache, seen from its passes."""
    found = {}
    for epoch in epochs:
        with watched(task.model) as passes:
            step(method, task, batch, epoch=epoch)
        found[epoch] = "reuse" if [one.rows for one in passes] == [12] else "refresh"
    return found


@pytest.mark.parametrize(
    ("every", "refreshes"), [(5, {7, 10, 15}), (None, {7}), (1, set(range(7, 17)))]
)
def test_a_memory_that_is_empty_in_mid_run_is_filled_in_the_first_epoch_that_it_sees(
    every: int | None, refreshes: set[int]
) -> None:
    """As after a checkpoint of another trainer: without that every perturbation would be zero until
    a refresh.
    """
    method, task, batch = setting("bert", refresh_every=every, cache_fraction=1.0)
    found = kinds_of(method, task, batch, range(7, 17))
    assert {epoch for epoch, kind in found.items() if kind == "refresh"} == refreshes
    ready(method, task, batch)  # a new run
    again = kinds_of(method, task, batch, range(2))
    assert again == {0: "refresh", 1: "refresh" if every == 1 else "reuse"}


@pytest.mark.parametrize(
    ("stands_at", "refreshes"), [(7.0, {7}), (7.0000001, {7}), (6.9999999, {7}), (7.4, {7, 8})]
)
def test_a_memory_that_begins_within_an_epoch_is_filled_by_the_next_one(
    stands_at: float, refreshes: set[int]
) -> None:
    """The samples that came before it in that epoch would otherwise have no perturbation until a
    refresh.
    """
    method, task, batch = setting("bert", refresh_every=None, cache_fraction=1.0)
    method.memory.load((), stands_at)
    found = kinds_of(method, task, batch, range(7, 10))
    assert {epoch for epoch, kind in found.items() if kind == "refresh"} == refreshes


def test_where_a_memory_began_is_remembered(tmp_path: Path) -> None:
    method, task, batch = setting("bert", refresh_every=None, cache_fraction=1.0)
    method.memory.load((), 7.4)
    kinds_of(method, task, batch, range(7, 8))
    save_method(method, tmp_path)
    resumed, *_ = setting("bert", refresh_every=None, cache_fraction=1.0)
    load_method(resumed, tmp_path)
    assert kinds_of(resumed, task, batch, range(8, 11)) == {8: "refresh", 9: "reuse", 10: "reuse"}
    report = step(resumed, task, batch, epoch=10)
    assert report.measures["cache_staleness"] == 2


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_a_cached_sample_gets_its_own_rows_back_wherever_the_batch_puts_it(family: str) -> None:
    """By id, not by position; by real token, not by column: the batch is shuffled, cut and padded
    differently.
    """
    method, task, batch = setting(family, cache_fraction=1.0)
    written = trained(method, task, batch, epoch=0)
    for ids in ([5, 1, 3], [0, 4], [2]):
        part, wider = take(batch, ids), torch.nn.functional.pad
        part["input_ids"] = wider(part["input_ids"], (2, 3), value=task.model.config.pad_token_id)
        part["attention_mask"] = wider(part["attention_mask"], (2, 3))
        read = trained(method, task, part, epoch=1, seed=99)
        assert all(same(mine, written[i]) for mine, i in zip(read, ids, strict=True))
    assert all(
        far({stream: written[0][stream][:1]}, {stream: written[1][stream][:1]})
        for stream in written[0]
    )


def test_a_refresh_trains_on_the_average_of_old_and_new_and_caches_it() -> None:
    method, task, batch = setting("bert", cache_fraction=1.0, ema=0.4)
    first = trained(method, task, batch, epoch=0, seed=1)
    with watched(task.model) as passes:
        step(
            create("smart", **INNER, divergence="kl"), task, batch, seed=2
        )  # the same ascent, without a memory
    fresh = used(passes, task, batch)[-1]
    second = trained(method, task, batch, epoch=2, seed=2)
    reused = trained(method, task, batch, epoch=3, seed=3)
    for i in range(6):
        blend = 0.4 * first[i]["tokens"] + 0.6 * fresh[i]["tokens"]
        assert float(blend.norm()) < 0.5  # inside the ball, where projecting changes nothing
        assert same(second[i], {"tokens": blend})
        assert same(reused[i], second[i])
        assert far(second[i], fresh[i])


def test_the_first_write_is_not_shrunk() -> None:
    method, task, batch = setting("bert", cache_fraction=1.0, ema=0.9)
    for delta in trained(method, task, batch, epoch=0):
        assert float(delta["tokens"].norm()) == pytest.approx(
            0.5, abs=1e-6
        )  # ascended onto the surface


def test_an_average_that_leaves_the_ball_is_projected_back() -> None:
    """A convex blend of two points of a ball stays in it, unless the ball has shrunk since the
    first was written.
    """
    method, task, batch = setting("bert", cache_fraction=1.0, ema=0.9)
    trained(method, task, batch, epoch=0)
    method.radius = 0.1
    method.memory.ball = method.ball
    for epoch in (1, 2, 3):  # read, average, read
        for delta in trained(method, task, batch, epoch=epoch):
            assert float(delta["tokens"].norm()) == pytest.approx(0.1, abs=1e-6)


def test_a_borrowed_mean_that_leaves_the_ball_is_projected_back() -> None:
    """A mean repeated over a sentence longer than its neighbour's has a larger norm than the
    neighbour's δ.
    """
    task, batch = HFModelView(exact("bert").eval()), batch_of("bert", lengths=[2, 40, 40, 40])
    method = create("arch", **SETTINGS | {"cache_fraction": 0.25, "neighbours": 1})
    for seed in range(50):  # until the short sentence is the cached one
        ready(method, task, batch, seed)
        if method.memory.state().tensors["cache.ids"].tolist() == [0]:
            break
    trained(method, task, batch, epoch=0)
    recalled = trained(method, task, batch, epoch=1)
    mean = recalled[0]["tokens"].mean(0)
    assert float(mean.norm()) * math.sqrt(40) > 0.5
    for delta in recalled[1:]:
        assert float(delta["tokens"].norm()) == pytest.approx(0.5, abs=1e-6)
        assert same({"tokens": delta["tokens"]}, {"tokens": delta["tokens"][:1].expand(40, -1)})


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_an_uncached_sample_trains_on_its_own_ascent_in_a_refresh(family: str) -> None:
    """Also at the second refresh, where cached samples are averaged with their past."""
    method, task, batch = setting(family)
    cached = method.memory.state().tensors["cache.ids"].tolist()
    trained(method, task, batch, epoch=0, seed=1)
    with watched(task.model) as passes:
        step(create("smart", **INNER, divergence="kl"), task, batch, seed=2)
    task.model.zero_grad()
    fresh = used(passes, task, batch)[-1]
    second = trained(method, task, batch, epoch=2, seed=2)
    assert len(cached) == 3
    for i in range(6):
        assert same(second[i], fresh[i]) == (i not in cached)


def test_an_uncached_sample_borrows_the_mean_of_its_neighbours_means() -> None:
    method, task, batch = setting("marian")
    cached = method.memory.state().tensors["cache.ids"].tolist()
    written = trained(method, task, batch, epoch=0)
    recalled = trained(method, task, batch, epoch=1)
    sentences = naive.sentences(task.model, batch)
    chosen = {}
    for stream, module in naive.sites(task.model).items():
        vectors = [module.weight[naive.streams(one)[stream]].mean(0).tolist() for one in sentences]
        for i in set(range(6)) - set(cached):
            ranked = sorted(
                cached, key=lambda j, i=i, vectors=vectors: -naive.cosine(vectors[i], vectors[j])
            )
            chosen[stream, i] = set(ranked[:2])
            mean = torch.stack([written[j][stream].mean(0) for j in ranked[:2]]).mean(0)
            assert same(
                {stream: recalled[i][stream]}, {stream: mean.expand_as(recalled[i][stream])}
            )
    assert any(chosen["encoder", i] != chosen["decoder", i] for i in range(6) if i not in cached)


def test_random_neighbours_are_others_and_stay_the_same() -> None:
    near, task, batch = setting("bert", size=8, neighbours=1)
    random, *_ = setting("bert", size=8, neighbours=1, neighbour_choice="random")
    slots = [method.memory.state().tensors["neighbours.tokens"] for method in (near, random)]
    assert not torch.equal(*slots)
    for method in (near, random):
        trained(method, task, batch, epoch=0)
    one, two = (trained(random, task, batch, epoch=1, seed=seed) for seed in (5, 6))
    assert all(same(a, b) for a, b in zip(one, two, strict=True))


def test_a_resumed_run_keeps_the_neighbours_found_before_training(tmp_path: Path) -> None:
    """The embeddings have moved since, and would give others."""
    method, task, batch = setting("bert", size=8, neighbours=1)
    save_method(method, tmp_path)
    found = method.memory.state().tensors["neighbours.tokens"].clone()
    table = task.model.get_input_embeddings().weight
    with torch.no_grad():
        table.copy_(table.roll(7, 0))
    resumed = create("arch", **SETTINGS | {"neighbours": 1})
    ready(resumed, task, batch)
    assert not torch.equal(resumed.memory.state().tensors["neighbours.tokens"], found)
    load_method(resumed, tmp_path)
    trained(resumed, task, batch, epoch=0)
    trained(method, task, batch, epoch=0)
    mine, theirs = (trained(one, task, batch, epoch=1) for one in (resumed, method))
    assert all(same(*pair) for pair in zip(mine, theirs, strict=True))


def test_the_cache_set_has_the_size_asked_for_and_depends_on_the_seed_alone() -> None:
    task, batch = HFModelView(exact("bert")), batch_of("bert", 10)
    corpus = survey(task, features_of(batch), Padded(0))
    drawn = {}
    for seed in (1, 2, 1):
        method = create("arch", cache_fraction=0.35)
        torch.manual_seed(int(torch.randint(2**20, ())))  # the global random state has no say
        method.memory.prepare(corpus, seed, torch.device("cpu"))
        ids = method.memory.state().tensors["cache.ids"].tolist()
        assert len(set(ids)) == 3  # ⌊3.5⌋
        assert drawn.setdefault(seed, ids) == ids
    assert drawn[1] != drawn[2]


def corpus_of(size: int) -> Corpus:
    return Corpus({"tokens": torch.ones(size)}, {"tokens": 2}, {"tokens": torch.randn(size, 2)}, "")


def test_the_size_of_the_cache_set_is_not_a_victim_of_rounding() -> None:
    for size, fraction, count in (
        (100, 0.29, 29),
        (100, 0.57, 57),
        (1000, 0.001, 1),
        (10, 0.19, 1),
        (7, 1.0, 7),
    ):
        method = create("arch", cache_fraction=fraction)
        method.memory.prepare(corpus_of(size), 0, torch.device("cpu"))
        assert len(method.memory.state().tensors["cache.ids"]) == count


def test_the_fraction_that_is_suggested_for_a_small_data_set_is_enough() -> None:
    for size in range(2, 70):
        with pytest.raises(ValueError, match="caches none; make it") as refused:
            create("arch", cache_fraction=0.5 / size).memory.prepare(
                corpus_of(size), 0, torch.device("cpu")
            )
        suggested = float(re.search(r"make it (\S+) or more", str(refused.value))[1])
        create("arch", cache_fraction=suggested).memory.prepare(
            corpus_of(size), 0, torch.device("cpu")
        )


def test_reuse_draws_no_random_numbers_and_writes_nothing() -> None:
    method, task, batch = setting("bert")
    trained(method, task, batch, epoch=0)
    before = deepcopy(method.memory.state().tensors)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    trained(method, task, batch, epoch=1, seed=3)
    assert torch.equal(state, torch.get_rng_state())
    assert all(
        torch.equal(value, method.memory.state().tensors[name]) for name, value in before.items()
    )


def test_staleness_counts_the_epochs_since_the_refresh() -> None:
    method, task, batch = setting("bert", refresh_every=3)
    ages = [
        float(step(method, task, batch, epoch=epoch).measures["cache_staleness"])
        for epoch in range(5)
    ]
    assert ages == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("every", "epochs", "advice"),
    [(15, 10.0, 3), (3, 3.0, 1), (2, 1.5, 1), (15, 16.0, None), (None, 5.0, None), (1, 1.0, None)],
)
def test_a_refresh_that_never_comes_is_pointed_out(
    every: int | None, epochs: float, advice: int | None
) -> None:
    told = create("arch", refresh_every=every).warnings(epochs)
    assert len(told) == (advice is not None)
    assert all(
        f"refresh_every={every} is not reached in {epochs:g} epochs" in text for text in told
    )
    assert all(f"try refresh_every={advice}, or None" in text for text in told)
    assert not create("smart").warnings(epochs)


@pytest.mark.parametrize("method", ["arch", "smart"])
def test_an_ascent_that_leaves_its_start_is_no_concern_and_one_that_does_not_is(
    method: str,
) -> None:
    paper = {**preset("understanding", method), "ascent_steps": 2}
    assert not create(method, **paper).warnings(10)
    (told,) = create(method, **paper | {"step_rule": "gradient"}).warnings(10)
    assert "the ascent is nearly inert with step_rule='gradient' and step_size=0.0001" in told
    assert told.endswith("use step_rule='normalised'")
    assert not create(method, **paper | {"step_rule": "gradient", "step_size": 0.5}).warnings(10)
    assert not create(method, **paper | {"step_rule": "gradient", "ascent_steps": 0}).warnings(10)


def test_all_concerns_are_told_together() -> None:
    assert (
        len(create("arch", step_rule="gradient", step_size=1e-5, refresh_every=9).warnings(3)) == 2
    )


def test_arch_says_what_is_missing_before_the_first_step() -> None:
    task, batch = HFModelView(exact("bert")), batch_of("bert")
    with pytest.raises(
        RuntimeError,
        match=r"the memory of the method is not prepared; call method.memory.prepare\(corpus, seed, device\)",
    ):
        step(create("arch"), task, batch)
    method, *_ = setting("bert")
    with pytest.raises(KeyError, match="the batch has no 'sample_id'"):
        step(method, task, {name: value for name, value in batch.items() if name != "sample_id"})
    with pytest.raises(
        ValueError, match=r"cache_fraction 0\.1 of 6 samples caches none; make it 0\.1[78] or more"
    ):
        setting("bert", cache_fraction=0.1)
    alone = create("arch", cache_fraction=0.1).memory
    with pytest.raises(ValueError, match=r"of 1 samples caches none; make it 1 or more"):
        alone.validate(1)
    with pytest.raises(
        ValueError, match=r"neighbours must be at most the number of cached samples \(3\), got 4"
    ):
        setting("bert", neighbours=4)


def test_what_the_samples_or_the_machine_do_not_allow_is_refused_before_training(
    tmp_path: Path,
) -> None:
    create("arch", cache_fraction=0.5, neighbours=3, cache_folder=str(tmp_path)).memory.validate(6)
    create("arch", cache_fraction=1.0, neighbours=9).memory.validate(6)  # nobody borrows
    with pytest.raises(ValueError, match=r"cache_fraction 0\.1 of 6 samples caches none; make it"):
        create("arch").memory.validate(6)
    with pytest.raises(
        ValueError, match=r"at most the number of cached samples \(3\), got 4; lower neighbours"
    ):
        create("arch", cache_fraction=0.5, neighbours=4).memory.validate(6)
    with pytest.raises(
        ValueError, match=r"cache_folder must be a folder that exists, got '.*none'; create it"
    ):
        create("arch", cache_folder=str(tmp_path / "none")).memory.validate(60)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("radius", -1, "radius must be a finite number of 0 or more, got -1"),
        ("cache_fraction", 1.5, "cache_fraction must be above 0 and at most 1, got 1.5"),
        ("cache_fraction", 0, "cache_fraction must be above 0 and at most 1, got 0"),
        ("cache_fraction", math.nan, "cache_fraction must be above 0 and at most 1, got nan"),
        ("ema", 1, "ema must be at least 0 and below 1, got 1"),
        ("ema", -0.1, "ema must be at least 0 and below 1, got -0.1"),
        ("refresh_every", 0, "refresh_every must be a whole number of 1 or more, or None"),
        (
            "refresh_every",
            -3,
            "refresh_every must be a whole number of 1 or more, or None .*, got -3",
        ),
        ("neighbours", 0, "neighbours must be a whole number of 1 or more, got 0"),
        ("neighbour_choice", "far", "neighbour_choice must be one of nearest, random, got 'far'"),
        ("weight", math.nan, "weight must be a finite number of 0 or more, got nan"),
        (
            "cache_dtype",
            "int2",
            "cache_dtype must be one of float32, float16, bfloat16, got 'int2'",
        ),
        (
            "cache_device",
            "tape",
            "cache_device must be one of auto, device, host, disk, got 'tape'",
        ),
        ("cache_budget_gb", -1, "cache_budget_gb must be a finite number of 0 or more, got -1"),
        ("divergence", "tv", "divergence must be one of kl, symmetric_kl, got 'tv'"),
    ],
)
def test_arch_refuses_bad_values(option: str, value: Any, message: str) -> None:
    for make in (registry["arch"], lambda **options: create("arch", **options)):
        with pytest.raises(ValueError, match=message):
            make(**{option: value})


@pytest.mark.parametrize(
    ("budget", "tier"),
    [(1.0, "device"), (0.0, "host"), (None, "device")],
    ids=["room", "none", "unstated"],
)
def test_the_cache_goes_to_the_nearest_tier_that_the_stated_budget_allows(
    budget: float | None, tier: str
) -> None:
    method, *_ = setting("bert", cache_budget_gb=budget)
    assert method.memory.cache.place.tier == tier


def test_a_cache_too_large_for_memory_goes_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advreg.memory.tiers.host_budget", lambda: 0.0)
    method, task, batch = setting("bert", cache_budget_gb=0.0)
    assert method.memory.cache.place.tier == "disk"
    written = trained(method, task, batch, epoch=0)
    method.memory.prefetch(torch.arange(6))
    read = trained(method, task, batch, epoch=1)
    for i in method.memory.state().tensors["cache.ids"].tolist():
        assert same(read[i], written[i])


def test_a_run_may_be_resumed_with_its_cache_in_another_place_but_not_in_another_precision(
    tmp_path: Path,
) -> None:
    method, task, batch = setting("bert", cache_device="device")
    written = trained(method, task, batch, epoch=0)
    save_method(method, tmp_path)
    moved, *_ = setting("bert", cache_device="disk", cache_folder=str(tmp_path))
    load_method(moved, tmp_path)
    read = trained(moved, task, batch, epoch=1)
    for i in method.memory.state().tensors["cache.ids"].tolist():
        assert same(read[i], written[i])
    coarser, *_ = setting("bert", cache_dtype="float16")
    with pytest.raises(ValueError, match="cache_dtype float32 → float16"):
        load_method(coarser, tmp_path)


@pytest.mark.parametrize(("dtype", "coarse"), [("float16", 1e-3), ("bfloat16", 4e-3)])
def test_what_a_coarser_cache_gives_back_is_close_and_inside_the_ball(
    dtype: str, coarse: float
) -> None:
    method, task, batch = setting("bert", cache_fraction=1.0, cache_dtype=dtype)
    written = trained(method, task, batch, epoch=0)
    for mine, theirs in zip(trained(method, task, batch, epoch=1), written, strict=True):
        assert float((mine["tokens"] - theirs["tokens"]).abs().max()) <= coarse * float(
            theirs["tokens"].abs().max()
        )
        assert float(mine["tokens"].norm()) <= 0.5 * (1 + 1e-6)


def test_arch_suggests_the_close_name_of_an_option() -> None:
    with pytest.raises(
        ValueError, match=r"method 'arch' has no option 'neighbors' \(did you mean 'neighbours'\?\)"
    ):
        create("arch", neighbors=1)


# ---- many processes


def shard_corpus(rank: int, world: int, size: int = 24) -> Corpus:
    """What one process of several has seen of a corpus whose sentences have two tokens."""
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(size, 4, generator=generator)[rank::world]
    lengths = torch.full((len(vectors),), 2)
    part = Shard(size, rank, world)
    return Corpus(
        {"tokens": lengths}, {"tokens": 2}, {"tokens": vectors}, f"{rank}/{world}", part, "sum"
    )


def prepared_on(rank: int, world: int, **options: Any) -> Arch:
    arch = Arch(cache_fraction=0.5, neighbour_scope="shard", **options)
    arch.memory.prepare(shard_corpus(rank, world), 0, torch.device("cpu"))
    return arch


def test_the_cache_set_is_the_same_however_many_processes_share_it() -> None:
    whole = prepared_on(0, 1).memory.cache.ids.tolist()
    assert len(whole) == 12
    for world in (2, 3):
        parts = [prepared_on(rank, world).memory.cache.ids.tolist() for rank in range(world)]
        assert sorted(index for part in parts for index in part) == whole
        assert all(index % world == rank for rank, part in enumerate(parts) for index in part)


def test_neighbours_within_a_shard_are_the_nearest_of_its_own_cached_samples() -> None:
    for rank in range(2):
        arch, vectors = prepared_on(rank, 2), shard_corpus(rank, 2).vectors["tokens"]
        cached = (arch.memory.cache.ids // 2).tolist()
        for row in set(range(12)) - set(cached):
            scores = [
                float(torch.cosine_similarity(vectors[row], vectors[other], dim=0))
                for other in cached
            ]
            assert arch.memory.state().tensors["neighbours.tokens"][row].tolist() == [
                scores.index(max(scores))
            ]


def test_a_process_with_too_few_cached_samples_of_its_own_is_told_where_there_are_more() -> None:
    with pytest.raises(
        ValueError, match=r"cached samples \(\d\), got 13; .* in process 1, or set neighbour_scope"
    ):
        prepared_on(1, 2, neighbours=13)


def test_a_sample_of_another_process_is_refused_naming_both() -> None:
    arch = prepared_on(1, 2)
    zeros = perturbation([torch.zeros(2, 2)])
    with pytest.raises(
        IndexError,
        match="sample id 4 belongs to process 0 of 2, but came to process 1; take batches",
    ):
        arch.memory.read(torch.tensor([4]), zeros, 1)
    with pytest.raises(
        IndexError, match=r"sample id 25 is not in the data the method was prepared with \(0–23\)"
    ):
        arch.memory.read(torch.tensor([25]), zeros, 1)
    arch.memory.read(torch.tensor([5]), zeros, 1)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (4, 2), (2, 3)])
def test_no_perturbation_is_lost_when_the_number_of_processes_changes(
    before: int, after: int
) -> None:
    kept: dict[int, Tensor] = {}
    states = []
    for rank in range(before):
        arch = prepared_on(rank, before, ema=0.0, radius=100.0)
        for index in arch.memory.cache.ids.tolist():
            delta = perturbation([torch.randn(2, 2)])
            kept[index] = delta.values["tokens"][0]
            arch.memory.write(torch.tensor([index]), delta, epoch=3)
        states.append(arch.memory.state())
    found: dict[int, Tensor] = {}
    for rank in range(after):
        arch = prepared_on(rank, after, ema=0.0, radius=100.0)
        arch.memory.load(iter(states))
        for index in arch.memory.cache.ids.tolist():
            found[index] = arch.memory.read(
                torch.tensor([index]), perturbation([torch.zeros(2, 2)]), 4
            ).values["tokens"][0]
    assert len(kept) == 12
    assert set(found) == set(kept)
    assert all(torch.equal(found[index], kept[index]) for index in kept)


def test_data_that_changed_between_runs_of_other_numbers_of_processes_are_noticed() -> None:
    states = [prepared_on(rank, 2).memory.state() for rank in range(2)]
    arch = Arch(cache_fraction=0.5, neighbour_scope="shard")
    arch.memory.prepare(replace(shard_corpus(0, 1), checksum="other"), 0, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"training data differs .* \(its checksum changed\)"):
        arch.memory.load(iter(states))
