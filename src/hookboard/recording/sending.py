"""Copies to the host for which the training thread does not wait."""

from collections.abc import Callable

import torch
from torch import Tensor


def sent(tensor: Tensor) -> Callable[[], Tensor]:
    """Start the copy of a tensor to the host.

    Returns:
        Gives the copy; it may be called in any thread. On CUDA it is what waits for the copy. Other devices than CUDA
        copy at once.
    """
    if tensor.is_cuda:
        return _sent_by_event(tensor)
    host = tensor.cpu()  # itself, where it is there already
    return lambda: host


def _sent_by_event(tensor: Tensor) -> Callable[[], Tensor]:
    # Only to pinned memory is a copy made while the host goes on.
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event(blocking=True)  # whoever waits sleeps, and leaves the core to the training
    event.record(torch.cuda.current_stream(tensor.device))

    def arrived() -> Tensor:
        event.synchronize()
        return host

    return arrived
