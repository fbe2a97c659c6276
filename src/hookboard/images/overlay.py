"""Draws class-activation maps over the input pictures, one row for each sample."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from hookboard.images.colour_scale import ColourScale
from hookboard.images.picture import HEAT, LINE_HEIGHT, PAPER, Bar, Picture, Pixels, font, indices, pen
from hookboard.images.tiles import enlarge, grid, joined, shrink

MAX_OPACITY = 0.7
"""Opacity of the colours over the picture where a map is greatest; where it is 0 they are transparent."""


def unnormalized(inputs: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> Pixels:
    """Return a model's inputs, (n, channels, height, width), as the pictures before, (n, height, width, 3), uint8.

    Without a mean each picture is stretched from its smallest to its largest value. Other than three channels are
    averaged to grey.
    """
    pixels = inputs.detach().float().cpu()
    channels = pixels.shape[1]
    if mean is not None and std is not None:
        factor, shift = (torch.tensor(each, device="cpu").view(-1, 1, 1) for each in (std, mean))
        pixels = pixels * factor + shift
    else:
        is_finite = pixels.isfinite()
        low = pixels.where(is_finite, math.inf).amin(dim=(1, 2, 3), keepdim=True)
        high = pixels.where(is_finite, -math.inf).amax(dim=(1, 2, 3), keepdim=True)
        pixels = (pixels - low) / (high - low).clamp(min=1e-12)
    if channels != 3:
        pixels = pixels.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
    shown: Pixels = pixels.nan_to_num(0).clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1).numpy()
    return shown


def overlays(inputs: Pixels, maps: Tensor, texts: Sequence[str], caption: str, *, size: int) -> Picture:
    """Draw a row for each sample: the input, its map scaled to its maximum, and both together.

    Larger values of a map speak more for the class; negative ones are drawn as 0.
    """
    photos = torch.from_numpy(inputs).permute(0, 3, 1, 2).float() / 255
    heat = torch.nn.functional.interpolate(
        maps.detach().float().cpu().clamp(min=0)[:, None], size=inputs.shape[1:3], mode="bilinear", align_corners=False
    )
    heat = heat / heat.amax(dim=(1, 2, 3), keepdim=True).where(heat.amax(dim=(1, 2, 3), keepdim=True) > 0, 1)
    small = shrink(torch.cat([photos, heat], dim=1), size).numpy().transpose(0, 2, 3, 1)
    shares, picture, colours = small[..., 3], small[..., :3] * 255, HEAT[indices(small[..., 3])]
    opacity = MAX_OPACITY * shares[..., None]
    columns = np.stack([picture, colours, picture + opacity * (colours - picture)], axis=1)
    drawn = np.rint(columns).astype(np.uint8)
    rows = [grid(enlarge(row, size), len(row)) for row in drawn]
    parts = [part for text, row in zip(texts, rows, strict=True) for part in (_line(text, row.shape[1]), row)]
    bar = Bar(ColourScale(0.0, 1.0), "map, relative to its maximum", right=rows[0].shape[1])
    # What was enlarged has few different pixels: PNG holds them in less than JPEG.
    return Picture(joined(parts, axis=0), caption, is_photo=max(drawn.shape[2:4]) * 2 > size, bars=(bar,))


def _line(text: str, width: int) -> Pixels:
    image = Image.new("RGB", (max(width, round(font().getlength(text)) + 1), LINE_HEIGHT), (PAPER,) * 3)
    pen(image).text((0, 2), text, (20, 20, 20), font())
    return np.asarray(image)
