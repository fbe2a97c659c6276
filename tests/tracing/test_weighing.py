"""Targets that count too much or too little in the loss."""

import pytest
import torch
from recorded import numbers
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from hookboard.tracing import audit

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
    assert found.advice == "give the loss ignore_index=0, if that is padding"


def test_padding_is_seen_in_targets_that_are_a_part_of_the_tokens():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    step = lambda x: cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].reshape(-1))  # noqa: E731
    (found,) = said("padding", model, TOKENS, step)
    (share,) = numbers("#% of the targets of cross_entropy at", found.evidence)
    assert share == round(100 * float((TOKENS[:, 1:] == 0).double().mean()))


def test_nothing_is_said_of_padding_that_is_ignored_or_of_rows_without_any():
    assert of_tokens("padding", TOKENS, TOKENS, ignore_index=0) == []
    assert of_tokens("padding", TOKENS, torch.randint(1, 9, (4, 8))) == []


LABELS = (torch.arange(64) % 16 == 0).long()


@pytest.mark.parametrize(("weight", "count"), [([8.0, 1.0], 1), ([1.0, 8.0], 0), ([1.0, 1.0], 0)])
def test_a_frequent_class_that_weighs_more_than_a_rare_one_is_a_note(weight, count):
    model, weight = nn.Linear(4, 2), torch.tensor(weight)
    step = lambda batch: cross_entropy(model(batch[0]), batch[1], weight=weight)  # noqa: E731
    found = said("class_weights", model, (X, LABELS), step)
    assert len(found) == count
    if count:
        told = numbers("are # for class #, which is #% of the targets, and at most # for rare ones", found[0].evidence)
        assert told == [8, 0, round(100 * float((LABELS == 0).double().mean())), 1]


@pytest.mark.parametrize(("factor", "count"), [(0.1, 1), (15.0, 0)])
def test_a_positive_weight_that_makes_the_rare_class_count_less_is_a_note(factor, count):
    model, weight = nn.Linear(4, 1), torch.tensor([factor])
    wanted = LABELS.float().unsqueeze(1)
    step = lambda batch: binary_cross_entropy_with_logits(model(batch[0]), batch[1], pos_weight=weight)  # noqa: E731
    found = said("class_weights", model, (X, wanted), step)
    assert len(found) == count
    if count:
        exact = 100 * float(wanted.double().mean())
        told = numbers("is #, and #% of the targets are positive", found[0].evidence)
        assert told == pytest.approx([factor, exact], abs=0.05)
        (advised,) = numbers("to negatives / positives, here about #", found[0].advice)
        assert advised == pytest.approx((100 - exact) / exact, rel=0.05)
