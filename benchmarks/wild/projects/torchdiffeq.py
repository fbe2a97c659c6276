"""torchdiffeq: its examples/ode_demo.py, with rk4: RMSprop 1e-3, batches of 20 pieces of a cubic spiral."""

import torch
from torch import nn
from torchdiffeq import odeint, odeint_adjoint

FAULT = ("rate", "lr=1 instead of 1e-3")


class Field(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, t, y):
        return self.net(y**3)


def train(run):
    matrix, times = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]]), torch.linspace(0.0, 25.0, 1000)
    with torch.no_grad():
        true = odeint(lambda t, y: y**3 @ matrix, torch.tensor([[2.0, 0.0]]), times, method="rk4")
    model = Field(nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2)))
    for layer in (model.net[0], model.net[2]):
        nn.init.normal_(layer.weight, mean=0, std=0.1)
        nn.init.constant_(layer.bias, val=0)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1.0 if run.faulty else 1e-3)

    def loss_of(first, ahead):
        return (odeint_adjoint(model, first, times[:10], method="rk4") - ahead).abs().mean()

    drawn = torch.randint(990, (150, 20))
    batches = ((true[starts], torch.stack([true[starts + i] for i in range(10)])) for starts in drawn)
    run.descend(model, optimizer, batches, loss_of)
