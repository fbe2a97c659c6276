"""Records small models for `test_recordings.py`: python tests/comparing/versions.py FOLDER

FOLDER gets a recording of each. Run it with each version of torch that is to be compared with others.
"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from hookboard import record


class ResNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            BasicBlock(4, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
        )  # fmt: skip


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 10)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layers(self.words(words)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 6)
        self.lstm = nn.LSTM(6, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, 10)

    def forward(self, words: Tensor) -> Tensor:
        states, _ = self.lstm(self.words(words))
        return self.head(states)


IMAGES = torch.arange(3 * 8 * 8).mul(0.7).sin().view(1, 3, 8, 8)
WORDS = torch.arange(4).mul(7).remainder(10).view(1, 4)
MODELS: dict[str, tuple[type[nn.Module], Tensor]] = {
    "resnet": (ResNet, IMAGES),
    "transformer": (Transformer, WORDS),
    "lstm": (Recurrent, WORDS),
}


def made(name: str) -> nn.Module:
    """Make a model in evaluation mode with weights that do not depend on how a version draws random numbers."""
    kind, inputs = MODELS[name]
    net = kind().eval()
    net(inputs)  # gives a lazy layer its weights
    with torch.no_grad():
        for count, weight in enumerate(net.parameters()):
            weight.copy_((torch.arange(weight.numel()).mul(0.7) + count).sin().view_as(weight).div(2))
    return net


def loss(output: Tensor) -> Tensor:
    return output.square().mean()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, inputs) in MODELS.items():
        record(made(name), inputs, folder / f"{name}.zip", loss=loss)


if __name__ == "__main__":
    main()
