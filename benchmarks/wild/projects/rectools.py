"""rectools: SASRec and BERT4Rec by its tutorial of transformer models, on made sessions."""

import numpy as np
import pandas as pd
import pytorch_lightning as pl
from benchmarks.wild.made import QUIET
from rectools.dataset import Dataset
from rectools.models import BERT4RecModel, SASRecModel

FAULT = ("rate", "lr=1 instead of 1e-3 in SASRec")
VARIANTS = ("SASRec", "BERT4Rec")


class Trainer(pl.Trainer):
    def __deepcopy__(self, memo):
        return self  # rectools would train a copy, with copies of the callbacks


def sessions():
    """Users that walk from an item to one of the next three."""
    drawn, rows = np.random.default_rng(0), []
    for user in range(200):
        items = (drawn.integers(40) + np.cumsum(drawn.integers(1, 4, 15))) % 40
        rows += [
            (user, int(item), 1.0, pd.Timestamp(2024, 1, 1) + pd.Timedelta(days=day)) for day, item in enumerate(items)
        ]
    return pd.DataFrame(rows, columns=["user_id", "item_id", "weight", "datetime"])


def train(run):
    sizes = {"n_factors": 32, "n_blocks": 2, "n_heads": 2, "session_max_len": 14, "batch_size": 16}
    kind, epochs = (SASRecModel, 10) if run.variant == "SASRec" else (BERT4RecModel, 80)
    model = kind(
        lr=1.0 if run.faulty else 1e-3,
        deterministic=True,
        recommend_torch_device="cpu",
        get_trainer_func=lambda: Trainer(max_epochs=epochs, callbacks=run.callbacks, **QUIET),
        epochs=epochs,
        **sizes,
    )
    model.fit(Dataset.construct(sessions()))
