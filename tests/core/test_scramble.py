import torch

from advreg.core.scramble import combined, scrambled, uniform

MASK = 2**64 - 1


def splitmix(value: int) -> int:
    """As its author wrote it down, in numbers without a sign."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def test_scrambling_is_splitmix64_also_of_negative_numbers() -> None:
    values = [0, 1, -1, 12345, -(2**63), 2**63 - 1]
    assert [number & MASK for number in scrambled(torch.tensor(values)).tolist()] == [
        splitmix(v & MASK) for v in values
    ]


def test_keys_differ_by_each_part_and_by_their_order() -> None:
    parts = torch.arange(50)
    keys = combined(parts[:, None], parts[None, :], 7)
    assert len(set(keys.flatten().tolist())) == 2500
    assert not torch.equal(keys, combined(parts[:, None], parts[None, :], 8))


def test_uniform_numbers_are_spread_evenly_over_the_unit_interval_and_do_not_follow_their_neighbours() -> (
    None
):
    drawn = uniform(torch.arange(100_000))
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1
    counts = torch.histc(drawn, 100, 0, 1)
    assert (
        float(((counts - 1000) ** 2 / 1000).sum()) < 150
    )  # χ² of 99 degrees of freedom, above it 0.07 % of the time
    assert abs(float(torch.corrcoef(torch.stack([drawn[1:], drawn[:-1]]))[0, 1])) < 0.02
