"""What is computed of a large tensor before it is measured is computed in blocks."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from hookboard.measure import FIELDS, FORMULAS, Recorder, plan, values
from hookboard.model.sites import Site


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(values, "MAX_BLOCK_VALUES", 10)


class Largest(TorchDispatchMode):
    """Notes how many values the largest tensor has that an operation makes, views not counted."""

    values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {
            t.untyped_storage() for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor) and not t.is_sparse
        }
        made = func(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor) and not tensor.is_sparse and tensor.untyped_storage() not in given:
                self.values = max(self.values, tensor.numel())
        return made


@pytest.mark.parametrize("shape", [(7, 11), (1, 40), (3, 2, 5), (23,)])
def test_blocks_hold_each_value_once_and_not_too_many(shape):
    one = torch.arange(torch.Size(shape).numel()).view(shape)
    found = list(values.blocks_of(one, -one))
    assert all(a.numel() <= 10 and torch.equal(a, -b) for a, b in found)
    assert torch.equal(torch.cat([a.flatten() for a, _ in found]).sort().values, one.flatten())


def test_blocks_of_a_transposed_tensor_stand_where_those_of_the_other_stand():
    one = torch.arange(35.0).view(5, 7)
    found = list(values.blocks_of(one.T, one.T.contiguous()))
    assert len(found) > 3
    assert all(torch.equal(a, b) for a, b in found)


def test_blocks_of_a_sparse_tensor_hold_what_the_dense_one_has():
    held = torch.arange(12.0).view(3, 4)
    sparse = torch.sparse_coo_tensor(torch.tensor([[5, 1, 5]]), held, (6, 4), check_invariants=True)
    for part, same in values.blocks_of(sparse, sparse.to_dense()):
        assert torch.equal(part.to_dense(), same)


def measured_update(after, before):
    site, recorder = Site("a", "parameter_update"), Recorder(plan(list(FORMULAS)), torch.device("cpu"))
    recorder.observe_all([(site, after, before)])
    (reading,) = recorder.flush().values()
    return dict(zip(FIELDS, reading.moments, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_update_that_the_kernel_cannot_read_is_that_of_the_whole_tensor(dtype, monkeypatch):
    monkeypatch.setattr("hookboard.measure.recorder.form_of", lambda tensor, dim: None)  # as on a GPU
    before, change = torch.randn(2, 7, 11, generator=torch.Generator().manual_seed(0))
    before, after = before.to(dtype), (before + 0.1 * change).to(dtype)
    with Largest() as largest:
        found = measured_update(after, before)
    true = after.double() - before.double()
    assert found["mean"] == pytest.approx(true.mean().item(), rel=1e-6)
    assert found["deviation"] == pytest.approx(true.std(correction=0).item(), rel=1e-6)
    assert (found["count"], found["zeros"]) == (77, (true == 0).sum().item())
    assert (found["min"], found["max"]) == pytest.approx((true.min().item(), true.max().item()), rel=1e-6)
    assert largest.values <= 10
