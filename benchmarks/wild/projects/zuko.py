"""zuko: the conditional spline flow of its README learns two moons, given which: Adam 1e-3."""

import torch
import zuko
from sklearn.datasets import make_moons

FAULT = ("rate", "lr=1 instead of 1e-3")


def train(run):
    x, label = make_moons(4096, noise=0.05, random_state=0)
    data = torch.utils.data.TensorDataset(torch.tensor(x).float(), torch.tensor(label).float()[:, None])
    flow = zuko.flows.NSF(2, 1, transforms=3, hidden_features=[64] * 2)
    optimizer = torch.optim.Adam(flow.parameters(), lr=1.0 if run.faulty else 1e-3)
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    batches = (batch for _ in range(4) for batch in loader)
    run.descend(flow, optimizer, batches, lambda x, c: -flow(c).log_prob(x).mean())
