"""torchphysics: the PINN of the Laplace equation of its README: Adam 1e-3."""

import pytorch_lightning as pl
import torch
import torchphysics as tp
from benchmarks.wild.made import QUIET

FAULT = ("rate", "lr=1 instead of 1e-3")


def train(run):
    x, u = tp.spaces.R2("x"), tp.spaces.R1("u")
    square = tp.domains.Parallelogram(x, [0, 0], [1, 0], [0, 1])
    model = tp.models.FCN(input_space=x, output_space=u, hidden=(30, 30))
    edge = tp.samplers.RandomUniformSampler(square.boundary, n_points=200)
    inside = tp.samplers.RandomUniformSampler(square, n_points=400)
    conditions = [
        tp.conditions.PINNCondition(model, edge, lambda u, x: u - torch.sin(3.14 * x[:, :1]) * x[:, 1:], weight=10),
        tp.conditions.PINNCondition(model, inside, lambda u, x: tp.utils.laplacian(u, x) - 1),
    ]
    setting = tp.OptimizerSetting(torch.optim.Adam, lr=1.0 if run.faulty else 1e-3)
    trainer = pl.Trainer(max_steps=400, callbacks=run.callbacks, **QUIET)
    trainer.fit(tp.solver.Solver(conditions, optimizer_setting=setting))
