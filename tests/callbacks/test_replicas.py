"""What ranks compare of a weight: a checksum in which each bit counts, and the RMS of what is measured."""

import pytest
import torch
from torch import nn

from hookboard.callbacks.all_ranks import checksums
from hookboard.callbacks.health_monitor import some_units
from hookboard.model.state import weights_of

WORDS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}


def numbers_of(values):
    """The checksum and the RMS of a weight with these values."""
    module = nn.Module()
    module.weight = nn.Parameter(values)
    (numbers,) = checksums(weights_of({"": module}), some_units, is_gradient=False).values()
    return numbers.tolist()


def weight(dtype, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", WORDS)
def test_each_single_bit_gives_another_checksum_which_float64_holds_exactly(dtype):
    values = weight(dtype, 5)
    found = [numbers_of(values)[0]]
    for bit in range(8 * values.element_size()):
        bits = values.clone().view(WORDS[dtype])
        bits[3] ^= torch.tensor(1, dtype=WORDS[dtype]) << bit
        found.append(numbers_of(bits.view(dtype))[0])
    assert found[0] not in found[1:]
    assert all(checksum.is_integer() and abs(checksum) < 2**53 for checksum in found)


def test_memory_formats_have_the_same_checksum():
    values = weight(torch.float32, 4, 3, 5, 5)
    assert numbers_of(values)[0] == numbers_of(values.to(memory_format=torch.channels_last))[0]


@pytest.mark.parametrize("shape", [(300,), (1024, 256)])
def test_the_rms_is_that_of_the_part_that_is_measured(shape):
    values = weight(torch.float32, *shape)
    wanted = some_units(values).double().square().mean().sqrt().item()
    assert numbers_of(values)[1] == pytest.approx(wanted, rel=1e-12)
