"""`compare`: in which modules two models differ by more than rounding, and why; `Comparison` is what it returns."""

import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hookboard.base.messages import quoted
from hookboard.comparing.distance import step_of
from hookboard.comparing.faults import Difference, Faults
from hookboard.comparing.matching import matched
from hookboard.comparing.recorded import Recorded, add_index, beside, opened, renamed, rounding_of, write
from hookboard.comparing.running import Loss, ModelRunner, Spot, watched_modules, weights_in


@dataclass(frozen=True)
class Row:
    """One tensor that was compared."""

    spot: Spot
    found: float  # its relative difference if its module gets the left model's inputs
    expected: float  # the relative difference that rounding can cause


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Args:
        differences: what differs by more than rounding, in the order of execution, backward after forward.
        rows: every tensor that was compared, in the order of execution.
        names: name in the right model -> name in the left model, for each module that was compared.
        notes: what was not compared, and what differs without an effect.
    """

    differences: tuple[Difference, ...]
    rows: tuple[Row, ...]
    names: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> Difference | None:
        """The first difference; None if all that was compared is equal up to rounding, or nothing was (no `rows`)."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        modules = len({row.spot.module for row in self.rows})
        said = f"{len(self.rows)} tensors of {modules} module{'s' * (modules != 1)} were compared"
        if not self.rows and self.first is None:
            lines = ["Nothing was compared: no tensor of one model has a counterpart in the other."]
        elif self.first is None:
            lines = [f"Equal up to rounding: {said}."]
        else:
            count = len(self.differences)
            lines = [f"{count} difference{'' if count == 1 else 's'}: {said}.", *map(str, self.differences)]
        return "\n".join([*lines, *(f"Note: {note}." for note in self.notes)])

    def __repr__(self) -> str:
        return str(self)


