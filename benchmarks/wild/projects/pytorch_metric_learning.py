"""pytorch-metric-learning: its notebook TripletMarginLossMNIST (Adam 0.01) and ArcFaceLoss (Adam 1e-3), on digits."""

import torch
from benchmarks.recipes import data
from benchmarks.wild.made import QUIET
from lightning.pytorch import LightningModule, Trainer
from pytorch_metric_learning import distances, losses, miners, reducers
from torch import nn

FAULT = ("rate", "lr=10 instead of 0.01")
VARIANTS = ("triplet", "arcface")


class Embedder(LightningModule):
    def __init__(self, kind, lr):
        super().__init__()
        layers = [nn.Conv2d(1, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 1), nn.ReLU(), nn.MaxPool2d(2)]
        self.model = nn.Sequential(*layers, nn.Dropout2d(0.25), nn.Flatten(), nn.Linear(800, 128))
        cosine = distances.CosineSimilarity()
        self.loss, self.miner, self.lr = losses.ArcFaceLoss(10, 128), None, lr
        if kind == "triplet":
            reducer = reducers.ThresholdReducer(low=0)
            self.loss = losses.TripletMarginLoss(margin=0.2, distance=cosine, reducer=reducer)
            self.miner = miners.TripletMarginMiner(margin=0.2, distance=cosine, type_of_triplets="semihard")

    def training_step(self, batch, batch_idx):
        embedded = self.model(batch[0])
        return self.loss(embedded, batch[1], self.miner(embedded, batch[1]) if self.miner else None)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def train(run):
    whole = torch.utils.data.TensorDataset(*data.digits(28))
    parts = [torch.utils.data.Subset(whole, range(*ends)) for ends in ((0, 1500), (1500, 1797))]
    loaders = [torch.utils.data.DataLoader(part, 64, shuffle=part is parts[0]) for part in parts]
    learner = Embedder(run.variant, 10.0 if run.faulty else 0.01 if run.variant == "triplet" else 1e-3)
    Trainer(max_epochs=5, callbacks=run.callbacks, **QUIET).fit(learner, *loaders)
