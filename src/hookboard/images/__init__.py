"""Draws feature maps, kernels, class-activation maps and heat maps, each as a `Picture`."""
