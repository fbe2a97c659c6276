"""tabm: the ensemble of its README and example.ipynb on the table breast_cancer: AdamW 2e-3, decay 3e-4, k losses."""

import torch
from benchmarks.recipes import data
from tabm import TabM
from torch.nn import functional as F  # noqa: N812  # the usual name

FAULT = ("dropout", "dropout=0.99")


def train(run):
    x, y = data.table("breast_cancer")
    rows = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, shuffle=True)
    dropout = 0.99 if run.faulty else 0.1
    model = TabM.make(n_num_features=x.shape[1], cat_cardinalities=[], d_out=2, n_blocks=2, d_block=64, dropout=dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=3e-4)

    def loss_of(x, y):
        out = model(x)  # (batch, members, classes): each member is trained by itself
        return F.cross_entropy(out.flatten(0, 1), y.repeat_interleave(out.shape[1]))

    run.descend(model, optimizer, (batch for _ in range(12) for batch in rows), loss_of)
