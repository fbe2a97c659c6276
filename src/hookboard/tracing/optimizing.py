"""Finds faults in the optimizers of a fit: what they hold, what they miss, and gradients of the step before."""

import inspect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.base.checks import is_lightning
from hookboard.base.messages import listed
from hookboard.base.ranks import local
from hookboard.base.torch_private import computing_plainly, modules_in, parameters_in, version_of
from hookboard.health.rule import Finding, Rule
from hookboard.tracing.calls import Place, Value, is_of_library, user_frame
from hookboard.tracing.program import StepTrace


class Outsider(NamedTuple):
    """A parameter that the model does not have, and that a gradient reaches."""

    number: int  # its id
    is_gone: Callable[[], bool]  # whether it has been freed, as after the step if that had made it for itself
    name: str  # in a list or dict of the model, such as `net.layers[0].weight`; "" if it is in none
    line: str  # the first that uses it, as in `model.py:31`; "" if it is not known
    shape: tuple[int, ...]
    is_fresh: bool  # whether it looks as torch initializes linear layers
    is_copy: bool  # whether it is nearly a parameter of the model, as an average of its weights is


def findings_of_optimizers(
    optimizers: Sequence[Optimizer], model: nn.Module, reached: Collection[str] | None, outside: Sequence[Outsider]
) -> Iterator[Finding]:
    """Yield findings on parameters that a gradient reaches (None: not known which) and that no optimizer has."""
    parameters = {name: p for name, p in parameters_in(model).items() if not is_lazy(p)}
    stepped = _held_by(optimizers)
    outside = [outsider for outsider in outside if outsider.is_gone() or outsider.number not in stepped]
    if reached is not None and stepped:
        yield from _not_in_optimizer(stepped, parameters, reached, outside)
    if outside and stepped:
        yield from _not_in_model(outside, may_be_meant=not getattr(model, "automatic_optimization", True))


def _held_by(optimizers: Sequence[Optimizer]) -> dict[int, torch.Tensor]:
    return {id(p): p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}


NOT_IN_OPTIMIZER = Rule("not_in_optimizer", None, of="step")


def _not_in_optimizer(
    in_optimizers: Mapping[int, torch.Tensor],
    parameters: Mapping[str, nn.Parameter],
    reached: Collection[str],
    outside: Sequence[Outsider],
) -> Iterator[Finding]:
    """Yield a finding on trained parameters that no optimizer holds, and one if no gradient reaches the model."""
    trained = {name: p for name, p in parameters.items() if p.requires_grad and name in reached}
    left_out = [name for name, p in trained.items() if id(p) not in in_optimizers]
    stepped = sum(p.requires_grad and id(p) in in_optimizers for p in parameters.values())
    if stepped and outside and not reached:
        line = next((f", first used at {outsider.line}" for outsider in outside if outsider.line), "")
        yield Finding(
            "",
            f"no gradient reaches any of the {stepped} model parameters in the optimizers; gradients reach "
            f"{len(outside)} outside the model{line}",
            "compute the loss with the model's own parameters, or with tensors computed from them (see "
            "torch.func.functional_call): a copy passes no gradient back to the model",
            "alarm",
            rule="not_in_optimizer",
        )
    if not left_out:
        return
    if not any(id(p) in in_optimizers for p in parameters.values()):
        if any(p.grad is not None for p in in_optimizers.values()):
            return  # an input is trained, as in style transfer
        yield Finding(
            "",
            f"the optimizers hold {len(in_optimizers)} tensors, and none of them is a parameter of the model",
            "pass the optimizer the parameters of the model being trained, not those of an earlier copy",
            "alarm",
            is_hard=False,
            rule="not_in_optimizer",
        )
        return
    if len(left_out) == len(trained):
        others = [p for p in parameters.values() if id(p) in in_optimizers]
        yield Finding(
            "",
            f"none of the {len(trained)} trainable parameters that get a gradient is in an optimizer; the optimizers "
            f"hold {len(others)} others, {sum(not p.requires_grad for p in others)} of them frozen",
            f"pass the optimizer the parameters that are trainable now, such as {left_out[0]}: collect them once the "
            "model is complete, including adapters and new heads",
            "alarm",
            rule="not_in_optimizer",
        )
        return
    yield Finding(
        "",
        f"{len(left_out)} of {len(trained)} trainable parameters that get a gradient are not in any optimizer: "
        f"{listed(left_out, 3)}",
        "pass them to the optimizer, or freeze them with requires_grad=False",
        rule="not_in_optimizer",
    )


