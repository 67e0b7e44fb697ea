"""The page as people meet it: opened in a real browser, hovered, clicked, copied, saved, in the
dark and on a phone.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from advreg.cli.report import write_report
from advreg.lab.runs.run import run
from advreg.lab.runs.settings import TrainSettings
from advreg.lab.runs.workloads import load_workload
from advreg.records.probe import ProbeRecord, ProbeResult
from advreg.records.sealed import save_as
from browsers import chromium, requested
from little_tables import sentiment, tiny_folder, write_table
from report_runs import health, made_up, save
from studies import study_record

pytestmark = pytest.mark.browser

EVIL = "<script>document.title='owned'</script>"
METHODS = ("standard", "smart", "arch")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of real runs of a tiny model, one of which failed, a study, a probing, a bench and
    an evil name.
    """
    folder = tmp_path_factory.mktemp("reported")
    table = write_table(folder / "reviews.csv", sentiment())
    settings = TrainSettings(
        task="files", train=str(table), model=str(tiny_folder(folder / "tiny-bert")), methods=METHODS, seeds=(0, 1),
        epochs=2, batch_size=8, learning_rate=1e-3, options={"arch": {"refresh_every": 2, "cache_fraction": 0.5}},
    )  # fmt: skip
    for plan in load_workload(settings).plans(settings, folder / "runs" / "real"):
        run(plan, lambda *_: None, lambda _: None, resume=False)
    for number, radius in enumerate((0.1, 0.3, 1.0)):
        for seed in (0, 1):
            record = made_up(
                "arch",
                seed,
                0.6 + number / 10 + seed / 50,
                settings={"radius": radius},
                model="other",
            )
            save(folder / "runs" / "study" / f"{radius}-{seed}", record, health())
    asked = folder / "runs" / "asked"
    study_record([70.0, 71.0], [72.0, 74.0], [80.0, 80.0]).save(asked)
    save(asked / "arch" / "default" / "seed-0", made_up(task="rte", model="tiny"))
    save(folder / "runs" / "study" / "smart", made_up("smart", 0, 0.85, model="other"))
    save(
        folder / "runs" / "study" / "broken",
        made_up("freelb", 0, model="other").fail("the loss is nan at step 3"),
    )
    save(
        folder / "runs" / "zz-evil",
        made_up("arch", 0, task=EVIL, model=EVIL),
        health([EVIL, "fine"]),
    )
    results = [
        ProbeResult(
            encoder=label, label=label, trained_on="sst2", task="rte", scores=scores, metrics=[]
        )
        for label, scores in (("standard", [55.0, 56.5, 57.0]), ("arch", [58.0, 59.5, 61.0]))
    ]
    probe = ProbeRecord(
        settings={}, commit=None, environment={}, started="", finished="", results=results
    )
    save_as(folder / "runs" / "probe.json", probe)
    bench = Path(__file__).parents[4] / "results" / "cost" / "bert-base.json"
    out = folder / "report.html"
    write_report([folder / "runs", bench], out, f"A report {EVIL}", Console(file=io.StringIO()))
    return out


@pytest.fixture(scope="module")
def browser(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture
def view(browser: Any, page: Path) -> Any:
    """The page, freshly opened."""
    requested(browser, page.as_uri())
    browser.get(page.as_uri())
    return browser


def count(view: Any, selector: str) -> int:
    return int(
        view.execute_script("return document.querySelectorAll(arguments[0]).length", selector)
    )


def find(view: Any, selector: str) -> Any:
    return view.find_element("css selector", selector)


def test_it_opens_without_an_error_and_without_the_network(view: Any, page: Path) -> None:
    assert view.get_log("browser") == []
    assert requested(view, page.as_uri()) == [page.as_uri()]
    assert view.title == f"A report {EVIL}"  # shown, not run
    assert view.execute_script("return document.documentElement.dataset.ready") == "true"


def test_a_request_would_be_noticed_and_the_policy_stops_it(view: Any, page: Path) -> None:
    view.execute_script("new Image().src = 'https://example.org/x.png'")
    time.sleep(0.3)
    assert "https://example.org/x.png" in str(
        [*requested(view, page.as_uri()), *view.get_log("browser")]
    )


def test_a_point_without_a_result_keeps_its_place_on_the_axis(browser: Any, tmp_path: Path) -> None:
    study_record([None, None], [70.0, 72.0], [80.0, 80.0]).save(tmp_path)
    save(tmp_path / "arch" / "refresh_every=none" / "seed-0", made_up(task="rte", model="tiny"))
    out = tmp_path / "report.html"
    write_report([tmp_path], out, "A study", Console(file=io.StringIO()))
    browser.get(out.as_uri())
    panel = next(
        node for node in browser.find_elements("css selector", ".picture")
        if node.find_element("css selector", "h4").text == "refresh: ARCH on RTE"
    )  # fmt: skip
    places = {
        node.text: node.location["x"] for node in panel.find_elements("css selector", ".chart text")
    }
    chart = panel.find_element("css selector", ".chart")
    left, right = chart.location["x"], chart.location["x"] + chart.size["width"]
    assert left < places["15*"] < (left + right) / 2 < places["once"] < right


def test_every_section_has_its_tables_and_every_picture_is_drawn(view: Any) -> None:
    ids = view.execute_script(
        "return [...document.querySelectorAll('section')].map(each => each.id)"
    )
    assert ids == [
        *("verdict", "overview", "scores", "cost", "bench", "training", "gradients", "studies"),
        *("probing", "perturbation", "failed", "runs"),
    ]  # fmt: skip
    for name in ("overview", "scores", "cost", "bench", "probing", "failed", "runs"):
        assert count(view, f"#{name} table tbody tr") > 0, name
    for name in (
        "scores",
        "cost",
        "bench",
        "training",
        "gradients",
        "studies",
        "probing",
        "perturbation",
    ):
        assert count(view, f"#{name} .picture .chart path") > 0, name
    assert count(view, ".picture") == count(view, ".chart")
    text = view.execute_script("return document.querySelector('main').outerHTML")
    assert "NaN" not in text
    assert "undefined" not in text
    assert "the loss is nan at step 3" in find(view, "#failed").text


def clipboard(view: Any) -> str:
    time.sleep(0.2)
    return str(view.execute_async_script("navigator.clipboard.readText().then(arguments[0])"))


def test_a_table_is_copied_as_markdown_and_as_csv(view: Any) -> None:
    table = find(view, "#scores figure:has(table)")
    view.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", table
    )
    rows = [
        [cell.text for cell in row.find_elements("css selector", "th, td")]
        for row in table.find_elements("css selector", "tr")
    ]
    table.find_element("css selector", "[data-does=markdown]").click()
    first, rule, *body = clipboard(view).splitlines()
    assert [cell.strip() for cell in first.strip("|").split("|")] == rows[0]
    assert set(rule) <= set("|-:")
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in body] == rows[1:]
    table.find_element("css selector", "[data-does=csv]").click()
    assert list(csv.reader(io.StringIO(clipboard(view)))) == rows
    assert table.find_element("css selector", "[data-does=csv]").text == "Copied"


