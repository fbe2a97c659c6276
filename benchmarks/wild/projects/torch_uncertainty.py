"""torch-uncertainty: its tutorials of packed ensembles and of a Bayesian network by the ELBO, on digits: Adam 1e-3."""

import lightning.pytorch as pl
import torch
from benchmarks.recipes import data
from benchmarks.wild.made import QUIET
from torch import nn
from torch_uncertainty.layers import BayesLinear, PackedLinear
from torch_uncertainty.losses import ELBOLoss
from torch_uncertainty.routines import ClassificationRoutine
from torch_uncertainty.transforms import RepeatTarget

FAULT = ("rate", "lr=1 instead of 1e-3")
VARIANTS = ("packed", "bayesian")


def train(run):
    if run.variant == "packed":
        first, last = ({"alpha": 2, "num_estimators": 4, end: True} for end in ("first", "last"))
        layers = [PackedLinear(784, 128, **first), nn.ReLU(), PackedLinear(128, 10, **last)]
        options = {"loss": nn.CrossEntropyLoss(), "format_batch_fn": RepeatTarget(4), "is_ensemble": True}
        model = nn.Sequential(nn.Flatten(), *layers)
    else:
        model = nn.Sequential(nn.Flatten(), BayesLinear(784, 64), nn.ReLU(), BayesLinear(64, 10))
        elbo = ELBOLoss(model, nn.CrossEntropyLoss(), kl_weight=1 / 1500, num_samples=2)
        options = {"loss": elbo, "is_ensemble": True}
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0 if run.faulty else 1e-3)
    routine = ClassificationRoutine(num_classes=10, model=model, optim_recipe=optimizer, **options)
    whole = torch.utils.data.TensorDataset(*data.digits(28))
    parts = [torch.utils.data.Subset(whole, range(*ends)) for ends in ((0, 1500), (1500, 1797))]
    loaders = [torch.utils.data.DataLoader(part, 32, shuffle=part is parts[0]) for part in parts]
    pl.Trainer(max_epochs=4, callbacks=run.callbacks, **QUIET).fit(routine, *loaders)
