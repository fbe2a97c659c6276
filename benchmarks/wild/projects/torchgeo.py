"""torchgeo: its trainers for segmentation and classification, a ResNet-18 on made pictures: AdamW 1e-3."""

import lightning.pytorch as pl
import torch
from benchmarks.wild.made import QUIET
from torchgeo.trainers import ClassificationTask, SemanticSegmentationTask

FAULT = ("frozen", "freeze_backbone and freeze_decoder with random weights")
VARIANTS = ("segmentation", "classification")


def pictures(kind, count):
    made = []
    for _ in range(count):
        c, corner = int(torch.randint(4, ())), int(torch.randint(4, 16, ()))
        x, mask = torch.rand(4, 32, 32) * 0.5, torch.zeros(32, 32, dtype=torch.long)
        mask[corner : corner + 12, corner : corner + 12] = c
        x[c] += 0.5
        x[c, corner : corner + 12, corner : corner + 12] += 1
        made.append({"image": x, "mask": mask} if kind == "segmentation" else {"image": x, "label": torch.tensor(c)})
    return made


def train(run):
    common = {"weights": None, "in_channels": 4, "lr": 1e-3}
    many = {"task": "multiclass", "num_classes": 4, "loss": "ce"}
    if run.variant == "segmentation":
        frozen = {"freeze_backbone": run.faulty, "freeze_decoder": run.faulty}
        task = SemanticSegmentationTask(model="unet", backbone="resnet18", **frozen, **many, **common)
    else:
        task = ClassificationTask(model="resnet18", **many, **common)
    parts = [pictures(run.variant, count) for count in (160, 32)]
    loaders = [torch.utils.data.DataLoader(part, 16, shuffle=part is parts[0]) for part in parts]
    pl.Trainer(max_epochs=5, callbacks=run.callbacks, **QUIET).fit(task, *loaders)
