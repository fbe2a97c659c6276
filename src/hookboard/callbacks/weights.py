"""What is measured of weights around an optimizer step: gradients before it, values and updates after it."""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from torch import Tensor
from torch.optim import Optimizer

from hookboard.callbacks.turns import Turns
from hookboard.parameters import Weight, stepped_by
from hookboard.recording import Recorder
from hookboard.sites import Role, Site

Part = Callable[[Tensor], Tensor]
"""Which part of a weight is measured, and of its gradient."""

_OF_VALUES: tuple[Role, ...] = ("parameter", "parameter_update", "parameter_before")

_site = functools.lru_cache(maxsize=1 << 14)(Site)
"""A site costs more to make than to look up, and each due step asks for four of every weight."""


def measure_gradients(recorder: Recorder, optimizer: Optimizer, weights: Mapping[str, Weight], part: Part) -> None:
    """Measure the gradients of the weights that this optimizer is about to update."""
    recorder.observe_all(_of_gradients(recorder, stepped_by(optimizer, weights), part))


def _of_gradients(recorder: Recorder, weights: Mapping[str, Weight], part: Part) -> Iterator[tuple[Site, Tensor, None]]:
    for name, weight in weights.items():
        grad = weight.grad
        if grad is not None:
            try:
                taken = part(grad)
            except Exception as error:
                _fail(recorder, name, ["parameter_grad"], error)
                continue
            yield _site(name, "parameter_grad"), taken, None


class Before:
    """Copies of weights from before the optimizers stepped, by name; their memory serves the next step again."""

    def __init__(self) -> None:
        self.turns: Turns | None = None
        """Which weights are copied in a step; None if all are."""
        self.copies: dict[str, Tensor] = {}
        """Of the running step; those that no optimizer held are not there."""
        self._spare: dict[str, Tensor] = {}

    def keep(self, recorder: Recorder, optimizer: Optimizer, weights: Mapping[str, Weight], part: Part) -> None:
        """Copy the weights that this optimizer is about to update."""
        stepped = stepped_by(optimizer, weights)
        for name, weight in (stepped if self.turns is None else self.turns.of(stepped)).items():
            # Of several steps in one batch the first decides what "before" is.
            if name not in self.copies:
                in_use = _in_use(recorder, name, weight, part)
                if in_use is not None:
                    self.copies[name] = _copied(in_use, self._spare.get(name))
                    if self.turns is not None and weight.is_computed:
                        self.turns.note(name, in_use)

    def forget(self) -> None:
        """Know nothing of the weights, which have changed."""
        if self.turns is not None:
            self.turns.forget()

    def clear(self) -> None:
        """End the step."""
        if self.turns is not None:
            self.turns.end(self.copies)
        # On the CPU fresh memory costs as much as the copy; a device has an allocator for that. Where there are turns
        # the next step copies other weights.
        has_turns = self.turns is not None and self.turns.waiting
        again = {} if has_turns else self.copies
        self._spare = {name: copy for name, copy in again.items() if _can_serve_again(copy)}
        self.copies = {}


def _in_use(recorder: Recorder, name: str, weight: Weight, part: Part) -> Tensor | None:
    """The part of a weight that is measured; None if it cannot be had, such as where code of the user's fails."""
    if weight.is_computed and recorder.is_off(name, "parameter_before"):
        return None
    try:
        return part(weight.in_use)
    except Exception as error:
        _fail(recorder, name, _OF_VALUES, error)
        return None


def _fail(recorder: Recorder, name: str, roles: Sequence[Role], error: Exception) -> None:
    """Switch these sites off, once."""
    if not recorder.is_off(name, roles[-1]):
        recorder.switch_off([_site(name, role) for role in roles], error)


def _copied(tensor: Tensor, spare: Tensor | None) -> Tensor:
    """A copy, in the memory of an earlier one of the same kind if there is one."""
    if spare is None or not _can_serve_again(tensor):
        return tensor.clone()
    is_alike = (tensor.shape, tensor.dtype, tensor.layout) == (spare.shape, spare.dtype, spare.layout)
    return spare.copy_(tensor) if is_alike else tensor.clone()


def _can_serve_again(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and tensor.is_cpu and not tensor.is_nested


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
    recorder.observe_all(_of_weights(recorder, weights, before, roles, part))


def _of_weights(
    recorder: Recorder, weights: Mapping[str, Weight], before: Mapping[str, Tensor], roles: Collection[Role], part: Part
) -> Iterator[tuple[Site, Tensor, Tensor | None]]:
    for name, weight in weights.items():
        after = _in_use(recorder, name, weight, part)
        if after is None:
            continue
        if "parameter" in roles:
            yield _site(name, "parameter"), after, None
        if "parameter_update" in roles and name in before:
            yield _site(name, "parameter_before"), before[name], None
            yield _site(name, "parameter_update"), after, before[name]
