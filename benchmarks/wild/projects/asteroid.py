"""asteroid: ConvTasNet by its getting-started notebook, smaller: System, PITLossWrapper, Adam 1e-3, clipped to 5."""

import math

import pytorch_lightning as pl
import torch
from asteroid.engine import System
from asteroid.engine.optimizers import make_optimizer
from asteroid.losses import PITLossWrapper, pairwise_neg_sisdr
from asteroid.models import ConvTasNet
from benchmarks.wild.made import QUIET
from pytorch_lightning.loggers import CSVLogger

FAULT = ("rate", "lr=1 instead of 1e-3")


def mixtures(count):
    """Tones and bursts of noise, and their sum."""
    time, made = torch.arange(2000) / 8000, []
    for _ in range(count):
        pitch = 150 + 150 * torch.rand(1)
        tone = sum(torch.sin(2 * math.pi * pitch * k * time) / k for k in range(1, 5))
        noise = torch.randn(2000) * (torch.sin(2 * math.pi * 9 * time + 6 * torch.rand(1)) > 0)
        sources = torch.stack([tone, noise]) * 0.1
        made.append((sources.sum(0), sources))
    return made


def train(run):
    sizes = {"n_filters": 64, "bn_chan": 32, "hid_chan": 64, "skip_chan": 32, "n_blocks": 3, "n_repeats": 2}
    model = ConvTasNet(n_src=2, sample_rate=8000, **sizes)
    optimizer = make_optimizer(model.parameters(), optimizer="adam", lr=1.0 if run.faulty else 1e-3)
    loss = PITLossWrapper(pairwise_neg_sisdr, pit_from="pw_mtx")
    loaders = [torch.utils.data.DataLoader(mixtures(count), 4) for count in (160, 16)]
    system = System(model, optimizer, loss, *loaders)
    options = {**QUIET, "logger": CSVLogger("logs")}  # System logs to it whether there is one or not
    pl.Trainer(max_epochs=2, gradient_clip_val=5.0, callbacks=run.callbacks, **options).fit(system)
