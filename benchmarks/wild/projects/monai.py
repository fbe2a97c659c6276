"""MONAI: its tutorial spleen_segmentation_3d_lightning: UNet, DiceLoss, Adam, smaller, on its made pictures."""

import monai
import numpy as np
import torch
from benchmarks.wild.made import QUIET
from lightning.pytorch import LightningModule, Trainer
from monai.data import CacheDataset, DataLoader, create_test_image_3d, list_data_collate
from monai.inferers import sliding_window_inference

FAULT = ("loss", "DiceLoss without softmax=True")
KEYS = ["image", "label"]


class Net(LightningModule):
    def __init__(self, softmax):
        super().__init__()
        sizes = {"in_channels": 1, "out_channels": 2, "channels": (8, 16, 32), "strides": (2, 2), "num_res_units": 2}
        self.model = monai.networks.nets.UNet(spatial_dims=3, norm="batch", **sizes)
        self.loss = monai.losses.DiceLoss(to_onehot_y=True, softmax=softmax)

    def training_step(self, batch, batch_idx):
        return self.loss(self.model(batch["image"]), batch["label"])

    def validation_step(self, batch, batch_idx):
        self.log(
            "val_loss", self.loss(sliding_window_inference(batch["image"], (24,) * 3, 4, self.model), batch["label"])
        )

    def configure_optimizers(self):
        return torch.optim.Adam(self.model.parameters(), 1e-3)


def train(run):
    monai.utils.set_determinism(seed=0)
    options = {"num_objs": 4, "rad_max": 8, "num_seg_classes": 1, "channel_dim": -1}
    made = [create_test_image_3d(*(32,) * 3, random_state=np.random.RandomState(i), **options) for i in range(24)]
    items = [dict(zip(KEYS, pair, strict=True)) for pair in made]
    of = monai.transforms
    scaled = [of.EnsureChannelFirstd(KEYS, channel_dim=-1), of.ScaleIntensityd("image"), of.EnsureTyped(KEYS)]
    crop = of.RandCropByPosNegLabeld(KEYS, "label", (24,) * 3, pos=1, neg=1, num_samples=2, image_key="image")
    training = CacheDataset(items[:20], of.Compose([*scaled, crop]), progress=False)
    validation = CacheDataset(items[20:], of.Compose(scaled), progress=False)
    loader = DataLoader(training, batch_size=2, shuffle=True, collate_fn=list_data_collate)
    Trainer(max_epochs=10, callbacks=run.callbacks, **QUIET).fit(Net(not run.faulty), loader, DataLoader(validation))
