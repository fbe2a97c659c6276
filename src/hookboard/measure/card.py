"""What a device can do."""

import functools

import torch

DEVICES = {"cuda"}
"""The types of devices that Triton's kernel runs on. Tests add the CPU, where Triton's interpreter runs it."""

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices without float64, which sums need; tensors there are copied to the CPU to be measured."""


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 128


def needs_host(device: torch.device) -> bool:
    """Return True if tensors of this device are measured on the CPU, because the device has no float64."""
    return device.type in WITHOUT_FLOAT64


def measuring_device(device: torch.device) -> torch.device:
    """Return the device on which tensors of a device are measured: itself, or the CPU if it has no float64.

    >>> measuring_device(torch.device("mps"))
    device(type='cpu')
    """
    return torch.device("cpu") if needs_host(device) else device
