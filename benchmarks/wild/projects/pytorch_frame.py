"""pytorch-frame: its quick start of tables with gaps: FT-Transformer, Trompt and a ResNet: Adam 1e-3; breast_cancer."""

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_breast_cancer
from torch.nn import functional as F  # noqa: N812  # the usual name
from torch_frame import NAStrategy, categorical, numerical
from torch_frame.data import DataLoader, Dataset
from torch_frame.nn import EmbeddingEncoder, FTTransformer, LinearEncoder, ResNet, Trompt

FAULT = ("rate", "lr=1 instead of 1e-3")
VARIANTS = ("FTTransformer", "Trompt", "ResNet")
KINDS = {"FTTransformer": FTTransformer, "Trompt": Trompt, "ResNet": ResNet}


def train(run):
    table = load_breast_cancer(as_frame=True).frame
    kinds = dict.fromkeys(table.columns[:8], numerical) | {"size": categorical, "target": categorical}
    table["size"] = pd.cut(table["mean area"], 4, labels=list("abcd")).astype(str)
    table.loc[np.random.rand(len(table)) < 0.1, "mean texture"] = np.nan
    dataset = Dataset(table[list(kinds)], col_to_stype=kinds, target_col="target").materialize()
    encoders = {categorical: EmbeddingEncoder(), numerical: LinearEncoder(na_strategy=NAStrategy.MEAN)}
    sizes = {"channels": 32, "num_layers": 2, "col_stats": dataset.col_stats}
    if run.variant == "Trompt":
        sizes["num_prompts"] = 8
        encoders = None
    names = {"col_names_dict": dataset.tensor_frame.col_names_dict, "stype_encoder_dict": encoders}
    if encoders is None:
        del names["stype_encoder_dict"]
    model = KINDS[run.variant](out_channels=2, **sizes, **names)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0 if run.faulty else 1e-3)

    def loss_of(batch):
        out = model(batch)  # Trompt: one prediction of each layer
        y = batch.y if out.dim() == 2 else batch.y.repeat_interleave(out.shape[1])
        return F.cross_entropy(out.flatten(0, -2), y)

    batches = (batch for _ in range(12) for batch in DataLoader(dataset.tensor_frame, 32, shuffle=True))
    run.descend(model, optimizer, batches, loss_of)
