from __future__ import annotations

import statistics

from advreg.lab.drawing import COLOURS, OTHERS
from advreg.lab.report.curves import Curve
from advreg.lab.report.pictures.figures import Look, looks, quartiles_of, row_of, series_of
from advreg.lab.report.statistics import Spread
from advreg.records.bench import Spread as Quartiles

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
    found = series_of(LOOK, Curve(places, places, places, places, []))
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


def test_quartiles_are_an_interval_around_the_median() -> None:
    spread = Quartiles.of([3.0, 1.0, 2.0, 5.0, 4.0])
    assert spread is not None
    found = quartiles_of(LOOK, spread, expected=2.5)
    assert (found.value, found.interval, found.expected) == (3.0, (2.0, 4.0), 2.5)
