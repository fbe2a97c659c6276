"""opacus: its examples/mnist.py, with digits: SGD 0.1, noise 1, each sample's gradient clipped to 1, batches of 64."""

import torch
from benchmarks.recipes import data
from opacus import PrivacyEngine
from torch import nn

FAULT = ("rate", "lr=100 instead of 0.1")


def train(run):
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data.digits(28)), batch_size=64, shuffle=True)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten()),
        *(nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=100.0 if run.faulty else 0.1)
    model, optimizer, rows = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=rows, noise_multiplier=1.0, max_grad_norm=1.0
    )
    batches = (batch for _ in range(8) for batch in rows)
    run.descend(model, optimizer, batches, lambda x, y: nn.functional.cross_entropy(model(x), y))
