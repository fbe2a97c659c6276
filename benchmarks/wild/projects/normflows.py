"""normflows: the RealNVP of its README learns two moons: Adam 5e-4, decay 1e-5."""

import normflows as nf
import torch

FAULT = ("rate", "lr=0.5 instead of 5e-4")


def train(run):
    flows = []
    for _ in range(8):
        flows.append(nf.flows.AffineCouplingBlock(nf.nets.MLP([1, 64, 64, 2], init_zeros=True)))
        flows.append(nf.flows.Permute(2, mode="swap"))
    model = nf.NormalizingFlow(nf.distributions.base.DiagGaussian(2), flows)
    target = nf.distributions.TwoMoons()
    rate = 0.5 if run.faulty else 5e-4
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=1e-5)
    with run.loop(model, optimizer) as steps:
        for _ in range(250):
            x = target.sample(512)
            with steps.step(x):
                optimizer.zero_grad()
                loss = model.forward_kld(x)
                if ~(torch.isnan(loss) | torch.isinf(loss)):
                    loss.backward()
                    optimizer.step()
            run.loss(loss)
