"""vector-quantize-pytorch: its examples/autoencoder.py, with digits: AdamW 3e-4, alpha 10, 32 dimensions, 256 codes."""

import torch
from benchmarks.recipes import data
from torch import nn
from vector_quantize_pytorch import VectorQuantize

FAULT = ("rate", "lr=0.3 instead of 3e-4")


class SimpleVQAutoEncoder(nn.Module):
    def __init__(self, **options):
        super().__init__()
        down = lambda i, o: [nn.Conv2d(i, o, 3, padding=1), nn.MaxPool2d(2)]  # noqa: E731  # short
        self.encode = nn.Sequential(*down(1, 16), nn.GELU(), *down(16, 32))
        self.quantize = VectorQuantize(dim=32, accept_image_fmap=True, **options)
        self.decode = nn.Sequential(
            *(nn.Upsample(scale_factor=2), nn.Conv2d(32, 16, 3, padding=1), nn.GELU()),
            *(nn.Upsample(scale_factor=2), nn.Conv2d(16, 1, 3, padding=1)),
        )

    def forward(self, x):
        x, indices, commitment = self.quantize(self.encode(x))
        return self.decode(x).clamp(-1, 1), indices, commitment


def train(run):
    images, _ = data.digits(28)
    model = SimpleVQAutoEncoder(codebook_size=256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.3 if run.faulty else 3e-4)

    def loss_of(x):
        out, _, commitment = model(x)
        return (out - x).abs().mean() + 10 * commitment

    run.descend(model, optimizer, (images[torch.randint(len(images), (64,))] for _ in range(250)), loss_of)
