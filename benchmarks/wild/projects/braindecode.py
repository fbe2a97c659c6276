"""braindecode: its example of decoding a made EEG with EEGClassifier: EEGNet and ShallowFBCSPNet, AdamW 1e-3."""

import numpy as np
import torch
from benchmarks.wild.made import each_batch
from braindecode import EEGClassifier, models

FAULT = ("rate", "lr=1 instead of 1e-3")
VARIANTS = ("ShallowFBCSPNet", "EEGNet")


def train(run):
    drawn, t, y = np.random.default_rng(0), np.arange(256) / 128, np.arange(240) % 2
    x = drawn.normal(size=(240, 8, 256))
    side = np.where(y[:, None] == np.arange(2), 1.5, 0.3)  # the rhythm of 10 Hz is stronger on one side
    rhythm = np.sin(2 * np.pi * (10 * t + drawn.random((240, 1))))[:, None]
    x[:, :4] += side[:, :1, None] * rhythm
    x[:, 4:] += side[:, 1:, None] * rhythm
    net = getattr(models, run.variant)(n_chans=8, n_outputs=2, n_times=256, sfreq=128)
    rate = {"lr": 1.0 if run.faulty else 1e-3, "batch_size": 32, "max_epochs": 10}
    model = EEGClassifier(net, criterion=torch.nn.CrossEntropyLoss, optimizer=torch.optim.AdamW, **rate)
    model.set_params(train_split=None, verbose=0, iterator_train__shuffle=True, classes=[0, 1], callbacks=None)
    model.initialize()
    with each_batch(run, lambda: (model.module_, model.optimizer_)):
        model.partial_fit(x.astype(np.float32), y)
