"""pytorch-tabnet: TabNetClassifier with its defaults (Adam 0.02), on the table breast_cancer, as its README fits."""

from contextlib import ExitStack

import torch
from pytorch_tabnet.callbacks import Callback
from pytorch_tabnet.tab_model import TabNetClassifier
from sklearn.datasets import load_breast_cancer

FAULT = ("rate", "lr=20 instead of 0.02")


class Watched(Callback):
    def __init__(self, run):
        super().__init__()
        self.run, self.open, self.step = run, ExitStack(), ExitStack()

    def on_train_begin(self, logs=None):
        self.steps = self.open.enter_context(self.run.loop(self.trainer.network, self.trainer._optimizer))  # noqa: SLF001  # has no other name

    def on_batch_begin(self, batch, logs=None):
        self.step.enter_context(self.steps.step())

    def on_batch_end(self, batch, logs=None):
        self.step.close()
        self.run.loss(logs["loss"])

    def on_train_end(self, logs=None):
        self.open.close()


def train(run):
    table = load_breast_cancer()
    rate = {"lr": 20.0 if run.faulty else 0.02}
    model = TabNetClassifier(verbose=0, device_name="cpu", optimizer_fn=torch.optim.Adam, optimizer_params=rate)
    sizes = {"batch_size": 64, "virtual_batch_size": 32, "max_epochs": 20}
    model.fit(table.data.astype("float32"), table.target, callbacks=[Watched(run)], **sizes)
