"""Attributes that are replaced for a while."""

from types import SimpleNamespace

import pytest

from advreg.hf.replaced import replaced


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("names", [["one"], ["two"], ["one", "two", "one"]])
def test_an_instance_has_its_own_attributes_again_in_their_order(
    names: list[str], fails: bool
) -> None:
    owner = SimpleNamespace(one=None, other=2)

    def nested(rest: list[str]) -> None:
        if not rest:
            assert all(getattr(owner, name) == names.count(name) for name in names)
            if fails:
                raise ZeroDivisionError
            return
        count = len(names) - len(rest) + 1
        with replaced(vars(owner), rest[0], names[:count].count(rest[0])):
            nested(rest[1:])

    if fails:
        with pytest.raises(ZeroDivisionError):
            nested(names)
    else:
        nested(names)
    assert list(vars(owner).items()) == [("one", None), ("other", 2)]
