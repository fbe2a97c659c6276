"""Draws a module's output as feature maps: a square for each sample, with a tile for each channel."""

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
"""Modules whose weight is a set of kernels; subclasses and lazy variants count."""

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
"""How many tokens may precede the patches: none, a class token, also a distillation token, also registers."""

MIN_GRID_PATCHES = 4
"""Minimum number of tokens that is taken for a grid of patches."""

MAX_LOG_ASPECT_DIFFERENCE = 0.2
"""Two aspects count as equal if their logarithms differ by less than this: strides round sizes."""


@dataclass(frozen=True)
class Maps:
    """A tensor's values as two-dimensional maps.

    Args:
        values: shape (samples, channels, height, width).
        words: what they show, for the caption; "" for images.
    """

    values: Tensor
    words: str


def maps_in(tensor: Tensor, module: nn.Module, *, aspect: float | None, index: str = "") -> Maps:
    """Return a module's output as maps.

    Images are taken as they are, volumes by their middle slice. Tokens become one map for each channel if the model
    reads images and the tokens, apart from a few at the start, form a grid with the images' aspect. Other sequences
    become one map (positions by features), and vectors one line. The attention weights of `nn.MultiheadAttention` are
    one map for each head, or one in all. Of complex numbers the magnitude is taken.

    Args:
        tensor: shape (n, channels, height, width), (n, height, width, channels), (n, channels, depth, height, width),
            (n, channels, length), (n, length, channels) or (n, features).
        module: the module that returned it; its type tells the order of the dimensions.
        aspect: height / width of the images that the model reads; None if it reads none.
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
    raise ValueError(f"a tensor of shape {tuple(tensor.shape)} cannot be drawn")


def aspect_of(tensors: Iterable[tuple[str, Tensor]]) -> float | None:
    """Return height / width of the first tensor of (name, tensor) pairs with 4 dimensions or more; None without any.

    Its last two dimensions are height and width. Nested tensors and tensors without elements are skipped.
    """
    return next((t.shape[-2] / t.shape[-1] for _, t in tensors if not t.is_nested and t.ndim >= 4 and t.numel()), None)


def dense(tensor: Tensor) -> Tensor:
    """Return a sparse tensor as a strided one, a quantized one dequantized, and any other unchanged.

    Raises:
        ValueError: the tensor is nested, masked or on the meta device.
    """
    if tensor.is_nested or tensor.is_meta or isinstance(tensor, MaskedTensor):
        kind = "nested" if tensor.is_nested else "meta" if tensor.is_meta else "masked"
        raise ValueError(f"a {kind} tensor cannot be drawn")
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def samples_first(tensor: Tensor, module: nn.Module, index: str = "") -> Tensor:
    """Return the tensor with the samples first: recurrent and attention modules may return (length, n, ...)."""
    is_batch_first = next((m.batch_first for m in module.modules() if hasattr(m, "batch_first")), True)
    if isinstance(module, nn.RNNBase) and index.startswith("1"):
        is_batch_first = False  # the states of its layers
    if isinstance(module, nn.MultiheadAttention) and index == "1":
        is_batch_first = True  # attention weights
    return tensor if is_batch_first or tensor.ndim != 3 else tensor.transpose(0, 1)


def _is_channels_last(tensor: Tensor, module: nn.Module, aspect: float | None) -> bool:
    """Return True if the shape is (n, height, width, channels), as in Swin.

    If the module's type does not tell, it must fit the images' aspect, and better than the other order does.
    """
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
    """Return height and width of a grid of `count` patches with this aspect; None if there is no such grid."""
    height = round(math.sqrt(max(count, 0) * aspect))
    if height < 1 or count % height or count < MIN_GRID_PATCHES:
        return None
    width = count // height
    return (height, width) if abs(math.log(height / width / aspect)) < MAX_LOG_ASPECT_DIFFERENCE else None


@dataclass(frozen=True)
class SelectedMaps:
    """The part of some maps that a picture shows, still on the device.

    Args:
        values: shape (samples, selected channels, height, width), float32, shrunk to the size of the picture's tiles.
        channels: the indices of the selected channels.
        of: number of channels in all.
        words: what the maps show.
    """

    values: Tensor
    channels: Tensor
    of: int
    words: str


def select_maps(maps: Maps, *, channels: int, order: Order, size: int) -> SelectedMaps:
    """Select the first or the strongest channels and shrink them to at most `size` pixels a side.

    The only map of a tensor may be 4 times as large. The strongest channels have the largest mean absolute value. The
    host does not wait for the device.
    """
    values = maps.values.detach()
    of, (height, width) = values.shape[1], values.shape[2:]
    count = min(channels, of)
    if order == "strongest" and of > 1:
        strength = values.float().abs().nan_to_num(0, 0, 0).mean(dim=(0, 2, 3))
        which = strength.topk(count).indices
        values = values.index_select(1, which)
    else:
        which = torch.arange(count, device="cpu")
        values = values[:, :count]
    small = shrink(values.float(), size if of > 1 else 4 * size)
    # A view would keep the whole tensor alive, and change with it.
    small = small.clone() if small.untyped_storage().data_ptr() == maps.values.untyped_storage().data_ptr() else small
    words = ", ".join(filter(None, [f"{height}x{width}", maps.words]))
    return SelectedMaps(small, which, of, words)


def feature_maps(shown: SelectedMaps, name: str, *, normalize: Normalize, size: int) -> Picture:
    """Draw the selected maps, with `name` in the caption.

    Maps smaller than `size` pixels a side are enlarged by a whole factor; others are drawn as they are. `normalize` is
    as in `scaled`.
    """
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
        caption += f"; magenta: NaN or infinite ({missing} pixels)"
    return Picture(pixels, caption)
