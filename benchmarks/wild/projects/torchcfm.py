"""torchcfm: its tutorial from 8 Gaussians to moons: an MLP of width 64, Adam, optimal transport; batches of 128."""

import torch
from torchcfm.conditional_flow_matching import ExactOptimalTransportConditionalFlowMatcher
from torchcfm.models.models import MLP
from torchcfm.utils import sample_8gaussians, sample_moons

FAULT = ("rate", "lr=1 instead of 1e-3")


def train(run):
    model = MLP(dim=2, time_varying=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0 if run.faulty else 1e-3)
    matcher = ExactOptimalTransportConditionalFlowMatcher(sigma=0.1)

    def loss_of(t, xt, ut):
        return torch.mean((model(torch.cat([xt, t[:, None]], dim=-1)) - ut) ** 2)

    sample = matcher.sample_location_and_conditional_flow
    batches = (sample(sample_8gaussians(128), sample_moons(128)) for _ in range(300))
    run.descend(model, optimizer, batches, loss_of)
