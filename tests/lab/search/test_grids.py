from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advreg.lab.runs.settings import SettingsError
from advreg.lab.search.grids import Grid, default_grid, read_grid
from advreg.methods import registry

rates = st.lists(st.floats(1e-6, 1e-2), min_size=1, max_size=5, unique=True)
batches = st.lists(st.integers(1, 64), min_size=1, max_size=4, unique=True)
radii = st.lists(st.floats(0.01, 10), min_size=1, max_size=5, unique=True)


@st.composite
def grid_and_budget(draw: st.DrawFn) -> tuple[Grid, int]:
    common = {"learning_rate": draw(rates), "batch_size": draw(batches)}
    grid = Grid(
        common,
        {"arch": {"radius": draw(radii), "ascent_steps": draw(st.just([1, 2]) | st.just([3]))}},
    )
    return grid, draw(st.integers(0, 120))


@given(grid_and_budget(), st.integers(0, 5))
def test_candidates_are_different_points_of_the_grid_and_all_of_it_if_the_budget_allows(
    case: tuple[Grid, int], seed: int
) -> None:
    grid, budget = case
    for method in ("arch", "standard"):
        values = {**grid.common, **grid.methods.get(method, {})}
        product = {tuple(point) for point in itertools.product(*values.values())}
        tried = [
            tuple(point[name] for name in values) for point in grid.candidates(method, budget, seed)
        ]
        assert (
            len(tried)
            == len(set(tried))
            == min(budget, len(product))
            == min(budget, grid.size(method))
        )
        assert set(tried) <= product


@given(grid_and_budget(), st.integers(0, 5))
def test_the_first_candidates_have_different_values_of_a_setting_as_long_as_it_has_others(
    case: tuple[Grid, int], seed: int
) -> None:
    grid, budget = case
    tried = grid.candidates("arch", budget, seed)
    for name, values in {**grid.common, **grid.methods["arch"]}.items():
        first = [point[name] for point in tried[: len(values)]]
        assert len(set(first)) == len(first)


@given(grid_and_budget())
def test_methods_meet_the_same_common_settings_in_the_same_order(case: tuple[Grid, int]) -> None:
    grid, budget = case
    plain, arch = (grid.candidates(method, budget, 0) for method in ("standard", "arch"))
    common = [{name: point[name] for name in grid.common} for point in arch]
    shared = min(len(plain), math.prod(map(len, grid.common.values())))
    assert common[:shared] == plain[:shared]


def test_a_larger_budget_tries_the_same_candidates_first_and_another_seed_others() -> None:
    grid = default_grid("some-model")
    assert grid.candidates("arch", 20, 0)[:8] == grid.candidates("arch", 8, 0)
    assert grid.candidates("arch", 8, 0) != grid.candidates("arch", 8, 1)


def test_the_grid_of_the_papers_preset_is_the_one_in_its_appendix() -> None:
    grid = default_grid("bert-base-uncased", "understanding")
    assert grid.common == {
        "learning_rate": [5e-5, 8e-5, 1e-4, 2e-4], "batch_size": [8, 16, 32, 64, 128], "encoder_dropout": [0.0, 0.1],
    }  # fmt: skip
    assert grid.methods["arch"] == {"ascent_steps": [1, 2], "step_size": [1e-4, 1e-5]}
    assert grid.size("standard") == 40
    assert grid.size("arch") == 160


def test_the_grid_of_a_pretrained_model_leaves_to_its_preset_what_is_no_use_to_tune() -> None:
    """The paper's steps, 1e-4 of a gradient, are not those of a ball of 0.1."""
    grid = default_grid("bert-base-uncased", "fine-tuning")
    assert set(grid.methods) == set(registry) - {"standard"}
    for method in ("arch", "smart"):
        assert not set(grid.methods[method]) & {"step_size", "step_rule", "norm", "scope", "start"}
    assert len({len(grid.candidates(method, 8, 0)) for method in grid.methods}) == 1


def test_the_grid_of_a_sum_is_that_of_its_parts() -> None:
    grid = default_grid("bert-base-uncased", "fine-tuning")
    parts = grid.methods["temporal"]["weight"], grid.methods["smart"]["weight"]
    assert grid.own("temporal+smart") == {"temporal.weight": parts[0], "smart.weight": parts[1]}
    point = grid.candidates("temporal+smart", 1, 0)[0]
    assert {"temporal.weight", "smart.weight", "learning_rate"} <= set(point)
    read = read_grid({"smart+temporal": {"smart.weight": ["2"]}})
    assert read.own("smart+temporal") == {"smart.weight": [2.0]}


def test_what_is_fixed_is_not_tuned() -> None:
    grid = Grid(
        {"learning_rate": [1e-3, 1e-4], "batch_size": [8]},
        {"arch": {"radius": [1.0, 2.0], "weight": [1.0]}},
    )
    left = grid.without(["learning_rate"], {"arch": {"radius": 0.5}, "smart": {"weight": 2.0}})
    assert left == Grid({"batch_size": [8]}, {"arch": {"weight": [1.0]}})


def test_values_of_a_file_become_what_the_settings_take() -> None:
    grid = read_grid(
        {
            "learning_rate": [1],
            "batch_size": [8.0],
            "arch": {"refresh_every": ["none", 3], "radius": [1]},
        }
    )
    assert grid.common == {"learning_rate": [1.0], "batch_size": [8]}
    assert [
        type(value) for value in (*grid.common["batch_size"], *grid.methods["arch"]["radius"])
    ] == [int, float]
    assert grid.methods["arch"]["refresh_every"] == [None, 3]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"learnin_rate": [1.0]},
            r"grid has the unknown entry 'learnin_rate' \(did you mean 'learning_rate'\?\); it may",
        ),
        (
            {"learning_rate": []},
            r"grid.learning_rate must be a list of values, at least one, got \[\]",
        ),
        ({"batch_size": 8}, "grid.batch_size must be a list of values, at least one, got 8"),
        ({"batch_size": [8, 8]}, r"grid.batch_size must hold different values, got \[8, 8\]"),
        ({"arch": 3}, r"grid.arch must be a table, \[grid.arch\], got 3"),
        (
            {"arch": {"raduis": [1.0]}},
            r"grid.arch has the unknown option 'raduis' \(did you mean 'radius'\?\); it may",
        ),
        ({"arch": {"radius": [0.1, -1]}}, "radius must be"),
        ({"batch_size": ["many"]}, "grid.batch_size must be a whole number, got 'many'"),
    ],
)
def test_a_mistake_in_a_grid_is_named(table: dict[str, Any], message: str) -> None:
    with pytest.raises((SettingsError, ValueError), match=message):
        read_grid(table)
