"""snntorch: the leaky neurons of its fifth tutorial read digits: Adam 5e-4, batches of 128, the loss of each step."""

import snntorch as snn
import torch
from benchmarks.recipes import data
from torch import nn

FAULT = ("rate", "lr=0.5 instead of 5e-4")
STEPS = 25


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(784, 200), snn.Leaky(beta=0.95)
        self.fc2, self.lif2 = nn.Linear(200, 10), snn.Leaky(beta=0.95)

    def forward(self, x):
        mem1, mem2, spikes, potentials = self.lif1.init_leaky(), self.lif2.init_leaky(), [], []
        for _ in range(STEPS):
            spk1, mem1 = self.lif1(self.fc1(x), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spikes.append(spk2)
            potentials.append(mem2)
        return torch.stack(spikes), torch.stack(potentials)


def train(run):
    images, labels = data.digits(28)
    rows = torch.utils.data.TensorDataset((images + 1) / 2, labels)
    net, loss_of = Net(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.5 if run.faulty else 5e-4, betas=(0.9, 0.999))
    loader = torch.utils.data.DataLoader(rows, batch_size=128, shuffle=True, drop_last=True)
    batches = (batch for _ in range(8) for batch in loader)
    run.descend(net, optimizer, batches, lambda x, y: sum(loss_of(at, y) for at in net(x.view(128, -1))[1]))
