"""What a module returned, as a picture: a square of tiles for each sample, a tile for each channel."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from hookboard.images import tiles
from hookboard.images.colour import indices
from hookboard.images.picture import Picture

Order = Literal["channel", "strongest"]

CHANNELS_FIRST: tuple[type[nn.Module], ...] = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)


@dataclass(frozen=True)
class Maps:
    """The maps that a tensor holds.

    Args:
        values: shape (samples, channels, height, width).
        words: what they are, to be read in a caption.
    """

    values: Tensor
    words: str


def maps_in(tensor: Tensor, module: nn.Module, *, of_images: bool, is_attention: bool = False) -> Maps:
    """The maps in what a module returned.

    Images are taken as they are, of volumes the middle slice. Tokens become a map for each channel where the model
    reads images and their number is that of a square, with or without a class token before them. Other sequences are
    one map, positions by features, and vectors one line.

    Args:
        tensor: shape (n, channels, height, width), (n, height, width, channels), (n, channels, depth, height, width),
            (n, channels, length), (n, length, channels) or (n, features).
        module: where it comes from, which tells the order of its dimensions.
        of_images: whether the model reads images.
        is_attention: whether it holds attention weights, of shape (n, heads, queries, keys) or (n, queries, keys).

    Raises:
        ValueError: it has no dimension but that of the samples.
    """
    if tensor.is_complex():
        tensor = tensor.abs()
    if is_attention:
        return Maps(tensor.unsqueeze(1) if tensor.ndim == 3 else tensor, "attention weights, queries by keys")
    if tensor.ndim == 5:
        middle = tensor.shape[2] // 2
        return Maps(tensor[:, :, middle], f"slice {middle} of {tensor.shape[2]}")
    if tensor.ndim == 4:
        return Maps(tensor.movedim(-1, 1) if _is_channels_last(tensor, module) else tensor, "")
    if tensor.ndim == 3 and isinstance(module, CHANNELS_FIRST):
        return Maps(tensor.unsqueeze(1), "channels by positions")
    if tensor.ndim == 3:
        return _of_tokens(tensor, of_images)
    if tensor.ndim == 2:
        return Maps(tensor[:, None, None, :], "features from left to right")
    raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is no picture")


def _is_channels_last(tensor: Tensor, module: nn.Module) -> bool:
    """Of shape (n, height, width, channels), as in Swin: told by the square that the other order would not have."""
    _, one, two, three = tensor.shape
    if isinstance(module, CHANNELS_FIRST):
        return False
    if isinstance(module, nn.Linear):
        return True
    return one == two != three


def _of_tokens(tensor: Tensor, of_images: bool) -> Maps:
    count = tensor.shape[1]
    for class_tokens in (0, 1):
        side = math.isqrt(count - class_tokens)
        if of_images and side > 1 and side**2 == count - class_tokens:
            patches = tensor[:, class_tokens:].unflatten(1, (side, side)).movedim(-1, 1)
            return Maps(patches, "patches, without the class token" if class_tokens else "patches")
    return Maps(tensor.unsqueeze(1), "positions by features")


@dataclass(frozen=True)
class Shown:
    """The part of some maps that a picture shows, still on the device.

    Args:
        values: shape (samples, shown channels, height, width), float32, no larger than the picture needs.
        channels: the numbers of the shown channels.
        of: how many channels there are.
        words: what the maps are.
    """

    values: Tensor
    channels: Tensor
    of: int
    words: str


def shown(maps: Maps, *, channels: int, order: Order, size: int) -> Shown:
    """The first or the strongest channels (by the mean of the absolute values over samples), shrunk.

    Nothing here makes the host wait for the device.
    """
    values = maps.values.detach()
    of, (height, width) = values.shape[1], values.shape[2:]
    count = min(channels, of)
    if order == "strongest" and of > 1:
        strength = values.float().abs().nan_to_num(0, 0, 0).mean(dim=(0, 2, 3))
        which = strength.topk(count).indices
        values = values.index_select(1, which)
    else:
        which = torch.arange(count)
        values = values[:, :count]
    small = tiles.shrink(values.float(), size if of > 1 else 4 * size)
    # A view would keep the whole tensor alive, and change with it.
    small = small.clone() if small.untyped_storage().data_ptr() == maps.values.untyped_storage().data_ptr() else small
    words = ", ".join(filter(None, [f"{height}x{width}", maps.words]))
    return Shown(small, which, of, words)


def feature_maps(shown: Shown, name: str, *, normalize: tiles.Normalize, size: int) -> Picture:
    """The picture of what is shown."""
    values, range_in_words = tiles.scaled(shown.values.cpu().numpy(), normalize)
    pixels = tiles.squares(tiles.enlarge(indices(values), size))
    which = shown.channels.tolist()
    if shown.of == 1:
        channels = "one map"
    elif which == list(range(shown.of)):
        channels = f"{shown.of} channels"
    elif which == list(range(len(which))):
        channels = f"channels 0 to {len(which) - 1} of {shown.of}"
    else:
        channels = f"strongest of {shown.of} channels: {' '.join(map(str, which))}"
    samples = len(values)
    how_many = "1 sample" if samples == 1 else f"{samples} samples"
    caption = f"{name}: {how_many}, {channels}, {shown.words}; dark to light: {range_in_words}"
    missing = int((~torch.isfinite(shown.values)).sum())
    if missing:
        caption += f"; cyan: NaN or infinite ({missing} pixels)"
    return Picture(pixels, caption)
