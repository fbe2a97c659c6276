"""pytorch-crf: its documentation's CRF on an LSTM's scores, with a mask; here, tags of made tokens."""

import torch
from torch import nn
from torchcrf import CRF

FAULT = ("rate", "lr=10 instead of 1e-2")


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(32, 3)
        self.crf = CRF(3, batch_first=True)

    def forward(self, tokens, tags, mask):
        return -self.crf(self.scores(self.lstm(self.embed(tokens))[0]), tags, mask=mask, reduction="mean")


def train(run):
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=10.0 if run.faulty else 1e-2)
    tokens = torch.randint(1, 30, (640, 12))
    tags = (tokens + tokens.roll(1, dims=1)) % 3
    mask = torch.arange(12) < torch.randint(5, 13, (640, 1))
    rows = torch.randint(640, (200, 16))
    run.descend(model, optimizer, ((tokens[i] * mask[i], tags[i] * mask[i], mask[i]) for i in rows), model)
