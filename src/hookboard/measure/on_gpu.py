"""Stub."""

import torch

WITHOUT_FLOAT64 = frozenset({"mps"})


def has_kernels(device):
    return False


def needs_host(device: torch.device) -> bool:
    return device.type in WITHOUT_FLOAT64


def measuring_device(device: torch.device) -> torch.device:
    return torch.device("cpu") if needs_host(device) else device
