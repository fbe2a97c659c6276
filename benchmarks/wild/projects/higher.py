"""higher: second-order MAML as in its README and examples: innerloop_ctx, three inner steps; here, sine waves."""

import higher
import torch
from torch import nn
from torch.nn.functional import mse_loss

FAULT = ("rate", "lr=1 instead of 1e-3 of the outer Adam")


def train(run):
    model = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
    outer = torch.optim.Adam(model.parameters(), lr=1.0 if run.faulty else 1e-3)
    inner = torch.optim.SGD(model.parameters(), lr=1e-2)
    batches = []
    for _ in range(150):
        x = 10 * torch.rand(8, 20, 1) - 5
        batches.append((x, (0.5 + 4 * torch.rand(8, 1, 1)) * torch.sin(x + 3.14 * torch.rand(8, 1, 1))))
    with run.loop(model, outer) as steps:
        for batch in batches:
            with steps.step(batch):
                outer.zero_grad()
                total = 0.0
                for x, y in zip(*batch, strict=True):
                    with higher.innerloop_ctx(model, inner, copy_initial_weights=False) as (fast, optimizer):
                        for _ in range(3):
                            optimizer.step(mse_loss(fast(x[:10]), y[:10]))
                        loss = mse_loss(fast(x[10:]), y[10:]) / 8
                        loss.backward()
                        total += loss.item()
                outer.step()
            run.loss(total)
