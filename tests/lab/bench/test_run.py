from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from advreg.lab.bench import loop as loops
from advreg.lab.bench.run import Bench
from advreg.lab.bench.settings import BenchSettings
from advreg.methods import FreeLB, Standard
from advreg.records.bench import BenchRecord, Row, load
from advreg.records.run import RecordError

SETTINGS = BenchSettings(
    shapes=("2x4", "3x4"),
    methods=("r3f", "arch", "freelb", "smart", "freeat"),
    device="cpu",
    two_pass=True,
    trainers=False,
    samples=20,
    warmup=0,
    steps=1,
    rounds=3,
    refresh_every=5,
)
# forward, backward, arithmetic
COUNTS = {
    "standard": (1, 1, 1),
    "standard on 2B": (2, 2, 2),
    "r3f": (2, 1, 2),
    "r3f, two passes": (2, 1, 2),
    "arch, reuse": (2, 1, 2),
    "arch, refresh": (5, 4, 4),
    "arch, two passes, reuse": (2, 1, 2),
    "freelb": (3, 3, 3),
    "smart": (5, 4, 4),
    "freeat": (3, 3, 3),
}


@pytest.fixture(scope="module")
def kept() -> list[BenchRecord]:
    """The records of one bench as they grew."""
    found: list[BenchRecord] = []
    found.append(Bench(SETTINGS, commit="abc").run(keep=found.append))
    return found


@pytest.fixture(scope="module")
def record(kept: list[BenchRecord]) -> BenchRecord:
    return kept[-1]


def rows(record: BenchRecord, panel: int = 0) -> dict[str, Row]:
    return {row.name: row for row in record.panels[panel].rows}


def test_every_contender_has_a_row_with_its_passes_at_each_shape(record: BenchRecord) -> None:
    assert [(panel.batch, panel.tokens) for panel in record.panels] == [(2, 4), (3, 4)]
    for panel in range(2):
        found = {
            name: (row.forward, row.backward, row.arithmetic)
            for name, row in rows(record, panel).items()
        }
        assert set(found) == set(COUNTS)
        for name, counts in COUNTS.items():
            assert found[name] == pytest.approx(counts), name


def test_ratios_can_be_computed_anew_from_the_rounds(record: BenchRecord) -> None:
    standard = rows(record)["standard"].rounds
    for row in rows(record).values():
        assert len(row.rounds) == SETTINGS.rounds
        assert row.ratio is not None
        assert row.time is not None
        assert row.time.median == statistics.median(row.rounds)
        ratios = [mine / plain for mine, plain in zip(row.rounds, standard, strict=True)]
        assert row.ratio.median == pytest.approx(statistics.median(ratios))
        assert (row.ratio.least, row.ratio.most) == pytest.approx((min(ratios), max(ratios)))


def test_only_arch_keeps_something_and_a_cpu_has_no_peak(record: BenchRecord) -> None:
    for row in rows(record).values():
        assert ((row.cache_bytes or 0) > 0) == (row.method == "arch"), row.name
        assert row.peak_bytes is None


def test_the_whole_run_is_given_for_each_method(
    record: BenchRecord,
) -> None:
    refreshes = {run.name: run.refreshes for run in record.panels[0].whole}
    once = ("standard", "r3f", "r3f, two passes", "freelb", "smart", "freeat")
    assert refreshes == dict.fromkeys(once, 0) | {"arch": 30}


def test_a_record_is_kept_after_each_round(kept: list[BenchRecord]) -> None:
    assert [one.status for one in kept] == ["running"] * 6 + ["finished"]
    lengths = [len(rows(one, panel=-1)["standard"].rounds) for one in kept]
    assert lengths == [1, 2, 3, 1, 2, 3, 3]


def test_the_record_says_what_was_run_where_and_by_which_code(record: BenchRecord) -> None:
    assert record.commit == "abc"
    assert record.settings["methods"] == SETTINGS.methods
    assert record.settings["seed"] == SETTINGS.seed
    assert record.model["class"] == "BertForSequenceClassification"
    assert record.environment["packages"]["torch"] == torch.__version__
    assert record.hardware["threads"] == torch.get_num_threads()
    assert rows(record)["arch, reuse"].settings["refresh_every"] == 5


