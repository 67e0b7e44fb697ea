"""The README's code is run and its numbers are recomputed from the records."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from advreg.cli.flags import parse_assignments
from advreg.lab.runs.bases import read_settings
from advreg.methods import create, registry
from tiny_models import tiny

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def after(diff: str) -> str:
    """The script as it reads with the change made."""
    return "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("-"))


def added(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if line.startswith("+")]


def samples(count: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for index in range(count):
        ids = torch.randint(5, 45, (4 + index % 5,), generator=generator).tolist()
        rows.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": index % 2})
    return rows


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(row["input_ids"]) for row in rows)
    padded = {
        name: [row[name] + [0] * (width - len(row[name])) for row in rows]
        for name in ("input_ids", "attention_mask")
    }
    return {
        name: torch.tensor(value)
        for name, value in {**padded, "labels": [row["labels"] for row in rows]}.items()
    }


def test_the_trainer_diff_runs_and_changes_three_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diff = blocks("diff")[0]
    assert len(added(diff)) == 3
    tiny("bert").base_model.save_pretrained(
        tmp_path / "bert-base-uncased"
    )  # the encoder without a head, as on the hub
    monkeypatch.chdir(tmp_path)
    names = {"train": samples(16), "dev": samples(8)}
    script = after(diff).replace(
        "processing_class=tokenizer", "data_collator=collate"
    )  # no tokenizer for random tokens
    exec(script, {**names, "collate": collate})
    assert (tmp_path / "out").is_dir()


def test_the_plain_loop_needs_at_most_six_lines_more_and_trains() -> None:
    diff = blocks("diff")[1]
    assert len(added(diff)) <= 6
    model = tiny("bert", dropout=0.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    names: dict[str, Any] = {"samples": samples(16), "collate": collate, "model": model}
    exec(after(diff), names)
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert bool(
        (names["session"].method.memory.cache.written_at == 2).all()
    )  # epochs 0 and 2 refresh


def test_the_config_file_of_the_readme_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(blocks("toml")[0], encoding="utf-8")
    settings = read_settings(path, {}, parse_assignments([]))
    assert settings.method("arch").options()["refresh_every"] is None
    usual = {"train_sampling_strategy": "group_by_length"}  # of the preset fine-tuning
    assert settings.training == {**usual, "weight_decay": 0.01}


def method_rows() -> Iterator[tuple[str, str, str]]:
    for line in README.splitlines():
        if match := re.match(r"\| `(\w+)` \| [^|]* \| ([^|]*) \| ([^|]*) \|", line):
            yield match[1], match[2].strip(), match[3].strip()


def test_the_passes_in_the_method_table_are_those_of_the_methods() -> None:
    rows = list(method_rows())
    assert {name for name, *_ in rows} <= set(registry)
    for name, forward, backward in rows:
        options = {"arch": {"ascent_steps": 3, "refresh_every": 15}, "freeat": {"replays": 7}}
        method = create(name, **options.get(name, {}))
        values = {"S": getattr(method, "ascent_steps", 0), "T_c": 15, "m": 7}
        for text, passes in (
            (forward, method.passes().forward),
            (backward, method.passes().backward),
        ):
            formula = text.split(",")[0]
            assert eval(formula, {}, values) == pytest.approx(passes)


def grid_point(label: str) -> dict[str, Any]:
    """The settings a row of the accuracy table names."""
    method = label.split(",")[0].split()[0].lower()
    found = {name: float(value) for name, value in re.findall(r"(ε|σ|T_c) = ([\d.]+)", label)}
    options: dict[str, Any] = {}
    if method == "r3f":
        options = {"noise_scale": found["σ"]}
    elif "ε" in found:
        options = {"radius": found["ε"], "step_size": found["ε"]}
    if method == "freelb":
        options["start_scale"] = found["ε"] / 2
    if method == "arch":
        options["refresh_every"] = None if "once" in label else int(found["T_c"])
        if "random" in label:
            options["neighbour_choice"] = "random"
        else:
            options["cache_fraction"] = 1.0 if "100 %" in label else 0.1
    return {"method": method, "options": options} if options else {"method": method}


def accuracy_rows() -> list[tuple[str, str, str, str]]:
    pattern = r"^\| ((?:Standard|R3F|ARCH|SMART|FreeLB|FreeAT)[^|]*) \| ([\d.]+), ([\d.]+) \| (\d+\.\d ± \d+\.\d) \|$"
    return re.findall(pattern, README, flags=re.MULTILINE)


def test_every_accuracy_and_pass_in_the_readme_is_the_one_on_record() -> None:
    lines = (ROOT / "results" / "default_task.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [json.loads(line) for line in lines]
    rows = accuracy_rows()
    assert len(rows) == 10
    for label, forward, backward, shown in rows:
        mine = [run for run in runs if run["point"] == grid_point(label)]
        assert len(mine) == 8, label
        scores = [100 * run["accuracy"] for run in mine]
        assert shown == f"{statistics.fmean(scores):.1f} ± {statistics.stdev(scores):.1f}", label
        for kind, text in (("forward", forward), ("backward", backward)):
            assert text == f"{statistics.fmean(run['passes'][kind] for run in mine):.2f}", label
