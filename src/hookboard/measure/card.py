"""What a card can do."""

import ctypes
import functools
import os
from typing import Any

import torch

FASTER_THAN = 4
"""Up to this ratio of single to double speed, kernels sum in float64; beyond it, pairs of float32 are faster."""

WITHOUT_FLOAT64 = frozenset({"mps"})
"""Types of devices without float64, which sums need; tensors there are copied to the CPU to be measured."""

_SINGLE_TO_DOUBLE = 87
"""CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO of CUDA's driver, which torch does not tell."""


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a device."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 128


@functools.cache
def adds_float64_fast(device: torch.device) -> bool:
    """Return True if a device adds float64 at a quarter of the speed of float32 or more; True if that is unknown.

    It is not a matter of the generation: H100 has 1:2 and H20, of the same compute capability, 1:44.
    """
    if device.type != "cuda" or torch.version.hip:
        return True
    ratio, number = ctypes.c_int(), ctypes.c_int()
    try:
        driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        bus: Any = torch.cuda.get_device_properties(device)
        name = f"{bus.pci_domain_id:04x}:{bus.pci_bus_id:02x}:{bus.pci_device_id:02x}.0".encode()
        # torch's numbers of devices are those of the runtime, which the driver need not share.
        is_found = driver.cuDeviceGetByPCIBusId(ctypes.byref(number), name) == 0
        is_known = is_found and driver.cuDeviceGetAttribute(ctypes.byref(ratio), _SINGLE_TO_DOUBLE, number) == 0
    except (OSError, AttributeError):
        return True
    return not is_known or ratio.value <= FASTER_THAN


def needs_host(device: torch.device) -> bool:
    """Return True if tensors of this device are measured on the CPU, because the device has no float64."""
    return device.type in WITHOUT_FLOAT64


def measuring_device(device: torch.device) -> torch.device:
    """Return the device on which tensors of a device are measured: itself, or the CPU if it has no float64.

    >>> measuring_device(torch.device("mps"))
    device(type='cpu')
    """
    return torch.device("cpu") if needs_host(device) else device
