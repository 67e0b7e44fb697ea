from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from advreg.hf.guards.nonfinite import NonFiniteLossError
from advreg.lab.kinds.items import Items
from advreg.lab.kinds.registry import KINDS
from advreg.lab.kinds.translation import workload
from advreg.lab.kinds.translation.bleu import score
from advreg.lab.kinds.translation.job import TranslationJob, TranslationTrainer
from advreg.lab.kinds.translation.parallel import ParallelData, read_lines
from advreg.lab.kinds.translation.prepare import prepare_data, validation_text
from advreg.lab.kinds.translation.subwords import SubwordError, Subwords, learn_subwords
from advreg.lab.kinds.translation.translator import Translator
from advreg.lab.runs.plans import choose_folder
from advreg.lab.runs.run import Plan, run
from advreg.lab.runs.settings import SettingsError
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.lab.runs.workloads import load_workload
from advreg.methods.base import Step, StepReport
from advreg.methods.noise.r3f import R3F
from advreg.records import diagnostics as health
from advreg.records import run as records
from number_words import SOURCE, TARGET, write_numbers

Said = list[str]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("numbers"), train=60, valid=10, test=10)


@pytest.fixture
def settings(numbers: Path, tmp_path: Path) -> TranslationSettings:
    """A run of seconds that learns little."""
    return TranslationSettings(
        data=str(numbers), source=SOURCE, target=TARGET, tokenised=True, model="transformer-small", vocabulary=55,
        max_ratio=3.0, methods=("arch",), seeds=(3,), epochs=3, max_tokens=128, update_tokens=100, learning_rate=1e-3,
        beam=2, output=str(tmp_path / "runs"), options={"arch": {"refresh_every": 2, "cache_fraction": 0.5}},
    )  # fmt: skip


def carry_out(
    settings: TranslationSettings, resume: bool = False, stop: int | None = None
) -> tuple[Any, Said]:
    said: Said = []

    def on_step(name: str, step: int, total: int, logs: Mapping[str, float]) -> None:
        if "translated" in logs:
            assert step == total
            said.append(f"{name}: {logs['translated']:.0%} translated")
        if step == stop:
            raise KeyboardInterrupt

    folder = choose_folder(settings, resume)
    plan = load_workload(settings, folder).plans(settings, folder, said.append)[0]
    told = lambda *step: on_step(plan.name, *step)  # noqa: E731
    return run(plan, told, said.append, resume), said


def load_parallel(settings: TranslationSettings) -> ParallelData:
    data = load_workload(settings).data
    assert isinstance(data, ParallelData)
    return data


def make_job(plan: Plan) -> TranslationJob:
    job = plan.source.build(plan, lambda _: None)
    assert isinstance(job, TranslationJob)
    return job


# ---- what comes out


def test_attention_takes_batches_of_any_shape_without_a_plan_for_each(
    settings: TranslationSettings,
) -> None:
    planned: list[bool] = []
    told = lambda *_: planned.append(torch.backends.cuda.cudnn_sdp_enabled())  # noqa: E731
    quick = dataclasses.replace(settings, methods=("standard",), options={}, epochs=1)
    (plan,) = load_workload(quick).plans(quick, Path(str(settings.output)))
    run(plan, told, lambda _: None)
    assert set(planned) == {False}


