"""Faulty steps as beginners write them, each with the healthy step that it was meant to be."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as f

from hookboard.tracing.step import audit

torch.manual_seed(0)
N = 16
X = torch.randn(N, 4)
CLASSES = torch.arange(N) % 3
BINARY = (torch.arange(N) % 2).float()
REAL = torch.linspace(-2, 2, N)
ONE_HOT = f.one_hot(CLASSES, 3).float()
SEQUENCES = torch.randn(N, 10, 4)
TAGS = torch.randint(0, 3, (N, 10))
IMAGES = torch.randn(N, 1, 8, 8)
PIXELS = torch.randint(0, 3, (N, 8, 8))
MASKS = (torch.rand(N, 1, 8, 8) > 0.5).float()
BY_CLASS, BY_BINARY, BY_REAL = (X, CLASSES), (X, BINARY), (X, REAL)
LONG = (SEQUENCES, CLASSES)
MASKED = (IMAGES, MASKS)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.three, self.one = nn.Linear(8, 3), nn.Linear(8, 1)
        self.query, self.key = nn.Linear(4, 8), nn.Linear(4, 8)
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.segment = nn.Conv2d(1, 3, 3, padding=1)
        self.lstm, self.lstm_first = nn.LSTM(4, 8), nn.LSTM(4, 8, batch_first=True)
        self.layer_first = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.three(f.relu(self.hidden(x)))

    def single(self, x):
        return self.one(f.relu(self.hidden(x)))


def dice(p, y):
    return 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)


FAULTS = {
    "softmax over the samples, one-hot": (
        "batch_mixing",
        (X, ONE_HOT),
        lambda n, x, y: f.mse_loss(f.softmax(n(x), dim=0), y),
    ),
    "LSTM": ("batch_mixing", LONG, lambda n, x, y: f.cross_entropy(n.three(n.lstm(x)[0][:, -1]), y)),
    "view for transpose": ("loss_shape", (SEQUENCES, TAGS), lambda n, x, y: f.cross_entropy(n(x).view(N, 3, 10), y)),
    "view for permute in front of the loss": (
        "loss_shape",
        (IMAGES, PIXELS),
        lambda n, x, y: f.cross_entropy(n.segment(x).contiguous().view(-1, 3), y.view(-1)),
    ),
    "log_softmax for BCE": (
        "loss_input",
        (X, ONE_HOT),
        lambda n, x, y: f.binary_cross_entropy_with_logits(f.log_softmax(n(x), 1), y),
    ),
    "Dice of logits": ("loss_input", MASKED, lambda n, x, y: dice(n.conv(x).view(-1), y.view(-1))),
    "a likelihood": (
        "loss_shape",
        BY_REAL,
        lambda n, x, y: -torch.distributions.Normal(n.single(x), 1.0).log_prob(y).mean(),
    ),
    "a loss of a number": (
        "cut",
        BY_REAL,
        lambda n, x, y: torch.tensor(f.mse_loss(n.single(x)[:, 0], y).item(), requires_grad=True),
    ),
    "argmax": ("cut", BY_CLASS, lambda n, x, y: f.mse_loss(n(x).argmax(1).float(), y.float()).requires_grad_()),
    "NumPy": ("cut", BY_CLASS, lambda n, x, y: f.cross_entropy(n(torch.tensor(x.numpy())).data.requires_grad_(), y)),
    "rounded": ("cut", BY_BINARY, lambda n, x, y: f.mse_loss(n.single(x)[:, 0].sigmoid().round(), y)),
    "clamp at the end": ("output_range", BY_REAL, lambda n, x, y: f.mse_loss(n.single(x).clamp(min=0)[:, 0], y)),
}

NOTES = {
    "samples attend to each other": (
        "batch_mixing",
        BY_CLASS,
        lambda n, x, y: f.cross_entropy(n.three(n.layer_first(n.hidden(x))), y),
    ),
    "weights over the samples": (
        "batch_mixing",
        BY_CLASS,
        lambda n, x, y: f.cross_entropy(n.three(n.hidden(x) * f.softmax(n.hidden(x), dim=0)), y),
    ),
}


def found_in(batch, step):
    torch.manual_seed(1)
    net = Net()
    return audit(net, batch, lambda batch: step(net, *batch))


REGROUPED = {
    "windows as long as the batch": ((4, 16, 8), (16, 4, 8)),
    "positions merged, features split into heads": ((2, 4, 8), (8, 2, 4)),
    "samples joined to groups": ((8, 2, 4), (2, 8, 4)),
}


@pytest.mark.parametrize("name", REGROUPED)
def test_samples_that_are_cut_or_joined_are_not_said_to_move_to_another_dimension(name):
    before, after = REGROUPED[name]
    net, head = nn.Linear(before[-1], before[-1]), nn.Linear(before[-1], 3)

    def step(batch):
        x, y = batch
        out = head(net(x).view(after).tanh().view(before))
        return f.cross_entropy(out if len(before) == 2 else out.mean(1), y)

    batch = torch.randn(before), CLASSES[: before[0]]
    assert not audit(nn.ModuleList([net, head]), batch, step)


@pytest.mark.parametrize(
    ("before", "after", "remedy"),
    [
        ((5, 3, 7, 6), (3, 5, 7, 6), "transpose(0, 1)"),
        ((5, 3, 7, 6), (3, 5, 6, 7), "permute(1, 0, 3, 2)"),
        ((5, 7, 3), (7, 3, 5), "permute(1, 2, 0)"),
    ],
)
def test_the_advice_for_a_view_gives_the_shape_that_was_wanted(before, after, remedy):
    x = torch.arange(math.prod(before)).view(before) // math.prod(before[1:])  # its numbers are those of the samples
    net = nn.Linear(math.prod(before) // 5, 3)

    def step(batch):
        at = after.index(5)
        return f.cross_entropy(net(batch[0].view(after).movedim(at, 0).flatten(1)), batch[1])

    (found,) = audit(net, (x.float(), CLASSES[:5]), step)
    assert found.advice == f"use {remedy} in place of the view"
    # The oracle: what lies at one index of the dimension that is named is of several samples, and of one by the advice.
    at = after.index(5)
    assert f"dimension {at} is then as long as the batch" in found.evidence
    assert all(len(part.unique()) > 1 for part in x.view(after).unbind(at))
    advised = eval(f"x.{remedy}")
    assert advised.shape == after
    assert all(len(part.unique()) == 1 for part in advised.unbind(at))


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_an_alarm_with_its_line(name):
    rule, batch, step = FAULTS[name]
    (alarm,) = [finding for finding in found_in(batch, step) if finding.severity == "alarm"]
    assert alarm.rule == rule
    assert "test_beginners.py:" in alarm.evidence


@pytest.mark.parametrize("name", NOTES)
def test_what_may_be_meant_is_a_note(name):
    rule, batch, step = NOTES[name]
    assert [(finding.rule, finding.severity) for finding in found_in(batch, step)] == [(rule, "note")]


def masked_in_place(net, x):
    scores = torch.bmm(net.query(x), net.key(x).transpose(1, 2))
    scores.masked_fill_(torch.ones(10, 10).triu(1).bool(), -1e9)
    return net.three(torch.bmm(scores.softmax(-1), net.hidden(x)).mean(1))


def outside_of_the_model(net, x, y):
    return f.mse_loss(net(x).std().item() * OUTSIDE, y)


OUTSIDE = torch.zeros(N, requires_grad=True)


def one_sentence(net, x, y):
    """The tutorial of PyTorch: a batch is a sentence, and each word has a tag."""
    return f.cross_entropy(net.three(net.lstm(x.view(len(x), 1, -1))[0].view(len(x), -1)), y)


def surrogate(net, x, y):
    smooth = f.cross_entropy(net(x), y)
    wrong = (net(x).argmax(1) != y).float().mean() + 0 * smooth
    return smooth + (wrong - smooth).detach()


def beside_a_baseline(net, x, y):
    loss = f.cross_entropy(net(x), y)
    return loss - loss.detach() + 1


def beside_a_constant_that_was_logged(net, x, y):
    net.logged = net.conv.weight.mean().item()
    return 1.0 - f.cosine_similarity(net(x), f.one_hot(y, 3).float()).mean()


def column_by_column(net, x, y):
    out = net(x).sum(1, keepdim=True) * torch.ones(4)
    return sum(f.mse_loss(out[:, i], x[:, i]) for i in range(4))


HEALTHY = {
    "batch first": (LONG, lambda n, x, y: f.cross_entropy(n.three(n.lstm_first(x)[0][:, -1]), y)),
    "time first": (
        (SEQUENCES.transpose(0, 1), CLASSES),
        lambda n, x, y: f.cross_entropy(n.three(n.lstm(x)[0][-1]), y),
    ),
    "one sentence": (BY_CLASS, one_sentence),
    "pixels flattened": (
        (IMAGES, PIXELS),
        lambda n, x, y: f.cross_entropy(n.segment(x).permute(0, 2, 3, 1).reshape(-1, 3), y.view(-1)),
    ),
    "classes second, made by a view": (
        (SEQUENCES, TAGS),
        lambda n, x, y: f.cross_entropy(n(x).view(N, 3, 10).view(-1, 3), y.view(-1)),
    ),
    "Dice": (MASKED, lambda n, x, y: dice(n.conv(x).sigmoid(), y)),
    "a mean under a mask": (MASKED, lambda n, x, y: ((n.conv(x) ** 2) * y).sum() / y.sum()),
    "pairs": (BY_REAL, lambda n, x, y: (n.single(x)[:, 0].unsqueeze(1) - y).abs().mean()),
    "signed weights of the samples": (
        BY_CLASS,
        lambda n, x, y: f.nll_loss(n(x).log_softmax(1) * torch.linspace(-1, 1, N)[:, None], y),
    ),
    "a part of the classes": (BY_CLASS, lambda n, x, y: f.nll_loss(n(x).log_softmax(1)[:, :2], y % 2)),
    "a surrogate": (BY_CLASS, surrogate),
    "beside a baseline": (BY_CLASS, beside_a_baseline),
    "beside a constant that was logged": (BY_CLASS, beside_a_constant_that_was_logged),
    "quantiles": (BY_CLASS, lambda n, x, y: f.smooth_l1_loss(n(x).unsqueeze(2), x[:, :3].unsqueeze(1))),
    "column by column": (BY_CLASS, column_by_column),
    "as many positions as samples, first": (
        (torch.randn(N, N, 4), REAL),
        lambda n, x, y: f.mse_loss(n.one(n.lstm(x)[0][-1]).squeeze(1), y),
    ),
    "a tensor outside of the model": (BY_REAL, outside_of_the_model),
    "masked in place": (LONG, lambda n, x, y: f.cross_entropy(masked_in_place(n, x), y)),
    "log_softmax twice": (BY_CLASS, lambda n, x, y: f.cross_entropy(f.log_softmax(n(x), 1), y)),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_said_of_the_step_that_was_meant(name):
    assert found_in(*HEALTHY[name]) == ()


def test_the_targets_of_a_softmax_over_the_samples_are_not_summed_as_those_of_a_sample():
    found = found_in(*FAULTS["softmax over the samples, one-hot"][1:])
    assert all("of a sample" not in finding.evidence for finding in found)


def test_the_range_of_the_logits_whose_overlap_is_taken():
    torch.manual_seed(1)
    outputs = Net().double().conv(IMAGES.double())
    (found,) = found_in(*FAULTS["Dice of logits"][1:])
    assert found.rule == "loss_input"
    assert f"masks, but the outputs range from {outputs.min():.3g} to {outputs.max():.3g}" in found.evidence
