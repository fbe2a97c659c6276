"""spikingjelly: its first tutorial: a layer of LIF neurons counts spikes for digits, and a convolution: Adam 1e-3."""

import torch
from benchmarks.recipes import data
from spikingjelly.activation_based import encoding, functional, layer, neuron, surrogate
from torch import nn

FAULT = ("rate", "lr=1 instead of 1e-3")
VARIANTS = ("lif", "conv")


def train(run):
    x, y = data.digits()
    x = (x + 1) / 2
    fires = lambda: neuron.LIFNode(tau=2.0, surrogate_function=surrogate.ATan())  # noqa: E731
    layers = [layer.Flatten(), layer.Linear(64, 10, bias=False), fires()]
    if run.variant == "conv":
        first = [layer.Conv2d(1, 16, 3, padding=1, bias=False), layer.BatchNorm2d(16), fires(), layer.MaxPool2d(2, 2)]
        layers = [*first, layer.Flatten(), layer.Linear(256, 10, bias=False), fires()]
    model, encoder = nn.Sequential(*layers), encoding.PoissonEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0 if run.faulty else 1e-3)
    with run.loop(model, optimizer) as steps:
        for rows in (rows for _ in range(8) for rows in torch.randperm(len(x)).split(64)):
            with steps.step((x[rows], y[rows])):
                optimizer.zero_grad()
                counted = sum(model(encoder(x[rows])) for _ in range(10)) / 10
                loss = nn.functional.mse_loss(counted, nn.functional.one_hot(y[rows], 10).float())
                loss.backward()
                optimizer.step()
                functional.reset_net(model)
            run.loss(loss)
