"""Padding masks the wrong way round."""

import pytest
import torch
from recorded import numbers
from torch import nn
from torch.nn.functional import cross_entropy

from hookboard.tracing.audit import audit

pytestmark = pytest.mark.unit

torch.manual_seed(0)
TOKENS = torch.where(torch.arange(8) < torch.tensor([3, 5, 8, 4])[:, None], torch.randint(1, 9, (4, 8)), 0)
LABELS = torch.tensor([0, 1, 2, 0])


class Classifier(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.layer = layer
        self.head = nn.Linear(8, 3)

    def forward(self, tokens, mask):
        x = self.embed(tokens)
        if isinstance(self.layer, nn.MultiheadAttention):
            x = self.layer(x, x, x, key_padding_mask=mask)[0]
        else:
            x = self.layer(x, src_key_padding_mask=mask)
        return self.head(x.mean(1))


LAYERS = [
    lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
]


def said(rule, model, batch, step):
    return [found for found in audit(model, batch, step) if found.rule == rule]


@pytest.mark.parametrize("make", LAYERS, ids=["attention", "encoder layer"])
@pytest.mark.parametrize("is_inverted", [True, False])
def test_a_padding_mask_that_hides_the_tokens_is_an_alarm(make, is_inverted):
    model = Classifier(make())
    step = lambda batch: cross_entropy(model(batch[0], (batch[0] == 0) != is_inverted), batch[1])  # noqa: E731
    found = said("padding_mask", model, (TOKENS, LABELS), step)
    assert len(found) == is_inverted
    if is_inverted:
        assert found[0].severity == "alarm"
        (share,) = numbers("hides #% of the positions", found[0].evidence)
        assert share == round(100 * float((TOKENS != 0).double().mean()))
