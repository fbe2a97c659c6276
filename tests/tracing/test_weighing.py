"""Targets that count too much or too little in the loss."""

import pytest
import torch
from recorded import numbers
from torch import nn
from torch.nn.functional import cross_entropy

from hookboard.tracing.audit import audit

pytestmark = pytest.mark.unit

torch.manual_seed(0)
LENGTHS = torch.tensor([3, 5, 8, 4])
TOKENS = torch.where(torch.arange(8) < LENGTHS[:, None], torch.randint(1, 9, (4, 8)), 0)
X = torch.randn(64, 4)


def said(rule, model, batch, step):
    return [found for found in audit(model, batch, step) if found.rule == rule]


def of_tokens(rule, tokens, targets, **options):
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    step = lambda batch: cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten(), **options)  # noqa: E731
    return said(rule, model, (tokens, targets), step)


def test_padding_that_the_loss_counts_is_a_note_with_its_share_and_the_number_to_ignore():
    (found,) = of_tokens("padding", TOKENS, TOKENS)
    (share,) = numbers("#% of the targets of cross_entropy at", found.evidence)
    (pad,) = numbers("are #, the number that pads rows", found.evidence)
    assert (share, pad) == (round(100 * float(1 - LENGTHS.sum() / TOKENS.numel())), 0)
    assert found.advice == "pass ignore_index=0 to the loss, if 0 is padding"


def test_padding_is_seen_in_targets_that_are_a_part_of_the_tokens():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    step = lambda x: cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].reshape(-1))  # noqa: E731
    (found,) = said("padding", model, TOKENS, step)
    (share,) = numbers("#% of the targets of cross_entropy at", found.evidence)
    assert share == round(100 * float((TOKENS[:, 1:] == 0).double().mean()))


def test_nothing_is_said_of_padding_that_is_ignored_or_of_rows_without_any():
    assert of_tokens("padding", TOKENS, TOKENS, ignore_index=0) == []
    assert of_tokens("padding", TOKENS, torch.randint(1, 9, (4, 8))) == []
