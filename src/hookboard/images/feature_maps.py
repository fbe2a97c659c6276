"""Draws a module's output as feature maps, with its input, and a convolution's kernels, and how they have changed."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.masked import MaskedTensor

from hookboard.base.torch_private import modules_in
from hookboard.images.picture import (
    GREY,
    HEAT,
    MARGIN,
    NOT_FINITE,
    TILE_GAP,
    WIDTH,
    Bar,
    ColourScale,
    Picture,
    Pixels,
    enlarge,
    grid,
    indices,
    joined,
    shrink,
    unnormalized,
)

Normalize = Literal["map", "layer"] | tuple[float, float]
"""The range of values that the colours span: each map's own (`map`), that of all maps of the layer, or a fixed one."""

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

EXTRA_TOKEN_COUNTS = (0, 1, 2, 5)  # before the patches: none, a class token, also a distillation token, also registers

MIN_GRID_PATCHES = 4  # a grid of patches has at least so many tokens

MAX_LOG_ASPECT_DIFFERENCE = 0.2  # aspects whose logarithms differ by less count as equal: strides round sizes


@dataclass(frozen=True)
class Maps:
    """Maps, shape (samples, channels, height, width), and what they show; `of` so many channels they are selected."""

    values: Tensor
    words: str
    of: int = 0


def maps_in(tensor: Tensor, module: nn.Module, *, aspect: float | None, index: str = "") -> Maps:
    """Return a module's output, of 2 to 5 dimensions, as maps; its type tells the order of the dimensions."""
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
    """Return height / width, the last two dimensions, of the first tensor with 4 or more; None without any."""
    return next((t.shape[-2] / t.shape[-1] for _, t in tensors if not t.is_nested and t.ndim >= 4 and t.numel()), None)


def dense(tensor: Tensor) -> Tensor:
    """Return a sparse or quantized tensor as a plain one, any other unchanged; ValueError if it cannot be read."""
    kinds = {"nested": tensor.is_nested, "meta": tensor.is_meta, "masked": isinstance(tensor, MaskedTensor)}
    kind = next((kind for kind, applies in kinds.items() if applies), None)
    if kind is not None:
        raise ValueError(f"a {kind} tensor cannot be drawn")
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def samples_first(tensor: Tensor, module: nn.Module, index: str = "") -> Tensor:
    """Return the tensor with the samples first: recurrent and attention modules may return (length, n, ...)."""
    is_batch_first = next((m.batch_first for m in modules_in(module).values() if hasattr(m, "batch_first")), True)
    if isinstance(module, nn.RNNBase) and index.startswith("1"):
        is_batch_first = False  # the states of its layers
    if isinstance(module, nn.MultiheadAttention) and index == "1":
        is_batch_first = True  # attention weights
    return tensor if is_batch_first or tensor.ndim != 3 else tensor.transpose(0, 1)


def _is_channels_last(tensor: Tensor, module: nn.Module, aspect: float | None) -> bool:
    """Return True if the shape is (n, height, width, channels), as in Swin."""
    _, one, two, three = tensor.shape
    if isinstance(module, CHANNELS_FIRST) or not tensor.numel():
        return False
    if isinstance(module, nn.Linear):
        return True
    # Then it must fit the images' aspect, and better than the other order does.
    last, first = (abs(math.log(h / w / (aspect or 1.0))) for h, w in ((one, two), (two, three)))
    return last < MAX_LOG_ASPECT_DIFFERENCE and last < first


def _of_tokens(tensor: Tensor, aspect: float | None) -> Maps:
    # A map for each channel, if the tokens, but for a few at the start, are a grid with the images' aspect.
    for extra in EXTRA_TOKEN_COUNTS if aspect is not None else ():
        grid = _grid_of(tensor.shape[1] - extra, aspect or 1.0)
        if grid is not None:
            patches = tensor[:, extra:].unflatten(1, grid).movedim(-1, 1)
            without = {0: "", 1: ", without the class token"}.get(extra, f", without the {extra} tokens before them")
            return Maps(patches, f"patches{without}")
    return Maps(tensor.unsqueeze(1), "positions by features")


def _grid_of(count: int, aspect: float) -> tuple[int, int] | None:
    """Return height and width of a grid of `count` patches with this aspect; None if there is no such grid."""
    height = round(math.sqrt(max(count, 0) * aspect))
    if height < 1 or count % height or count < MIN_GRID_PATCHES:
        return None
    width = count // height
    return (height, width) if has_aspect(height, width, aspect) else None