def outsiders(step: StepTrace, outside: Iterable[nn.Parameter]) -> list[Outsider]:
    """Describe parameters that the model of a step does not have, without keeping them."""
    own, names = list(parameters_in(step.model).values()), _names_in_containers(step.model) if outside else {}
    return [
        Outsider(
            id(parameter),
            StorageWeakRef(parameter.untyped_storage()).expired,
            names.get(id(parameter), ""),
            _first_line(step, step.value_of(parameter)),
            tuple(parameter.shape),
            _is_fresh(parameter.detach()),
            any(_is_copy(parameter, of) for of in own),
        )
        for parameter in outside
    ]


def _names_in_containers(model: nn.Module) -> dict[int, str]:
    """Return the id of each parameter of a layer in a list, tuple or dict of a module, with its name from the model."""
    found = dict[int, str]()
    for path, module in modules_in(model).items():
        for attribute, container in vars(module).items():
            items: Iterable[tuple[Any, Any]] = ()
            if type(container) is dict:
                items = container.items()
            elif type(container) in (list, tuple):
                items = enumerate(container)
            for key, item in items:
                if isinstance(item, nn.Module) and not attribute.startswith("_"):
                    where = f"{path}{path and '.'}{attribute}[{key!r}]"
                    found |= {id(parameter): f"{where}.{name}" for name, parameter in parameters_in(item).items()}
    return found


def _first_line(step: StepTrace, value: Value) -> str:
    return next((op.place.short_line for op in step.ops if any(given is value for given in op.inputs)), "")


def _not_in_model(left: Sequence[Outsider], *, may_be_meant: bool) -> Iterator[Finding]:
    """Yield a finding on parameters that neither the model nor an optimizer has, and that a gradient reaches."""
    fresh = [one for one in left if one.is_fresh]
    matrices = fresh or [one for one in left if len(one.shape) > 1]
    made = sum(one.is_gone() for one in left)
    if (matrices and all(one.is_copy for one in matrices)) or (made and not fresh):
        return  # averaged weights, or a perturbation that the step has made
    anew = f" ({made} made by the step itself)" if made else ""
    they = "1 parameter gets a gradient but is" if len(left) == 1 else f"{len(left)} parameters get gradients but are"
    shapes = listed(dict.fromkeys(str(list(one.shape)) for one in fresh), 3)
    have = "has" if len(fresh) == 1 else "have"
    as_torch = f"; {len(fresh)} of them still {have} PyTorch's initialization (shape {shapes})" if fresh else ""
    named, line = [one.name for one in left if one.name], next((one.line for one in left if one.line), "")
    who = f" ({listed(named, 3)})" if named else anew
    yield Finding(
        "",
        f"{they} registered neither in the model nor in an optimizer{who}{as_torch}"
        + (f"; used at {line}" if line else ""),
        ("make layers in __init__" if made else "keep layers in an nn.ModuleList, not in a list")
        + ", so that the model registers their parameters; ignore this if they should stay fixed, like a network used "
        "only in the loss",
        "alarm" if fresh and not may_be_meant else "note",  # fresh: never trained; meant: the step trains its copy
        is_hard=False,
        rule="not_in_optimizer",
    )


NEAR_COPY = 0.5
"""A matrix is a copy if it differs by at most this share (a choice): two random ones differ by sqrt(2)."""


def _is_copy(parameter: nn.Parameter, of: nn.Parameter) -> bool:
    if parameter.shape != of.shape or parameter.dtype != of.dtype or parameter.device != of.device:
        return False
    return bool((parameter.detach() - of.detach()).norm() <= NEAR_COPY * of.detach().norm())


FRESH_DEVIATION = 0.1
"""Weights look as torch initializes them if their standard deviation is within this share of it (a choice)."""

FRESH_COUNT = 64
"""Smaller weights are not judged (a choice)."""


def _is_fresh(weight: torch.Tensor) -> bool:
    """Return True if a weight is spread as torch initializes linear layers: evenly within 1 / root of the inputs."""
    if weight.dim() < 2 or weight.numel() < FRESH_COUNT or not weight.is_floating_point():
        return False
    bound = 1 / math.sqrt(math.prod(weight.shape[1:]))
    deviation, largest = float(weight.double().std()), float(weight.abs().max())
    return abs(deviation * math.sqrt(3) / bound - 1) <= FRESH_DEVIATION and largest <= bound * 1.001


SAMPLED_PARAMETERS = 8
"""About this many parameters of each optimizer are looked at (a choice): `zero_grad` clears all or none."""

WATCHED_STEPS = 4
"""What so many steps of each optimizer leave is watched (a choice): the fault shows from the second step on."""

STALE_GRADIENTS = Rule("stale_gradients", None, of="step", gives="alarm")


