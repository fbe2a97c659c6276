"""Models of tokens: those that see what they are to predict, and those that do not know the order of what they see."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot
from tracing.steps import audited

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


def found_in(model, targets):
    """What is said where each token has a target."""
    return audited(
        model, TOKENS, targets, lambda outputs, wanted: cross_entropy(outputs.flatten(0, 1), wanted.flatten())
    )


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
    (found,) = found_in(model, TOKENS)
    assert (found.rule, found.severity) == ("future_leak", "alarm")
    assert "at the same positions, so the model only has to copy them" in found.evidence


def test_nothing_is_said_of_a_tagger_or_a_masked_model_that_sees_everything():
    model = Attends(None)
    tags = torch.randint(0, 20, (3, 9))
    masked = torch.where(torch.rand(3, 9) < 0.5, TOKENS, -100)
    for targets in (tags, masked, TOKENS):
        assert {one.rule for one in found_in(model, targets)} <= {"no_influence"}, "it has no positions"


def test_a_model_that_corrects_a_few_tokens_is_not_said_to_copy_them():
    tokens = torch.randint(3, 20, (16, 12))
    given = tokens.masked_fill(torch.rand(tokens.shape) < 0.06, 0)
    found = audited(Recurs(False), given, tokens, lambda outputs, wanted: cross_entropy(outputs.mT, wanted))
    assert [one for one in found if one.severity == "alarm"] == []


def test_positions_that_a_mask_leaves_out_of_the_loss_may_see_their_targets():
    net, mask = Recurs(True), torch.zeros(3, 8)
    mask[:, -1] = 1

    def step(tokens):
        errors = cross_entropy(net(tokens[:, :-1]).mT, tokens[:, 1:], reduction="none")
        return (errors * mask).sum() / mask.sum()

    assert [one for one in audit(net, TOKENS, step) if one.severity == "alarm"] == []


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


class Tagger(nn.Module):
    def __init__(self, positions=False, attends=True, mask=None):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(20, 8)
        self.places = nn.Parameter(torch.randn(9, 8)) if positions else None
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) if attends else None
        self.head, self.mask = nn.Linear(8, 20), mask

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x if self.places is None else x + self.places
        return self.head(x if self.layer is None else self.layer(x, src_mask=self.mask))


def test_attention_without_positions_is_an_alarm_with_the_line_that_takes_the_tokens():
    model = Tagger()
    (found,) = found_in(model, TOKENS.flip(1))
    assert (found.rule, found.severity) == ("no_influence", "alarm")
    line = Tagger.forward.__code__.co_firstlineno + 1
    assert f"embedding at test_tokens.py:{line} (in embed) has no influence" in found.evidence
    # The oracle: the outputs of tokens in another order are those in that order.
    order = torch.randperm(9)
    torch.testing.assert_close(model.eval()(TOKENS[:, order]), model(TOKENS)[:, order])


@pytest.mark.parametrize(
    "model",
    [
        Tagger(positions=True),
        Tagger(attends=False),
        Tagger(mask=torch.ones(9, 9).triu(1).bool()),
        Tagger(mask=torch.eye(9).roll(1, 0).bool()),
    ],
    ids=["positions", "each token by itself", "causal", "a mask of places"],
)
def test_nothing_is_said_where_positions_matter_or_tokens_stay_by_themselves(model):
    assert found_in(model, TOKENS.flip(1)) == ()


def test_nothing_is_said_where_all_tokens_of_a_set_have_one_answer():
    assert found_in(Tagger(), (TOKENS.sum(1, keepdim=True) % 20).expand(-1, 9)) == ()


def test_nothing_is_said_of_a_bag_of_words():
    embed, head = nn.Embedding(20, 8), nn.Linear(8, 3)
    step = lambda batch: cross_entropy(head(embed(batch[0]).mean(1)), batch[1])  # noqa: E731
    assert audit(nn.ModuleList([embed, head]), (TOKENS, torch.tensor([0, 1, 2])), step) == ()
