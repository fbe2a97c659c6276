"""lightly: its examples/pytorch_lightning of SimCLR and SimSiam, on digits: SGD 0.06."""

import torch
from benchmarks.recipes import data
from benchmarks.wild.made import QUIET
from lightly import loss
from lightly.models import modules
from lightning.pytorch import LightningModule, Trainer
from torch import nn

FAULT = ("loss", "NTXentLoss(temperature=50) instead of 0.5 in SimCLR")
VARIANTS = ("SimCLR", "SimSiam")


def view(image):
    return torch.roll(image, torch.randint(-3, 4, (2,)).tolist(), (1, 2)) + 0.1 * torch.randn(1, 28, 28)


class Learner(LightningModule):
    def __init__(self, kind, temperature):
        super().__init__()
        blocks = [(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()) for i, o in ((1, 16), (16, 64))]
        self.backbone = nn.Sequential(*blocks[0], *blocks[1], nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.projection_head = getattr(modules, f"{kind}ProjectionHead")(64, 128, 128)
        self.prediction_head = modules.SimSiamPredictionHead(128, 64, 128) if kind == "SimSiam" else None
        self.criterion = loss.NegativeCosineSimilarity() if kind == "SimSiam" else loss.NTXentLoss(temperature)

    def training_step(self, batch, batch_idx):
        z0, z1 = (self.projection_head(self.backbone(view)) for view in batch)
        if self.prediction_head is None:
            return self.criterion(z0, z1)
        p0, p1 = self.prediction_head(z0), self.prediction_head(z1)
        return 0.5 * (self.criterion(z0.detach(), p1) + self.criterion(z1.detach(), p0))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.06)


def train(run):
    views = [(view(image), view(image)) for image in data.digits(28)[0][:512]]
    rows = torch.utils.data.DataLoader(views, batch_size=32, shuffle=True, drop_last=True)
    Trainer(max_epochs=10, callbacks=run.callbacks, **QUIET).fit(
        Learner(run.variant, 50.0 if run.faulty else 0.5), rows
    )
