"""deepctr-torch: its quick start: DeepFM, xDeepFM and AutoInt learn made clicks by fit(): Adam 1e-3."""

import numpy as np
from benchmarks.wild.made import each_batch
from deepctr_torch import models
from deepctr_torch.inputs import DenseFeat, SparseFeat

FAULT = ("rate", "lr=1 instead of 1e-3")
VARIANTS = ("DeepFM", "xDeepFM", "AutoInt")
SIZES = {"user": 50, "item": 80, "hour": 24}


def train(run):
    drawn = np.random.default_rng(0)
    tastes, kinds = drawn.normal(size=(50, 4)), drawn.normal(size=(80, 4))
    rows = {name: drawn.integers(0, size, 4000) for name, size in SIZES.items()}
    rows |= {"price": drawn.random(4000), "age": drawn.random(4000)}
    score = (tastes[rows["user"]] * kinds[rows["item"]]).sum(1) + 2 * np.sin(rows["hour"] / 4) - 2 * rows["price"]
    clicked = (score + drawn.logistic(size=4000) > 0).astype(np.float32)
    sparse = [SparseFeat(name, size, embedding_dim=4) for name, size in SIZES.items()]
    columns = [*sparse, DenseFeat("price", 1), DenseFeat("age", 1)]
    model = getattr(models, run.variant)(columns, columns, task="binary", device="cpu")
    model.compile("adam", "binary_crossentropy", metrics=["auc"])
    for group in model.optim.param_groups:
        group["lr"] = 1.0 if run.faulty else 1e-3
    with each_batch(run, lambda: (model, model.optim)):
        model.fit(rows, clicked, batch_size=64, epochs=8, verbose=0, validation_split=0.2)
