"""deepxde: its examples Poisson in 1D, an inverse problem and a DeepONet by its Model.train: Adam 1e-3."""

from contextlib import ExitStack

import deepxde as dde
import numpy as np

FAULT = ("rate", "lr=1 instead of 1e-3")
VARIANTS = ("poisson", "inverse", "deeponet")


class Watched(dde.callbacks.Callback):
    def __init__(self, run):
        super().__init__()
        self.run, self.open, self.step = run, ExitStack(), ExitStack()

    def on_train_begin(self):
        self.steps = self.open.enter_context(self.run.loop(self.model.net, self.model.opt))

    def on_batch_begin(self):
        self.step.enter_context(self.steps.step())

    def on_batch_end(self):
        self.step.close()

    def on_train_end(self):
        self.open.close()


def train(run):
    external, sizes = None, {"num_domain": 32, "num_boundary": 2}
    if run.variant == "poisson":
        space = dde.geometry.Interval(-1, 1)
        pde = lambda x, y: -dde.grad.hessian(y, x) - np.pi**2 * dde.backend.sin(np.pi * x)  # noqa: E731
        ends = dde.icbc.DirichletBC(space, lambda x: np.sin(np.pi * x), lambda x, on_boundary: on_boundary)
        data, net = dde.data.PDE(space, pde, ends, **sizes), dde.nn.FNN([1, 50, 50, 1], "tanh", "Glorot uniform")
    elif run.variant == "inverse":  # y' = -c y: c is to be found
        external, t = [dde.Variable(0.3)], np.linspace(0, 3, 25)[:, None]
        decay, time = lambda x, y: dde.grad.jacobian(y, x) + external[0] * y, dde.geometry.TimeDomain(0, 3)
        data = dde.data.PDE(time, decay, dde.icbc.PointSetBC(t, np.exp(-1.5 * t)), **sizes, anchors=t)
        net = dde.nn.FNN([1, 40, 40, 1], "tanh", "Glorot uniform")
    else:  # the integral of a function
        t, a = np.linspace(0, 1, 30, dtype=np.float32)[:, None], np.random.rand(200, 3).astype(np.float32)
        of = sum(a[:, [i]] * np.sin((i + 1) * 3 * t.T) for i in range(3))
        to = of.cumsum(1) / 30
        data = dde.data.TripleCartesianProd((of[:150], t), to[:150], (of[150:], t), to[150:])
        net = dde.nn.DeepONetCartesianProd([30, 40, 40], [1, 40, 40], "relu", "Glorot normal")
    model = dde.Model(data, net)
    model.compile("adam", lr=1.0 if run.faulty else 1e-3, external_trainable_variables=external, verbose=0)
    history, _ = model.train(iterations=600, display_every=10, callbacks=[Watched(run)], verbose=0)
    run.losses += [float(sum(losses)) for losses in history.loss_train]
