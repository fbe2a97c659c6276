"""torchdyn: its quickstart: a neural ODE tells two moons apart: Adam 0.01, the adjoint method, dopri5."""

import lightning.pytorch as pl
import torch
from benchmarks.wild.made import QUIET
from sklearn.datasets import make_moons
from torch import nn
from torchdyn.core import NeuralODE

FAULT = ("rate", "lr=1 instead of 0.01")


class Learner(pl.LightningModule):
    def __init__(self, t_span, model, lr):
        super().__init__()
        self.model, self.t_span, self.lr = model, t_span, lr

    def training_step(self, batch, batch_idx):
        x, y = batch
        _, y_hat = self.model(x, self.t_span)
        return nn.CrossEntropyLoss()(y_hat[-1], y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.model.parameters(), lr=self.lr)


def train(run):
    x, y = make_moons(512, noise=0.1, random_state=0)
    data = torch.utils.data.TensorDataset(torch.tensor(x).float(), torch.tensor(y))
    field = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    model = NeuralODE(field, sensitivity="adjoint", solver="dopri5")
    learner = Learner(torch.linspace(0, 1, 5), model, 1.0 if run.faulty else 0.01)
    loader = torch.utils.data.DataLoader(data, batch_size=512, shuffle=True)
    pl.Trainer(max_epochs=150, callbacks=run.callbacks, **QUIET).fit(learner, loader)
