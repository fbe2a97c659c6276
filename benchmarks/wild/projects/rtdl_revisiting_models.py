"""rtdl_revisiting_models: its example: FT-Transformer with its own AdamW, and a ResNet; the diabetes table."""

import torch
from benchmarks.recipes import data
from rtdl_revisiting_models import FTTransformer, ResNet

FAULT = ("rate", "1,000 times its rate of 1e-4")
VARIANTS = ("FTTransformer", "ResNet")


def train(run):
    x, y = data.table("diabetes")
    kinds = torch.bucketize(x[:, :1], torch.tensor([-0.5, 0.5]))
    if run.variant == "FTTransformer":
        options = FTTransformer.get_default_kwargs(n_blocks=1)
        model = FTTransformer(n_cont_features=9, cat_cardinalities=[3], d_out=1, **options)
        optimizer, inputs = model.make_default_optimizer(), (x[:, 1:], kinds)
    else:
        sizes = {"d_block": 64, "d_hidden": 128, "n_blocks": 2, "dropout1": 0.2, "dropout2": 0.1}
        model = ResNet(d_in=10, d_out=1, d_hidden_multiplier=None, **sizes)
        optimizer, inputs = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5), (x,)
    if run.faulty:
        for group in optimizer.param_groups:
            group["lr"] *= 1000
    model.train()
    batches = (rows for _ in range(20) for rows in torch.randperm(len(y)).split(32))
    batches = ((*(each[rows] for each in inputs), y[rows]) for rows in batches)
    run.descend(model, optimizer, batches, lambda *batch: torch.nn.functional.mse_loss(model(*batch[:-1]), batch[-1]))
