"""The site: what pages say of the code is filled in from it, diffs run, and nothing is fetched when
a page is read.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from advreg.core.options import options_of
from advreg.lab.kinds.language.settings import LanguageSettings
from advreg.lab.kinds.translation.corpora import CORPORA
from advreg.lab.runs.translation_settings import TranslationSettings
from advreg.methods import Step, create, describe, registry
from tiny_models import FAMILIES, tiny

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def loaded(path: Path) -> ModuleType:
    place = importlib.util.spec_from_file_location(path.stem, path)
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return loaded(DOCS / "hooks.py")


# ---- pages and code


@pytest.mark.parametrize("method", registry)
def test_every_method_has_a_page_with_its_options_passes_and_differences(
    hooks: ModuleType, method: str
) -> None:
    text = hooks.filled(hooks.page_of(method))
    assert "{{" not in text
    table = {
        line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| `")
    }
    assert set(table) == {f"`{option.name}`" for option in describe(method)}
    for option in describe(method):
        default = "none" if option.default is None else option.default
        assert f"| `{default}` |" in table[f"`{option.name}`"]
        assert option.help.replace("|", r"\|") in table[f"`{option.name}`"]
    passes = create(method).passes()
    assert f"{passes.forward:.2f} forward and {passes.backward:.2f} backward" in text
    if method != "standard":
        assert "Differs from the authors' code: " in text
        assert "Reference: " in text


def test_a_method_without_a_page_gets_one_of_its_docstring(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        registry,
        "newcomer",
        type("Newcomer", (registry["r3f"],), {"__doc__": "One sentence.", "name": "x"}),
    )
    text = hooks.filled(hooks.page_of("newcomer"))
    assert text.startswith("# Newcomer\n\n```text\nOne sentence.\n```")
    assert "| `noise_scale` | float | `1e-05` |" in text
    config = hooks.on_config(
        {
            "docs_dir": str(DOCS),
            "nav": [{"Methods": ["methods/index.md", {"ARCH": "methods/arch.md"}]}],
        }
    )
    (pages,) = [entry["Methods"] for entry in config["nav"]]
    assert "methods/newcomer.md" in pages
    assert "methods/arch.md" not in pages


def test_presets_stand_beside_the_defaults(hooks: ModuleType) -> None:
    (line,) = [
        line for line in hooks.options("smart").splitlines() if line.startswith("| `radius`")
    ]
    assert line.startswith("| `radius` | float | `0.1` | `0.1` | `1.0` | `0.1` | ε")


def test_a_filler_that_finds_nothing_fails_instead_of_leaving_a_hole(hooks: ModuleType) -> None:
    with pytest.raises(ValueError, match="not enough values"):
        hooks.section("README.md", "No such heading")
    with pytest.raises(ValueError, match="not enough values"):
        hooks.part("arch", "No such paragraph")
    with pytest.raises(KeyError):
        hooks.filled('{{ optionz("arch") }}')


def test_formulas_become_mathml_and_code_is_left_alone(hooks: ModuleType) -> None:
    text = hooks.with_formulas(
        "price $x_i$ of `$HOME`\n\n```sh\necho $A$B\n```\n\n$$ \\frac{a}{b} $$\n"
    )
    assert text.count("<math ") == 2
    assert "<mfrac>" in text
    assert "`$HOME`" in text
    assert "echo $A$B" in text


# ---- diffs


def diffs(page: str) -> list[str]:
    return re.findall(
        r"```diff\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL
    )


def script(diff: str, without: str) -> str:
    """One side of a diff."""
    return "\n".join(line[1:] for line in diff.splitlines() if not line.startswith(without))


def samples(count: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(5, 45, (4 + index % 5,), generator=generator).tolist()
        for index in range(count)
    ]
    return [
        {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": n % 2}
        for n, ids in enumerate(rows)
    ]


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    width = max(len(row["input_ids"]) for row in rows)
    names = ("input_ids", "attention_mask")
    padded = {name: [row[name] + [0] * (width - len(row[name])) for row in rows] for name in names}
    return {
        name: torch.tensor(value)
        for name, value in {**padded, "labels": [row["labels"] for row in rows]}.items()
    }


def trained(code: str, count: int = 8) -> dict[str, Any]:
    """Run a script on a tiny model; its names, after a check that weights have moved."""
    torch.manual_seed(0)
    model: Any = tiny("bert")
    before = model.bert.embeddings.word_embeddings.weight.detach().clone()
    names: dict[str, Any] = {
        "model": model,
        "train": samples(count),
        "collate": collate,
        "loader": DataLoader(samples(8), batch_size=4, collate_fn=collate),  # type: ignore[arg-type]
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
    }
    exec(code, names)
    after = model.bert.embeddings.word_embeddings.weight
    assert bool(torch.isfinite(after).all())
    assert not torch.equal(after, before)
    return names


@pytest.mark.parametrize("number", range(4))
def test_every_move_from_another_method_runs_before_and_after(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = diffs("moving.md")
    assert len(found) == 4
    before, after = script(found[number], "+"), script(found[number], "-")
    if "smart_pytorch" not in before or importlib.util.find_spec("smart_pytorch"):
        trained(before)
    names = trained(after)
    method = names["method"] if "method" in names else names["trainer"].method
    assert type(method).__name__ == ("R3F", "Smart", "FreeLB", "RDrop")[number]


def test_the_papers_recipe_for_understanding_trains_with_adamax(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(
        r"```python\n(.*?)```", (DOCS / "methods/arch.md").read_text("utf-8"), flags=re.DOTALL
    )
    trainer = trained(code, count=12)["trainer"]
    assert isinstance(
        getattr(trainer.optimizer, "optimizer", trainer.optimizer), torch.optim.Adamax
    )
    assert (trainer.method.step_rule, trainer.method.step_end) == ("normalised", "rescale")


def test_r3f_without_noise_is_the_penalty_of_r_drop(monkeypatch: pytest.MonkeyPatch) -> None:
    """½ (KL(p‖q) + KL(q‖p)) of two predictions that differ by their dropout masks alone."""
    from advreg import R3F, Clock, HFModelView

    task = HFModelView(tiny("bert", dropout=0.3).train())
    pair, seen = task.paired_logits, []

    def spy(batch: Any, delta: Any, *ways: Any) -> Any:
        assert not delta.values["tokens"].any()
        seen.extend(pair(batch, delta, *ways))
        return tuple(seen)

    monkeypatch.setattr(task, "paired_logits", spy)
    report = R3F(weight=1.0, noise_scale=0.0).step(task, collate(samples(4)), Step(Clock(0, 0)))
    p, q = (logits.detach().log_softmax(-1) for logits in seen)
    expected = 0.5 * ((p.exp() - q.exp()) * (p - q)).sum(-1).mean()
    assert float(expected) > 1e-3
    assert report.penalty is not None
    assert float(report.penalty) == pytest.approx(float(expected), rel=1e-4)


def test_the_first_diff_is_that_of_the_readme_but_for_its_numbers() -> None:
    (readme,) = re.findall(
        r"```diff\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), flags=re.DOTALL
    )[:1]
    numbers = re.compile(r"(num_train_epochs|refresh_every)=\d+")
    assert numbers.sub("", diffs("index.md")[0]) == numbers.sub("", readme)


def test_the_page_on_translation_has_all_corpora_and_settings_and_no_flag_that_is_not_there(
    hooks: ModuleType,
) -> None:
    page = (DOCS / "translation.md").read_text("utf-8")
    rows = {
        line.split("|")[1].strip(" `")
        for line in hooks.filled(page).splitlines()
        if line.startswith("| `")
    }
    settings = {field.name for field in dataclasses.fields(TranslationSettings)}
    assert rows - {"--task"} == {*CORPORA, *settings}
    options = {option.name for method in registry for option in describe(method)}
    flags = {f"--{name.replace('_', '-')}" for name in settings | options}
    of_commands = {"--method", "--seed", "--set", "--config", "--resume", "--help", "--jobs"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page)) <= flags | of_commands


def test_the_page_on_language_models_has_all_settings_and_no_flag_that_is_not_there(
    hooks: ModuleType,
) -> None:
    page = (DOCS / "language.md").read_text("utf-8")
    settings = {each.name for each in options_of(LanguageSettings)}
    table = hooks.filled(page).partition("## All settings")[2]
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", table, flags=re.MULTILINE)
    assert {name for name, _ in rows} == settings
    assert all(meaning for _, meaning in rows)
    options = {option.name for method in registry for option in describe(method)}
    flags = {f"--{name.replace('_', '-')}" for name in settings | options}
    of_commands = {"--method", "--set", "--output", "--resume", "--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page)) <= flags | of_commands


def test_the_grid_on_the_page_is_a_part_of_the_shipped_one() -> None:
    (block,) = re.findall(
        r"```toml\n(.*?)```", (DOCS / "studies.md").read_text("utf-8"), flags=re.DOTALL
    )
    assert block.strip() in (ROOT / "src/advreg/lab/search/study.toml").read_text("utf-8")


# ---- the support matrix


@pytest.fixture(scope="module")
def support() -> ModuleType:
    return loaded(ROOT / "experiments" / "support_page.py")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_line_of_a_family_is_what_the_doctor_says(support: ModuleType, family: str) -> None:
    assert (
        f"| {' | '.join(support.row(family))} |"
        in support.PAGE.read_text(encoding="utf-8").splitlines()
    )


def test_the_rest_of_the_support_page_is_as_it_is_generated(support: ModuleType) -> None:
    page = support.PAGE.read_text(encoding="utf-8")
    assert page.startswith(support.TEXT.strip())
    assert page.endswith(support.AFTER.strip() + "\n")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == len(FAMILIES) + 2


# ---- the site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(folder),
    ]
    built = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_the_site_has_every_page_there_is_and_their_records(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).is_file()
    assert (site / "results/records/default_task.jsonl").read_bytes() == (
        ROOT / "results/default_task.jsonl"
    ).read_bytes()
    assert "results/cost.html" in (site / "index.html").read_text(encoding="utf-8")


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        tags = re.findall(r"<(?:script|img|iframe|source|link)\b[^>]*>", text)
        assert tags
        assert not [tag for tag in tags if re.search(r"(?:src|href)=\"?(?:https?:)?//", tag)], page
        assert 'class="mermaid"' not in text  # which would be fetched
    for sheet in site.rglob("*.css"):
        assert not re.search(
            r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")
        ), sheet
    assert "<math " in (site / "methods/arch.html").read_text(encoding="utf-8")
