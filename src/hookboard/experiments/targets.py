"""Finds the targets in batches, and exchanges them between samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hookboard.experiments.attempt import Setting, restoring
from hookboard.model.nested import map_tensors, tensors_in
from hookboard.model.state import copied
from hookboard.tracing.batch_targets import Targets, targets_in


def find_targets(setting: Setting, batches: Sequence[Any]) -> Targets:
    """Return which tensors of the batches are targets: those that are in the first one, by `targets_in`.

    Empty `Targets` if a batch lacks one of these tensors, if the batches differ in its dtype or in the shape of a
    sample, or if no other tensor of a batch has as many samples.
    """
    with restoring(setting):
        found = targets_in(setting.module, copied(batches[0]), setting.loss)
    parts = [dict(tensors_in(batch)) for batch in batches]
    for path in found.paths:
        held = [part.get(path) for part in parts]
        if any(type(target) is not Tensor or not target.ndim for target in held):
            return Targets()
        if len({(target.shape[1:], target.dtype) for target in held if target is not None}) > 1:
            return Targets()
    for part in parts:
        lengths = {len(part[path]) for path in found.paths}
        others = {len(tensor) for path, tensor in part.items() if path not in found.paths and tensor.ndim}
        if len(lengths) > 1 or not lengths <= others:
            return Targets()
    return found


def of_batches(batches: Sequence[Any], path: str) -> list[Tensor]:
    """Return from each batch the tensor at `path`, as `tensors_in` writes it."""
    return [dict(tensors_in(batch))[path] for batch in batches]


def samples_in(batches: Sequence[Any], targets: Targets) -> list[int]:
    """Return how many samples each batch has; for each 0 if no targets are known."""
    return [len(target) for target in of_batches(batches, targets.paths[0])] if targets.paths else [0] * len(batches)


def exchanged(batches: Sequence[Any], targets: Targets) -> list[Any]:
    """Return the batches with the targets permuted at random across all samples; several targets in the same order."""
    sizes = samples_in(batches, targets)
    order = torch.randperm(sum(sizes), generator=torch.Generator("cpu").manual_seed(0), device="cpu")
    news: list[dict[str, Tensor]] = [{} for _ in batches]
    for path in targets.paths:
        whole = torch.cat(of_batches(batches, path))
        for new, part in zip(news, whole[order.to(whole.device)].split(sizes), strict=True):
            new[path] = part
    return [_with(batch, new) for batch, new in zip(batches, news, strict=True)]


def _with(batch: Any, new: Mapping[str, Tensor]) -> Any:
    """Return the batch with the tensors of `new` at their paths."""
    paths = iter([path for path, _ in tensors_in(batch)])
    return map_tensors(lambda tensor: new.get(next(paths), tensor), batch)
