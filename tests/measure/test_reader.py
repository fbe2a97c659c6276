"""A tensor that is like the last of its site is read without Python, and any other is handed on."""

import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest
import torch
from oracle import assert_true, normal, rows_of_channels
from torch import nn
from ways import Raises

from hookboard.clock import Clock
from hookboard.measure import BINS, native, plan
from hookboard.measure.bins import bins_of
from hookboard.recording import Recorder
from hookboard.sites import Site

pytestmark = pytest.mark.skipif(native.COMPILED_READER is None, reason="this torch is not asked from C")

A = Site("a", "output")
G = Site("a", "grad_output")
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def recorder(*statistics, **options):
    return Recorder(plan(statistics or ("mean", "std", "min", "max", "zero_fraction")), torch.device("cpu"), **options)


def slot_that_read(tensor, site=A, **options):
    """The slot of a site that has seen a tensor, and a list of those that it hands on from now on."""
    mine = recorder(**options)
    slot = mine.open(site)
    slot(tensor)
    mine.flush()
    handed, otherwise = [], slot.otherwise

    def note(tensor):
        handed.append(tensor)
        otherwise(tensor)

    slot.otherwise = note
    return mine, slot, handed


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (70_000,), (3, 40, 30, 30)], ids=str)
def test_what_is_like_the_last_is_read_without_python_and_true(dtype, shape):
    mine, slot, handed = slot_that_read(normal(*shape, dtype=dtype))
    parts = [normal(*shape, dtype=dtype, mean=mean) for mean in (-3.0, 5.0)]
    for part in parts:
        slot(part)
    assert not handed
    (reading,) = mine.flush()[0].values()
    assert_true(reading.statistics, parts)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_the_rows_of_channels_are_read_too(layout):
    like = normal(3, 8, 5, 6).to(memory_format=layout)
    mine, slot, handed = slot_that_read(like, channels=lambda site, tensor: 1)
    parts = [normal(3, 8, 5, 6, mean=mean).to(memory_format=layout) for mean in (1.0, 2.0)]
    for part in parts:
        slot(part)
    assert not handed
    (reading,) = mine.flush()[0].values()
    np.testing.assert_allclose(
        reading.channels[:, [0, 1, 8, 9]], rows_of_channels(parts, 1)[:, [0, 1, 8, 9]], rtol=1e-6
    )


def test_the_bins_of_each_step_are_counted_by_themselves():
    mine, slot, handed = slot_that_read(normal(500), histogram=True)
    for mean in (1.0, 3.0, 9.0):
        part = normal(500, mean=mean)
        slot(part)
        counted = slot.counts.clone()
        (reading,) = mine.flush()[0].values()
        assert torch.equal(counted, torch.bincount(bins_of(part), minlength=BINS))
        assert reading.histogram.counts.sum() == 500
    assert not handed


def test_one_that_requires_a_gradient_is_read_as_its_values():
    mine, slot, handed = slot_that_read(normal(5))
    part = normal(5, mean=2.0).requires_grad_()
    slot(part)
    (reading,) = mine.flush()[0].values()
    assert_true(reading.statistics, [part.detach()])
    assert not handed


def other_than(tensor):
    freed = tensor.clone()
    freed.untyped_storage().resize_(4)
    return {
        "another shape": normal(6, 4),
        "another order": tensor.t().contiguous().t(),
        "another type": tensor.double(),
        "a subclass": tensor.as_subclass(type("Sub", (torch.Tensor,), {})),
        "expanded": tensor[:1].expand(4, 6),
        "on meta": tensor.to("meta"),
        "freed in part": freed,
        "negated when read": torch.complex(tensor, tensor).conj().imag,
    }


@pytest.mark.parametrize("kind", other_than(normal(4, 6)))
def test_what_is_not_like_the_last_is_handed_on(kind):
    _, slot, handed = slot_that_read(normal(4, 6))
    slot.otherwise = handed.append
    slot(other_than(normal(4, 6))[kind])
    assert len(handed) == 1


def test_shapes_that_take_turns_are_all_true():
    mine, slot, _ = slot_that_read(normal(4, 6))
    parts = [normal(*shape, mean=mean) for mean, shape in enumerate([(4, 6), (2, 6), (2, 6), (4, 6), (4, 6)])]
    for part in parts:
        slot(part)
    (reading,) = mine.flush()[0].values()
    assert_true(reading.statistics, parts)


def test_a_scaled_gradient_is_divided_though_one_without_a_scale_was_read_before():
    mine, slot, _ = slot_that_read(normal(4), site=G)
    part = normal(4, mean=3.0)
    for scale in (torch.tensor(8.0), None):
        mine.scale = scale
        slot(part if scale is None else part * scale)
    (reading,) = mine.flush()[0].values()
    assert_true(reading.statistics, [part, part])


def test_float64_whose_squares_leave_its_range_is_true_after_such_that_do_not():
    mine, slot, _ = slot_that_read(normal(9, dtype=torch.float64))
    part = normal(9, dtype=torch.float64) * 1e200
    slot(part)
    (reading,) = mine.flush()[0].values()
    assert_true(reading.statistics, [part])