def has_aspect(height: int, width: int, aspect: float) -> bool:
    """Return True if `height / width` is about `aspect`."""
    return abs(math.log(height / width / aspect)) < MAX_LOG_ASPECT_DIFFERENCE


def select_maps(maps: Maps, *, channels: int, size: int) -> Maps:
    """Select the first channels, on the device, at most `size` pixels a side; the only map may be 4 times as large."""
    if maps.values.shape[2:] == (1, 1):
        maps = Maps(maps.values.movedim(1, 3), "channels from left to right")
    of, (height, width) = maps.values.shape[1], maps.values.shape[2:]
    values = maps.values.detach()[:, :channels]
    small = shrink(values.float(), size if of > 1 else 4 * size)
    # A view would keep the whole tensor alive, and change with it.
    small = small.clone() if small.untyped_storage().data_ptr() == maps.values.untyped_storage().data_ptr() else small
    words = ", ".join(filter(None, [f"{height}x{width}", maps.words]))
    return Maps(small, words, of)


MIN_TILE_HEIGHT = 24  # of the only map of a tensor, such as features from left to right


def feature_maps(shown: Maps, name: str, *, normalize: Normalize, size: int, inputs: Pixels | None = None) -> Picture:
    """Draw tiles for each sample, enlarged to at most `size` pixels a side, right of what `drawn_inputs` returned."""
    values = shown.values.cpu().numpy()
    lines = [*indices(_shares(values, normalize))]
    height, width = values.shape[2:]
    if shown.of == 1:  # as wide as there is room, and a vector as high as a line of text
        times = max(1, min((WIDTH - 2 * MARGIN) // width, 4 * size // height))
        lines = [line.repeat(max(times, MIN_TILE_HEIGHT // height), axis=1).repeat(times, axis=2) for line in lines]
    lines = [enlarge(line, size) for line in lines]
    lefts = [] if inputs is None else list(inputs[: len(lines)])
    room = WIDTH - 2 * MARGIN - TILE_GAP - (lefts[0].shape[1] + MARGIN if lefts else 0)
    rows = math.ceil(shown.values.shape[1] / max(1, room // (lines[0].shape[2] + TILE_GAP)))
    drawn = [grid(tiles, math.ceil(len(tiles) / rows)) for tiles in lines]
    if lefts:
        drawn = [joined([left, HEAT[line]], axis=1) for left, line in zip(lefts, drawn, strict=True)]
    caption = f"{name}: {'input next to ' if lefts else ''}{_channels(shown)}, {shown.words}"
    bar, missing = _bar(values, normalize), int((~np.isfinite(values)).sum())
    if bar.ends and missing < values.size:
        caption += "; values from {:.3g} to {:.3g}".format(*(bound.item() for bound in _range(values, axis=None)))
    if missing:
        bar = replace(bar, keys=((NOT_FINITE, "NaN or infinite"),))
        caption += f"; magenta: NaN or infinite ({missing} pixel{'s' * (missing > 1)})"
    return Picture(joined(drawn, axis=0), caption, bars=(bar,))


def _shares(maps: np.ndarray, normalize: Normalize) -> np.ndarray:
    """Return maps of shape (n, channels, height, width) scaled so that a range becomes [0, 1]; NaN where not finite."""
    if isinstance(normalize, str):
        low, high = _range(maps, axis=(-2, -1) if normalize == "map" else None)
    else:
        low, high = (np.full((1,) * maps.ndim, bound) for bound in normalize)
    flat = np.where(low == 0, 0.0, 0.5)  # of a single value: 0 for a dead channel
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(high > low, (maps - low) / (high - low), flat)
    return np.where(np.isfinite(maps), shares, np.nan)


def _range(maps: np.ndarray, axis: tuple[int, ...] | None) -> tuple[np.ndarray, np.ndarray]:
    # Where a map has no finite value there is nothing to draw, and any range will do.
    finite = np.isfinite(maps)
    nothing = ~finite.any(axis=axis, keepdims=True)
    low = np.where(finite, maps, np.inf).min(axis=axis, keepdims=True)
    high = np.where(finite, maps, -np.inf).max(axis=axis, keepdims=True)
    return np.where(nothing, 0.0, low), np.where(nothing, 1.0, high)


def _bar(maps: np.ndarray, normalize: Normalize) -> Bar:
    if not isinstance(normalize, str):
        low, high = normalize
        is_cut = bool((maps < low).any()), bool((maps > high).any())
        return Bar(ColourScale(float(low), float(high), is_cut=is_cut), "value")
    low, high = (float(bound.item()) for bound in _range(maps, axis=None))
    if normalize == "layer" and low < high:
        return Bar(ColourScale(low, high), "value")
    return Bar(ColourScale(0.0, 1.0), "value", ends=("minimum of each map", "its maximum"))


def _channels(shown: Maps) -> str:
    if shown.of == 1:
        return "one map"
    count = shown.values.shape[1]
    return f"{shown.of} channels" if count == shown.of else f"channels 0 to {count - 1} of {shown.of}"


def drawn_inputs(inputs: Tensor, size: int) -> Pixels:
    """Draw the pictures that the model was given, in RGB, for `feature_maps`."""
    return enlarge(unnormalized(inputs, None, None), size)


def select_inputs(tensors: Iterable[tuple[str, Tensor]], *, samples: int, size: int) -> tuple[Tensor | None, int]:
    """Copy the first samples of the first tensor of pictures, at most `size` pixels a side, and count all of them."""
    for _, tensor in tensors:
        is_plain = type(tensor) is Tensor and not (tensor.is_nested or tensor.is_meta or tensor.is_quantized)
        is_plain = is_plain and tensor.layout is torch.strided and not tensor.is_complex()
        if is_plain and tensor.ndim == 4 and tensor.shape[1] in (1, 3) and min(tensor.shape[2:]) > 1 and len(tensor):
            return shrink(tensor.detach()[:samples].float(), size).clone(), len(tensor)
    return None, 0


def selected_kernels(weight: Tensor, *, kernels: int, channels: int) -> Tensor:
    """Copy the part of a convolution's weight that a picture shows, (kernels, channels, height, width) in float32."""
    if weight.shape[1] in (1, 3):
        # They take one tile each.
        kernels, channels = kernels * channels, weight.shape[1]
    part = weight.detach()[:kernels, :channels].float()
    if part.ndim == 3:
        part = part.unsqueeze(2)
    if part.ndim == 5:
        part = part[:, :, part.shape[2] // 2]
    return part.clone()


def kernel_picture(now: Tensor, before: Tensor, name: str, shape: torch.Size, *, size: int) -> Picture:
    """Draw kernels, enlarged to at most `size` pixels a side, and their change since `before`, the start of the fit."""
    weights, change = now.cpu().numpy(), (now - before).cpu().numpy()
    is_colour = shape[1] == 3
    halves = [_drawn(values, is_colour, size) for values in (weights, change)]
    width = max(halves[0].shape[1], 300)  # room for the numbers of a bar
    kernels, channels = now.shape[:2]
    how = "a tile each" if channels == 1 else "rows: kernels, columns: channels"
    if is_colour:
        how = "in colour"
    part = "" if (kernels, channels) == tuple(shape[:2]) else f" (shown: {kernels}x{channels})"
    caption = (
        f"{name}: {'x'.join(map(str, shape))}{part}, {how}; left: now, ±{_most(weights):.3g}; right: change in this "
        f"fit, ±{_most(change):.3g}; grey: 0"
    )
    missing = int(np.sum(~np.isfinite(weights)))
    if missing:
        caption += f"; {missing} of the weights NaN or infinite{'' if is_colour else ': magenta'}"
    blank = [(0, 0), (0, width - halves[0].shape[1])]
    left = np.pad(halves[0], blank + [(0, 0)] * (halves[0].ndim - 2), constant_values=255)
    bars = (
        Bar(_around_zero(weights), "now", right=width - MARGIN, keys=((NOT_FINITE, "NaN"),) * bool(missing)),
        Bar(_around_zero(change), "change", left=width + MARGIN, right=2 * width),
    )
    return Picture(joined([left, halves[1]], axis=1), caption, GREY, bars=bars)


def _most(values: np.ndarray) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def _around_zero(values: np.ndarray) -> ColourScale:
    most = _most(values) or 1.0
    return ColourScale(-most, most)


def _drawn(values: np.ndarray, is_colour: bool, size: int) -> Pixels:
    """Lay out kernels, divided by their largest magnitude, as RGB or indices of the grey palette; 0 is mid-grey."""
    shares = 0.5 + 0.5 * values / (_most(values) or 1.0)
    kernels, channels = shares.shape[:2]
    if is_colour:
        rgb = np.rint(np.nan_to_num(shares, nan=0.5, posinf=1, neginf=0) * 255).astype(np.uint8)
        return grid(enlarge(rgb.transpose(0, 2, 3, 1), size), math.ceil(math.sqrt(kernels)))
    tiles = enlarge(indices(shares.reshape(-1, *shares.shape[2:])), size)
    return grid(tiles, math.ceil(math.sqrt(kernels)) if channels == 1 else channels)
