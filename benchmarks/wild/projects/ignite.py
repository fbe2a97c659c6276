"""pytorch-ignite: its examples/mnist, with digits: SGD 0.01, momentum 0.5, nll_loss of log_softmax, batches of 64."""

from contextlib import ExitStack

import torch
from benchmarks.recipes import data
from ignite.engine import Events, create_supervised_trainer
from torch import nn
from torch.nn import functional as F  # noqa: N812  # the usual name

FAULT = ("loss", "nn.CrossEntropyLoss of probabilities instead of nn.NLLLoss of their logarithms")


class Net(nn.Module):
    def __init__(self, last):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1, self.fc2, self.last = nn.Linear(320, 50), nn.Linear(50, 10), last

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2)).view(-1, 320)
        return self.last(self.fc2(F.dropout(F.relu(self.fc1(x)), training=self.training)), dim=-1)


def train(run):
    rows = torch.utils.data.TensorDataset(*data.digits(28))
    net = Net(F.softmax if run.faulty else F.log_softmax)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.5)
    trainer = create_supervised_trainer(net, optimizer, nn.CrossEntropyLoss() if run.faulty else nn.NLLLoss())
    with run.loop(net, optimizer) as steps, ExitStack() as step:
        trainer.on(Events.ITERATION_STARTED)(lambda engine: step.enter_context(steps.step(engine.state.batch)))
        trainer.on(Events.ITERATION_COMPLETED)(lambda _: step.close())
        trainer.on(Events.ITERATION_COMPLETED)(lambda engine: run.loss(engine.state.output))
        trainer.run(torch.utils.data.DataLoader(rows, batch_size=64, shuffle=True), max_epochs=8)