def test_several_threads_lose_no_value():
    mine, slot, _ = slot_that_read(normal(3000), histogram=True)
    part = normal(3000)
    threads = [threading.Thread(target=lambda: [slot(part) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (reading,) = mine.flush()[0].values()
    assert reading.moments.count == 4 * 200 * 3000
    assert reading.histogram.counts.sum() == 4 * 200 * 3000


def test_a_form_that_another_thread_changes_is_not_read_by_halves():
    mine = recorder()
    slot, parts = mine.open(A), [torch.full((7,), 1.0), torch.full((30_000,), 2.0)]
    made = [0, 0]

    def call(k, until):
        while time.monotonic() < until:
            slot(parts[k])
            made[k] += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=call, args=(k, time.monotonic() + 0.5)) for k in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    (reading,) = mine.flush()[0].values()
    assert (reading.moments.min, reading.moments.max) == (1.0, 2.0)
    assert reading.moments.count == sum(count * len(part) for count, part in zip(made, parts, strict=True))


@pytest.mark.parametrize("second", [torch.bfloat16, torch.float16], ids=str)
def test_the_dtype_of_a_step_is_that_of_its_first_tensor_after_a_step_of_two(second):
    mine = recorder()
    slot = mine.open(A)
    seen = []
    for types in ([torch.float32, second], [second], [second, torch.float32], [torch.float32]):
        for dtype in types:
            slot(normal(4, dtype=dtype))
        seen += [reading.dtype for reading in mine.flush()[0].values()]
    assert seen == [torch.float32, second, second, torch.float32]


def test_no_more_rows_are_kept_than_there_is_room_for():
    mine, slot, handed = slot_that_read(normal(3))
    for _ in range(10_000):
        slot(normal(3))
    assert len(mine._meter.rows) < 5000
    (reading,) = mine.flush()[0].values()
    assert reading.moments.count == 3 * 10_000
    assert handed


def test_the_clock_counts_a_call_unless_what_is_around_it_is_timed():
    clock = Clock()
    _, slot, _ = slot_that_read(normal(3), clock=clock)
    before = clock.spent
    clock.began = 0.0
    slot(normal(3))
    assert clock.spent == before
    clock.began = None
    slot(normal(3))
    assert clock.spent > before


def test_a_fault_of_reading_switches_the_site_off_and_goes_no_further():
    mine, slot, handed = slot_that_read(normal(3))
    part = normal(3)
    with pytest.warns(UserWarning, match="output of 'a'.*ValueError: mine"), Raises(ValueError("mine")):
        slot(part)
    slot(part)
    assert not list(mine.flush()[0].values())
    assert len(handed) == 1


def test_an_interrupt_is_no_fault():
    _, slot, _ = slot_that_read(normal(3))
    part = normal(3)
    with pytest.raises(KeyboardInterrupt), Raises(KeyboardInterrupt()):
        slot(part)


def test_a_recorder_that_nobody_holds_is_collected_with_its_readers():
    mine, slot, _ = slot_that_read(normal(3))
    seen = weakref.ref(mine._meter)
    del mine, slot
    gc.collect()
    assert seen() is None


def test_weights_are_read_together_without_python_and_true():
    mine = recorder()
    names = [Site(str(k), "parameter") for k in range(4)]

    def weights(mean):
        return [nn.Parameter(normal(6, 4, mean=mean)), nn.Parameter(normal(3)), normal(8, 4)[::2], normal(5)]

    mine.observe_all(zip(names, weights(0.0), [None] * 4, strict=True))
    mine.flush()
    handed, now = [], weights(7.0)
    for name in names:
        mine.open(name).otherwise = handed.append
    mine.observe_all(zip(names, now, [None] * 4, strict=True))
    assert not handed
    for reading, weight in zip(mine.flush()[0].values(), now, strict=True):
        assert_true(reading.statistics, [weight.detach()])


@pytest.mark.parametrize("of", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("minus", [torch.contiguous_format, torch.channels_last], ids=str)
def test_what_is_subtracted_is_paired_by_index_not_by_memory(of, minus):
    mine = recorder()
    for mean in (0.0, 2.0):
        after, before = normal(3, 4, 5, 6, mean=mean).to(memory_format=of), normal(3, 4, 5, 6).to(memory_format=minus)
        mine.observe_all([(A, after, before)])
        (reading,) = mine.flush()[0].values()
        assert_true(reading.statistics, [after - before])


def test_what_is_subtracted_from_every_other_row_has_none_between_its_own():
    mine = recorder()
    for mean in (0.0, 2.0):
        after, before = normal(8, 4, mean=mean)[::2], normal(4, 4)
        gaps = normal(8, 4)[::2]
        mine.observe_all([(A, after, before), (Site("b", "output"), after, gaps)])
        for reading, minus in zip(mine.flush()[0].values(), (before, gaps), strict=True):
            assert_true(reading.statistics, [after - minus])


@pytest.mark.parametrize("kind", ["alike", "transposed", "of another type", "of another shape", "expanded"])
def test_what_is_subtracted_is_right_whatever_its_memory_looks_like(kind):
    mine = recorder()
    for mean in (0.0, 2.0):
        after, before = normal(5, 4, mean=mean), normal(5, 4)
        if kind == "transposed":
            before = before.t().contiguous().t()
        elif kind == "of another type":
            before = before.double()
        elif kind == "of another shape":
            before = before[0]
        elif kind == "expanded":
            before = before[:1].expand(5, 4)
        mine.observe_all([(A, after, before)])
        (reading,) = mine.flush()[0].values()
        assert_true(reading.statistics, [after.float() - before.float()])
