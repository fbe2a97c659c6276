"""What the compiled kernel may read: only memory that is there, and only as what it is."""

import pytest
import torch
from oracle import normal
from torch import nn

from hookboard.measure import native

pytest.importorskip("hookboard.measure._native", reason="installed without a C compiler")

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
READABLE = {
    "plain": normal(3, 4),
    "a parameter": nn.Parameter(normal(3)),
    "0-d": torch.tensor(1.0),
    "channels last": normal(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a part": normal(10)[3:7],
    "bfloat16": normal(3, dtype=torch.bfloat16),
    "float16": normal(3, dtype=torch.float16),
    "float64": normal(3, dtype=torch.float64),
}
UNREADABLE = {
    "float8": normal(3).to(torch.float8_e4m3fn),
    "complex": torch.complex(normal(3), normal(3)),
    "integers": torch.arange(3),
    "gaps": normal(10)[::2],
    "expanded": normal(1).expand(4),
    "sparse": normal(3).to_sparse(),
    "mkldnn": normal(3).to_mkldnn(),
    "meta": torch.empty(3, device="meta"),
    "a subclass": normal(3).as_subclass(type("Sub", (torch.Tensor,), {})),
    "negated when read": torch.tensor([1 + 2j]).conj().imag,
}


@pytest.mark.parametrize("tensor", READABLE.values(), ids=READABLE)
def test_the_kernel_reads_plain_floating_point_in_memory_without_gaps(tensor):
    assert native.can_read(tensor)


@pytest.mark.parametrize("tensor", UNREADABLE.values(), ids=UNREADABLE)
def test_the_kernel_reads_nothing_else(tensor):
    assert not native.can_read(tensor)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_the_kernel_reads_no_nested_tensor():
    assert not native.can_read(torch.nested.nested_tensor([normal(2), normal(3)]))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("left", [0, 1, 9])
def test_the_kernel_reads_no_memory_that_was_freed(left, dtype):
    tensor = normal(10, dtype=dtype)
    tensor.untyped_storage().resize_(left * tensor.element_size())
    is_read = native.can_read(tensor)  # pytest would print the tensor, and read freed memory for it
    assert not is_read


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_kernel_reads_no_part_of_which_the_end_was_freed(dtype):
    tensor = normal(10, dtype=dtype)[4:]
    tensor.untyped_storage().resize_(9 * tensor.element_size())
    assert not native.can_read(tensor)
