"""torchsde: its example of a latent SDE, a posterior's path against the prior's by logqp: Adam 1e-2; a made series."""

import torch
import torchsde
from torch import nn
from torch.distributions import Normal

FAULT = ("rate", "lr=10 instead of 1e-2")


class LatentSDE(torchsde.SDEIto):
    def __init__(self, size=4):
        super().__init__(noise_type="diagonal")
        self.encoder = nn.GRU(1, 16, batch_first=True)
        self.start = nn.Linear(16, 2 * size)
        self.posterior = nn.Sequential(nn.Linear(size + 16, 32), nn.Softplus(), nn.Linear(32, size))
        self.prior = nn.Sequential(nn.Linear(size, 32), nn.Softplus(), nn.Linear(32, size))
        self.noise = nn.Sequential(nn.Linear(size, 32), nn.Softplus(), nn.Linear(32, size), nn.Sigmoid())
        self.readout = nn.Linear(size, 1)

    def f(self, t, z):
        return self.posterior(torch.cat([z, self.context], 1))

    h = lambda self, t, z: self.prior(z)  # noqa: E731
    g = lambda self, t, z: self.noise(z)  # noqa: E731

    def forward(self, x, t, weight):
        self.context = self.encoder(x)[0][:, -1]
        mean, spread = self.start(self.context).chunk(2, 1)
        z = mean + spread.exp() * torch.randn_like(mean)
        path, apart = torchsde.sdeint(self, z, t, dt=0.1, method="euler", logqp=True)
        likely = Normal(self.readout(path).transpose(0, 1), 0.1, validate_args=False).log_prob(x).sum((1, 2)).mean()
        start = (mean**2 / 2 + (2 * spread).exp() / 2 - spread - 0.5).sum(1).mean()
        return -likely + weight * (apart.sum(0).mean() + start)


def train(run):
    t, phase = torch.linspace(0, 2, 15), torch.rand(64, 1) * 6.28
    x = torch.sin(3 * t + phase)[..., None] + 0.05 * torch.randn(64, 15, 1)
    model = LatentSDE()
    optimizer = torch.optim.Adam(model.parameters(), lr=10.0 if run.faulty else 1e-2)
    with run.loop(model, optimizer) as steps:
        for i in range(120):
            with steps.step(x):
                optimizer.zero_grad()
                loss = model(x, t, min(1.0, i / 60))
                loss.backward()
                optimizer.step()
            run.loss(loss)
