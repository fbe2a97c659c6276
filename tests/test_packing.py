"""Packing objects into bytes; `callbacks/test_checkpoints.py` shows that what is packed comes back."""

import tracemalloc

import numpy as np

from hookboard.packing import Codec, packed


class Look:
    """Its parts are made when they are asked for, as those of readings are."""


def fresh_rows(look):
    rows = np.zeros((2_000, 10))
    rows[:, :5] = np.arange(2_000, dtype=np.float32)[:, None]
    return {"rows": rows}


def test_of_blocks_that_are_made_to_be_packed_one_lies_in_memory_at_a_time():
    looks, forms = [Look() for _ in range(20)], {Look: Codec(fresh_rows, lambda parts: Look())}
    tracemalloc.start()
    found = packed(looks, forms)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    whole, one = sum(array.nbytes for array in found.arrays.values()), 2_000 * 10 * 8
    assert peak < 2 * whole + 5 * one  # all 20 of them take twice as much as `whole`
