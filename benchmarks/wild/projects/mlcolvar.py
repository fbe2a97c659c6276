"""mlcolvar: its tutorials of collective variables of molecules: Deep-TICA, an autoencoder and Deep-TDA: Adam 1e-3."""

import lightning
import numpy as np
import torch
from benchmarks.wild.made import QUIET
from mlcolvar.cvs import AutoEncoderCV, DeepTDA, DeepTICA
from mlcolvar.data import DictDataset, DictModule
from mlcolvar.utils.timelagged import create_timelagged_dataset

FAULT = ("rate", "lr=1 instead of 1e-3")
VARIANTS = ("AutoEncoderCV", "DeepTICA", "DeepTDA")


def train(run):
    drawn, jumps = np.random.default_rng(0), np.random.default_rng(1)
    state = np.cumsum(jumps.random(2000) < 0.01) % 2
    hidden = np.stack([2.0 * state - 1, np.sin(np.arange(2000) / 40)], 1) + 0.2 * drawn.normal(size=(2000, 2))
    x = torch.tensor(np.tanh(hidden @ drawn.normal(size=(2, 12))) + 0.1 * drawn.normal(size=(2000, 12))).float()
    options = {"optimizer": {"lr": 1.0 if run.faulty else 1e-3}}
    if run.variant == "DeepTICA":
        data, model = create_timelagged_dataset(x, lag_time=10), DeepTICA([12, 24, 12, 2], options=options)
    elif run.variant == "DeepTDA":
        data = DictDataset({"data": x, "labels": torch.tensor(state).float()})
        aims = {"target_centers": [-7, 7], "target_sigmas": [0.2, 0.2]}
        model = DeepTDA(n_states=2, n_cvs=1, layers=[12, 24, 12, 1], **aims, options=options)
    else:
        data, model = DictDataset({"data": x}), AutoEncoderCV([12, 24, 2], options=options)
    rows = DictModule(data, lengths=[0.8, 0.2], batch_size=0 if run.variant == "DeepTICA" else 128)
    epochs = 150 if run.variant == "DeepTICA" else 25
    lightning.Trainer(max_epochs=epochs, callbacks=run.callbacks, **QUIET).fit(model, rows)
