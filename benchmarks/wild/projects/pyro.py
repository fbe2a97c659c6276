"""Pyro: its tutorials' variational autoencoder, with digits, by Trace_ELBO's differentiable_loss: Adam 1e-3."""

import pyro
import pyro.distributions as dist
import torch
from benchmarks.recipes import data
from pyro.infer import Trace_ELBO
from torch import nn

FAULT = ("rate", "lr=0.1 instead of 1e-3")


class VAE(nn.Module):
    def __init__(self, hidden=100, z=10):
        super().__init__()
        self.z = z
        self.encoder = nn.Sequential(nn.Linear(64, hidden), nn.Softplus(), nn.Linear(hidden, 2 * z))
        self.decoder = nn.Sequential(nn.Linear(z, hidden), nn.Softplus(), nn.Linear(hidden, 64), nn.Sigmoid())

    def model(self, x):
        pyro.module("decoder", self.decoder)
        with pyro.plate("data", x.shape[0]):
            z = pyro.sample("latent", dist.Normal(x.new_zeros(x.shape[0], self.z), 1.0).to_event(1))
            pyro.sample("obs", dist.Bernoulli(self.decoder(z), validate_args=False).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("encoder", self.encoder)
        with pyro.plate("data", x.shape[0]):
            loc, scale = self.encoder(x).chunk(2, dim=1)
            pyro.sample("latent", dist.Normal(loc, scale.exp()).to_event(1))


def train(run):
    images, vae, loss_of = data.digits(8)[0].flatten(1) / 2 + 0.5, VAE(), Trace_ELBO().differentiable_loss
    optimizer = torch.optim.Adam(vae.parameters(), lr=0.1 if run.faulty else 1e-3)
    batches = (images[torch.randint(len(images), (128,))] for _ in range(800))
    run.descend(vae, optimizer, batches, lambda x: loss_of(vae.model, vae.guide, x))
