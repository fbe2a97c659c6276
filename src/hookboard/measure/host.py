"""Devices that have no float64, which sums need: what is measured there is copied to the host first."""

import torch

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices."""


def needs_host(device: torch.device) -> bool:
    """Return whether tensors of this device are measured on the host, because it has no float64."""
    return device.type in WITHOUT_FLOAT64


def measuring_device(device: torch.device) -> torch.device:
    """Return the device on which tensors of this one are measured.

    >>> measuring_device(torch.device("mps"))
    device(type='cpu')
    """
    return torch.device("cpu") if needs_host(device) else device
