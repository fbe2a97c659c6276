"""`capture`: keep the inputs and outputs of modules, and their gradients, without a Trainer."""

import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from hookboard.base.checks import check_switches, check_text, check_whole, chosen, wrong
from hookboard.base.messages import text_table
from hookboard.base.torch_private import in_backward, run_eagerly, version_of
from hookboard.capturing.edits import Edit, EditFunction, Edits, apply_rule, check_rule, edited_gradient
from hookboard.images.feature_maps import dense, feature_maps, maps_in, samples_first, select_maps
from hookboard.images.picture import Picture
from hookboard.measure.by_torch import moments_of
from hookboard.measure.gradients import NO_GRADIENT, Switch, watch_output, why_no_gradient
from hookboard.measure.hooked import is_own_call
from hookboard.measure.row import Moments
from hookboard.measure.statistics import FORMULAS
from hookboard.measure.taps import UNKNOWN, Taps
from hookboard.model.nested import shape_in_words
from hookboard.model.selection import Patterns, Types, select
from hookboard.model.sites import ROLES, Role, Site

CaptureRole = Literal["input", "output", "grad_input", "grad_output"]

NO_PART = "no gradient arrived, because the loss does not depend on the tensor"

WATCHED = "Tensor"
"""Stands for the type of the module in the summary of a tensor that was passed to `watch`."""


class ShownText(str):
    """A text that is printed as it is at a prompt."""

    def __repr__(self) -> str:
        return str(self)


Tensors = Tensor | dict[str, Tensor]
"""One tensor, or several by the index or key that leads to each."""

SUMMARY = ("mean", "std", "zero_fraction")

HEADER = ("name", "type", "tensor", "shape", "mean", "std", "zeros")
"""The columns of a summary."""


@contextmanager
def capture(
    model: nn.Module,
    modules: Patterns | None = None,
    *,
    types: Types | None = None,
    roles: CaptureRole | Sequence[CaptureRole] = "output",
    copy: bool = True,
    device: str | torch.device | None = None,
    calls: int | None = None,
    edit: Edit | Sequence[Edit] = (),
) -> Iterator["Captured"]:
    """Keep the inputs, outputs and gradients of the selected modules while a block runs, and change them if asked.

    Edited tensors are kept as they are after the edit. Gradients are kept if the backward pass runs inside the block.
    Compiled modules run uncompiled inside it. When the block ends, even with an error, all hooks are removed; the
    result keeps the captured tensors.

    Args:
        model: Any module. If it has no submodules, it is captured itself, under the name `""`.
        modules: Pattern or patterns for dotted module names, as for the callbacks. Default: every leaf module, or, with
            `types`, every module of those types.
        types: Class names or classes; subclasses count, and a leading `!` excludes.
        roles: Which tensors are kept, one or several of `input`, `output`, `grad_input`, `grad_output`.
        copy: Whether to keep copies. Otherwise the tensors themselves are kept, in their graph; reading one that an
            in-place operation has changed since raises a RuntimeError.
        device: The device to move kept tensors to, such as `"cpu"`. Default: they stay where they are.
        calls: How many calls of each module are kept, starting with the first. Default: all.
        edit: One `Edit`, or several, which are applied in order.

    Yields:
        The captured tensors by module name; they can be read both inside the block and after it.

    Raises:
        ValueError: a pattern or type matches no module, a role is unknown, or a module cannot be edited.
        LookupError: When the block ends, an edit was never applied, because its module was not called or no gradient
            reached it.

    Examples:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
        >>> with capture(net, "0", roles=["output", "grad_output"]) as seen:
        ...     net(torch.ones(4, 2)).sum().backward()
        >>> seen["0"].output.shape, seen["0"].grad_output.shape
        (torch.Size([4, 3]), torch.Size([4, 3]))
    """
    if not isinstance(model, nn.Module):
        raise wrong("model", model, "a torch.nn.Module")
    wanted = chosen("roles", roles, get_args(CaptureRole))
    check_switches(copy=copy)
    check_whole("calls", calls, otherwise="for all")
    try:
        torch.empty(0, device=device)
    except (TypeError, RuntimeError, AssertionError) as cause:  # the last one where torch was built without CUDA
        valid = "an available device, such as 'cpu'"
        raise wrong("device", device, valid, "to leave tensors where they are") from cause
    edits = []
    for each_edit in edit if isinstance(edit, list | tuple) else [edit]:
        if not isinstance(each_edit, Edit):
            raise wrong("edit", each_edit, "an Edit, which pairs a rule with modules, as in Edit(Zero(), 'layer1')")
        edits.append(Edits(_select(model, each_edit.modules, each_edit.types), each_edit.role, each_edit.rule))
    seen = Captured(_select(model, modules, types), wanted, copy, device, calls)
    with run_eagerly(), ExitStack() as hooks:
        hooks.enter_context(seen.attached())
        for each in edits:
            hooks.callback(each.detach)
            each.attach()
        yield seen
    for each in edits:
        each.check_made()


