"""Draws feature maps, kernels, overlays, heat maps and histograms, each in a file of its own, as a `Picture`."""

from hookboard.images.colour_scale import ColourScale
from hookboard.images.feature_maps import (
    CONVOLUTIONS,
    SelectedMaps,
    aspect_of,
    dense,
    drawn_inputs,
    feature_maps,
    has_aspect,
    maps_in,
    samples_first,
    select_inputs,
    select_maps,
)
from hookboard.images.heat_map import Mark, heat_map
from hookboard.images.kernels import kernel_picture, selected_kernels
from hookboard.images.overlay import overlays, unnormalized
from hookboard.images.picture import Picture

__all__ = [
    "CONVOLUTIONS",
    "ColourScale",
    "Mark",
    "Picture",
    "SelectedMaps",
    "aspect_of",
    "dense",
    "drawn_inputs",
    "feature_maps",
    "has_aspect",
    "heat_map",
    "kernel_picture",
    "maps_in",
    "overlays",
    "samples_first",
    "select_inputs",
    "select_maps",
    "selected_kernels",
    "unnormalized",
]
