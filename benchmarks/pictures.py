"""What pictures cost, beside the same two by matplotlib: `python benchmarks/pictures.py`.

Printed are the seconds of this process's CPU to draw and encode a picture of each kind, the least of 30 times, and its
bytes. The figures of matplotlib have the same parts (caption, pixels, colour bar, names of rows), drawn by Agg without
pyplot.
"""

import io
import time
from collections.abc import Callable

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_images
from torch import nn

from hookboard import images

RNG = np.random.default_rng(0)
COURSE = RNG.uniform(0.01, 1, (60, 256))
NAMES = [f"layers.{i // 6}.{'abcdef'[i % 6]}" for i in range(60)]


def by_matplotlib(draw: Callable[[Figure], None]) -> Callable[[], bytes]:
    def encoded() -> bytes:
        figure, file = Figure(figsize=(6.88, 4), dpi=100), io.BytesIO()
        FigureCanvasAgg(figure)
        figure.text(0.01, 0.99, "blocks.0.conv1 (validation batch 0)", va="top", parse_math=False)
        draw(figure)
        figure.savefig(file, format="png")
        return file.getvalue()

    return encoded


def maps_of_matplotlib(figure: Figure, pixels: np.ndarray) -> None:
    figure.figimage(pixels, 8, 60)
    mappable = ScalarMappable(Normalize(-1, 1), "viridis")
    figure.colorbar(mappable, cax=figure.add_axes((0.1, 0.1, 0.85, 0.04)), orientation="horizontal")


def heat_map_of_matplotlib(figure: Figure) -> None:
    axes = figure.add_axes((0.25, 0.25, 0.7, 0.65))
    image = axes.imshow(COURSE, aspect="auto", interpolation="nearest", norm=LogNorm(0.01, 1))
    axes.set_yticks(range(0, 60, 6), NAMES[::6])
    figure.colorbar(image, cax=figure.add_axes((0.25, 0.1, 0.7, 0.04)), orientation="horizontal")


def each_kind() -> dict[str, Callable[[], bytes]]:
    torch.manual_seed(0)
    outputs, weight = torch.randn(2, 64, 16, 16), torch.randn(64, 64, 3, 3)
    photos = np.stack([image[:423:3, :564:4] for image in load_sample_images().images] * 2)  # 141 x 141
    inputs = images.drawn_inputs(torch.from_numpy(photos[:2]).permute(0, 3, 1, 2), size=128)
    maps = images.maps_in(outputs, nn.ReLU(), aspect=1.0)
    part = images.select_maps(maps, channels=16, size=64)
    kernels = images.selected_kernels(weight, kernels=8, channels=8)
    drawn: dict[str, Callable[[], images.Picture]] = {
        "feature maps": lambda: images.feature_maps(part, "conv", normalize="map", size=64),
        "with inputs": lambda: images.feature_maps(part, "conv", normalize="map", size=64, inputs=inputs),
        "kernels": lambda: images.kernel_picture(kernels, kernels * 1.1, "conv", weight.shape, size=36),
        "overlays": lambda: images.overlays(photos, torch.rand(4, 7, 7), ["predicted cat"] * 4, "Grad-CAM", size=220),
        "heat map": lambda: images.heat_map(COURSE, NAMES, range(256), title="RMS of activations", unit="RMS"),
    }
    ours = {name: lambda one=one: one().encode()[0] for name, one in drawn.items()}
    pixels = np.asarray(drawn["feature maps"]().tiles().convert("RGB"))
    theirs = {"feature maps": lambda figure: maps_of_matplotlib(figure, pixels), "heat map": heat_map_of_matplotlib}
    return ours | {f"{name}, matplotlib": by_matplotlib(draw) for name, draw in theirs.items()}


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
