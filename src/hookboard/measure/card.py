"""What a device can do, and a copy to it."""

import functools

import torch
from torch import Tensor

DEVICES = {"cuda"}
"""The types of devices that Triton's kernel runs on. Tests add the CPU, where Triton's interpreter runs it."""

FAST_FLOAT64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""The compute capabilities of NVIDIA's cards that add float64 at half the speed of float32, but for a few of them."""

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices without float64, which sums need; tensors there are copied to the CPU to be measured."""


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 128


def adds_float64_fast(device: torch.device) -> bool:
    """Return True if a device is known to add float64 at half the speed of float32, or at an unknown one."""
    is_nvidia = device.type == "cuda" and not torch.version.hip
    return not is_nvidia or torch.cuda.get_device_capability(device) in FAST_FLOAT64


def needs_host(device: torch.device) -> bool:
    """Return True if tensors of this device are measured on the CPU, because the device has no float64."""
    return device.type in WITHOUT_FLOAT64


def measuring_device(device: torch.device) -> torch.device:
    """Return the device on which tensors of a device are measured: itself, or the CPU if it has no float64.

    >>> measuring_device(torch.device("mps"))
    device(type='cpu')
    """
    return torch.device("cpu") if needs_host(device) else device


def uploaded_from(host: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a tensor of the host on a device, without a wait for it.

    Only a copy from page-locked memory is known not to wait. Its memory is used again once the copy is made.
    """
    if device.type != "cuda":
        return host.to(device)
    pinned = torch.empty(host.shape, dtype=host.dtype, device="cpu", pin_memory=True)
    pinned.copy_(host)
    return pinned.to(device, non_blocking=True)
