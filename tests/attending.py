"""A small language model with fused attention, whose logits grow or not, in a Lightning Trainer and in others."""

import math

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from toys import Toy

from hookboard.measure.attention import MAX_QUERIES

WIDTH, TOKENS = 16, 11


class Attention(nn.Module):
    def __init__(self, is_normalized=False, heads=2):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.heads, self.is_normalized = heads, is_normalized

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.is_normalized:
            q, k = (functional.rms_norm(one, one.shape[-1:]) for one in (q, k))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, is_normalized, recomputes=None):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(is_normalized)
        self.recomputes = recomputes

    def forward(self, x):
        if self.recomputes is None:
            return x + self.attention(self.norm(x))
        return x + checkpoint(self.attention, self.norm(x), use_reentrant=self.recomputes == "reentrant")


def language_model(is_normalized=False, recomputes=None):
    torch.manual_seed(0)
    blocks = [Block(is_normalized, recomputes) for _ in range(2)]
    return nn.Sequential(nn.Embedding(TOKENS, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS))


def loss_of(logits, tokens):
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


class Predicts(Toy):
    """Trains a language model to predict the next token."""

    def __init__(self, net, rate=3e-3):
        super().__init__(net)
        self.rate, self.losses = rate, []

    def training_step(self, tokens):
        loss = loss_of(self.net(tokens), tokens)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.rate)


class ForTransformers(nn.Module):
    """The same as models of transformers are called."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return {"loss": loss_of(self.net(x), x)}


def counting(batches, rows=8, length=12):
    """Sequences that count up by one to three in each step."""
    made = torch.Generator().manual_seed(0)
    start = torch.randint(TOKENS, (batches, rows, 1), generator=made)
    step = torch.randint(1, 4, (batches, rows, 1), generator=made)
    return [*((start + torch.arange(length) * step) % TOKENS)]


def full(query, key, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """The largest logit and the entropy of each query, of all sequences, from the whole matrix."""
    query, key = query.double(), key.double()
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    logits = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        logits = logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), -math.inf)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        logits = logits.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        logits = logits + attn_mask.double()
    logits = logits.masked_fill(logits < -1e30, -math.inf)
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    weights = weights / weights.sum(-1, keepdim=True)
    entropy = -(weights * weights.log()).nan_to_num(0).sum(-1)
    return logits.amax(-1), entropy.masked_fill((logits > -math.inf).sum(-1) < 2, -math.inf)


def of_sampled(numbers, heads, without_first=False):
    """The numbers of the sampled queries, by head, from those of all."""
    length = numbers.shape[-1]
    count = min(length, MAX_QUERIES)
    rows = [number * length // count for number in range(count)][int(without_first and length > 1) :]
    return numbers.reshape(-1, heads, length)[0][:, rows]


def recorded_calls(monkeypatch):
    """The queries and keys of each call of torch's function to come, and whether hookboard stands before it."""
    real, seen = functional.scaled_dot_product_attention, []

    def recorded(query, key, value, **options):
        here = functional.scaled_dot_product_attention
        seen.append((query.detach().clone(), key.detach().clone(), here is not recorded))
        return real(query, key, value, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", recorded)
    return seen


def heads_of(calls):
    """Of each of two layers the largest logit and the entropy of the sampled queries, by head, in float64."""
    both = [full(q, k, is_causal=True) for q, k, _ in calls]
    made = [[of_sampled(logit, 2), of_sampled(entropy, 2, without_first=True)] for logit, entropy in both]
    return [[torch.cat(parts, 1) for parts in zip(*made[layer::2], strict=True)] for layer in range(2)]
