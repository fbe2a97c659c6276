"""cebra: its solver of a contrastive embedding of neurons by position and by time, as in its API demo: Adam 3e-4."""

import cebra
import cebra.models.criterions
import numpy as np
import torch

FAULT = ("rate", "lr=0.3 instead of 3e-4")
VARIANTS = ("time_delta", "time")


def train(run):
    drawn, t = np.random.default_rng(0), np.arange(3000)
    place = np.sin(t / 60)[:, None]
    rates = 3 * np.exp(-((place - np.linspace(-1, 1, 40)) ** 2) / 0.1)
    neural = torch.tensor(drawn.poisson(rates)).float()
    data = cebra.data.TensorDataset(neural, continuous=torch.tensor(place).float())
    model = cebra.models.init("offset10-model", 40, 32, 3)
    data.configure_for(model)
    options = {"num_steps": 200, "batch_size": 128, "time_offset": 10, "conditional": run.variant}
    loader = cebra.data.ContinuousDataLoader(data, **options)
    criterion = cebra.models.criterions.LearnableCosineInfoNCE(temperature=0.1)
    rate = 0.3 if run.faulty else 3e-4
    optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()], lr=rate)
    options = {"model": model, "criterion": criterion, "optimizer": optimizer, "tqdm_on": False}
    solver = cebra.solver.init("single-session", **options)
    with run.loop(model, optimizer) as steps:
        step = solver.step

        def watched(batch):
            with steps.step(batch):
                said = step(batch)
            run.loss(said["total"])
            return said

        solver.step = watched
        solver.fit(loader)
