"""pyod: its examples of outliers in a table by fit(): an autoencoder with batch norm, and a VAE: Adam 1e-3."""

from benchmarks.wild.made import each_batch
from pyod.models.auto_encoder import AutoEncoder
from pyod.models.vae import VAE
from sklearn.datasets import load_breast_cancer

FAULT = ("rate", "lr=1 instead of 1e-3")
VARIANTS = ("AutoEncoder", "VAE")


def train(run):
    kind = AutoEncoder if run.variant == "AutoEncoder" else VAE
    options = {"epoch_num": 15, "batch_size": 32, "device": "cpu", "verbose": 0, "random_state": 0}
    model = kind(lr=1.0 if run.faulty else 1e-3, contamination=0.1, **options)
    with each_batch(run, lambda: (model.model, model.optimizer)):
        model.fit(load_breast_cancer().data)
