"""anomalib: GANomaly and FastFlow by its Engine, smaller, on made textures in a Folder, with defects for testing."""

from pathlib import Path

import numpy as np
from anomalib.data import Folder
from anomalib.engine import Engine
from anomalib.models import Fastflow, Ganomaly
from anomalib.pre_processing import PreProcessor
from PIL import Image
from torchvision.transforms.v2 import Compose, Normalize, Resize

FAULT = ("rate", "lr=0.2 instead of 2e-4 in GANomaly")
VARIANTS = ("Ganomaly", "Fastflow")
FALLS = False  # of a game of two


def textures(folder, count, bad, drawn):
    Path(folder).mkdir(parents=True)
    y, x = np.mgrid[:32, :32]
    for i in range(count):
        image = 128 + 60 * np.sin(x / 4 + drawn.random() * 6) + 30 * np.cos(y / 6) + drawn.normal(0, 8, (32, 32))
        image = np.repeat(image[..., None], 3, 2)
        if bad:
            image[8:16, 8:16] = [255, 0, 0]
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(f"{folder}/{i:03d}.png")


def train(run):
    drawn = np.random.default_rng(0)
    for folder, count in (("good", 96), ("bad", 8), ("tested", 8)):
        textures(f"d/{folder}", count, folder == "bad", drawn)
    folders = {"root": "d", "normal_dir": "good", "abnormal_dir": "bad", "normal_test_dir": "tested"}
    sizes = {"train_batch_size": 8, "eval_batch_size": 8, "num_workers": 0, "seed": 0, "val_split_mode": "same_as_test"}
    scaled = Compose([Resize((32, 32)), Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
    common = {"pre_processor": PreProcessor(transform=scaled), "visualizer": False, "evaluator": False}
    model = Fastflow(backbone="resnet18", pre_trained=False, flow_steps=2, **common)
    if run.variant == "Ganomaly":
        rate = 0.2 if run.faulty else 2e-4
        model = Ganomaly(batch_size=8, n_features=16, latent_vec_size=32, lr=rate, **common)
    engine = Engine(max_epochs=8, accelerator="cpu", devices=1, callbacks=run.callbacks, enable_progress_bar=False)
    engine.fit(model, datamodule=Folder(name="x", **folders, **sizes))
