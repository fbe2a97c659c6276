"""torchcde: its example/time_series_classification.py: a neural CDE tells spirals apart; here rk4, Adam 0.01."""

import torch
import torchcde
from torch import nn

FAULT = ("rate", "lr=10 instead of 0.01")


class CDEFunc(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(8, 128), nn.Linear(128, 3 * 8)

    def forward(self, t, z):
        return self.linear2(self.linear1(z).relu()).tanh().view(z.size(0), 8, 3)


class NeuralCDE(nn.Module):
    def __init__(self):
        super().__init__()
        self.func, self.initial, self.readout = CDEFunc(), nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, coeffs):
        x = torchcde.CubicSpline(coeffs)
        start, solver = self.initial(x.evaluate(x.interval[0])), {"method": "rk4", "options": {"step_size": 1.0}}
        return self.readout(torchcde.cdeint(x, self.func, start, x.interval, **solver)[:, 1]).squeeze(-1)


def train(run):
    t, start, sign = torch.linspace(0.0, 2 * torch.pi, 12), torch.rand(128, 1) * 6.283, torch.ones(128, 1)
    sign[:64] = -1
    turns = torch.stack([torch.cos(start + sign * t), torch.sin(start + sign * t)], 2) / (1 + 0.5 * t)[None, :, None]
    coeffs = torchcde.hermite_cubic_coefficients_with_backward_differences
    series, y = coeffs(torch.cat([t.expand(128, -1)[..., None], turns], 2)), (sign[:, 0] + 1) / 2
    model, loss_of = NeuralCDE(), nn.functional.binary_cross_entropy_with_logits
    optimizer = torch.optim.Adam(model.parameters(), lr=10.0 if run.faulty else 0.01)
    batches = (rows for _ in range(20) for rows in torch.randperm(128).split(32))
    batches = ((series[rows], y[rows]) for rows in batches)
    run.descend(model, optimizer, batches, lambda x, y: loss_of(model(x), y))