def brightness(view: Any, selector: str, prop: str) -> float:
    """0 for black, 1 for white."""
    script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]].match(/[\\d.]+/g).map(Number)"
    red, green, blue = view.execute_script(script, selector, prop)[:3]
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def test_it_follows_the_system_into_the_dark_and_the_switch_turns_it_back(
    page: Path, tmp_path: Path
) -> None:
    with chromium(tmp_path, dark=True) as view:
        view.get(page.as_uri())
        assert brightness(view, "body", "backgroundColor") < 0.15
        assert brightness(view, "body", "color") > 0.8
        ink = "return getComputedStyle(document.querySelector('.chart text')).fill"
        dark = view.execute_script(ink)
        find(view, "#theme").click()
        assert brightness(view, "body", "backgroundColor") > 0.9
        assert brightness(view, "body", "color") < 0.2
        assert view.execute_script(ink) != dark  # so do pictures
        view.get(page.as_uri())
        assert brightness(view, "body", "backgroundColor") > 0.9  # the choice is remembered
        assert view.get_log("browser") == []


def test_text_stands_out_from_what_is_behind_it(view: Any) -> None:
    """At least 4.5 : 1, as WCAG asks, in light and dark."""

    def luminance(colour: list[float]) -> float:
        linear = [c / 3294.6 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    script = """
        const read = (node, name) => getComputedStyle(node)[name].match(/[\\d.]+/g).map(Number).slice(0, 3);
        const card = document.querySelector('.card');
        const names = ['.caption', '.card td', '.card thead th', '.tile .remark', '.card button', '.card strong'];
        return names.map(name => [name, read(document.querySelector(name), 'color'), read(card, 'backgroundColor')]);
    """
    for _ in range(2):
        for name, text, behind in view.execute_script(script):
            light, dark = sorted((luminance(text), luminance(behind)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, name
        find(view, "#theme").click()


def test_a_phone_scrolls_in_one_direction(page: Path, tmp_path: Path) -> None:
    with chromium(tmp_path, width=390, height=844) as view:
        view.get(page.as_uri())
        wide = "return document.documentElement.scrollWidth"
        assert view.execute_script("return innerWidth") == 390
        assert view.execute_script(wide) <= 390
        for summary in view.find_elements("css selector", "details summary"):
            view.execute_script("arguments[0].click()", summary)
        assert view.execute_script(wide) <= 390
        outside = """return [...document.querySelectorAll('.chart')].filter(
            each => each.getBoundingClientRect().right > innerWidth).length"""
        assert view.execute_script(outside) == 0


def test_the_verdict_comes_first(view: Any) -> None:
    told = find(view, "#verdict").text
    assert "Runs of other" in told
    assert find(view, "#verdict").location["y"] < find(view, "#overview").location["y"]


def test_text_in_a_picture_is_large_enough_on_any_screen(page: Path, tmp_path: Path) -> None:
    script = """return [...document.querySelectorAll('.chart')].filter(each => each.clientWidth)
        .map(each => each.clientWidth / each.viewBox.baseVal.width)"""
    for width in (390, 1280):
        with chromium(tmp_path / str(width), width=width, height=844) as view:
            view.get(page.as_uri())
            assert min(view.execute_script(script)) * 12 > 9


def test_a_hundred_runs_are_there_in_two_seconds(browser: Any, tmp_path: Path) -> None:
    for number in range(100):
        method, seed = ("standard", "r3f", "freelb", "smart", "arch")[number % 5], number // 5
        task = ("rte", "mrpc")[seed % 2]
        record = made_up(method, seed, 0.5 + number / 300, task=task, seconds=2.0 + number % 5)
        save(tmp_path / "runs" / f"{number:03}", record, health() if method == "arch" else None)
    out = tmp_path / "report.html"
    write_report([tmp_path / "runs"], out, "Many", Console(file=io.StringIO()))
    begun = time.monotonic()
    browser.get(out.as_uri())
    assert browser.execute_script("return document.documentElement.dataset.ready") == "true"
    assert time.monotonic() - begun < 2
    assert (
        browser.execute_script("return document.querySelectorAll('#runs tbody tr').length") == 100
    )
