"""coral-pytorch: its tutorials of ordinal regression in Lightning: CORAL and CORN: Adam 5e-3; the diabetes table."""

import torch
from benchmarks.recipes import data
from benchmarks.wild.made import QUIET
from coral_pytorch.dataset import levels_from_labelbatch
from coral_pytorch.layers import CoralLayer
from coral_pytorch.losses import coral_loss, corn_loss
from lightning.pytorch import LightningModule, Trainer

FAULT = ("rate", "lr=5 instead of 5e-3")
VARIANTS = ("coral", "corn")


class Ordinal(LightningModule):
    def __init__(self, variant, lr):
        super().__init__()
        self.variant, self.lr = variant, lr
        hidden = [torch.nn.Linear(10, 24), torch.nn.LeakyReLU(), torch.nn.Linear(24, 16), torch.nn.LeakyReLU()]
        head = CoralLayer(size_in=16, num_classes=5) if variant == "coral" else torch.nn.Linear(16, 4)
        self.model = torch.nn.Sequential(*hidden, head)

    def training_step(self, batch, batch_idx):
        logits, labels = self.model(batch[0]), batch[1]
        if self.variant == "coral":
            return coral_loss(logits, levels_from_labelbatch(labels, num_classes=5).type_as(logits))
        return corn_loss(logits, labels, num_classes=5)

    def validation_step(self, batch, batch_idx):
        self.log("valid_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def train(run):
    x, y = data.table("diabetes")
    edges = torch.quantile(y, torch.tensor([0.2, 0.4, 0.6, 0.8]))
    rows = torch.utils.data.TensorDataset(x, torch.bucketize(y[:, 0], edges))
    training, validation = torch.utils.data.random_split(rows, [342, 100])
    loaders = [torch.utils.data.DataLoader(part, 32, shuffle=part is training) for part in (training, validation)]
    model = Ordinal(run.variant, 5.0 if run.faulty else 5e-3)
    Trainer(max_epochs=25, callbacks=run.callbacks, **QUIET).fit(model, *loaders)
