"""sbi: a spline flow of the posterior by its guide to a training loop of one's own: Adam 5e-4, clipped to 5."""

import torch
from sbi.neural_nets.net_builders import build_nsf

FAULT = ("rate", "lr=0.5 instead of 5e-4")


def train(run):
    theta = 2 * torch.rand(2000, 3) - 1
    x = theta + 1.0 + torch.randn(2000, 3) * 0.1
    estimator = build_nsf(theta, x, hidden_features=32, num_transforms=3)
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(theta, x), batch_size=50, shuffle=True)
    optimizer = torch.optim.Adam(estimator.parameters(), lr=0.5 if run.faulty else 5e-4)
    batches = (batch for _ in range(4) for batch in rows)
    run.descend(estimator, optimizer, batches, lambda theta, x: estimator.loss(theta, x).mean(), clip=5.0)
