"""The largest logit and the entropy of attention are those of the full matrix in float64, for the sampled queries."""

import math

import pytest
import torch
from attending import full, of_sampled
from torch.nn import functional

from hookboard.measure import attention
from hookboard.measure.attention import MAX_QUERIES, attention_numbers


def random(*shape, scale=1.0, dtype=torch.float32):
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))).to(dtype)


def assert_true(query, key, **options):
    heads = query.shape[-3]
    functional.scaled_dot_product_attention(query, key, key, **options)  # torch takes these arguments
    found = attention_numbers(query, key, key, **options)
    logit, entropy = full(query, key, **options)
    torch.testing.assert_close(found[0], of_sampled(logit, heads), rtol=1e-6, atol=0)
    torch.testing.assert_close(found[1], of_sampled(entropy, heads, options.get("is_causal", False)), rtol=1e-6, atol=0)


class OwnFunctions(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs)


class OwnOperators(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return function(*args, **kwargs or {})


HIDDEN = torch.finfo(torch.float32).min
PADDED = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril()
PADDED[0, :, :, :3] = False
"""The first sequence begins with three tokens of padding, so that its first queries see nothing."""

CALLS = {
    "four dimensions": (random(2, 3, 5, 8), random(2, 3, 7, 8), {}),
    "large logits": (random(2, 3, 5, 8, scale=30), random(2, 3, 7, 8, scale=30), {}),
    "causal": (random(2, 3, 9, 8), random(2, 3, 9, 8), {"is_causal": True}),
    "causal, with more keys": (random(2, 3, 5, 8), random(2, 3, 9, 8), {"is_causal": True}),
    "a scale": (random(2, 3, 5, 8), random(2, 3, 7, 8), {"scale": 1.7}),
    "groups of queries": (random(2, 6, 5, 8), random(2, 2, 7, 8), {"enable_gqa": True, "is_causal": True}),
    "a mask of bool": (random(2, 3, 6, 8), random(2, 3, 6, 8), {"attn_mask": PADDED}),
    "a mask for each head": (random(2, 3, 5, 8), random(2, 3, 7, 8), {"attn_mask": random(2, 3, 5, 7) > 0}),
    "a mask of two dimensions": (random(2, 3, 5, 8), random(2, 3, 7, 8), {"attn_mask": random(5, 7)}),
    "what is added hides": (random(2, 3, 6, 8), random(2, 3, 6, 8), {"attn_mask": torch.where(PADDED, 0.0, HIDDEN)}),
    "and with -Inf": (random(2, 3, 6, 8), random(2, 3, 6, 8), {"attn_mask": torch.where(PADDED, 0.0, -math.inf)}),
    "one key": (random(2, 3, 5, 8), random(2, 3, 1, 8), {}),
    "one query": (random(2, 3, 1, 8), random(2, 3, 7, 8), {}),
    "bfloat16": (random(2, 3, 5, 8, dtype=torch.bfloat16), random(2, 3, 7, 8, dtype=torch.bfloat16), {}),
    "more than is sampled": (random(9, 3, 150, 8), random(9, 3, 150, 8), {"is_causal": True}),
}


@pytest.mark.parametrize("block", [8, 100, 300, attention.MAX_BLOCK_VALUES])
@pytest.mark.parametrize(("query", "key", "options"), CALLS.values(), ids=CALLS)
def test_both_are_those_of_the_full_matrix_in_blocks_of_any_size(query, key, options, block, monkeypatch):
    monkeypatch.setattr(attention, "MAX_BLOCK_VALUES", block)
    assert_true(query, key, **options)


def test_what_has_no_values_no_keys_or_no_heads_is_left_out():
    meta = torch.zeros(2, 3, 5, 8, device="meta")
    assert attention_numbers(meta, meta) is None
    assert attention_numbers(random(2, 3, 5, 8), torch.zeros(2, 3, 0, 8)) is None
    assert attention_numbers(random(2, 5, 8), random(2, 5, 8)) is None


def test_no_more_than_a_block_is_made_at_once():
    """In a call of 4096 queries and keys the whole matrix has 16 million numbers for each head."""
    query = random(1, 2, 4096, 4)
    with torch.profiler.profile(profile_memory=True) as profile:
        attention_numbers(query, query)
    assert max(abs(event.cpu_memory_usage) for event in profile.events()) < 8 * 4096 * 4 * MAX_QUERIES


@pytest.mark.parametrize("added", [-1e4, -1e9])
def test_what_is_far_below_another_key_is_hidden_however_it_is_written(added):
    query, one = random(2, 3, 6, 8), torch.eye(6)
    _, entropy = attention_numbers(query, query, attn_mask=torch.where(one > 0, 0.0, added))
    assert entropy.isneginf().all()
    _, of_two = attention_numbers(query, query, attn_mask=torch.where(one + one.roll(1, 1) > 0, 0.0, added))
    assert (of_two > 0).all()
    _, of_all = attention_numbers(query, query, attn_mask=torch.full((6, 6), added))  # nothing but their size changes
    torch.testing.assert_close(of_all, attention_numbers(query, query)[1])


def test_of_a_class_that_may_compute_it_in_its_own_way_nothing_is_claimed():
    plain = random(2, 3, 5, 8)
    for of_class in (OwnFunctions, OwnOperators):
        assert attention_numbers(plain.as_subclass(of_class), plain) is None
        assert attention_numbers(plain, plain, attn_mask=torch.zeros(5, 5).as_subclass(of_class)) is None
    assert attention_numbers(torch.nn.Parameter(plain), plain) is not None
