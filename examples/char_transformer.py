"""A small causal transformer that learns to write Python, one character after the other, from Python's own source.

python examples/char_transformer.py fit --config configs/char_transformer.yaml

From a clone, `pip install '.[examples]'` installs what it needs.
"""

import inspect
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from importlib import import_module

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from torch import Tensor, nn
from torch.utils.data import DataLoader

VOCABULARY_SIZE = 128  # ASCII; the few other characters in the sources are dropped


class StandardLibraryText(LightningDataModule):
    """The source of modules of Python's standard library, cut into windows of characters.

    Args:
        train_modules: Modules to learn from.
        val_modules: Modules that are held out.
        context_length: Characters that the model reads at once.
        batch_size: Windows in a batch.
        num_workers: Processes that load batches.
    """

    def __init__(
        self,
        train_modules: Sequence[str] = ("argparse", "difflib", "doctest", "inspect", "pickle", "tarfile", "typing"),
        val_modules: Sequence[str] = ("statistics", "textwrap"),
        context_length: int = 64,
        batch_size: int = 64,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.train_modules = train_modules
        self.val_modules = val_modules
        self.context_length = context_length
        self.batch_size = batch_size
        self.num_workers = num_workers

    def setup(self, stage: str) -> None:
        # One character more than the context: the targets are the inputs, moved by one.
        self.train_windows = windows(source(self.train_modules), self.context_length + 1)
        self.val_windows = windows(source(self.val_modules), self.context_length + 1)

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(self.train_windows, self.batch_size, shuffle=True, num_workers=self.num_workers)

    def val_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(self.val_windows, self.batch_size, num_workers=self.num_workers)


def source(modules: Sequence[str]) -> str:
    return "".join(inspect.getsource(import_module(name)) for name in modules)


def windows(text: str, length: int) -> Tensor:
    """The characters of `text` as a table of indices, one row for each window of `length`."""
    characters = torch.tensor(list(text.encode("ascii", "ignore")))
    return characters.unfold(0, length, length)


class CausalSelfAttention(nn.Module):
    """Every position attends to itself and to those before it."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        query, key, value = (p.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for p in projected)
        heads = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out_proj(heads.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then a multilayer perceptron, each behind a LayerNorm and with a way around it."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.attention = CausalSelfAttention(d_model, num_heads)
        self.norm2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            OrderedDict(fc1=nn.Linear(d_model, 4 * d_model), gelu=nn.GELU(), fc2=nn.Linear(4 * d_model, d_model))
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CharTransformer(LightningModule):
    """A transformer that predicts the next character.

    Args:
        num_blocks: Blocks of attention and multilayer perceptron.
        d_model: Width of the residual stream.
        num_heads: Attention heads of each block.
        max_length: The longest context that there are positions for.
        learning_rate: Learning rate of AdamW.
    """

    def __init__(
        self,
        num_blocks: int = 3,
        d_model: int = 64,
        num_heads: int = 4,
        max_length: int = 64,
        learning_rate: float = 5e-3,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.token_embedding = nn.Embedding(VOCABULARY_SIZE, d_model)
        self.position_embedding = nn.Embedding(max_length, d_model)
        self.blocks = nn.Sequential(*(Block(d_model, num_heads) for _ in range(num_blocks)))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, VOCABULARY_SIZE)

    def forward(self, characters: Tensor) -> Tensor:
        positions = torch.arange(characters.shape[1], device=characters.device)
        x = self.token_embedding(characters) + self.position_embedding(positions)
        return self.head(self.norm(self.blocks(x)))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.loss(batch), prog_bar=True)

    def loss(self, batch: Tensor) -> Tensor:
        logits = self(batch[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)


if __name__ == "__main__":
    # The data is in memory: worker processes would only copy it.
    warnings.filterwarnings("ignore", message=".*does not have many workers")
    LightningCLI(CharTransformer, StandardLibraryText, seed_everything_default=0)
