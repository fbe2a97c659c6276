import pytest
import torch
from torch import nn

from hookboard.measure.values import real_values


def test_a_contiguous_tensor_is_not_copied():
    x = torch.randn(2, 3)
    assert real_values(x)[0].data_ptr() == x.data_ptr()


@pytest.mark.parametrize(
    "dense",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(3, 4).t(),
        torch.randn(2, 3, 4).permute(2, 0, 1),
    ],
    ids=["channels last", "transposed", "permuted"],
)
def test_a_dense_tensor_in_another_order_is_not_copied(dense):
    values, _ = real_values(dense)
    assert values.data_ptr() == dense.data_ptr()
    assert values.sort().values.equal(dense.flatten().sort().values)


@pytest.mark.parametrize(
    "gapped",
    [torch.randn(6, 6)[:, ::2], torch.randn(4, 1).expand(4, 3), torch.tensor(2.0)],
    ids=["strided", "expanded", "scalar"],
)
def test_every_element_of_any_layout_appears_once(gapped):
    assert real_values(gapped)[0].sort().values.equal(gapped.flatten().sort().values)


def test_complex_numbers_go_by_their_modulus():
    assert real_values(torch.tensor([3 + 4j, 0j]))[0].tolist() == [5.0, 0.0]


@pytest.mark.filterwarnings("ignore:Sparse.*beta state:UserWarning")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_sparse_tensor_gives_its_values_and_counts_the_zeros_it_leaves_out(layout):
    sparse = torch.tensor([[0.0, 2.0], [0.0, 3.0]]).to_sparse(layout=layout)
    values, zeros = real_values(sparse)
    assert sorted(values.tolist()) == [2.0, 3.0]
    assert zeros == 2


def test_duplicates_in_an_uncoalesced_gradient_are_added_up():
    embedding = nn.Embedding(5, 2, sparse=True)
    embedding(torch.tensor([1, 1])).sum().backward()
    values, zeros = real_values(embedding.weight.grad)
    assert values.tolist() == [2.0, 2.0]
    assert zeros == 8


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_jagged_tensor_gives_its_values():
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=torch.jagged)
    values, zeros = real_values(jagged)
    assert values.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert zeros == 0


def test_a_view_that_is_negated_only_when_read_has_its_sign():
    conjugated = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert conjugated.is_neg()
    values, _ = real_values(conjugated)
    assert not values.is_neg()
    assert values.tolist() == [-2.0, 4.0]
