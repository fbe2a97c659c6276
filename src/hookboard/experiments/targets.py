"""Recognizes the targets in batches of the form `(inputs, targets)`, and exchanges them between samples."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hookboard.experiments.attempt import Recipe, losses_of, restoring
from hookboard.nested import tensors_in


class Pair(NamedTuple):
    """A batch that consists of two tensors.

    Args:
        inputs: shape (samples, ...).
        targets: shape (samples, ...).
    """

    inputs: Tensor
    targets: Tensor


def pairs_in(batches: Sequence[Any]) -> list[Pair]:
    """Return the batches as pairs of tensors.

    The list is empty if a batch is anything but two tensors with equally many samples, or if the second ones differ in
    dtype or in the shape of a sample.
    """
    found = []
    for batch in batches:
        if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(type(part) is Tensor for part in batch):
            return []
        if any(not part.ndim for part in batch) or len(batch[0]) != len(batch[1]):
            return []
        found.append(Pair(*batch))
    same = {(pair.targets.shape[1:], pair.targets.dtype) for pair in found}
    return found if len(same) == 1 else []


def with_targets(batches: Sequence[Any], targets: Tensor) -> list[Any]:
    """Return the batches with `targets`, shape (samples of all batches, ...), in place of their own targets."""
    parts = targets.split([len(batch[0]) for batch in batches])
    return [
        type(batch)((batch[0], part)) if type(batch) in (tuple, list) else (batch[0], part)
        for batch, part in zip(batches, parts, strict=True)
    ]


def exchanged(batches: Sequence[Any], seed: int) -> list[Any]:
    """Return the batches with the targets permuted at random over the samples of all of them."""
    targets = torch.cat([batch[1] for batch in batches])
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
    return with_targets(batches, targets[order.to(targets.device)])


def all_equal(pairs: Sequence[Pair]) -> bool:
    """Return True if all samples of all batches have the same target."""
    targets = torch.cat([pair.targets for pair in pairs])
    return bool((targets == targets[0]).all())


def are_targets(recipe: Recipe, batches: Sequence[Any]) -> bool:
    """Return True if the second tensor of each batch is what the loss compares outputs with.

    That is so if the loss changes with it, and no layer with parameters takes it, as a layer would take labels to embed
    or a second view of a sample.
    """
    if not pairs_in(batches):
        return False
    targets = torch.cat([batch[1] for batch in batches])
    others = with_targets(batches, targets[:1].expand_as(targets).clone())
    taken: list[bool] = []
    with restoring(recipe, batches), _noting_inputs(recipe.module, [batch[1] for batch in batches], taken):
        right = losses_of(recipe, batches)
    with restoring(recipe, batches):
        return not taken and losses_of(recipe, others) != right


OF_CLASSES = frozenset({"cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits"})
"""Functions of `torch.nn.functional` whose targets are classes."""


def are_classes(recipe: Recipe, batches: Sequence[Any]) -> bool:
    """Return True if the step gives the second tensor of the first batch to one of the functions in OF_CLASSES."""
    if not pairs_in(batches):
        return False
    with restoring(recipe, batches), _ClassTargets(batches[0][1]) as mode:
        losses_of(recipe, batches[:1])
    return bool(mode.is_taken)


class _ClassTargets(TorchFunctionMode):
    """Sets `is_taken` when a function in OF_CLASSES is called with the tensor `target`, or with a view of it."""

    def __init__(self, target: Tensor) -> None:
        super().__init__()
        self.is_taken = False
        self._place = target.untyped_storage().data_ptr()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the arguments, then call the function."""
        if getattr(function, "__name__", "") in OF_CLASSES:
            given = [tensor for _, tensor in tensors_in([args, kwargs])]
            self.is_taken |= any(tensor.untyped_storage().data_ptr() == self._place for tensor in given)
        return function(*args, **(kwargs or {}))


@contextmanager
def _noting_inputs(model: nn.Module, of: Sequence[Tensor], taken: list[bool]) -> Iterator[None]:
    """Append True to `taken` whenever a layer with parameters is called with one of the tensors, or a view of one."""
    places = {tensor.untyped_storage().data_ptr() for tensor in of}

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if any(tensor.untyped_storage().data_ptr() in places for _, tensor in tensors_in([args, kwargs])):
            taken.append(True)

    layers = [m for m in model.modules() if any(True for _ in m.parameters(recurse=False)) and m is not model]
    handles = [layer.register_forward_pre_hook(enter, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
