"""skorch: the classifier of its README, on the made table that it uses: SGD 0.1."""

import numpy as np
from sklearn.datasets import make_classification
from skorch import NeuralNetClassifier
from torch import nn

FAULT = ("rate", "lr=100 instead of 0.1")


class MyModule(nn.Module):
    def __init__(self, num_units=10):
        super().__init__()
        self.dense0 = nn.Linear(20, num_units)
        self.dropout = nn.Dropout(0.5)
        self.dense1 = nn.Linear(num_units, num_units)
        self.output = nn.Linear(num_units, 2)

    def forward(self, x):
        x = self.dropout(nn.functional.relu(self.dense0(x)))
        return nn.functional.softmax(self.output(nn.functional.relu(self.dense1(x))), dim=-1)


class Watched(NeuralNetClassifier):
    def train_step(self, batch, **given):
        with self.steps.step(batch):
            step = super().train_step(batch, **given)
        self.seen(step["loss"])
        return step


def train(run):
    x, y = make_classification(1000, 20, n_informative=10, random_state=0)
    rate = 100.0 if run.faulty else 0.1
    net = Watched(MyModule, max_epochs=60, lr=rate, iterator_train__shuffle=True, verbose=0).initialize()
    net.seen = run.loss
    with run.loop(net.module_, net.optimizer_) as net.steps:
        net.partial_fit(x.astype(np.float32), y.astype(np.int64))
