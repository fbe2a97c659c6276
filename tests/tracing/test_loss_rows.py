"""The rows of a batch with the largest loss are those of the losses computed one by one in float64."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from hookboard.tracing.black_box import row_counts_of, worst_rows_of

ROWS, LENGTH, WIDTH = 6, 5, 7
made = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, LENGTH, WIDTH, generator=made)
X[3] *= 30
TOKENS = torch.randint(WIDTH, (ROWS, LENGTH), generator=made)
MASKED = TOKENS.clone()
MASKED[:, :2] = -100
MASKED[5] = -100
REAL = torch.rand(ROWS, LENGTH, WIDTH, generator=made)
WEIGHTS = torch.rand(WIDTH, generator=made)


def flat(x, tokens=TOKENS, **options):
    return functional.cross_entropy(x.flatten(0, 1), tokens.flatten(), **options)


def negative_logarithms(x, tokens=TOKENS, weights=None):
    """The cross entropy of each row, the mean over its tokens that count."""
    x, tokens = x.double().numpy(), tokens.numpy()
    probabilities = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    counts = tokens != -100
    given = np.take_along_axis(probabilities, np.where(counts, tokens, 0)[..., None], -1)[..., 0]
    losses = -np.log(given) * (1 if weights is None else weights.double().numpy()[tokens])
    with np.errstate(invalid="ignore"):
        return np.where(counts, losses, 0).sum(1) / counts.sum(1)


def by_row(losses):
    return losses.double().flatten(1).mean(1).numpy()


LOSSES = {
    "tokens": (flat, negative_logarithms),
    "tokens of which some are masked": (lambda x: flat(x, MASKED), lambda x: negative_logarithms(x, MASKED)),
    "weighted": (lambda x: flat(x, weight=WEIGHTS), lambda x: negative_logarithms(x, weights=WEIGHTS)),
    "shifted": (
        lambda x: functional.cross_entropy(x[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()),
        lambda x: negative_logarithms(x[:, :-1], TOKENS[:, 1:]),
    ),
    "classes second": (lambda x: functional.cross_entropy(x.mT, TOKENS), negative_logarithms),
    "mse": (lambda x: functional.mse_loss(x, REAL), lambda x: by_row((x - REAL).square())),
    "squares": (lambda x: (x - REAL).square().mean(-1).mean(), lambda x: by_row((x - REAL).square())),
    "l1": (lambda x: functional.l1_loss(x, REAL), lambda x: by_row((x - REAL).abs())),
    "huber": (
        lambda x: functional.huber_loss(x, REAL, delta=2.0),
        lambda x: by_row(torch.where((x - REAL).abs() < 2, (x - REAL) ** 2 / 2, 2 * ((x - REAL).abs() - 1))),
    ),
    "smooth l1": (
        lambda x: functional.smooth_l1_loss(x, REAL, beta=0.5),
        lambda x: by_row(torch.where((x - REAL).abs() < 0.5, (x - REAL) ** 2, (x - REAL).abs() - 0.25)),
    ),
    "binary": (
        lambda x: functional.binary_cross_entropy_with_logits(x, REAL, pos_weight=WEIGHTS),
        lambda x: by_row(
            -WEIGHTS * REAL * functional.logsigmoid(x.double()) - (1 - REAL) * functional.logsigmoid(-x.double())
        ),
    ),
}


@pytest.mark.parametrize(("loss", "oracle"), LOSSES.values(), ids=LOSSES)
def test_the_row_its_loss_and_the_usual_one(loss, oracle):
    found, losses = worst_rows_of(loss(X.clone().requires_grad_() * 1)), oracle(X)
    known = losses[np.isfinite(losses)]
    assert found.rows == (3,)
    assert found.losses == pytest.approx([losses[3]], rel=1e-5)
    assert found.usual == pytest.approx(np.median(known), rel=1e-5)
    assert found.count == len(known)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["tokens of which some are masked", "mse", "binary"])
def test_rows_whose_loss_is_not_finite(name, value):
    (loss, _), x = LOSSES[name], X.clone()
    x[1, 0], x[4, -2] = value, value
    rows = worst_rows_of(loss(x.requires_grad_() * 1)).rows
    assert rows in ((1, 4), (1,), (4,))  # what is masked or left out is not seen
    assert not set(rows) & {0, 2, 3, 5}


def test_rows_that_are_alike_are_not_named():
    alike = X.clone()
    alike[3] /= 30
    assert worst_rows_of(flat(alike.requires_grad_() * 1)) is None
    assert worst_rows_of(flat(30 * alike)) is None


IS_KEPT = torch.arange(LENGTH) < torch.tensor([5, 5, 5, 2, 5, 5])[:, None]
SPOILT = X.clone()
SPOILT[3] /= 30
SPOILT[3, 2:] *= 1e3  # where the mask is 0
NO_MULTIPLES = {
    "a mask": lambda x: (functional.cross_entropy(x.mT, TOKENS, reduction="none") * IS_KEPT).mean(),
    "a division by lengths": lambda x: (
        functional.mse_loss(x, REAL, reduction="none").sum((1, 2)) / IS_KEPT.sum(1)
    ).mean(),
    "smoothed labels": lambda x: functional.cross_entropy(x.mT, TOKENS, label_smoothing=0.1),
    "another term": lambda x: functional.cross_entropy(x.mT, TOKENS) + x.logsumexp(-1).mean(),
    "another loss": lambda x: flat(x) + functional.mse_loss(x, REAL),
    "no graph": lambda x: x.detach().sum(),
    "its inverse": lambda x: torch.ones(()).div(functional.mse_loss(x, REAL)),
}


@pytest.mark.parametrize("loss", NO_MULTIPLES.values(), ids=NO_MULTIPLES)
def test_no_row_is_named_where_the_loss_is_no_multiple_of_the_mean_over_rows(loss):
    assert worst_rows_of(loss(SPOILT.clone().requires_grad_() * 1)) is None


@pytest.mark.parametrize("batch", [(X, TOKENS), {"x": X}, None])
def test_the_rows_are_those_of_the_batch(batch):
    assert worst_rows_of(flat(X.clone().requires_grad_() * 1), row_counts_of(batch)).rows == (3,)


def test_rows_that_are_not_those_of_the_batch_are_not_named():
    x, counts = X.clone().requires_grad_() * 1, row_counts_of((X, TOKENS))
    assert worst_rows_of(functional.cross_entropy(x[IS_KEPT], TOKENS[IS_KEPT]), counts) is None
    assert worst_rows_of(functional.mse_loss(x.mT.transpose(0, 1), REAL.mT.transpose(0, 1)), counts) is None
    assert (
        worst_rows_of(functional.cross_entropy(torch.cat([x[:, 0], x[:, 1]]), TOKENS[:, :2].T.flatten()), counts)
        is None
    )


@pytest.mark.parametrize(("margin", "is_named"), [(1.001, False), (0.999, True)])
def test_finite_rows_are_named_if_they_make_half_of_what_is_more_than_usual(margin, is_named):
    losses = negative_logarithms(X)
    share = 1 - np.delete(losses, 3).mean() / losses.mean()
    found = worst_rows_of(flat(X.clone().requires_grad_() * 1), None, 2 * share * margin)
    assert (found is not None) == is_named


@pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="torch 2.6 does not tell which tensors are packed")
def test_tensors_that_the_user_packs_are_left_alone():
    def fails(*_):
        raise AssertionError("unpacked")

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, fails):
        loss = flat(X.clone().requires_grad_() * 1)
    assert worst_rows_of(loss) is None
