"""schedulefree: its examples/mnist: AdamWScheduleFree 2.5e-3, in evaluation mode for new running statistics; digits."""

import torch
from benchmarks.recipes import data
from schedulefree import AdamWScheduleFree
from torch import nn

FAULT = ("rate", "lr=2.5 instead of 2.5e-3")


def train(run):
    images, labels = data.digits(16)
    ends = [nn.Flatten(), nn.Linear(1024, 64), nn.ReLU(), nn.Dropout(0.25), nn.Linear(64, 10)]
    model = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), *ends)
    optimizer = AdamWScheduleFree(model.parameters(), lr=2.5 if run.faulty else 2.5e-3, warmup_steps=20)
    with run.loop(model, optimizer) as steps:
        for _ in range(4):
            model.train()
            optimizer.train()
            for rows in torch.randperm(1500)[:1472].split(32):
                with steps.step((images[rows], labels[rows])):
                    optimizer.zero_grad()
                    loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
                    loss.backward()
                    optimizer.step()
                run.loss(loss)
            optimizer.eval()
            with torch.no_grad():
                for rows in torch.randint(1500, (20, 32)):
                    model(images[rows])
            model.eval()
            with steps.evaluate(), steps.step((images[1500:], labels[1500:])), torch.no_grad():
                model(images[1500:])
