"""scvi-tools: SCVI and SCANVI with their defaults, by its introduction: setup_anndata, train."""

import anndata
import numpy as np
import pandas as pd
import scvi

FAULT = ("dropout", "dropout_rate=0.99 instead of 0.1")
VARIANTS = ("SCVI", "SCANVI")


def cells():
    """Counts of 100 genes in cells of 3 types and 2 batches."""
    drawn = np.random.default_rng(0)
    usual, kind, batch = (
        np.exp(drawn.normal(0.5, 1, (3, 100))),
        drawn.integers(3, size=600),
        drawn.integers(2, size=600),
    )
    mean = usual[kind] * drawn.lognormal(0, 0.4, 600)[:, None]
    mean *= np.where(batch[:, None] == 1, np.exp(drawn.normal(0, 0.3, 100)), 1)
    obs = pd.DataFrame({"batch": batch.astype(str), "labels": kind.astype(str)}, index=[str(i) for i in range(600)])
    return anndata.AnnData(drawn.negative_binomial(2, 2 / (2 + mean)).astype(np.float32), obs=obs)


def train(run):
    scvi.settings.seed = 0
    data = cells()
    if run.variant == "SCVI":
        scvi.model.SCVI.setup_anndata(data, batch_key="batch")
        model = scvi.model.SCVI(data, n_latent=10, dropout_rate=0.99 if run.faulty else 0.1)
    else:
        labels = {"labels_key": "labels", "unlabeled_category": "unknown"}
        scvi.model.SCANVI.setup_anndata(data, batch_key="batch", **labels)
        model = scvi.model.SCANVI(data, n_latent=10)
    options = {"accelerator": "cpu", "enable_progress_bar": False, "check_val_every_n_epoch": 5}
    model.train(max_epochs=40, train_size=0.8, callbacks=run.callbacks, **options)
