"""What is measured of weights around an optimizer step: gradients before it, values and updates after it."""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping

from torch import Tensor
from torch.optim import Optimizer

from hookboard.parameters import Weight, stepped_by
from hookboard.recording import Recorder
from hookboard.sites import Role, Site

Part = Callable[[Tensor], Tensor]
"""Which part of a weight is measured, and of its gradient."""

_site = functools.lru_cache(maxsize=1 << 14)(Site)
"""A site costs more to make than to look up, and each due step asks for four of every weight."""


def measure_gradients(recorder: Recorder, optimizer: Optimizer, weights: Mapping[str, Weight], part: Part) -> None:
    """Measure the gradients of the weights that this optimizer is about to update."""
    recorder.observe_all(
        (_site(name, "parameter_grad"), part(grad), None)
        for name, weight in stepped_by(optimizer, weights).items()
        if (grad := weight.grad) is not None
    )


def keep_before(before: dict[str, Tensor], optimizer: Optimizer, weights: Mapping[str, Weight], part: Part) -> None:
    """Copy into `before`, by name, the weights that this optimizer is about to update."""
    for name, weight in stepped_by(optimizer, weights).items():
        # Of several steps in one batch the first decides what "before" is.
        if name not in before:
            before[name] = part(weight.in_use).clone()


def measure_weights(
    recorder: Recorder,
    weights: Mapping[str, Weight],
    before: Mapping[str, Tensor],
    roles: Collection[Role],
    part: Part,
) -> None:
    """Measure the weights after the steps of all optimizers, and how far these have moved them.

    Args:
        recorder: measures.
        weights: the watched weights by name.
        before: copies of the weights before the steps, by name; those that no optimizer held are not there.
        roles: `parameter`, and `parameter_update` for the updates.
        part: the part of each weight that is measured, the same as in `before`.
    """
    recorder.observe_all(_of_weights(weights, before, roles, part))


def _of_weights(
    weights: Mapping[str, Weight], before: Mapping[str, Tensor], roles: Collection[Role], part: Part
) -> Iterator[tuple[Site, Tensor, Tensor | None]]:
    for name, weight in weights.items():
        after = part(weight.in_use)
        if "parameter" in roles:
            yield _site(name, "parameter"), after, None
        if "parameter_update" in roles and name in before:
            yield _site(name, "parameter_before"), before[name], None
            yield _site(name, "parameter_update"), after, before[name]
