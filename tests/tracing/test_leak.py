"""Language models that see the tokens they are to predict."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

from hookboard.tracing.step import audit

torch.manual_seed(0)
TOKENS = torch.randint(0, 20, (3, 9))


class Attends(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 20)
        self.mask = mask

    def forward(self, tokens):
        x, length = self.embed(tokens), tokens.shape[1]
        mask = None
        if self.mask is not None:
            mask = torch.zeros(length, length).masked_fill(torch.ones(length, length).triu(1).bool(), self.mask)
        return self.head(x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0])


class Recurs(nn.Module):
    def __init__(self, both):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.net = nn.LSTM(8, 8, batch_first=True, bidirectional=both)
        self.head = nn.Linear(16 if both else 8, 20)

    def forward(self, tokens):
        return self.head(self.net(self.embed(tokens))[0])


def two_tensors(model):
    batch = TOKENS[:, :-1], TOKENS[:, 1:]
    return batch, lambda batch: cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def one_tensor(model):
    return TOKENS, lambda batch: cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())


def classes_second(model):
    return TOKENS, lambda batch: cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])


def padded(model):
    def step(batch):
        targets = torch.cat([batch[:, 1:], torch.full((3, 1), -100)], 1)
        return cross_entropy(model(batch).flatten(0, 1), targets.flatten())

    return TOKENS, step


WAYS = [two_tensors, one_tensor, classes_second, padded]


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_sees_later_tokens_is_an_alarm(way):
    model = Attends(None) if way in (two_tensors, padded) else Recurs(True)
    batch, step = way(model)
    (found,) = audit(model, batch, step)
    assert (found.rule, found.severity) == ("future_leak", "alarm")
    # The oracle: the output moves with the token after it.
    position = 4  # the middle
    tokens = TOKENS.clone() if way in (one_tensor, padded) else TOKENS[:, :-1].clone()
    before = model(tokens)[0, position]
    tokens[0, position + 1] = (tokens[0, position + 1] + 1) % 20
    assert not torch.equal(before, model(tokens)[0, position])
    assert f"the output at position {position} depends on that input" in found.evidence


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "make",
    [lambda: Attends(float("-inf")), lambda: Attends(-1e4), lambda: Recurs(False)],
    ids=["inf", "finite", "lstm"],
)
def test_nothing_is_said_of_a_model_that_sees_earlier_tokens_only(way, make):
    model = make()
    assert audit(model, *way(model)) == ()


def test_targets_that_are_the_tokens_at_their_own_positions_are_an_alarm_where_the_model_reads_from_left_to_right():
    model = Attends(float("-inf"))
    (found,) = audit(model, TOKENS, lambda batch: cross_entropy(model(batch).flatten(0, 1), batch.flatten()))
    assert (found.rule, found.severity) == ("future_leak", "alarm")
    assert "at the same positions, so the model only has to copy them" in found.evidence


def test_nothing_is_said_of_a_tagger_or_a_masked_model_that_sees_everything():
    model = Attends(None)
    tags = torch.randint(0, 20, (3, 9))
    masked = torch.where(torch.rand(3, 9) < 0.5, TOKENS, -100)
    for targets in (tags, masked, TOKENS):
        step = lambda batch: cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())  # noqa: E731
        found = audit(model, (TOKENS, targets), step)
        assert {one.rule for one in found} <= {"no_influence"}, "it has no positions"


class TakesTokens(nn.Module):
    """Sees all tokens, which it takes in some other way than by an embedding of them as they are."""

    def __init__(self, take):
        super().__init__()
        self.take, self.embed = take, nn.Embedding(20, 8)
        self.net, self.head = nn.GRU(8, 8, bidirectional=True), nn.Linear(16, 20)

    def forward(self, tokens):
        return self.head(self.net(self.take(self.embed, tokens))[0]).transpose(0, 1)


@pytest.mark.parametrize(
    "take",
    [
        lambda embed, tokens: embed(tokens.t()),
        lambda embed, tokens: embed.weight[tokens].transpose(0, 1),
        lambda embed, tokens: (one_hot(tokens, 20).float() @ embed.weight).transpose(0, 1),
        lambda embed, tokens: embed(tokens.reshape(-1)).view(3, -1, 8).transpose(0, 1),
    ],
    ids=["sequence first", "indexed", "one-hot", "flattened"],
)
def test_a_model_that_sees_later_tokens_is_an_alarm_however_it_takes_them(take):
    batch, step = classes_second(model := TakesTokens(take))
    assert [one.rule for one in audit(model, batch, step)] == ["future_leak"]