def _select(model: nn.Module, modules: Patterns | None, types: Types | None) -> dict[str, nn.Module]:
    is_alone = modules is None and types is None and not [*nn.Module.named_children(model)]
    return {"": model} if is_alone else select(model, modules, types)


class _OfRoles:
    """Base class with a property for the tensors of each role: a dict if there are several, see `CapturedModule`."""

    @property
    def input(self) -> Tensors:
        """The module's input."""
        return self._call("input").of("input")

    @property
    def output(self) -> Tensors:
        """The module's output."""
        return self._call("output").of("output")

    @property
    def grad_input(self) -> Tensors:
        """The gradient that the module passed back to its input."""
        return self._call("grad_input").of("grad_input")

    @property
    def grad_output(self) -> Tensors:
        """The gradient with respect to the module's output."""
        return self._call("grad_output").of("grad_output")

    def image(self, role: CaptureRole = "output", *, samples: int = 2, channels: int = 16) -> Image.Image:
        """Draw a captured tensor as feature maps, one square of channels for each sample, as `FeatureMapLogger` does.

        Args:
            role: Which tensor. If the module has several, the first of them is drawn.
            samples: How many samples, from the first.
            channels: How many channels, from the first.

        Returns:
            The picture, with a caption. A notebook shows it.

        Raises:
            LookupError: nothing was captured, or there were several calls.
            ValueError: a tensor of this shape or kind cannot be drawn.

        Examples:
            >>> net = nn.Sequential(nn.Conv2d(1, 4, 3))
            >>> with capture(net) as seen:
            ...     _ = net(torch.ones(1, 1, 8, 8))
            >>> seen["0"].image().mode
            'P'
        """
        check_whole("samples", samples)
        check_whole("channels", channels)
        call = self._call(role)
        tensors = call.of(role)
        index, tensor = ("", tensors) if isinstance(tensors, Tensor) else next(iter(tensors.items()))
        name, module = call.module.name, call.module.module
        return picture_of(tensor, name, module, role, index, samples=samples, channels=channels, size=64).image()

    def _call(self, role: Role) -> "CapturedCall":
        raise NotImplementedError


def picture_of(
    tensor: Tensor, name: str, module: nn.Module, role: Role, index: str, *, samples: int, channels: int, size: int
) -> Picture:
    """Draw a captured tensor as feature maps of at most `size` pixels a side; ValueError if that cannot be done."""
    owner = module if role in ("output", "grad_output") else nn.Identity()  # an input may be ordered otherwise
    values = dense(tensor.detach())
    if not values.numel():
        raise ValueError("an empty tensor cannot be drawn")
    maps = maps_in(samples_first(values, owner, index)[:samples], owner, aspect=None, index=index)
    selected = select_maps(maps, channels=channels, size=size)
    return feature_maps(selected, f"{name or 'model'} {role}".strip(), normalize="map", size=size)


