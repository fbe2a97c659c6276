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
    with run.loop(model, optimizer) as steps:
        for _ in range(300):
            t, xt, ut = matcher.sample_location_and_conditional_flow(sample_8gaussians(128), sample_moons(128))
            with steps.step((t, xt, ut)):
                optimizer.zero_grad()
                loss = torch.mean((model(torch.cat([xt, t[:, None]], dim=-1)) - ut) ** 2)
                loss.backward()
                optimizer.step()
            run.loss(loss)
