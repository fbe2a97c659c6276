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
        z = torchcde.cdeint(
            X=x,
            z0=self.initial(x.evaluate(x.interval[0])),
            func=self.func,
            t=x.interval,
            method="rk4",
            options={"step_size": 1.0},
        )
        return self.readout(z[:, 1]).squeeze(-1)


def train(run):
    t, start, sign = torch.linspace(0.0, 2 * torch.pi, 12), torch.rand(128, 1) * 6.283, torch.ones(128)
    sign[:64] = -1
    turns = torch.stack([torch.cos(start + sign[:, None] * t), torch.sin(start + sign[:, None] * t)], 2)
    series = torch.cat([t.expand(128, -1)[..., None], turns / (1 + 0.5 * t)[None, :, None]], 2)
    data = torch.utils.data.TensorDataset(
        torchcde.hermite_cubic_coefficients_with_backward_differences(series), (sign + 1) / 2
    )
    model, loss_of = NeuralCDE(), nn.functional.binary_cross_entropy_with_logits
    optimizer = torch.optim.Adam(model.parameters(), lr=10.0 if run.faulty else 0.01)
    with run.loop(model, optimizer) as steps:
        for batch in (
            batch for _ in range(20) for batch in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
        ):
            with steps.step(batch):
                loss = loss_of(model(batch[0]), batch[1])
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            run.loss(loss)
