"""A small residual network on scikit-learn's handwritten digits, which need no download.

python examples/digits.py fit --config configs/digits.yaml

From a clone, `pip install '.[examples]'` installs what it needs.
"""

import warnings
from collections import OrderedDict
from collections.abc import Sequence

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split

Batch = tuple[Tensor, Tensor]


class Digits(LightningDataModule):
    """The 1797 handwritten digits that come with scikit-learn: images of 1x8x8, from 0 to 1, and their labels.

    Args:
        batch_size: Images in a batch.
        validation_fraction: How much of the data is held out.
        split_seed: Decides which images are held out, whatever the seed of the run.
        num_workers: Processes that load batches.
    """

    def __init__(
        self, batch_size: int = 64, validation_fraction: float = 0.2, split_seed: int = 0, num_workers: int = 0
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.split_seed = split_seed
        self.num_workers = num_workers

    def setup(self, stage: str) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
        self.train_set, self.validation_set = random_split(
            TensorDataset(images, torch.tensor(digits.target)),
            [1 - self.validation_fraction, self.validation_fraction],
            torch.Generator().manual_seed(self.split_seed),
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        return DataLoader(self.train_set, self.batch_size, shuffle=True, num_workers=self.num_workers)

    def val_dataloader(self) -> DataLoader[Batch]:
        return DataLoader(self.validation_set, self.batch_size, num_workers=self.num_workers)


class ResidualBlock(nn.Module):
    """Two convolutions and a way around them; where the channels change, the image is halved."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        is_same = in_channels == out_channels
        stride = 1 if is_same else 2
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        # One ReLU for each place: a module that is called twice would show both calls as one.
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.relu2 = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity() if is_same else nn.Conv2d(in_channels, out_channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        residual = self.relu1(self.norm1(self.conv1(x)))
        residual = self.norm2(self.conv2(residual))
        return self.relu2(residual + self.shortcut(x))


class DigitsClassifier(LightningModule):
    """A residual network for 8x8 images.

    Args:
        channels: Channels of the stem and of each residual block after it.
        learning_rate: Learning rate of AdamW.
        weight_decay: Weight decay of AdamW.
    """

    def __init__(
        self, channels: Sequence[int] = (16, 16, 32, 32), learning_rate: float = 1e-3, weight_decay: float = 1e-2
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.stem = nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(1, channels[0], 3, padding=1, bias=False),
                norm=nn.BatchNorm2d(channels[0]),
                relu=nn.ReLU(inplace=True),
            )
        )
        self.blocks = nn.Sequential(*map(ResidualBlock, channels[:-1], channels[1:]))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels[-1], 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.pool(self.blocks(self.stem(images))).flatten(1))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        images, labels = batch
        logits = self(images)
        self.log("val_loss", nn.functional.cross_entropy(logits, labels))
        self.log("val_accuracy", (logits.argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            self.parameters(), lr=self.hparams.learning_rate, weight_decay=self.hparams.weight_decay
        )


if __name__ == "__main__":
    # The data is in memory: worker processes would only copy it.
    warnings.filterwarnings("ignore", message=".*does not have many workers")
    LightningCLI(DigitsClassifier, Digits, seed_everything_default=0)