def test_a_run_leaves_a_record_a_model_and_its_translations(
    settings: TranslationSettings, numbers: Path
) -> None:
    folder = Path(str(settings.output)) / "arch-seed3"
    half = (
        folder / "model" / ".tmpkA0Jwf"
    )  # as a kill in the saving of an earlier attempt leaves it
    half.parent.mkdir(parents=True)
    half.touch()
    told, said = carry_out(settings)
    assert not half.exists()
    record = records.load(folder / "record.json")
    assert record == told.portable()
    details, outcome = record.task.details, record.outcome
    dropped = details["filtered"]["too_unlike"] + details["filtered"]["too_long"]
    assert record.task.sizes == {"train": 60 - dropped, "valid": 10, "test": 10}
    assert details["vocabulary"] == {"source": 55, "target": 55}
    assert 0 <= details["padding"]["both"] < 0.2
    assert details["decoding"]["beam"] == 2
    assert "tok:none" in details["signatures"]["tokenised_bleu"]
    wanted = {
        f"{prefix}{name}"
        for prefix in ("", "valid_")
        for name in ("bleu", "chrf", "tokenised_bleu", "loss")
    }
    assert set(outcome.metrics) == wanted
    # epochs 0 and 2 refresh with 3 ascent steps: 5 forward, 4 backward; epoch 1 reuses: 2 and 1
    assert outcome.passes == {"forward": pytest.approx(4.0), "backward": pytest.approx(3.0)}
    assert outcome.cache_bytes
    assert (outcome.timing["target_tokens_per_second"] or 0) > 0
    seconds = (outcome.timing["seconds_per_step"] or 0) * (outcome.timing["steps"] or 0)
    assert len(outcome.epoch_seconds or []) == 3
    assert sum(outcome.epoch_seconds or []) == pytest.approx(seconds)
    logs = [line for line in outcome.history if "loss" in line]
    assert all(line["grad_norm"] > 0 and "penalty" in line for line in logs)
    assert len([line for line in outcome.history if "eval_bleu" in line]) == 3
    assert str(numbers) not in (folder / "record.json").read_text(encoding="utf-8")
    assert any("batches an epoch" in line and "padding" in line for line in said)
    updates = (outcome.timing["steps"] or 0) / 3  # of an epoch
    assert any(line.endswith(f"; updates an epoch: {updates:.0f}") for line in said)
    assert "numbers0: learning 55 subwords from 60 pairs of lines" in said
    shares = [int(line.split()[1].rstrip("%")) for line in said if "translated" in line]
    assert shares == sorted(shares)
    assert shares[0] < shares[-1] == 100

    healthy = health.load(folder)
    assert healthy is not None
    assert healthy.memory is not None
    for entry in (
        healthy.memory.tokens
    ):  # the source with its end; the decoder's start, then the target without its end
        words = entry.tokens[:-1] if entry.stream == "encoder" else entry.tokens[1:]
        lines = read_lines(numbers / f"train.{SOURCE if entry.stream == 'encoder' else TARGET}")
        assert "".join(words).replace("▁", " ").strip() in lines
        assert len(entry.norms) == len(entry.tokens)
    assert {entry.stream for entry in healthy.memory.tokens} == {"encoder", "decoder"}

    translations = read_lines(folder / "test.translations.txt")
    again = Translator.load(folder / "model")
    assert again.translate(read_lines(numbers / f"test.{SOURCE}")) == translations
    scores = score(translations, read_lines(numbers / f"test.{TARGET}"), tokenised=True)
    assert outcome.metrics["tokenised_bleu"] == pytest.approx(scores.tokenised_bleu)
    items = Items.load(folder)
    assert (items.main, items.sizes) == ("test", {"valid": 10, "test": 10})
    names = [name for name in outcome.metrics if name.endswith("bleu")]
    assert len(names) == 4
    metrics = {name: outcome.metrics[name] for name in names}
    assert KINDS[items.kind].rescore(items, names, {}) == pytest.approx(metrics, rel=1e-12)
    assert Subwords.load(folder.parent / "subwords").source.proto == again.subwords.source.proto


def test_beside_a_test_set_only_the_sentences_of_validations_are_translated_in_the_end(
    settings: TranslationSettings,
) -> None:
    quick = dataclasses.replace(
        settings, methods=("standard",), options={}, epochs=1, validate_sentences=4
    )
    record, _ = carry_out(quick)
    folder = Path(str(quick.output)) / "standard-seed3"
    text = validation_text(load_parallel(quick).splits["valid"], 4)
    translations = Translator.load(folder).translate(text.source)
    assert record.outcome.metrics["valid_chrf"] == pytest.approx(
        score(translations, text.target, True).chrf
    )
    assert not (folder / "valid.translations.txt").exists()  # which would not be line by line
    assert len(read_lines(folder / "test.translations.txt")) == 10


@pytest.mark.parametrize(
    ("device", "given", "workers"),
    [("cpu", None, 0), ("cpu", 2, 2), ("a GPU", None, 1), ("a GPU", 2, 2), ("a GPU", 0, 0)],
)
def test_with_a_gpu_a_worker_makes_the_batches_of_the_next_update(
    settings: TranslationSettings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    device: str,
    given: int | None,
    workers: int,
) -> None:
    monkeypatch.setattr(workload, "device_name", lambda: device)
    training = {} if given is None else {"dataloader_num_workers": given}
    asked = dataclasses.replace(settings, max_tokens=64, update_tokens=200, training=training)
    job = make_job(Plan(asked, load_workload(asked), "arch", 0, tmp_path))
    assert job.fields.get("dataloader_num_workers", 0) == workers
    loader = TranslationTrainer(
        job
    ).get_train_dataloader()  # refuses what is for workers where there are none
    accumulated = job.fields["gradient_accumulation_steps"]
    assert accumulated > 2
    assert (loader.prefetch_factor, loader.num_workers) == (
        accumulated + 1 if workers else None,
        workers,
    )