def record(model: nn.Module, inputs: Any, path: str | os.PathLike[str], *, loss: Loss | None = None) -> None:
    """Write what a model computes for a batch to a file, for comparison in another process or on another machine.

    The file holds weights, buffers, and the tensors of each call of a module, as bytes: reading it runs no code. The
    model runs four times: once, and three times with rounding noise. Nothing is left behind.

    Args:
        model: the model.
        inputs: its argument; a tuple holds several, a dict keyword arguments.
        path: the file.
        loss: a function that computes a scalar from the model's output; with it, gradients are recorded too.

    Examples:
        >>> import tempfile, torch
        >>> net = nn.Sequential(nn.Linear(4, 2), nn.ReLU())
        >>> path = f"{tempfile.mkdtemp()}/net.zip"
        >>> record(net, torch.ones(3, 4), path)
        >>> print(compare(path, net, torch.ones(3, 4)))
        Equal up to rounding: 6 tensors of 3 modules were compared.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    _check_model("model", model)
    _check_loss(loss)
    runner = ModelRunner(model, inputs, loss)
    index = write(model, runner, path)
    with opened(path, index) as recorded:
        index.step = step_of(recorded.dtypes)
        index.rounding = rounding_of(runner, recorded, index.step, {})
    add_index(path, index)


def compare(
    left: nn.Module | str | os.PathLike[str],
    right: nn.Module,
    inputs: Any = None,
    *,
    loss: Loss | None = None,
    names: Mapping[str, str] | None = None,
) -> Comparison:
    """Find the modules in which two models differ by more than rounding, and why.

    Every module of the right model gets the inputs that the left one got, so that one difference does not hide another.
    To measure how much of a difference rounding can cause, the left model also runs with noise of one rounding step of
    the coarser precision. Both models are left as they were: modes, buffers, gradients, random state.

    Args:
        left: a model, or the path of a recording by `record`.
        right: a model.
        inputs: the argument of both models; a tuple holds several, a dict keyword arguments. They are copied, moved to
            each model's device, and, if floating-point, converted to the dtype of its parameters. () for a model that
            takes nothing.
        loss: a function that computes a scalar from a model's output; with it, gradients are compared too.
        names: pattern for names in the left model -> pattern in the right one, as in {"encoder.layer.*": "blocks.*"}.
            Default: modules are matched by equal names, or, if fewer than half are equal, by order and shape.

    Raises:
        TypeError: `left` or `right` is of another type, or `loss` is not a function.
        ValueError: inputs are missing, a recording is damaged, a pattern matches nothing, or weights have no values yet
            (lazy or meta tensors).

    Examples:
        >>> import copy, torch
        >>> net = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
        >>> other = copy.deepcopy(net)
        >>> other[1].eps = 1e-2
        >>> found = compare(net, other, torch.ones(3, 4))
        >>> found.first.module, found.first.cause
        ('1', 'same inputs and weights; eps 1e-05 vs. 0.01')
    """
    if not isinstance(left, nn.Module | str | os.PathLike):
        raise TypeError(f"left must be a model or the path of a recording; got {type(left).__name__}")
    if not isinstance(right, nn.Module):
        is_path = isinstance(right, str | os.PathLike)
        got = "the path of a recording, which comes first" if is_path else type(right).__name__
        raise TypeError(f"right must be a model; got {got}")
    _check_loss(loss)
    if names is not None and not isinstance(names, Mapping):
        raise TypeError(f"names must be a dict of patterns, such as {{'encoder.*': 'blocks.*'}}; got {quoted(names)}")
    for name, side in (("left", left), ("right", right)):
        if isinstance(side, nn.Module):
            _check_model(name, side)
    if inputs is None:
        raise ValueError("inputs= is missing: pass what the models are called with, as in compare(left, right, batch)")
    with ExitStack() as until_end:
        runner = None
        if isinstance(left, nn.Module):
            path = Path(until_end.enter_context(tempfile.TemporaryDirectory())) / "left.zip"
            runner = ModelRunner(left, inputs, loss)
            recorded = until_end.enter_context(opened(path, write(left, runner, path)))
        else:
            recorded = until_end.enter_context(opened(left))
        return _beside(runner, recorded, right, inputs, loss, names)


def _check_model(name: str, model: nn.Module) -> None:
    if any(is_lazy(tensor) or tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ValueError(f"{name} has weights without values (lazy layers, or on the meta device): load them first")


def _check_loss(loss: object) -> None:
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function that maps the model's output to a scalar; got {quoted(loss)}")


def _beside(
    left: ModelRunner | None,
    recorded: Recorded,
    right: nn.Module,
    inputs: Any,
    loss: Loss | None,
    names: Mapping[str, str] | None,
) -> Comparison:
    """Compare a model with a recorded call. `left` runs the recorded model; None if it is not here."""
    dtypes = {one.dtype for one in right.parameters() if one.is_floating_point()}
    ran: dict[Spot, tuple[int, ...]] = {}

    def see(spot: Spot, tensor: torch.Tensor) -> None:
        if tensor.is_floating_point():
            dtypes.add(tensor.dtype)
        ran[spot] = tuple(tensor.shape)

    runner = ModelRunner(right, inputs, loss)
    replace(runner, loss=None)(see, lambda: None)
    twins = matched(recorded.index, watched_modules(right), ran, names)
    step = step_of(recorded.dtypes | dtypes)
    if left is not None:
        held = {renamed(name, twins): one.dtype for name, one in weights_in(right).items() if one.is_floating_point()}
        rounding = rounding_of(left, recorded, step, held)
    else:
        times = max(1.0, step / recorded.index.step) if recorded.index.step else 1.0
        rounding = {key: times * value for key, value in recorded.index.rounding.items()}
    faults = Faults(recorded, right, twins, rounding, step)
    alone = beside(runner, recorded, twins, is_fault=faults.is_fault)
    spots = [spot for spot in recorded.index.spots if spot in alone.spots]
    rows = [Row(spot, alone.spots[spot].relative, faults.expected(spot)) for spot in spots]
    differences = faults.differences(alone)
    return Comparison(tuple(differences), tuple(rows), twins, tuple(faults.notes(alone)))
