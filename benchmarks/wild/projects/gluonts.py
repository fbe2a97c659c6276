"""gluonts: DeepAR, SimpleFeedForward and PatchTST with their defaults, smaller, on made hourly series."""

import numpy as np
import pandas as pd
from benchmarks.wild.made import QUIET
from gluonts.dataset.common import ListDataset
from gluonts.torch import DeepAREstimator, PatchTSTEstimator, SimpleFeedForwardEstimator

FAULT = ("rate", "lr=1 instead of 1e-3 in DeepAR")
VARIANTS = ("DeepAR", "SimpleFeedForward", "PatchTST")
OPTIONS = {
    "DeepAR": (DeepAREstimator, {"freq": "h", "num_layers": 2, "hidden_size": 32, "context_length": 24}),
    "SimpleFeedForward": (SimpleFeedForwardEstimator, {}),
    "PatchTST": (PatchTSTEstimator, {"patch_len": 8, "context_length": 48, "d_model": 32}),
}


def series():
    drawn, hours = np.random.default_rng(0), np.arange(300)
    made = []
    for _ in range(20):
        daily = 1 + 0.5 * np.sin(2 * np.pi * (hours / 24 + drawn.random())) + 0.1 * drawn.normal(size=300)
        target = ((20 + 10 * drawn.random()) * daily).astype(np.float32)
        made.append({"start": pd.Period("2020-01-01 00:00", freq="h"), "target": target})
    return ListDataset(made, freq="h")


def train(run):
    estimator, options = OPTIONS[run.variant]
    options = {**options, "lr": 1.0} if run.faulty else options
    trainer = {**QUIET, "enable_checkpointing": True, "max_epochs": 3, "callbacks": run.callbacks}
    estimator(prediction_length=12, num_batches_per_epoch=50, trainer_kwargs=trainer, **options).train(series())
