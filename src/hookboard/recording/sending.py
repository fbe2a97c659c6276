"""Copies to the host for which the training thread does not wait."""

from collections.abc import Callable, Sequence

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


def sent_together(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """The same for several tensors of any real types, in one copy."""
    there = [tensor for tensor in tensors if tensor.is_cuda]
    if not there:
        hosts = [tensor.cpu() for tensor in tensors]
        return lambda: hosts
    # Whatever is shown, numbers of channels too, is a float64 without a loss.
    copy = sent(torch.cat([tensor.flatten().to(there[0].device, torch.float64) for tensor in there]))
    kinds = [(tensor.shape, tensor.dtype, None if tensor.is_cuda else tensor) for tensor in tensors]

    def arrived() -> list[Tensor]:
        parts = iter(copy().split([shape.numel() for shape, _, here in kinds if here is None]))
        return [next(parts).view(shape).to(dtype) if here is None else here for shape, dtype, here in kinds]

    return arrived


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
