"""Class-activation maps on the pictures that the model read: input, map and both together, in a row for each sample."""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from hookboard.images import tiles
from hookboard.images.colour import rgb
from hookboard.images.picture import FONT_SIZE, Picture

TEXT_WIDTH = 190
"""Pixels beside each row."""


def unnormalized(inputs: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> np.ndarray:
    """The pictures that the model read, as they were before they were normalized.

    Args:
        inputs: shape (n, channels, height, width).
        mean: what had been subtracted from each channel; None draws each picture from its least to its greatest value.
        std: what it had then been divided by.

    Returns:
        Shape (n, height, width, 3), uint8.
    """
    pixels = inputs.detach().float().cpu()
    channels = pixels.shape[1]
    if mean is not None and std is not None:
        pixels = pixels * torch.tensor(std).view(-1, 1, 1) + torch.tensor(mean).view(-1, 1, 1)
    else:
        low, high = pixels.amin(dim=(1, 2, 3), keepdim=True), pixels.amax(dim=(1, 2, 3), keepdim=True)
        pixels = (pixels - low) / (high - low).clamp(min=1e-12)
    if channels != 3:
        pixels = pixels.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    return pixels.nan_to_num(0).clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).numpy()


def overlays(inputs: np.ndarray, maps: Tensor, beside: Sequence[str], caption: str, *, size: int) -> Picture:
    """A row for each sample: the input, its map from 0 to the map's greatest value, both together, and a text.

    Args:
        inputs: shape (n, height, width, 3), uint8.
        maps: shape (n, any height, any width), at least 0 where they speak for the class.
        beside: what stands beside each row; lines are separated by newlines.
        caption: of the whole picture.
        size: pixels that a side of an input may take.
    """
    pixels = torch.from_numpy(inputs).permute(0, 3, 1, 2).float() / 255
    heat = torch.nn.functional.interpolate(
        maps.detach().float().cpu().clamp(min=0)[:, None], size=inputs.shape[1:3], mode="bilinear", align_corners=False
    )
    heat = heat / heat.amax(dim=(1, 2, 3), keepdim=True).where(heat.amax(dim=(1, 2, 3), keepdim=True) > 0, 1)
    small = tiles.shrink(torch.cat([pixels, heat], dim=1), size).numpy()
    big = tiles.enlarge(small, size)
    picture, heat_map = big[:, :3].transpose(0, 2, 3, 1), rgb(big[:, 3])
    picture = np.rint(picture * 255).astype(np.uint8)
    both = np.rint(0.5 * picture + 0.5 * heat_map).astype(np.uint8)
    rows = tiles.grid(np.stack([picture, heat_map, both], axis=1))
    texts = np.concatenate([_beside(text, rows.shape[0] // len(beside)) for text in beside])
    # What was enlarged has few different pixels: PNG holds them in less than JPEG.
    return Picture(np.concatenate([rows, texts], axis=1), caption, is_photo=small.shape == big.shape)


def _beside(text: str, height: int) -> np.ndarray:
    strip = Image.new("RGB", (TEXT_WIDTH, height), (255, 255, 255))
    draw, font = ImageDraw.Draw(strip), ImageFont.load_default(FONT_SIZE)
    for k, line in enumerate(text.split("\n")):
        draw.text((6, 2 + k * (FONT_SIZE + 4)), line, fill=(30, 30, 30), font=font)
    return np.asarray(strip)
