"""pykan: its first example: a KAN learns exp(sin(pi x) + y^2), by Adam 1e-2 and by its L-BFGS, the grid updated."""

import torch
from kan import KAN, create_dataset
from kan.LBFGS import LBFGS

FAULT = ("rate", "lr=10 instead of 1e-2")
VARIANTS = ("Adam", "LBFGS")


def train(run):
    data = create_dataset(lambda x: torch.exp(torch.sin(torch.pi * x[:, [0]]) + x[:, [1]] ** 2), n_var=2, train_num=500)
    x, y = data["train_input"], data["train_label"]
    model = KAN(width=[2, 5, 1], grid=3, k=3, seed=42, auto_save=False, symbolic_enabled=False)
    optimizer = torch.optim.Adam(model.get_params(), lr=10.0 if run.faulty else 1e-2)
    if run.variant == "LBFGS":
        optimizer = LBFGS(model.get_params(), lr=1, history_size=10, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = torch.mean((model(x) - y) ** 2)
        loss.backward()
        return loss

    with run.loop(model, optimizer) as steps:
        for i in range(30 if run.variant == "LBFGS" else 200):
            if i % 5 == 0 and i < 50:
                with torch.no_grad():
                    model.update_grid(x)
            with steps.step((x, y)):
                loss = optimizer.step(closure)
            run.loss(loss)