def test_a_record_comes_back_as_it_was_written(record: BenchRecord, tmp_path: Path) -> None:
    record.save(tmp_path / "bench.json")
    again = load(tmp_path / "bench.json")
    assert again.panels == record.panels
    assert dataclasses.replace(again, settings={}) == dataclasses.replace(record, settings={})
    assert again.settings == {
        **dataclasses.asdict(SETTINGS),
        **{n: list(getattr(SETTINGS, n)) for n in ("shapes", "methods")},
    }


def test_an_edited_record_is_refused(record: BenchRecord, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    record.save(path)
    path.write_text(path.read_text().replace('"status": "finished"', '"status": "running"'))
    with pytest.raises(
        RecordError, match="checksum does not match the content; records are not edited by hand"
    ):
        load(path)


def test_a_record_of_a_newer_layout_asks_for_an_update(record: BenchRecord, tmp_path: Path) -> None:
    dataclasses.replace(record, schema=99).save(tmp_path / "bench.json")
    with pytest.raises(RecordError, match="schema must be 1, got 99; update advreg"):
        load(tmp_path / "bench.json")


def test_refreshes_can_be_left_out() -> None:
    found = bench(methods=("arch",), reuse_only=True).run()
    assert list(rows(found)) == ["standard", "standard on 2B", "arch, reuse"]
    assert [run.name for run in found.panels[0].whole] == ["standard"]  # a whole run has refreshes


# ---- contenders that fail, and interruptions


def bench(**changes: Any) -> Bench:
    small = {"shapes": ("2x4",), "methods": ("freelb",), "two_pass": False}
    return Bench(dataclasses.replace(SETTINGS, **(small | changes)))


def failing(kind: type[Exception], after: int) -> Any:
    calls = 0
    whole = FreeLB.step

    def step(self: Any, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            raise kind("CUDA out of memory. Tried to allocate 2 GiB")
        return whole(self, *args)

    return step


@pytest.mark.parametrize("after", [0, 4])
def test_a_contender_without_room_says_so_and_the_others_go_on(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FreeLB, "step", failing(torch.OutOfMemoryError, after))
    found = rows(bench().run())
    assert found["freelb"].error == "out of memory"
    assert len(found["freelb"].rounds) == (
        0 if after == 0 else 1
    )  # counted once, then two steps in a round
    assert len(found["standard"].rounds) == SETTINGS.rounds
    assert found["standard"].error is None


def test_an_error_of_another_kind_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FreeLB, "step", failing(RuntimeError, 0))
    with pytest.raises(RuntimeError, match="Tried to allocate"):
        bench().run()


def test_what_was_measured_before_an_interruption_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = bench()
    whole, turns = loops.Contender.turn, 0

    def turn(self: Any, *args: Any) -> float:
        nonlocal turns
        turns += 1
        if turns == 5:  # three contenders: in the middle of the second round
            raise KeyboardInterrupt
        return whole(self, *args)

    monkeypatch.setattr(loops.Contender, "turn", turn)
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    found = rows(stopped.record("interrupted"))
    assert sorted(len(row.rounds) for row in found.values()) == [1, 1, 2]
    assert all(row.time is not None for row in found.values())


# ---- the loop


def test_the_optimizer_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    whole = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self, *args: (taken.append("step"), whole(self, *args))[1]
    )
    bench(methods=("standard",), optimizer=False, rounds=1).run()
    assert taken == []
    bench(methods=("standard",), rounds=1).run()
    assert taken


def test_each_step_is_told_which_samples_come_next(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, list[int]]] = []
    whole = Standard.step

    def step(self: Any, view: Any, batch: Any, step: Any) -> Any:
        events.append(("step", batch["sample_id"].tolist()))
        return whole(self, view, batch, step)

    monkeypatch.setattr(Standard, "step", step)
    monkeypatch.setattr(
        loops.Contender,
        "prefetch",
        lambda self, ids: events.append(("prefetch", ids.tolist())),
    )
    small = bench(methods=("standard",), rounds=1, steps=4)
    monkeypatch.setattr(
        "advreg.lab.bench.run.yardstick",
        lambda workload: loops.Contender("x", FreeLB(), workload.batches, []),
    )
    small.run()
    expected = [ids for kind, ids in events if kind == "prefetch"]
    seen = [ids for kind, ids in events if kind == "step"]
    assert [kind for kind, _ in events] == ["prefetch", "step"] * len(seen)
    assert (
        expected[1:-1] == seen[2:]
    )  # the first step settles the optimizer, with a contender of its own
