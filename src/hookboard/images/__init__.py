"""From tensors to pictures: feature maps, kernels and overlays. Each kind has a file; `Picture` is the result."""

from hookboard.images.feature_maps import (
    CONVOLUTIONS,
    Order,
    Shown,
    aspect_of,
    dense,
    feature_maps,
    maps_in,
    samples_first,
    shown,
)
from hookboard.images.heat_map import Mark, heat_map
from hookboard.images.heat_scale import Scale
from hookboard.images.kernels import kernel_picture, part_shown
from hookboard.images.overlay import overlays, unnormalized
from hookboard.images.picture import Picture

__all__ = [
    "CONVOLUTIONS",
    "Mark",
    "Order",
    "Picture",
    "Scale",
    "Shown",
    "aspect_of",
    "dense",
    "feature_maps",
    "heat_map",
    "kernel_picture",
    "maps_in",
    "overlays",
    "part_shown",
    "samples_first",
    "shown",
    "unnormalized",
]
