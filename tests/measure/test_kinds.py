"""Tensors of every kind: measured over the values that they have, or refused in a sentence."""

import warnings

import pytest
import torch
from oracle import assert_true, normal
from torch import nn
from torch.masked import MaskedTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from ways import as_row, every_way, histogram_of, no_counts, on_device, statistics

from hookboard import Statistic
from hookboard.measure import FIELDS, plan

pytestmark = pytest.mark.filterwarnings(
    "ignore:Sparse.*beta state:UserWarning",
    "ignore:The PyTorch API of (nested|MaskedTensors):UserWarning",
    "ignore:.*quantize.*:UserWarning",
    "ignore:.*deprecated:DeprecationWarning",
)


class Wrapper(torch.Tensor):
    """Holds another tensor and has no memory of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def unwrap(x):
            return x.inner if isinstance(x, Wrapper) else x

        return function(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {}))


class Refusing(Wrapper):
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(f"no {function}")


class Wrapping(Wrapper):
    """Wraps what its operations give, too."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(function, types, args, kwargs)
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, result)


class Lying(Wrapper):
    """Does nothing, and says that it did."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return args[0]


class Renamed(torch.Tensor):
    """Has memory, and functions with a meaning of their own."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} was not to be asked")


def sparse(layout, **options):
    dense = torch.tensor([[0.0, 2.0, 0.0, 0.0], [0.0, 3.0, 0.0, -1.0]])
    return dense.to_sparse(layout=layout, **options)


def uncoalesced():
    embedding = nn.Embedding(5, 2, sparse=True)
    embedding(torch.tensor([1, 1])).sum().backward()
    return embedding.weight.grad


def jagged(**options):
    return torch.nested.nested_tensor([normal(2, 3), normal(4, 3)], layout=torch.jagged, **options)


def narrowed():
    return torch.nested.narrow(normal(3, 10), 1, torch.tensor([1, 2, 0]), torch.tensor([3, 0, 4]), layout=torch.jagged)


def hermitian(dtype):
    return torch.complex(normal(50, dtype=torch.float64), normal(50, dtype=torch.float64, mean=1.0)).to(dtype)


def masked(values):
    return MaskedTensor(values, values > 0)


PARTS_OF_NARROWED = [normal(3, 10)[0, 1:4], normal(3, 10)[2, :4]]
with warnings.catch_warnings():  # torch's, on making such tensors
    warnings.simplefilter("ignore")
    QUANTIZED = torch.quantize_per_tensor(normal(100), 0.1, 3, torch.quint8)
    NEAR_LIMIT = torch.tensor([3e38 + 3e38j, 1.0])
    ODD = {
        "a wrapper": (Wrapper(normal(50)), [normal(50)]),
        "a wrapper that wraps its results": (Wrapping(normal(50)), [normal(50)]),
        "a wrapper of float16": (Wrapper(normal(50).half()), [normal(50).half()]),
        "a wrapper of complex numbers": (Wrapper(hermitian(torch.complex64)), [hermitian(torch.complex128).abs()]),
        "a subclass with memory": (normal(50).as_subclass(Renamed), [normal(50)]),
        "a MaskedTensor": (masked(normal(50)), [normal(50)[normal(50) > 0]]),
        "a MaskedTensor of integers": (masked(torch.arange(-5, 50)), [torch.arange(1, 50)]),
        "coo": (sparse(torch.sparse_coo), [sparse(torch.sparse_coo).to_dense()]),
        "coo with duplicates": (uncoalesced(), [torch.tensor([2.0, 2, 0, 0, 0, 0, 0, 0, 0, 0])]),
        "empty coo": (torch.zeros(4, 2).to_sparse(), [torch.zeros(4, 2)]),
        "csr": (sparse(torch.sparse_csr), [sparse(torch.sparse_csr).to_dense()]),
        "bsr": (sparse(torch.sparse_bsr, blocksize=(1, 2)), [sparse(torch.sparse_csr).to_dense()]),
        "mkldnn": (normal(4, 3).to_mkldnn(), [normal(4, 3)]),
        "quantized": (QUANTIZED, [QUANTIZED.dequantize()]),
        "jagged": (jagged(), [normal(2, 3), normal(4, 3)]),
        "jagged, transposed": (jagged().transpose(1, 2), [normal(2, 3), normal(4, 3)]),
        "jagged, narrowed": (narrowed(), PARTS_OF_NARROWED),
        "jagged with slack": (
            torch.nested.nested_tensor_from_jagged(normal(10), offsets=torch.tensor([2, 4, 7])),
            [normal(10)[2:7]],
        ),
        "nested": (torch.nested.nested_tensor([normal(2, 3), normal(4, 3)]), [normal(2, 3), normal(4, 3)]),
        "nested, transposed": (
            torch.nested.nested_tensor([normal(2, 3), normal(4, 3)]).transpose(1, 2),
            [normal(2, 3), normal(4, 3)],
        ),
        "nested, narrowed": (
            torch.nested.narrow(normal(3, 10), 0, 1, 2, layout=torch.strided),
            [normal(3, 10)[1:3]],
        ),
        "complex32": (hermitian(torch.complex32), [hermitian(torch.complex32).to(torch.complex128).abs()]),
        "complex64": (hermitian(torch.complex64), [hermitian(torch.complex64).to(torch.complex128).abs()]),
        "complex64 near its limit": (NEAR_LIMIT, [NEAR_LIMIT.to(torch.complex128).abs()]),
        "negated when read": (hermitian(torch.complex64).conj().imag, [-hermitian(torch.complex64).imag]),
        "one number, negated when read": (torch.tensor([1 + 2j]).conj().imag, [torch.tensor([-2.0])]),
    }


