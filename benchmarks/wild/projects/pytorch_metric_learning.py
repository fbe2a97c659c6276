"""pytorch-metric-learning: its ArcFaceLoss and SupConLoss, a small network, on digits: Adam 1e-3."""

import torch
from benchmarks.recipes import data
from benchmarks.wild.made import QUIET
from lightning.pytorch import LightningModule, Trainer
from pytorch_metric_learning import losses
from torch import nn

FAULT = ("rate", "lr=1 instead of 1e-3 with ArcFaceLoss")
VARIANTS = ("arcface", "supcon")


class Embedder(LightningModule):
    def __init__(self, kind, lr):
        super().__init__()
        layers = [nn.Conv2d(1, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 1), nn.ReLU(), nn.MaxPool2d(2)]
        self.model = nn.Sequential(*layers, nn.Dropout2d(0.25), nn.Flatten(), nn.Linear(800, 128))
        self.loss, self.lr = losses.ArcFaceLoss(10, 128) if kind == "arcface" else losses.SupConLoss(), lr

    def training_step(self, batch, batch_idx):
        return self.loss(self.model(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def train(run):
    whole = torch.utils.data.TensorDataset(*data.digits(28))
    parts = [torch.utils.data.Subset(whole, range(*ends)) for ends in ((0, 1500), (1500, 1797))]
    loaders = [torch.utils.data.DataLoader(part, 64, shuffle=part is parts[0]) for part in parts]
    Trainer(max_epochs=5, callbacks=run.callbacks, **QUIET).fit(
        Embedder(run.variant, 1.0 if run.faulty else 1e-3), *loaders
    )