@dataclass
class CapturedModule(_OfRoles):
    """What was captured of one module.

    `input`, `output`, `grad_input` and `grad_output` are the tensors of its only call; if there were several calls, use
    `calls[i].output` and so on. Each is a tensor, or a dict of tensors by index or key if the module has several.
    Reading them raises LookupError if nothing was captured (the message gives the reason) or if there were several
    calls, and RuntimeError if an in-place operation has changed a tensor that was kept with `copy=False`.

    Args:
        name: The module's dotted name.
        kind: The name of its class.
        roles: The roles that were asked for.
        why: A function that takes name and role and returns the reason why nothing was captured.
        module: The module; for a tensor that was passed to `watch`, an `nn.Identity`.
        calls: What was captured of each call, in the order of the calls.
    """

    name: str
    kind: str
    roles: tuple[Role, ...]
    why: Callable[[str, Role], str] = field(repr=False)
    module: nn.Module = field(default_factory=nn.Identity, repr=False, compare=False)
    calls: list["CapturedCall"] = field(default_factory=list)

    def __repr__(self) -> str:
        parts = [f"{role} {_shapes(kept)}" for call in self.calls[:1] for role, kept in call.kept.items()]
        if len(self.calls) != 1:
            parts.append(f"{len(self.calls)} calls")
        return f"{self.name or 'model'} ({self.kind}): {'; '.join(parts)}"

    def _call(self, role: Role) -> "CapturedCall":
        if len(self.calls) > 1:
            raise LookupError(f"{self.name!r} was called {len(self.calls)} times: use .calls[0].{role}, and so on")
        return self.calls[0] if self.calls else CapturedCall(self)

    def rows(self) -> Iterator[list[str]]:
        """Yield the cells of a summary's row for each captured tensor (see `HEADER`).

        Raises:
            RuntimeError: a tensor has been changed in place since.
        """
        for k, call in enumerate(self.calls):
            for role, kept in call.kept.items():
                for path, entry in kept.items():
                    tensor = entry.value(f"{role} of {self.name!r}")
                    which = (f"calls[{k}]." if len(self.calls) > 1 else "") + role + (f" {path}" if path else "")
                    numbers = [f"{value:.4g}" for value in _described(tensor)] or ["?"] * len(SUMMARY)
                    yield [self.name, self.kind, which, shape_in_words(tensor), *numbers]


class CapturedCall(_OfRoles):
    """What was captured of one call of a module."""

    def __init__(self, module: CapturedModule) -> None:
        self.module = module
        self.kept: dict[Role, dict[str, KeptTensor]] = {}

    def __repr__(self) -> str:
        return "; ".join(f"{role} {_shapes(kept)}" for role, kept in self.kept.items())

    def _call(self, role: Role) -> "CapturedCall":
        return self

    def of(self, role: Role) -> Tensors:
        """Return the tensors of a role, see `CapturedModule`."""
        name = self.module.name
        if role not in self.module.roles:
            asked = ", ".join(self.module.roles)
            raise LookupError(f"the {role} of {name!r} was not captured: roles= has only {asked}")
        kept = self.kept.get(role)
        if not kept:
            raise LookupError(f"there is no {role} of {name!r}: {self.module.why(name, role)}")
        values = {path: entry.value(f"the {role} of {name!r}") for path, entry in kept.items()}
        return values[""] if list(values) == [""] else values


@dataclass
class KeptTensor:
    """A captured tensor, with its version number when it was captured; None if it is a copy."""

    tensor: Tensor
    version: int | None

    def value(self, what: str) -> Tensor:
        """Return the tensor; RuntimeError if it is not a copy, and an in-place operation has changed it since."""
        if self.version is not None and version_of(self.tensor) != self.version:
            raise RuntimeError(f"{what} was changed in place after it was captured; use copy=True")
        return self.tensor


