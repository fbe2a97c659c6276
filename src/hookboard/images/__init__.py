"""Draws feature maps, kernels, overlays, heat maps and histograms, each in a file of its own, as a `Picture`."""
