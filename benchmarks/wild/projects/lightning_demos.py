"""lightning: the LSTM of its demos, which carries its state: SGD 20 and its clipping, both PyTorch's; a small text."""

import lightning.pytorch as pl
import torch
from benchmarks.recipes import data
from benchmarks.wild.made import QUIET
from lightning.pytorch.demos.lstm import LightningLSTM, SequenceSampler, SimpleLSTM
from torch.utils.data import DataLoader, Dataset

FAULT = ("rate", "lr=20000 instead of 20")


class Text(Dataset):  # as lightning.pytorch.demos.transformer.WikiText2 has it
    def __init__(self):
        self.data, self.vocab_size = data.text()
        self.block_size = 35

    def __len__(self):
        return len(self.data) // self.block_size - 1

    def __getitem__(self, index):
        start = index * self.block_size
        end = start + self.block_size
        return self.data[start:end], self.data[(start + 1) : (end + 1)]


class Kept(LightningLSTM):
    def prepare_data(self):  # no download
        pass


def train(run):
    text = Text()
    model = Kept(text.vocab_size)
    model.model = SimpleLSTM(text.vocab_size, 64, 64, 2)
    if run.faulty:
        model.configure_optimizers = lambda: torch.optim.SGD(model.parameters(), lr=20000.0)
    trainer = pl.Trainer(max_epochs=15, gradient_clip_val=0.25, callbacks=run.callbacks, **QUIET)
    trainer.fit(model, DataLoader(text, batch_sampler=SequenceSampler(text, batch_size=20)))