class Captured(Mapping[str, CapturedModule]):
    """The result of `hookboard.capture`: a mapping from names to `CapturedModule`.

    The names are those of the selected modules, and those that were passed to `watch`.

    Args:
        modules: the captured modules by name.
        roles: which tensors of the modules are kept.
        copy: whether copies are kept.
        device: the device to move kept tensors to; None leaves them where they are.
        calls: how many calls of each module are kept; None for all.
    """

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        roles: Sequence[CaptureRole],
        copy: bool,
        device: str | torch.device | None,
        calls: int | None,
    ) -> None:
        self._copy, self._device = copy, device
        self._most = calls
        self._switch = Switch()
        self._hooks = ExitStack()
        self._taps = Taps(modules, roles, self._open, each_call=True)
        found = (
            CapturedModule(n, type(module).__name__, tuple(roles), self._why, module) for n, module in modules.items()
        )
        self._found = {part.name: part for part in found}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Capture tensors in this context. `hookboard.capture` enters it; users need not."""
        with self._hooks:
            self._hooks.callback(self._taps.detach)
            self._hooks.callback(setattr, self._switch, "on", False)
            self._taps.attach()
            self._taps.active = self._switch.on = True
            yield

    def __getitem__(self, name: str) -> CapturedModule:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def watch(self, tensor: Tensor, name: str, edit_grad: EditFunction | None = None) -> Tensor:
        """Keep any tensor under a name: the tensor as its `output`, and its gradient as its `grad_output`.

        Args:
            tensor: Any tensor inside the block.
            name: The name under which it is kept. Each further tensor with this name counts as another call.
            edit_grad: A rule that changes the gradient that arrives at the returned tensor, before it is kept.

        Returns:
            `tensor` itself; with `edit_grad` a copy of it, which the computation must use in its place.

        Raises:
            ValueError: `name` is the name of a module, or `edit_grad` is passed for a tensor that gets no gradient.
        """
        if not isinstance(tensor, Tensor):
            raise wrong("tensor", tensor, "a tensor")
        check_text(name=name)
        if edit_grad is not None:
            check_rule("edit_grad", edit_grad)
        if not is_own_call():
            self._watch(tensor, name)
        if edit_grad is None:
            return tensor
        if not tensor.requires_grad:
            raise ValueError(f"the gradient of {name!r} cannot be changed: the tensor {why_no_gradient(tensor)}")
        return edited_gradient(tensor, lambda gradient: apply_rule(edit_grad, gradient, f"gradient of {name!r}"))

    def _watch(self, tensor: Tensor, name: str) -> None:
        if name not in self._found:
            self._found[name] = CapturedModule(name, WATCHED, ("output", "grad_output"), self._why)
        watched = self._found[name]
        if watched.kind != WATCHED:
            raise ValueError(f"{name!r} is the name of a module: give the tensor another name")
        index = len(watched.calls)
        if in_backward():  # a checkpoint computes it again; which of several calls this is cannot be told
            if index != 1:
                return
            index = 0
        else:
            self._keep(Site(name, "output"), index, tensor)
        if tensor.requires_grad:
            observe = self._open(Site(name, "grad_output"))
            self._hooks.enter_context(watch_output(tensor, functools.partial(observe, index), self._switch))

    def _why(self, name: str, role: Role) -> str:
        cause = NO_PART if self._found[name].kind == WATCHED else self._taps.why_silent(name, role)
        calls = (call for captured in self._found.values() for call in captured.calls)
        has_gradient = any(ROLES[role].is_gradient for call in calls for role in call.kept)
        if has_gradient or cause not in (NO_PART, NO_GRADIENT):
            return cause
        return "no gradient arrived inside the block; call backward() before the block ends"

    def summary(self) -> ShownText:
        """Return a table as text, one line per tensor.

        Its columns are name, type, tensor (role and call), shape, mean, standard deviation and fraction of zeros.
        """
        rows = [row for captured in self._found.values() for row in captured.rows()]
        return ShownText(text_table(HEADER, rows))

    def __repr__(self) -> str:
        return "\n".join(["Captured:", *(f"  {captured!r}" for captured in self._found.values())])

    def _open(self, site: Site) -> Callable[[int, Tensor], None]:
        # A graph holds its hooks, and what is kept may hold the graph: no collector would see that circle.
        me = weakref.ref(self)

        def observe(index: int, tensor: Tensor) -> None:
            self = me()
            if self is not None:
                self._keep(site, index, tensor)

        return observe

    def _keep(self, site: Site, index: int, tensor: Tensor) -> None:
        # It is unknown which call a gradient belongs to if a reentrant checkpoint recomputes one of several.
        if index == UNKNOWN or (self._most is not None and index >= self._most):
            return
        captured = self._found[site.name]
        while len(captured.calls) <= index:
            captured.calls.append(CapturedCall(captured))
        slots = captured.calls[index].kept.setdefault(site.role, {})
        earlier = slots.get(site.index)
        if earlier is not None and site.role.startswith("grad"):
            # Of several backward passes the gradients add up, as they do in `.grad`.
            tensor = earlier.value(str(site)) + tensor.to(earlier.tensor.device)
        slots[site.index] = self._kept(tensor)

    def _kept(self, tensor: Tensor) -> KeptTensor:
        # An inference tensor has no version that would tell a change: it is copied in any case.
        if self._copy or tensor.is_inference():
            values = tensor.detach()
            # Not every kind of tensor can be given to `to`.
            return KeptTensor(values.clone() if self._device is None else values.to(self._device, copy=True), None)
        moved = tensor if self._device is None else tensor.to(self._device)
        return KeptTensor(moved, version_of(moved))


def _shapes(kept: Mapping[str, KeptTensor]) -> str:
    return ", ".join(f"{path} {shape_in_words(entry.tensor)}".strip() for path, entry in kept.items())


def _described(tensor: Tensor) -> list[float]:
    """Return mean, standard deviation and share of zeros; [] if the tensor has no values, as on the meta device."""
    try:
        moments = Moments(*np.array(moments_of(tensor.detach().cpu())))
    except (TypeError, RuntimeError):
        return []
    with np.errstate(all="ignore"):
        return [float(FORMULAS[name].value(moments)) for name in SUMMARY]
