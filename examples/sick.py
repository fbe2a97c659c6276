"""Two trainings with a planted fault, and what HealthMonitor says of them.

python examples/sick.py digits         the residual network of digits.py, one of whose ReLUs is dead
python examples/sick.py transformer    a transformer of twelve layers; the feed-forward part of layer 7 is dead

From a clone, `pip install '.[examples]'` installs what they need.
"""

import argparse
import warnings
from urllib.parse import quote

import torch
from char_transformer import VOCABULARY_SIZE, StandardLibraryText
from digits import Digits, DigitsClassifier
from lightning.pytorch import LightningDataModule, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn

from hookboard import HealthMonitor


class SickDigits(DigitsClassifier):
    """Its second block is cut: the shift of a BatchNorm is so low that the ReLU behind it is never above 0."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.blocks[1].norm1.bias, -5)


class SickTransformer(LightningModule):
    """PyTorch's own encoder as a language model. In layer 7 no unit of the feed-forward part is ever above 0.

    Args:
        layers: How many layers it has.
        sick: The index of the sick one.
    """

    def __init__(self, layers: int = 12, sick: int = 7) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCABULARY_SIZE, 64)
        self.position_embedding = nn.Embedding(64, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, VOCABULARY_SIZE)
        for module in self.encoder.layers:  # the encoder starts from twelve copies of one layer
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)
        nn.init.constant_(self.encoder.layers[sick].linear1.bias, -10)

    def training_step(self, batch: Tensor) -> Tensor:
        length = batch.shape[1] - 1
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=batch.device)
        x = self.token_embedding(batch[:, :-1]) + self.position_embedding.weight[:length]
        logits = self.head(self.norm(self.encoder(x, mask, is_causal=True)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["digits", "transformer"])
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps")
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    # The data is in memory: worker processes would only copy it.
    warnings.filterwarnings("ignore", message=".*does not have many workers")
    seed_everything(0)
    model, data = made(args.what, args.batch_size)
    monitor = HealthMonitor()
    Trainer(
        accelerator="cpu",
        max_steps=args.steps,
        log_every_n_steps=10,
        logger=TensorBoardLogger("logs", name=f"sick_{args.what}"),
        callbacks=[monitor],
        limit_val_batches=0,
        enable_checkpointing=False,
        enable_model_summary=False,
    ).fit(model, data)
    print(f"The sick layer is at {link(monitor)}")


def link(monitor: HealthMonitor) -> str:
    """The address of the worst layer in TensorBoard's tab Hookboard."""
    layer = next((verdict.module for verdict in monitor.verdicts if verdict.module), "")
    return f"http://localhost:6006/#hookboard&p.hookboard.run=.&p.hookboard.layer={quote(layer)}"


def made(what: str, batch_size: int) -> tuple[LightningModule, LightningDataModule]:
    """The sick model and its data."""
    if what == "digits":
        return SickDigits(), Digits(batch_size)
    return SickTransformer(), StandardLibraryText(batch_size=batch_size)


if __name__ == "__main__":
    main()