def test_a_run_may_go_on_from_a_trained_translator_with_its_subwords_on_other_text(
    settings: TranslationSettings, tmp_path: Path
) -> None:
    first = dataclasses.replace(settings, methods=("standard",), options={})
    carry_out(first)
    trained = Path(str(first.output)) / "standard-seed3"
    other = write_numbers(tmp_path / "other", train=30, valid=10, test=10)
    still = dataclasses.replace(
        first, data=str(other), model=str(trained), model_dropout=0.25, vocabulary=9999, epochs=1,
        learning_rate=1e-12, output=str(tmp_path / "on"),
    )  # fmt: skip
    record, said = carry_out(still)
    assert not any("learning" in line for line in said)
    one, two = (
        load_file(folder / "model" / "model.safetensors")
        for folder in (trained, tmp_path / "on/standard-seed3")
    )
    assert all(
        torch.allclose(one[name], two[name], atol=1e-9) for name in one
    )  # it began where the other ended
    assert Translator.load(tmp_path / "on/standard-seed3").model.config.dropout == 0.25
    protos = [
        Subwords.load(folder).source.proto
        for folder in (trained / "model", tmp_path / "on" / "subwords")
    ]
    assert protos[0] == protos[1]
    assert record.task.details["vocabulary"] == {"source": 55, "target": 55}
    again, said = carry_out(still, resume=True)
    assert again == record.portable()
    learn_subwords(["a b c"] * 9, ["1 2 3"] * 9, 11).save(
        trained / "model"
    )  # as another training there would
    with pytest.raises(
        SettingsError,
        match=r"standard-seed3 cannot be resumed, .*: start_subwords was \w{64}, is \w{64}",
    ):
        carry_out(still, resume=True)


def test_a_model_that_is_no_translator_is_refused_before_anything_is_written(
    settings: TranslationSettings, tmp_path: Path
) -> None:
    with pytest.raises(
        SettingsError,
        match=r"model must be .*, or the folder of a translation run, got 'transformer-bse'",
    ):
        dataclasses.replace(settings, model="transformer-bse")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SubwordError, match=r"empty' must hold source\.spm"):
        carry_out(dataclasses.replace(settings, model=str(tmp_path / "empty")))
    assert not Path(str(settings.output)).exists()


