"""pycox: its notebooks: LogisticHazard, CoxPH and DeepHit, an MLP with batch norm: Adam 0.01; made lives."""

from contextlib import ExitStack

import numpy as np
import torchtuples as tt
from pycox.models import CoxPH, DeepHitSingle, LogisticHazard

FAULT = ("rate", "lr=10 instead of 0.01")
VARIANTS = ("LogisticHazard", "CoxPH", "DeepHitSingle")
KINDS = {"LogisticHazard": LogisticHazard, "CoxPH": CoxPH, "DeepHitSingle": DeepHitSingle}


class Watched(tt.callbacks.Callback):
    def __init__(self, run):
        self.run, self.open, self.step = run, ExitStack(), ExitStack()

    def on_fit_start(self):
        self.steps = self.open.enter_context(self.run.loop(self.model.net, self.model.optimizer.optimizer))

    def on_batch_start(self):
        self.step.enter_context(self.steps.step())

    def on_batch_end(self):
        self.step.close()
        self.run.loss(self.model.batch_loss)

    def on_fit_end(self):
        self.open.close()


def train(run):
    drawn, kind = np.random.default_rng(0), KINDS[run.variant]
    x = drawn.normal(size=(1500, 9)).astype(np.float32)
    lives = drawn.exponential(np.exp(-2 * x[:, 0] - 1.5 * x[:, 1] * x[:, 2])).astype(np.float32)
    censored = drawn.exponential(3.0, 1500).astype(np.float32)
    y, outputs, cuts = (np.minimum(lives, censored), lives < censored), 1, {}
    if kind is not CoxPH:
        labels = kind.label_transform(10)
        y, outputs = labels.fit_transform(*y), labels.out_features
        cuts = {"duration_index": labels.cuts}
    y = tuple(column if column.dtype == np.int64 else column.astype(np.float32) for column in y)
    net = tt.practical.MLPVanilla(9, [32, 32], outputs, batch_norm=True, dropout=0.1, output_bias=kind is not CoxPH)
    model = kind(net, tt.optim.Adam(10.0 if run.faulty else 0.01), **cuts)
    model.fit(x, y, batch_size=256, epochs=40, callbacks=[Watched(run)], verbose=False)
