"""What is kept of objects comes back in others of their classes, as plain data in a file."""

from collections import deque

import numpy as np
import pytest
import torch

from hookboard.base.kept import set_state, state_of
from hookboard.model.sites import Site


class Box:
    """Keeps one thing."""

    keeps = ("held",)

    def __init__(self, held=None):
        self.held = held


def through_a_file(folder, held, *, into=None):
    """What another box holds after it was restored from a file."""
    torch.save(state_of({"box": Box(held)}), folder / "box.pt")
    box = Box(into)
    set_state({"box": box}, torch.load(folder / "box.pt", weights_only=True))
    return box.held


VALUES = {
    "numbers and words": [None, True, 3, 2.5, "a", float("inf"), torch.bfloat16],
    "nested": {"a": [(1, {"b": (2,)})], ("c", 3): []},
    "sets": ({1, 2}, frozenset({("rule", "net.0")})),
    "an object": Site("net.0", "output", "1"),
}


@pytest.mark.parametrize("held", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_as_it_was(held, tmp_path):
    found = through_a_file(tmp_path, held)
    assert found == held
    assert type(found) is type(held)


def test_a_deque_goes_on_with_its_length(tmp_path):
    found = through_a_file(tmp_path, deque([1, 2, 3], maxlen=3))
    found.append(4)
    assert found == deque([2, 3, 4])


@pytest.mark.parametrize("dtype", [np.float64, np.int64, bool])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (0, 4)])
def test_arrays_come_back_each_in_memory_of_its_own(shape, dtype, tmp_path):
    arrays = [np.ones(shape, dtype), np.arange(6).reshape(2, 3).T.astype(dtype), np.zeros(shape, dtype)]
    found = through_a_file(tmp_path, arrays)
    for one, other in zip(found, arrays, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
        assert one.base is None or one.base.size == one.size


def test_a_number_of_numpy_comes_back_as_one_of_python(tmp_path):
    assert [type(one) for one in through_a_file(tmp_path, [np.float64(1), np.int64(1), np.True_])] == [float, int, bool]


def test_a_tensor_comes_back_as_a_tensor(tmp_path):
    tensor = torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
    found = through_a_file(tmp_path, [tensor])[0]
    assert found.equal(tensor.detach())
    assert not found.requires_grad


def test_what_lasts_stays_and_is_filled(tmp_path):
    inner = Box()
    assert through_a_file(tmp_path, Box(5), into=inner) is inner
    assert inner.held == 5


def test_what_lasts_here_alone_or_there_alone_is_left_as_it_is(tmp_path):
    assert through_a_file(tmp_path, Box(5)) is None
    assert through_a_file(tmp_path, None, into=Box(5)).held == 5


def test_what_is_no_plain_data_is_refused():
    with pytest.raises(TypeError, match="objects of type generator cannot be stored in a checkpoint"):
        state_of(one for one in "a")


def test_a_state_that_does_not_fit_leaves_all_as_it_was():
    class Sum:
        keeps = ("total", "count")

        def __init__(self, total, count):
            self.total, self.count = total, count

        def on_restored(self):
            if self.count < 0:
                raise ValueError("a negative count")

    now = {"first": Sum(np.ones(2), 2), "second": Sum(np.ones(3), 3)}
    earlier = state_of({"first": Sum(np.zeros(1), 1), "second": Sum(np.zeros(1), -1)})
    with pytest.raises(ValueError, match="a negative count"):
        set_state(now, earlier)
    assert [(one.total.tolist(), one.count) for one in now.values()] == [([1, 1], 2), ([1, 1, 1], 3)]


def test_an_object_that_occurs_twice_is_one_object_again():
    class Pair:
        keeps = ("parts",)

    before, after = Pair(), Pair()
    site = Site("net.0", "output")
    before.parts, after.parts = [site, site], None
    set_state({"": after}, state_of({"": before}))
    assert after.parts == [site, site]
    assert after.parts[0] is after.parts[1]