def test_a_finished_run_is_not_repeated_and_a_changed_one_is_refused(
    settings: TranslationSettings,
) -> None:
    quick = dataclasses.replace(
        settings, methods=("standard",), epochs=1, weights="average", average=3
    )
    record, said = carry_out(quick)
    assert "average must be 1 or less with so few validations, got 3: all are averaged" in said
    with pytest.raises(SettingsError, match="holds runs already; add --resume"):
        carry_out(quick)
    again, said = carry_out(quick, resume=True)
    assert again == record.portable()
    assert said[-1] == "standard-seed3: finished before, not repeated"
    assert not any("learning" in line for line in said)
    with pytest.raises(
        SettingsError,
        match=r"standard-seed3 cannot be resumed, .*learning_rate was 0\.001, is 0\.5",
    ):
        carry_out(dataclasses.replace(quick, learning_rate=0.5), resume=True)


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(
    settings: TranslationSettings, tmp_path: Path
) -> None:
    whole, _ = carry_out(settings)
    steps = int(whole.outcome.timing["steps"])
    parts = dataclasses.replace(settings, output=str(tmp_path / "parts"))
    with pytest.raises(KeyboardInterrupt):
        carry_out(parts, stop=2 * steps // 3 + 1)
    record, said = carry_out(parts, resume=True)
    assert f"arch-seed3: resumed from step {2 * steps // 3}" in said
    one, other = (
        load_file(tmp_path / name / "arch-seed3" / "model" / "model.safetensors")
        for name in ("runs", "parts")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert record.outcome.metrics == whole.outcome.metrics
    assert record.outcome.passes == whole.outcome.passes
    assert record.task.details == whole.task.details


def test_an_update_that_is_not_finite_stops_the_run_or_is_skipped_and_counted(
    settings: TranslationSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = R3F.objective

    def spoilt(self: R3F, view: Any, batch: Any, step: Step) -> StepReport:
        report = objective(self, view, batch, step)
        is_spoilt = step.clock.step == 1
        return dataclasses.replace(report, loss=torch.tensor(torch.nan)) if is_spoilt else report

    monkeypatch.setattr(R3F, "objective", spoilt)
    quick = dataclasses.replace(settings, methods=("r3f",), options={}, epochs=1)
    with pytest.raises(
        NonFiniteLossError, match=r"the loss is nan at step 1 \(epoch 0\), sample ids \[\d+, "
    ):
        carry_out(quick)
    failed = records.load(Path(str(quick.output)) / "r3f-seed3" / "record.json").outcome
    assert [line["step"] for line in failed.history] == [1]
    going_on = dataclasses.replace(quick, on_non_finite="skip", output=f"{settings.output}-skip")
    record, _ = carry_out(going_on)
    assert record.outcome.timing["skipped_updates"] == 1.0
    assert all(math.isfinite(line["loss"]) for line in record.outcome.history if "loss" in line)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["r3f", "freeat", "freelb", "smart"])
def test_every_method_trains_on_it_with_both_streams_perturbed(
    settings: TranslationSettings, method: str
) -> None:
    record, _ = carry_out(dataclasses.replace(settings, methods=(method,), options={}, epochs=1))
    assert record.outcome.status == "finished"
    assert record.outcome.passes["forward"] > 1


def test_embeddings_that_are_not_there_are_missed_before_anything_is_written(
    settings: TranslationSettings,
) -> None:
    lost = dataclasses.replace(settings, neighbour_embeddings="no/such/model")
    with pytest.raises(
        SettingsError,
        match=r"neighbour_embeddings must be .*, got 'no/such/model', which does not exist",
    ):
        carry_out(lost)
    assert not Path(str(settings.output)).exists()


def test_the_last_weights_are_validated_whatever_the_epochs_between_validations(
    settings: TranslationSettings,
) -> None:
    record, _ = carry_out(
        dataclasses.replace(settings, methods=("standard",), options={}, validate_every=2)
    )
    assert [line["epoch"] for line in record.outcome.history if "eval_bleu" in line] == [2.0, 3.0]


@pytest.mark.slow
def test_weights_may_be_the_average_of_the_last_validations(settings: TranslationSettings) -> None:
    mean = dataclasses.replace(settings, methods=("standard",), weights="average", average=2)
    record, _ = carry_out(mean)
    steps = record.task.details["weights_of_steps"]
    assert len(steps) == 2
    folder = Path(str(settings.output)) / "standard-seed3"
    parts = [load_file(folder / "weights" / f"step-{step}.safetensors") for step in steps]
    model = load_file(folder / "model" / "model.safetensors")
    name = "model.encoder.layers.0.fc1.weight"
    assert torch.allclose(model[name], (parts[0][name] + parts[1][name]) / 2, atol=1e-7)


@pytest.mark.slow
def test_languages_may_have_vocabularies_of_their_own(settings: TranslationSettings) -> None:
    apart = dataclasses.replace(settings, joint=False, vocabulary=24, max_ratio=20.0, epochs=1)
    record, _ = carry_out(apart)
    assert record.task.details["vocabulary"] == {"source": 24, "target": 24}
    assert record.task.details["joint"] is False


@pytest.mark.slow
def test_neighbours_may_be_found_by_another_models_embeddings(
    settings: TranslationSettings, tmp_path: Path
) -> None:
    plain = dataclasses.replace(settings, epochs=2)  # the second epoch borrows from neighbours
    carry_out(plain)
    other = dataclasses.replace(
        plain,
        output=str(tmp_path / "other"),
        neighbour_embeddings=str(tmp_path / "runs" / "arch-seed3" / "model"),
    )
    record, _ = carry_out(other)
    assert record.portable().training.more["neighbour_embeddings"] == "…/model"
    one, two = (
        load_file(tmp_path / name / "arch-seed3" / "model" / "model.safetensors")
        for name in ("runs", "other")
    )
    assert not all(torch.equal(one[name], two[name]) for name in one)


# ---- preparing


def a_plan(settings: TranslationSettings, folder: Path) -> Plan:
    source = load_workload(settings, folder)
    return Plan(settings, source, settings.methods[0], settings.seeds[0], folder / "run")


def test_weights_spread_over_processes_are_refused(
    settings: TranslationSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = TranslationTrainer(make_job(a_plan(settings, tmp_path)))
    trainer.is_fsdp_enabled = True
    monkeypatch.setattr(type(trainer.accelerator), "is_fsdp2", True)
    with pytest.raises(ValueError, match=r"fsdp must be off for translation: .*; train under DDP"):
        trainer.train()


def test_updates_have_as_many_tokens_whatever_the_number_of_processes(
    settings: TranslationSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = a_plan(dataclasses.replace(settings, update_tokens=250), tmp_path)
    alone = make_job(plan)
    monkeypatch.setattr("advreg.lab.kinds.translation.job.process_count", lambda: 2)
    monkeypatch.setattr("advreg.lab.kinds.translation.workload.process_count", lambda: 2)
    shared = make_job(plan)
    each = [
        job.batches().target_tokens() * job.fields["gradient_accumulation_steps"]
        for job in (alone, shared)
    ]
    assert 2 * each[1] == pytest.approx(each[0], abs=2 * shared.batches().target_tokens())
    assert sorted(
        index for rank in (0, 1) for batch in shared.batches(rank) for index in batch
    ) == [*range(len(shared.train))]


def test_batches_are_accumulated_to_the_token_target(
    settings: TranslationSettings, tmp_path: Path
) -> None:
    job = make_job(a_plan(dataclasses.replace(settings, update_tokens=250), tmp_path))
    batches = job.batches()
    accumulated = job.fields["gradient_accumulation_steps"]
    assert accumulated > 1
    assert abs(accumulated * batches.target_tokens() - 250) <= batches.target_tokens() / 2
    assert (job.fields["adam_beta1"], job.fields["adam_beta2"]) == (0.9, 0.98)
    assert job.fields["lr_scheduler_type"] == "inverse_sqrt"
    whole = make_job(a_plan(dataclasses.replace(settings, update_tokens=10**9), tmp_path))
    assert whole.fields["gradient_accumulation_steps"] == len(batches)


def test_the_model_and_the_subwords_agree_on_special_tokens(
    settings: TranslationSettings, tmp_path: Path
) -> None:
    job = make_job(a_plan(settings, tmp_path))
    config = job.model.config
    assert (config.bos_token_id, config.pad_token_id, config.eos_token_id) == (0, 1, 2)
    assert config.decoder_start_token_id == 2
    assert config.vocab_size == config.decoder_vocab_size == len(job.subwords.source)


def test_what_was_dropped_and_filtered_is_told(tmp_path: Path) -> None:
    for name, lines in {
        "train.a": "x y\n\nx\n",
        "train.b": "y x\nx\ny y y y y y\n",
        "valid.a": "x\n",
        "valid.b": "y\n",
    }.items():
        (tmp_path / name).write_text(lines)
    settings = TranslationSettings(data=str(tmp_path), source="a", target="b", vocabulary=8)
    said: Said = []
    prepared = prepare_data(settings, load_parallel(settings), tmp_path / "runs", said.append)
    assert said == [
        "1 of 3 train pairs had an empty side and were dropped",
        f"{tmp_path.name}: learning 8 subwords from 2 pairs of lines",
        "1 of 2 training pairs kept: 0 longer than 250 subwords, "
        "1 with one side more than 2 times as long as the other",
    ]
    assert len(prepared.train) == 1
    assert not (tmp_path / "runs").exists()


def test_a_mistake_leaves_nothing_behind(settings: TranslationSettings) -> None:
    with pytest.raises(ValueError, match="no field 'weight_decai'"):
        carry_out(dataclasses.replace(settings, training={"weight_decai": 1}))
    assert not Path(str(settings.output)).exists()


def test_files_given_one_by_one_are_the_same_data(
    settings: TranslationSettings, numbers: Path
) -> None:
    sides = {"source": SOURCE, "target": TARGET}
    files: dict[str, Any] = {
        f"{split}_{side}": str(numbers / f"{split}.{language}")
        for split in ("train", "valid", "test")
        for side, language in sides.items()
    }
    mine = dataclasses.replace(settings, data=None, **files)
    assert load_parallel(mine).fingerprint() == load_parallel(settings).fingerprint()


def test_validation_takes_the_same_sentences_each_time(settings: TranslationSettings) -> None:
    text = load_parallel(settings).splits["train"]
    chosen = validation_text(text, 7)
    assert chosen == validation_text(text, 7)
    assert [text.target[text.source.index(line)] for line in chosen.source] == list(chosen.target)
    assert len(chosen) == 7
    assert validation_text(text, 0).source == text.source


# ---- learning


@pytest.mark.slow
@pytest.mark.parametrize("method", ["standard", "arch", "freelb", "freeat"])
def test_numbers_in_words_are_learnt(tmp_path: Path, method: str) -> None:
    folder = write_numbers(tmp_path / "numbers", train=2000)
    settings = TranslationSettings(
        data=str(folder), source=SOURCE, target=TARGET, tokenised=True, model="transformer-small", vocabulary=130,
        max_ratio=5.0, model_dropout=0.0, methods=(method,), epochs=9, max_tokens=384, update_tokens=200,
        warmup_steps=100, learning_rate=1e-3, validate_every=3, output=str(tmp_path / "runs"),
    )  # fmt: skip
    record, _ = carry_out(settings)
    assert (record.outcome.metrics["bleu"] or 0) > 90
