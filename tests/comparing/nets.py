"""Small models of several kinds for the tests of `compare`, with inputs and a loss."""

import copy

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, size, heads=2):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(size, size) for _ in range(4))
        self.heads, self.scale, self.is_causal = heads, (size // heads) ** -0.5, True
        self.softmax_dim = -1

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) * self.scale
        if self.is_causal:
            scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), float("-inf"))
        mixed = scores.softmax(self.softmax_dim) @ v
        return self.o(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attn = Attention(size)
        self.up, self.act, self.down = nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size)
        self.drop = nn.Dropout(0.1)
        self.residual = 1.0

    def forward(self, x):
        x = x + self.drop(self.attn(self.norm1(x)))
        return self.residual * x + self.down(self.act(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, size=16, count=3, words=20):
        super().__init__()
        self.words = nn.Embedding(words, size)
        self.places = nn.Embedding(8, size)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(count)))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8, 5)
        self.over = (2, 3)
        self.detaches = False

    def forward(self, images):
        x = self.relu(self.norm1(self.conv1(images)))
        y = self.norm2(self.conv2(x))
        x = self.pool(self.relu(x + (y.detach() if self.detaches else y)))
        return self.head(x.mean(self.over))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(8, 20)
        self.last = -1

    def forward(self, tokens):
        states, _ = self.lstm(self.words(tokens))
        return self.head(states[:, self.last])


TOKENS = torch.randint(0, 20, (4, 8), generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
INPUTS = {Transformer: TOKENS, ConvNet: IMAGES, Recurrent: TOKENS}


def loss(output):
    labels = torch.arange(output.flatten(0, -2).shape[0]) % output.shape[-1]
    return nn.functional.cross_entropy(output.flatten(0, -2), labels)


def model(kind, *, training=False):
    torch.manual_seed(0)
    return kind().train(training)


def planted(original, change):
    """A copy of the model with a mistake."""
    other = copy.deepcopy(original)
    with torch.no_grad():
        change(other)
    return other
