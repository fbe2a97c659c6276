"""Models of tokens that do not know their order."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from hookboard.tracing.step import audit

TOKENS = torch.randint(0, 20, (3, 9), generator=torch.Generator().manual_seed(0))


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


def found_in(model, wanted=None):
    wanted = TOKENS.flip(1) if wanted is None else wanted
    return audit(
        model, (TOKENS, wanted), lambda batch: cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
    )


def test_attention_without_positions_is_an_alarm_with_the_line_that_takes_the_tokens():
    model = Tagger()
    (found,) = found_in(model)
    assert (found.rule, found.severity) == ("no_influence", "alarm")
    line = Tagger.forward.__code__.co_firstlineno + 1
    assert f"embedding at test_order.py:{line} (in embed) has no influence" in found.evidence
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
    assert found_in(model) == ()


def test_nothing_is_said_where_all_tokens_of_a_set_have_one_answer():
    assert found_in(Tagger(), (TOKENS.sum(1, keepdim=True) % 20).expand(-1, 9)) == ()


def test_nothing_is_said_of_a_bag_of_words():
    embed, head = nn.Embedding(20, 8), nn.Linear(8, 3)
    step = lambda batch: cross_entropy(head(embed(batch[0]).mean(1)), batch[1])  # noqa: E731
    assert audit(nn.ModuleList([embed, head]), (TOKENS, torch.tensor([0, 1, 2])), step) == ()
