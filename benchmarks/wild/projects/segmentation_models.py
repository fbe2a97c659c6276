"""segmentation_models_pytorch: its examples of binary and multiclass segmentation: FPN, Unet, DiceLoss, Adam 2e-4."""

import segmentation_models_pytorch as smp
import torch
from benchmarks.wild.made import QUIET
from lightning.pytorch import LightningModule, Trainer

FAULT = ("rate", "lr=0.2 instead of 2e-4")
VARIANTS = ("FPN", "Unet")


def pictures(count, binary):
    made = []
    for _ in range(count):
        x, y = torch.rand(3, 32, 32) * 0.3, torch.zeros(32, 32, dtype=torch.long)
        for kind in (1, 2, 3):
            i, j, size = *torch.randint(0, 20, (2,)).tolist(), int(torch.randint(6, 12, ()))
            y[i : i + size, j : j + size] = kind
            x[kind - 1, i : i + size, j : j + size] += 0.7
        made.append((x, (y > 0).long()[None] if binary else y))
    return made


class Model(LightningModule):
    def __init__(self, arch, lr):
        super().__init__()
        binary, self.lr = arch == "FPN", lr
        self.model = smp.create_model(arch, "resnet18", encoder_weights=None, in_channels=3, classes=1 if binary else 4)
        self.loss_fn = smp.losses.DiceLoss(smp.losses.BINARY_MODE if binary else smp.losses.MULTICLASS_MODE)

    def training_step(self, batch, batch_idx):
        mean, std = (torch.tensor(of).view(3, 1, 1) for of in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
        return self.loss_fn(self.model((batch[0] - mean) / std).contiguous(), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("valid_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60, eta_min=1e-5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(run):
    parts = [pictures(count, run.variant == "FPN") for count in (96, 32)]
    loaders = [torch.utils.data.DataLoader(part, 8, shuffle=part is parts[0]) for part in parts]
    model = Model(run.variant, 0.2 if run.faulty else 2e-4)
    Trainer(max_epochs=5, callbacks=run.callbacks, **QUIET).fit(model, *loaders)
