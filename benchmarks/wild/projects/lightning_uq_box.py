"""lightning-uq-box: its tutorials of a toy regression: mean and variance, quantiles, evidential: Adam 3e-3."""

from functools import partial

import torch
from benchmarks.wild.made import QUIET
from lightning.pytorch import Trainer
from lightning_uq_box import uq_methods
from lightning_uq_box.models import MLP
from torch.utils.data import DataLoader, Dataset

FAULT = ("rate", "lr=3 instead of 3e-3")
VARIANTS = ("MVERegression", "QuantileRegression", "DER")
OUTPUTS = {"MVERegression": 2, "QuantileRegression": 3, "DER": 4}


class Rows(Dataset):
    def __init__(self, count):
        self.x = torch.rand(count, 1) * 8 - 4
        self.y = self.x.sin() + 0.1 * self.x.abs() * torch.randn(count, 1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"input": self.x[index], "target": self.y[index]}


def train(run):
    net = MLP(n_hidden=[50, 50], n_outputs=OUTPUTS[run.variant], activation_fn=torch.nn.Tanh())
    options = {"optimizer": partial(torch.optim.Adam, lr=3.0 if run.faulty else 3e-3)}
    if run.variant == "MVERegression":
        options["burnin_epochs"] = 10
    if run.variant == "QuantileRegression":
        options["quantiles"] = [0.1, 0.5, 0.9]
    model = getattr(uq_methods, run.variant)(net, **options)
    loaders = DataLoader(Rows(400), batch_size=50, shuffle=True), DataLoader(Rows(100), batch_size=50)
    Trainer(max_epochs=40, callbacks=run.callbacks, **QUIET).fit(model, *loaders)
