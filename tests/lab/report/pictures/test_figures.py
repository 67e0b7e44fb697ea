from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import gaussian_kde

from advreg.lab.drawing import COLOURS, OTHERS
from advreg.lab.report.curves import Curve
from advreg.lab.report.pictures.figures import Look, looks, row_of, series_of, violin_of
from advreg.lab.report.statistics import Spread

LOOK = Look("ARCH", "#0072B2")


def test_labels_of_one_method_have_shades_of_its_colour_and_others_their_own() -> None:
    texts = {"a": "A", "b": "B", "c": "C", "d": "D"}
    found = looks(texts, {"a": "arch", "b": "arch", "c": "mine", "d": "smart"})
    assert [look.label for look in found.values()] == list("ABCD")
    assert (found["c"].colour, found["d"].colour) == (OTHERS.lower(), COLOURS["smart"].lower())
    assert len({look.colour for look in found.values()}) == 4
    assert found["a"].dash != found["b"].dash
    dark, light = (sum(bytes.fromhex(found[label].colour[1:])) for label in "ab")
    assert dark < sum(bytes.fromhex(COLOURS["arch"][1:])) < light


def test_a_long_curve_is_thinned_and_keeps_its_first_place() -> None:
    places = [float(place) for place in range(1000)]
    found = series_of(LOOK, Curve("arch", places, places, places, places, []))
    assert len(found.x) <= 300
    assert found.x[0] == 0.0
    assert list(found.x) == list(found.y) == list(found.low)


def test_a_row_holds_the_mean_its_interval_and_every_value() -> None:
    values = [1.0, 2.0, 4.0]
    spread = Spread.of(values)
    assert spread is not None
    found = row_of(LOOK, values, spread)
    assert (found.value, found.interval, found.dots) == (
        statistics.fmean(values),
        spread.interval(),
        values,
    )
    single = Spread.of([1.0])
    assert single is not None
    assert row_of(LOOK, [1.0], single).interval is None


@given(
    st.lists(st.floats(0, 100), min_size=2, max_size=20).filter(
        lambda values: max(values) - min(values) > 1e-3
    )
)
def test_a_violin_is_the_kernel_density_of_its_values(values: list[float]) -> None:
    found = violin_of(LOOK, values)
    places = [place for place, _ in found.violin]
    expected = gaussian_kde(values, "scott")(places)
    assert [dense for _, dense in found.violin] == pytest.approx(
        list(expected / expected.max()), abs=2e-3
    )
    assert found.value == statistics.median(values)


def test_equal_values_have_no_violin() -> None:
    assert violin_of(LOOK, [3.0, 3.0]).violin == ()
