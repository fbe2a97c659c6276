"""The picture of a module's output: a square for each sample, in it a tile for each channel."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.masked import MaskedTensor

from hookboard.images.picture import Normalize, Picture, enlarge, indices, scaled, shrink, squares

Order = Literal["channel", "strongest"]

CONVOLUTIONS = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
"""Modules whose weight is a set of kernels; subclasses, the lazy ones among them, count."""

CHANNELS_FIRST: tuple[type[nn.Module], ...] = (
    *CONVOLUTIONS,
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
)
"""Modules whose output has shape (n, channels, ...)."""

EXTRA_TOKEN_COUNTS = (0, 1, 2, 5)
"""How many tokens may come before the patches: none, a class token, also a distillation token, also registers."""

MIN_GRID_PATCHES = 4
"""The smallest number of patches that is taken for a grid."""

MAX_LOG_ASPECT_DIFFERENCE = 0.2
"""How much the logarithms of two equal aspects may differ: strides round the sizes."""


@dataclass(frozen=True)
class Maps:
    """The maps that a tensor holds.

    Args:
        values: shape (samples, channels, height, width).
        words: what they are, for the caption.
    """

    values: Tensor
    words: str


def maps_in(tensor: Tensor, module: nn.Module, *, aspect: float | None, index: str = "") -> Maps:
    """The maps in what a module returned.

    Images are taken as they are, and the middle slice of volumes. Tokens become one map for each channel if the model
    reads images and the tokens, without a few at the start, form a grid with the aspect of the images. Other sequences
    become one map (positions by features), and vectors one line.

    Args:
        tensor: shape (n, channels, height, width), (n, height, width, channels), (n, channels, depth, height, width),
            (n, channels, length), (n, length, channels) or (n, features).
        module: the module that returned it; its type tells the order of the dimensions.
        aspect: height over width of the images that the model reads; None where it reads none.
        index: which of the module's tensors it is, as in `Site`.

    Raises:
        ValueError: the tensor has fewer than 2 or more than 5 dimensions.
    """
    if tensor.is_complex():
        tensor = tensor.abs()
    if isinstance(module, nn.MultiheadAttention) and index == "1":
        return Maps(tensor.unsqueeze(1) if tensor.ndim == 3 else tensor, "attention weights, queries by keys")
    if tensor.ndim == 5:
        middle = tensor.shape[2] // 2
        return Maps(tensor[:, :, middle], f"slice {middle} of {tensor.shape[2]}")
    if tensor.ndim == 4:
        return Maps(tensor.movedim(-1, 1) if _is_channels_last(tensor, module, aspect) else tensor, "")
    if tensor.ndim == 3 and isinstance(module, CHANNELS_FIRST):
        return Maps(tensor.unsqueeze(1), "channels by positions")
    if tensor.ndim == 3:
        return _of_tokens(tensor, aspect)
    if tensor.ndim == 2:
        return Maps(tensor[:, None, None, :], "features from left to right")
    raise ValueError(f"a tensor of shape {tuple(tensor.shape)} is no picture")


def aspect_of(tensors: Iterable[tuple[str, Tensor]]) -> float | None:
    """Height over width of the first images among the tensors, of shape (..., n, channels, height, width)."""
    return next((t.shape[-2] / t.shape[-1] for _, t in tensors if not t.is_nested and t.ndim >= 4 and t.numel()), None)


def dense(tensor: Tensor) -> Tensor:
    """A sparse, quantized or other tensor with all its values in memory.

    Raises:
        ValueError: it has no values, or parts of different sizes.
    """
    if tensor.is_nested or tensor.is_meta or isinstance(tensor, MaskedTensor):
        kind = "nested" if tensor.is_nested else "meta" if tensor.is_meta else "masked"
        raise ValueError(f"a {kind} tensor is no picture")
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def samples_first(tensor: Tensor, module: nn.Module, index: str = "") -> Tensor:
    """The tensor with samples as its first dimension: recurrent and attention modules may give (length, n, ...)."""
    is_batch_first = next((m.batch_first for m in module.modules() if hasattr(m, "batch_first")), True)
    if isinstance(module, nn.RNNBase) and index.startswith("1"):
        is_batch_first = False  # the states of its layers
    if isinstance(module, nn.MultiheadAttention) and index == "1":
        is_batch_first = True  # attention weights
    return tensor if is_batch_first or tensor.ndim != 3 else tensor.transpose(0, 1)


def _is_channels_last(tensor: Tensor, module: nn.Module, aspect: float | None) -> bool:
    """Of shape (n, height, width, channels), as in Swin: told by the aspect that the other order would not have."""
    _, one, two, three = tensor.shape
    if isinstance(module, CHANNELS_FIRST) or not tensor.numel():
        return False
    if isinstance(module, nn.Linear):
        return True
    last, first = (abs(math.log(h / w / (aspect or 1.0))) for h, w in ((one, two), (two, three)))
    return last < MAX_LOG_ASPECT_DIFFERENCE and last < first


def _of_tokens(tensor: Tensor, aspect: float | None) -> Maps:
    for extra in EXTRA_TOKEN_COUNTS if aspect is not None else ():
        grid = _grid_of(tensor.shape[1] - extra, aspect or 1.0)
        if grid is not None:
            patches = tensor[:, extra:].unflatten(1, grid).movedim(-1, 1)
            without = {0: "", 1: ", without the class token"}.get(extra, f", without {extra} tokens before them")
            return Maps(patches, f"patches{without}")
    return Maps(tensor.unsqueeze(1), "positions by features")


def _grid_of(count: int, aspect: float) -> tuple[int, int] | None:
    """Height and width of a grid of so many patches with this aspect."""
    height = round(math.sqrt(max(count, 0) * aspect))
    if height < 1 or count % height or count < MIN_GRID_PATCHES:
        return None
    width = count // height
    return (height, width) if abs(math.log(height / width / aspect)) < MAX_LOG_ASPECT_DIFFERENCE else None


@dataclass(frozen=True)
class SelectedMaps:
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


def shown(maps: Maps, *, channels: int, order: Order, size: int) -> SelectedMaps:
    """The part of the maps that is shown: the first or the strongest channels, shrunk to `size`.

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
    small = shrink(values.float(), size if of > 1 else 4 * size)
    # A view would keep the whole tensor alive, and change with it.
    small = small.clone() if small.untyped_storage().data_ptr() == maps.values.untyped_storage().data_ptr() else small
    words = ", ".join(filter(None, [f"{height}x{width}", maps.words]))
    return SelectedMaps(small, which, of, words)


def feature_maps(shown: SelectedMaps, name: str, *, normalize: Normalize, size: int) -> Picture:
    """The picture of the shown maps, with `name` in its caption."""
    values, range_in_words = scaled(shown.values.cpu().numpy(), normalize)
    pixels = squares(enlarge(indices(values), size))
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
