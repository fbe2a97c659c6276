"""pytorch-widedeep: its quick start: a wide part with TabMlp, TabTransformer or SAINT by its Trainer: Adam 1e-3."""

import pandas as pd
import torch
from benchmarks.wild.made import each_batch
from pytorch_widedeep import Trainer
from pytorch_widedeep.models import SAINT, TabMlp, TabTransformer, Wide, WideDeep
from pytorch_widedeep.preprocessing import TabPreprocessor, WidePreprocessor
from sklearn.datasets import load_breast_cancer

FAULT = ("rate", "lr=1 instead of 1e-3")
VARIANTS = ("TabMlp", "TabTransformer", "SAINT")


def train(run):
    table = load_breast_cancer(as_frame=True).frame
    numbers, classes = list(table.columns[:10]), ["size", "shape"]
    table["size"] = pd.cut(table["mean area"], 4, labels=list("abcd")).astype(str)
    table["shape"] = pd.cut(table["mean symmetry"], 4, labels=list("efgh")).astype(str)
    wide = WidePreprocessor(wide_cols=classes, crossed_cols=[tuple(classes)])
    x_wide = wide.fit_transform(table)
    whole = run.variant != "TabMlp"
    tab = TabPreprocessor(cat_embed_cols=classes, continuous_cols=numbers, with_attention=whole, scale=True)
    x_tab = tab.fit_transform(table)
    inputs = {"column_idx": tab.column_idx, "cat_embed_input": tab.cat_embed_input, "continuous_cols": numbers}
    if run.variant == "TabMlp":
        deep = TabMlp(**inputs, mlp_hidden_dims=[64, 32])
    else:
        sizes = {"input_dim": 16, "n_heads": 2, "n_blocks": 2, "embed_continuous_method": "standard"}
        deep = (TabTransformer if run.variant == "TabTransformer" else SAINT)(**inputs, **sizes)
    model = WideDeep(wide=Wide(input_dim=int(x_wide.max()), pred_dim=1), deeptabular=deep)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0 if run.faulty else 1e-3)
    trainer = Trainer(model, objective="binary", optimizers=optimizer, device="cpu", num_workers=0, verbose=0)
    with each_batch(run, lambda: (model, optimizer)):
        trainer.fit(X_wide=x_wide, X_tab=x_tab, target=table["target"].values, n_epochs=15, batch_size=32)
