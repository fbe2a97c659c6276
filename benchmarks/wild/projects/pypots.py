"""pypots: its quick start: SAITS fills in what is missing in made series of several values, and BRITS: Adam 1e-3."""

import numpy as np
from benchmarks.wild.made import each_batch
from pypots.imputation import BRITS, SAITS
from pypots.optim import Adam

FAULT = ("rate", "lr=1 instead of 1e-3")
VARIANTS = ("SAITS", "BRITS")


def train(run):
    drawn = np.random.default_rng(0)
    t, phase = np.arange(24) / 24, drawn.uniform(0, 6.28, (192, 1, 5))
    x = np.sin(2 * np.pi * t[None, :, None] * np.arange(1, 6) / 2 + phase) + drawn.normal(0, 0.1, (192, 24, 5))
    x[drawn.random(x.shape) < 0.1] = np.nan
    sizes = {"n_steps": 24, "n_features": 5, "batch_size": 32, "epochs": 12, "device": "cpu", "verbose": False}
    optimizer = Adam(lr=1.0 if run.faulty else 1e-3)
    if run.variant == "BRITS":
        model = BRITS(rnn_hidden_size=32, optimizer=optimizer, **{**sizes, "epochs": 10})
    else:
        heads = {"n_layers": 2, "d_model": 64, "n_heads": 4, "d_k": 16, "d_v": 16, "d_ffn": 32, "dropout": 0.1}
        model = SAITS(optimizer=optimizer, **heads, **sizes)
    with each_batch(run, lambda: (model.model, optimizer.torch_optimizer)):
        model.fit({"X": x.astype(np.float32)})
