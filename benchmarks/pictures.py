"""What pictures cost: `python benchmarks/pictures.py`.

Printed are the milliseconds of this process's CPU to draw and encode a picture of each kind, the least of 30 times, and
its bytes.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import nn

from hookboard.images.feature_maps import (
    drawn_inputs,
    feature_maps,
    kernel_picture,
    maps_in,
    select_maps,
    selected_kernels,
)
from hookboard.images.heat_map import heat_map
from hookboard.images.picture import Picture, overlays

RNG = np.random.default_rng(0)
COURSE = RNG.uniform(0.01, 1, (60, 256))
NAMES = [f"layers.{i // 6}.{'abcdef'[i % 6]}" for i in range(60)]


def each_kind() -> dict[str, Callable[[], bytes]]:
    torch.manual_seed(0)
    outputs, weight = torch.randn(2, 64, 16, 16), torch.randn(64, 64, 3, 3)
    photos = np.stack([image[:423:3, :564:4] for image in load_sample_images().images] * 2)  # 141 x 141
    inputs = drawn_inputs(torch.from_numpy(photos[:2]).permute(0, 3, 1, 2), size=128)
    maps = maps_in(outputs, nn.ReLU(), aspect=1.0)
    part = select_maps(maps, channels=16, size=64)
    kernels = selected_kernels(weight, kernels=8, channels=8)
    drawn: dict[str, Callable[[], Picture]] = {
        "feature maps": lambda: feature_maps(part, "conv", normalize="map", size=64),
        "with inputs": lambda: feature_maps(part, "conv", normalize="map", size=64, inputs=inputs),
        "kernels": lambda: kernel_picture(kernels, kernels * 1.1, "conv", weight.shape, size=36),
        "overlays": lambda: overlays(photos, torch.rand(4, 7, 7), ["predicted cat"] * 4, "Grad-CAM", size=220),
        "heat map": lambda: heat_map(COURSE, NAMES, range(256), title="RMS of activations", unit="RMS"),
    }
    return {name: lambda one=one: one().encode()[0] for name, one in drawn.items()}


def print_each() -> None:
    for name, encoded in each_kind().items():
        taken = []
        for _ in range(30):
            start = time.process_time()
            data = encoded()
            taken.append(time.process_time() - start)
        print(f"{name:26} {1e3 * min(taken):6.1f} ms  {len(data) / 1000:5.0f} kB")


if __name__ == "__main__":
    print_each()
