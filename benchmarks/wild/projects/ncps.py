"""ncps: a liquid network follows a sine; its documentation's quickstart with Lightning: Adam 0.01, clipped to 1."""

import lightning.pytorch as pl
import torch
from ncps.torch import LTC
from ncps.wirings import AutoNCP
from torch.utils.data import DataLoader, TensorDataset

FAULT = ("rate", "lr=10 instead of 0.01")


class SequenceLearner(pl.LightningModule):
    def __init__(self, model, lr):
        super().__init__()
        self.model = model
        self.lr = lr

    def training_step(self, batch, batch_idx):
        x, y = batch
        y_hat, _ = self.model.forward(x)
        loss = torch.nn.MSELoss()(y_hat, y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.model.parameters(), lr=self.lr)


def train(run):
    turns = torch.linspace(0, 3 * torch.pi, 24)
    data = TensorDataset(torch.stack([turns.sin(), turns.cos()], 1)[None], (2 * turns).sin()[None, :, None])
    learner = SequenceLearner(LTC(2, AutoNCP(16, 1), batch_first=True), 10.0 if run.faulty else 0.01)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pl.Trainer(max_epochs=200, gradient_clip_val=1, log_every_n_steps=1, callbacks=run.callbacks, **options)
    trainer.fit(learner, DataLoader(data, batch_size=1, shuffle=True))
