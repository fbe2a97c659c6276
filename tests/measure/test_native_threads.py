"""Large tensors are measured on torch's own threads, and the numbers do not depend on how many there are."""

import math
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from oracle import normal, row_of, rows_of_channels
from ways import by_kernel, no_counts

pytest.importorskip("hookboard.measure._native", reason="installed without a C compiler")
on_linux = pytest.mark.skipif(
    sys.platform != "linux" or not torch.backends.openmp.is_available(), reason="needs /proc and OpenMP"
)


@pytest.fixture(autouse=True)
def as_many_threads_as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def with_holes(*shape):
    tensor = normal(*shape)
    flat = tensor.view(-1)
    flat[::7] = 0.0
    flat[3::1009], flat[5::2003], flat[8::3001] = math.nan, math.inf, -math.inf
    return tensor


def with_a_channel_of_nan(*shape):
    tensor = normal(*shape)
    tensor[:, 1] = math.nan
    return tensor


TENSORS = {
    "few pieces": (normal(100_003), None),
    "many pieces": (normal(3_000_017), None),
    "not finite here and there": (with_holes(300_007), None),
    "far from 0": (normal(200_000, mean=1e4, std=0.1), None),
    "the first piece zeros": (torch.cat([torch.zeros(50_000), normal(70_001)]), None),
    "wide channels": (normal(5, 37, 1013), 1),
    "wide channels, not finite": (with_holes(3, 70, 1001), 1),
    "wide channels, one of them NaN": (with_a_channel_of_nan(6, 40, 30, 31), 1),
    "fewer channels than pieces": (normal(11, 3, 9001), 1),
    "narrow channels": (normal(21, 1000, 3, 3), 1),
    "narrow channels, many rows": (normal(5003, 33, 2), 1),
    "the last dimension": (normal(5003, 70), 1),
    "the last dimension, one column NaN": (with_a_channel_of_nan(9001, 17), 1),
    "the first dimension": (normal(600, 701), 0),
    "every third unit": (normal(900, 411)[::3], 0),
    "channels last": (normal(8, 70, 30, 31).to(memory_format=torch.channels_last), 1),
}


def measured(tensor, dim):
    return by_kernel(tensor, dim)


def bits(rows):
    return [(np.array(row).tobytes(), None if channels is None else channels.tobytes()) for row, channels in rows]


def close(found, true):
    return np.allclose(np.asarray(found), np.asarray(true, dtype=np.float64), rtol=1e-7, atol=1e-14, equal_nan=True)


def with_threads(threads, function):
    torch.set_num_threads(threads)
    return function()


@pytest.mark.parametrize(("tensor", "dim"), TENSORS.values(), ids=TENSORS)
def test_any_number_of_threads_gives_the_true_row_with_the_same_bits(tensor, dim):
    alone = with_threads(1, lambda: measured(tensor, dim))
    row, channels = alone
    assert close(row, row_of(tensor.reshape(-1).double().numpy()))
    if dim is not None:
        assert close(channels, rows_of_channels([tensor], dim))
    for threads in (2, 3, 2, 7):
        assert bits([with_threads(threads, lambda: measured(tensor, dim))]) == bits([alone]), threads


def test_a_difference_of_large_slices_is_measured_as_its_values():
    tensor, minus = normal(901, 411)[::3], normal(301, 411, mean=0.5)
    row, _ = with_threads(2, lambda: by_kernel(tensor, minus=minus))
    assert close(row, row_of((tensor - minus).reshape(-1).double().numpy()))


@pytest.mark.parametrize("size", [65_535, 65_536, 100_003, 1_000_001])
def test_any_number_of_threads_counts_each_value_once(size):
    tensor = with_holes(size)
    true = np.bincount(tensor.numpy().view(np.uint32) >> 19, minlength=len(no_counts()))
    for threads in (1, 2, 5):
        counts = no_counts() + 3
        with_threads(threads, lambda counts=counts: by_kernel(tensor, counts=counts))
        assert np.array_equal(counts.numpy() - 3, true), threads


def test_several_python_threads_at_once_get_what_each_gets_alone():
    cases = [*TENSORS.values()][:8]
    alone = bits(measured(*case) for case in cases)
    torch.set_num_threads(2)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: bits(measured(*case) for case in cases), range(12)):
            assert found == alone


def threads_started(function):
    """How many threads more there are after the call."""
    before = set(os.listdir("/proc/self/task"))
    function()
    return len(set(os.listdir("/proc/self/task")) - before)


def in_a_new_thread(function):
    """What a function returns in a thread for which nothing has worked in parallel yet."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


@on_linux
def test_the_threads_are_as_many_as_torch_has_and_those_of_torch():
    large = normal(1_000_000)

    def started():
        torch.set_num_threads(3)
        return [threads_started(function) for function in (lambda: measured(large, None), lambda: large.add(1))]

    assert in_a_new_thread(started) == [2, 0]


@on_linux
def test_a_small_tensor_is_measured_in_one_thread():
    torch.set_num_threads(3)
    small, counts = normal(60_000), no_counts()
    assert in_a_new_thread(lambda: threads_started(lambda: measured(small, None))) == 0
    assert in_a_new_thread(lambda: threads_started(lambda: by_kernel(small, counts=counts))) == 0


LARGE = normal(1_000_000)


@on_linux
@pytest.mark.spawns
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12 on, in a process with threads
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have():
    def rows():
        by_kernel(LARGE, counts=no_counts())
        return bits([measured(LARGE, None)])

    alone = with_threads(2, rows)
    child = os.fork()
    if not child:
        signal.alarm(30)  # ends it
        os._exit(0 if rows() == alone else 1)
    assert os.waitpid(child, 0)[1] == 0