@dataclass
class _Left:
    """A gradient that the last step of an optimizer has left. The tensor is not kept: that would hold its memory."""

    parameter: Tensor
    identity: int  # the `id` of the gradient
    version: int  # its version counter after the latest backward pass, which grows with each change in place
    is_added_to: bool = False  # by a backward pass

    @property
    def is_there(self) -> bool:
        """Whether the parameter still has this gradient, perhaps changed in place."""
        gradient = self.parameter.grad
        return gradient is not None and id(gradient) == self.identity and version_of(gradient) >= self.version

    @property
    def is_whole(self) -> bool:
        """Whether it is there, unchanged, and not all 0: `grad.data.zero_()` clears it without a new version."""
        gradient = self.parameter.grad
        if gradient is None or not self.is_there:
            return False
        return version_of(gradient) == self.version and bool(local(gradient).any())


class StaleGradients:
    """Detects, from a few gradients, that nothing clears them between two steps of an optimizer."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._model = model
        self._watched = {id(optimizer): optimizer for optimizer in optimizers}
        self._steps = Counter[int]()
        self._left: dict[int, list[_Left]] = {}  # by optimizer, from the first backward pass after its last step on
        self._stale: list[tuple[str, Place, int]] = []  # in this batch: optimizer's class, user's line, gradients

    @property
    def is_over(self) -> bool:
        """Whether no optimizer is watched any more, and all that was found has been reported."""
        return not self._stale and not self._watched

    @computing_plainly
    def before_backward(self) -> None:
        """Note that a backward pass begins: sample what the last step left, or drop what was cleared since."""
        for key, optimizer in self._watched.items():
            left = self._left.get(key)
            if left is None:
                left = _sampled(optimizer) if self._steps[key] else []
            self._left[key] = [leftover for leftover in left if leftover.is_whole]

    def after_backward(self) -> None:
        """Note which of the sampled gradients the backward pass has added to."""
        for leftover in itertools.chain.from_iterable(self._left.values()):
            gradient = leftover.parameter.grad
            if leftover.is_there and gradient is not None:
                version = version_of(gradient)
                leftover.is_added_to |= version != leftover.version
                leftover.version = version

    def before_step(self, optimizer: Optimizer) -> None:
        """Note that an optimizer is about to step, and whether its gradients are stale; `end_batch` reports it."""
        key = id(optimizer)
        if key not in self._watched:
            return
        # What was put in its place since, as in federated averaging, is no sum. It may have been clipped.
        is_stale = any(leftover.is_added_to and leftover.is_there for leftover in self._left.pop(key, ()))
        self._steps[key] += 1
        if is_stale or self._steps[key] > WATCHED_STEPS:
            del self._watched[key]
        if is_stale:
            count = sum(p.grad is not None for group in optimizer.param_groups for p in group["params"])
            self._stale.append((type(optimizer).__name__, _place_of_step(self._model), count))

    def end_batch(self) -> Finding | None:
        """Return one alarm that names all optimizers which stepped with stale gradients in the batch, or None."""
        stale, self._stale = self._stale, []
        if not stale:
            return None
        steps = " and ".join(f"{kind} steps {place}" for kind, place, _ in stale)
        count = " and ".join(f"{count}" for *_, count in stale)
        of_each = " on each optimizer" if len(stale) > 1 else ""
        return Finding(
            "",
            f"{steps} with gradients that still contain the previous step's, because nothing cleared them ({count} "
            f"parameter{'s' * (count != '1')})",
            f"call zero_grad(){of_each} before the backward pass",
            "alarm",
            rule="stale_gradients",
        )


def _sampled(optimizer: Optimizer) -> list[_Left]:
    """Return the present gradients of a few of an optimizer's parameters, but for sparse and nested ones."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    some = ((p, p.grad) for p in parameters[:: max(1, len(parameters) // SAMPLED_PARAMETERS)])
    return [
        _Left(p, id(gradient), version_of(gradient))
        for p, gradient in some
        if gradient is not None and gradient.layout is torch.strided and not gradient.is_nested
    ]


def _place_of_step(model: nn.Module) -> Place:
    """Return the user's line that calls `step()`, or defines `optimizer_zero_grad` if Lightning does; or no file."""
    if is_lightning(model, LightningModule) and model.automatic_optimization:
        function = type(model).optimizer_zero_grad
        path = inspect.getfile(function)
        return Place("", "" if is_of_library(path) else path, function.__code__.co_firstlineno)
    frame = user_frame(inspect.currentframe())
    return Place("", "", 0) if frame is None else Place("", frame.f_code.co_filename, frame.f_lineno)
