"""What the compiled kernel may read: only memory that is there, and only as what it is."""

import pytest
import torch
from oracle import normal
from torch import nn
from ways import is_read, kernel_reads

from hookboard.measure import BINS, form_of, native
from hookboard.measure.histogram import bins_of

pytest.importorskip("hookboard.measure._native", reason="installed without a C compiler")

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
READABLE = {
    "plain": normal(3, 4),
    "a parameter": nn.Parameter(normal(3)),
    "0-d": torch.tensor(1.0),
    "channels last": normal(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "a part": normal(10)[3:7],
    "gaps between parts": normal(10, 3)[::2],
    "bfloat16": normal(3, dtype=torch.bfloat16),
    "float16": normal(3, dtype=torch.float16),
    "float64": normal(3, dtype=torch.float64),
}
UNREADABLE = {
    "float8": normal(3).to(torch.float8_e4m3fn),
    "complex": torch.complex(normal(3), normal(3)),
    "integers": torch.arange(3),
    "gaps within parts": normal(3, 10)[:, ::2],
    "expanded": normal(1).expand(4),
    "sparse": normal(3).to_sparse(),
    "mkldnn": normal(3).to_mkldnn(),
    "meta": torch.empty(3, device="meta"),
    "a subclass": normal(3).as_subclass(type("Sub", (torch.Tensor,), {})),
    "negated when read": torch.tensor([1 + 2j]).conj().imag,
}


@pytest.mark.parametrize("tensor", READABLE.values(), ids=READABLE)
def test_the_kernel_reads_plain_floating_point_in_memory(tensor):
    assert kernel_reads(tensor)


@pytest.mark.parametrize("tensor", UNREADABLE.values(), ids=UNREADABLE)
def test_the_kernel_reads_nothing_else(tensor):
    assert not kernel_reads(tensor)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_the_kernel_reads_no_nested_tensor():
    assert not kernel_reads(torch.nested.nested_tensor([normal(2), normal(3)]))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("left", [0, 1, 9])
def test_the_kernel_reads_no_memory_that_was_freed(left, dtype):
    tensor = normal(10, dtype=dtype)
    tensor.untyped_storage().resize_(left * tensor.element_size())
    is_taken = kernel_reads(tensor)  # pytest would print the tensor, and read freed memory for it
    assert not is_taken


def of_a_like(tensor):
    """The form of another tensor that looks like this one."""
    return native.form_of(torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype))


@pytest.mark.parametrize("tensor", READABLE.values(), ids=READABLE)
def test_a_tensor_like_one_before_is_read_without_a_second_search(tensor):
    assert is_read(tensor, of_a_like(tensor))


@pytest.mark.parametrize("name", ["meta", "a subclass", "sparse", "mkldnn"])
def test_what_looks_alike_and_lies_elsewhere_is_not_read(name):
    assert not is_read(UNREADABLE[name], of_a_like(torch.empty(3)))


def test_a_view_that_means_the_negative_of_its_memory_is_not_read_like_one_that_does_not():
    form = form_of(torch.ones(3, 2)[:, 0], None)
    assert form is not None
    assert not is_read(torch.view_as_complex(torch.ones(3, 2)).conj().imag, form)


@pytest.mark.parametrize("other", [normal(4), normal(3, dtype=torch.float64), normal(6)[::2], normal(3, 1)], ids=str)
def test_a_tensor_of_another_shape_stride_or_type_is_searched_anew(other):
    assert not is_read(other, native.form_of(normal(3)))


def test_a_tensor_inside_of_a_transform_is_not_read_like_one_outside():
    form, seen = native.form_of(normal(3)), []
    torch.func.vmap(lambda row: seen.append(is_read(row, form)) or row)(normal(2, 3))
    torch.func.grad(lambda row: seen.append(is_read(row, form)) or row.sum())(normal(3))
    assert seen == [False, False]


@pytest.mark.parametrize("dim", [None, 0])
@pytest.mark.parametrize("size", [1, 5, 300])
def test_bins_of_a_slice_are_those_of_its_values(dim, size):
    tensor, counts = normal(400, size)[::4], torch.zeros(BINS, dtype=torch.long)
    native.read(tensor, native.form_of(tensor, dim), with_abs_mean=False, counts=counts)
    assert torch.equal(counts, torch.bincount(bins_of(tensor.flatten()), minlength=BINS))


def test_the_kernel_reads_no_part_of_which_the_end_was_freed():
    tensor = normal(10)[4:]
    tensor.untyped_storage().resize_(9 * tensor.element_size())
    is_taken = kernel_reads(tensor)
    assert not is_taken


@pytest.mark.parametrize("left", [0, 9])
def test_memory_that_was_freed_is_not_read_like_that_of_the_tensor_before(left):
    tensor = normal(10)
    form = native.form_of(tensor)
    tensor.untyped_storage().resize_(left * tensor.element_size())
    is_taken = is_read(tensor, form)
    assert not is_taken
