"""Pictures of what a model holds and computes: from tensors to what a logger can show."""

from hookboard.images.feature_maps import (
    CONVOLUTIONS,
    Order,
    Shown,
    aspect_of,
    feature_maps,
    maps_in,
    samples_first,
    shown,
)
from hookboard.images.kernels import kernel_picture, part_shown
from hookboard.images.overlay import overlays, unnormalized
from hookboard.images.picture import Picture

__all__ = [
    "CONVOLUTIONS",
    "Order",
    "Picture",
    "Shown",
    "aspect_of",
    "feature_maps",
    "kernel_picture",
    "maps_in",
    "overlays",
    "part_shown",
    "samples_first",
    "shown",
    "unnormalized",
]
