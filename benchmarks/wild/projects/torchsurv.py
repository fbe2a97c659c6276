"""torchsurv: its introduction: an MLP with batch norm, Cox's and Weibull's loss, AdamW 1e-2; made lives."""

import torch
from torch import nn
from torchsurv.loss import cox, weibull

FAULT = ("rate", "lr=10 instead of 1e-2")
VARIANTS = ("cox", "weibull")


def train(run):
    x = torch.randn(600, 6)
    lives = torch.distributions.Exponential((3 * x[:, 0] - 2 * x[:, 1]).exp()).sample()
    censored = torch.distributions.Exponential(0.3).sample((600,))
    time, event = torch.minimum(lives, censored) + 1e-3, lives < censored
    layers = [nn.BatchNorm1d(6), nn.Linear(6, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 64), nn.ReLU(), nn.Dropout()]
    model = nn.Sequential(*layers, nn.Linear(64, 2 if run.variant == "weibull" else 1))
    loss_of = weibull.neg_log_likelihood_weibull if run.variant == "weibull" else cox.neg_partial_log_likelihood
    optimizer = torch.optim.AdamW(model.parameters(), lr=10.0 if run.faulty else 1e-2)
    batches = (rows for _ in range(30) for rows in torch.randperm(600).split(64)[:-1])
    batches = ((x[rows], event[rows], time[rows]) for rows in batches)
    run.descend(model, optimizer, batches, lambda x, *lives: loss_of(model(x), *lives, reduction="mean"))