@every_way
@pytest.mark.parametrize(("tensor", "parts"), ODD.values(), ids=ODD)
def test_an_odd_tensor_is_measured_over_the_values_that_it_has(measured, tensor, parts):
    assert_true(statistics(measured(tensor)), parts)


@every_way
@pytest.mark.parametrize(("tensor", "parts"), ODD.values(), ids=ODD)
def test_a_histogram_of_an_odd_tensor_counts_the_values_that_it_has(measured, tensor, parts):
    counted = histogram_of(measured, tensor).counts.sum()
    assert counted == sum(part.isfinite().sum().item() for part in parts)


def lazy():
    return nn.LazyLinear(3).weight


def meta():
    return torch.empty(4, device="meta")


def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(4)


def freed():
    tensor = normal(40)
    tensor.untyped_storage().resize_(0)
    return tensor


def freed_with_gaps():
    tensor = normal(40)[::2]
    tensor.untyped_storage().resize_(16)
    return tensor


class Packed(nn.Parameter):
    """Two numbers of 4 bits in each byte, as bitsandbytes holds them."""


def packed():
    return Packed(torch.arange(8, dtype=torch.uint8), requires_grad=False)


def freed_sparse():
    tensor = normal(4).to_sparse()
    tensor.values().untyped_storage().resize_(0)
    return tensor


REFUSED = {
    "lazy": (lazy, "a lazy parameter has no values"),
    "meta": (meta, "a meta tensor has no values"),
    "fake": (fake, "a fake tensor has no values"),
    "freed": (freed, "memory has been freed"),
    "freed with gaps": (freed_with_gaps, "memory has been freed"),
    "freed sparse": (freed_sparse, "has been freed"),
    "a refusing wrapper": (lambda: Refusing(normal(5)), "a Refusing that cannot be copied"),
    "packed": (packed, "the torch.uint8 in a Packed holds packed values that only the module itself can unpack"),
    "a lying wrapper": (lambda: Lying(normal(5)), "a Lying that loses values"),
}


@every_way
@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_tensor_without_values_is_refused_in_a_sentence(measured, make, reason):
    counts = no_counts()
    with pytest.raises(TypeError, match=reason):
        measured(make(), counts=counts)
    assert not counts.any()


class Scalars(TorchDispatchMode):
    """Counts how often a number of a tensor is read, for which the host would wait for a device."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


def test_a_subclass_is_waited_for_with_its_first_tensor_alone():
    class Fresh(Wrapper):
        pass

    waits = []
    for _ in range(3):
        with Scalars() as scalars:
            on_device(Fresh(normal(50)))
        waits.append(scalars.count)
    assert waits == [1, 0, 0]


TRANSFORMS = {
    "vmap": lambda see, x: torch.vmap(see)(x),
    "grad": lambda see, x: torch.func.grad(see)(x),
    "jvp": lambda see, x: torch.func.jvp(see, (x,), (x,)),
    "functionalize": lambda see, x: torch.func.functionalize(see)(x),
}


@every_way
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_tensor_inside_a_transform_is_refused_in_a_sentence(measured, transform):
    def see(x):
        with pytest.raises(TypeError, match=r"inside torch\.func"):
            measured(x, counts=counts)
        return x.sum()

    counts = no_counts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transform(see, normal(3, 4))


@pytest.mark.filterwarnings("ignore:DTensor random operators")  # torch 2.6
@every_way
def test_a_dtensor_of_one_process_is_measured(measured):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        tensor = distribute_tensor(normal(4, 5), init_device_mesh("cpu", (1,)), [Shard(0)])
        assert_true(statistics(measured(tensor, counts=no_counts())), [normal(4, 5)])
    finally:
        dist.destroy_process_group()


@every_way
def test_a_statistic_of_the_user_gets_the_tensor_as_it_is(measured):
    shapes = []

    def look(tensor):
        shapes.append((tensor.shape, type(tensor)))
        return 7.0

    looked = plan(["mean", Statistic("look", look)])
    row = as_row(measured(Wrapper(normal(2, 3)), looked))
    assert shapes == [((2, 3), Wrapper)]
    assert row.tolist()[len(FIELDS) :] == [7.0]
    assert len(row) == looked.width


@every_way
def test_moments_only_leaves_out_the_users_statistics_and_the_bins(measured):
    counts = no_counts()
    asked = plan(["mean", Statistic("never", lambda tensor: 1 / 0)])
    row = as_row(measured(normal(50), asked, counts=counts, moments_only=True))
    assert row[FIELDS.index("mean")] == pytest.approx(normal(50).double().mean().item())
    assert row[-1].isnan()
    assert not counts.any()


@every_way
def test_where_a_statistic_of_the_user_fails_nothing_is_counted(measured):
    counts = no_counts()
    with pytest.raises(ZeroDivisionError):
        measured(normal(50), plan(["mean", Statistic("fails", lambda tensor: 1 / 0)]), counts=counts)
    assert not counts.any()
