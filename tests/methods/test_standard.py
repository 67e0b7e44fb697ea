import pytest

import naive
from advreg.hf.view.view import HFModelView
from advreg.methods import create
from observe import batch_of, close, exact, gradients, step, watched


@pytest.mark.parametrize("family", ["bert", "marian"])
def test_standard_agrees_with_its_reference(family: str) -> None:
    model, reference, batch = exact(family), exact(family), batch_of(family)
    report = step(create("standard"), HFModelView(model), batch)
    expected = naive.standard(reference, batch)
    assert float(report.loss) == pytest.approx(expected.loss, abs=1e-6)
    assert close(gradients(model), gradients(reference))


def test_standard_agrees_with_the_models_own_loss() -> None:
    """The library's models compute the same number, with the same denominator."""
    for family in ("bert", "marian", "gpt2-lm"):
        model = exact(family)
        batch = batch_of(family)
        own = model(**{name: value for name, value in batch.items() if name != "sample_id"}).loss
        assert float(step(create("standard"), HFModelView(model), batch).loss) == pytest.approx(
            own.item(), abs=1e-6
        )


def test_standard_perturbs_nothing() -> None:
    model, batch = exact("bert"), batch_of("bert")
    with watched(model) as passes:
        step(create("standard"), HFModelView(model), batch)
    assert [one.perturbed for one in passes] == [False]


def test_standard_has_no_options() -> None:
    with pytest.raises(ValueError, match="method 'standard' has no option 'radius'"):
        create("standard", radius=0.1)


def test_an_unknown_method_is_refused_with_the_close_name() -> None:
    with pytest.raises(
        ValueError, match=r"unknown method 'freelib' \(did you mean 'freelb'\?\); there are .*arch"
    ):
        create("freelib")
    with pytest.raises(ValueError, match="unknown method 'xyzzy'; there are"):
        create("xyzzy")
