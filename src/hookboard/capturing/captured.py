"""`Captured`: everything that was captured of a model."""

import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal

from torch import Tensor, nn

from hookboard.capturing.module import Call, CapturedModule, Keeper
from hookboard.checks import check_text, wrong
from hookboard.editing import EditFunction, apply_rule, check_rule, edited_gradient
from hookboard.hooks import (
    NO_GRADIENT,
    UNKNOWN,
    Switch,
    Taps,
    is_own_call,
    watch_output,
    why_no_gradient,
)
from hookboard.messages import unknown
from hookboard.sites import ROLES, Role, Site
from hookboard.torch_private import in_backward

CaptureRole = Literal["input", "output", "grad_input", "grad_output"]


NO_PART = "no gradient arrived: the loss does not depend on the tensor"

# Modules, and autograd, may call the hooks from several threads.
_lock = threading.RLock()


class Captured(Mapping[str, CapturedModule]):
    """The result of `hookboard.capturing`: a mapping from names to `CapturedModule`.

    The names are those of the selected modules, and those that were given to `watch`.

    Args:
        modules: name to module.
        roles: which of their tensors are kept.
        keeper: how tensors are kept.
        calls: how many calls of each module are kept; None for all.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], roles: Sequence[CaptureRole], keeper: Keeper, calls: int | None
    ) -> None:
        self._keeper = keeper
        self._most = calls
        self._switch = Switch()
        self._hooks = ExitStack()
        self._taps = Taps(modules, roles, self._open, each_call=True)
        self._found = {
            name: CapturedModule(name, type(module).__name__, tuple(roles), self._why_of_module)
            for name, module in modules.items()
        }

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Capture tensors until the context is left. `hookboard.capturing` calls this; users need not."""
        with self._hooks:
            self._hooks.callback(self._stop)
            self._taps.attach()
            self._taps.active = self._switch.on = True
            yield

    def _stop(self) -> None:
        self._switch.on = False
        self._taps.detach()

    def __getitem__(self, name: str) -> CapturedModule:
        if name not in self._found:
            raise KeyError(str(unknown("module", name, self._found)))
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def watch(self, tensor: Tensor, name: str, edit_grad: EditFunction | None = None) -> Tensor:
        """Keep a tensor that no module returns as the `output` of `name`, and its gradient as `grad_output`.

        Args:
            tensor: Any tensor inside the block.
            name: The name under which it is kept. Every further tensor with this name is a further call.
            edit_grad: A rule that changes the gradient that arrives at the returned tensor, before it is kept.

        Returns:
            `tensor` itself; with `edit_grad` a copy of it, which the computation must use in its place.

        Raises:
            ValueError: `name` is the name of a module, or `edit_grad` is given for a tensor without a gradient.
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
        with _lock:
            index = self._begin_call(tensor, name)
            is_wanted = self._most is None or index < self._most
            if is_wanted and not in_backward():
                self._keep(Site(name, "output"), index, tensor)
        if is_wanted and tensor.requires_grad:
            observe = self._open(Site(name, "grad_output"))
            handle = watch_output(tensor, functools.partial(observe, index), self._switch)
            if handle is not None:
                self._hooks.enter_context(handle)

    def _begin_call(self, tensor: Tensor, name: str) -> int:
        """Return the number of the call that a watched tensor stands for."""
        if name not in self._found:
            self._found[name] = CapturedModule(name, "Tensor", ("output", "grad_output"), lambda *_: "")
        watched = self._found[name]
        if watched.kind != "Tensor":
            raise ValueError(f"{name!r} is the name of a module: give the tensor another name")
        reason = "" if tensor.requires_grad else f"the tensor {why_no_gradient(tensor)}"
        watched.why = lambda *_: reason or self._why_no_backward() or NO_PART
        count = len(watched.calls)
        if in_backward():  # a checkpoint computes it again
            return 0 if count == 1 else UNKNOWN
        return count

    def _why_of_module(self, name: str, role: Role) -> str:
        cause = self._taps.why_silent(name, role)
        return self._why_no_backward() or cause if cause == NO_GRADIENT else cause

    def _why_no_backward(self) -> str:
        """Return the cause where no gradient has come to anything; else nothing."""
        calls = (call for captured in self._found.values() for call in captured.calls)
        if any(ROLES[role].is_gradient for call in calls for role in call.kept):
            return ""
        return "no gradient arrived at anything in the block: call backward() before the block ends"

    def summary(self) -> str:
        """Return a table as text, one line per tensor.

        Its columns are name, type, which tensor (role and call), shape, mean, standard deviation and the share of
        zeros.
        """
        header = ["name", "type", "tensor", "shape", "mean", "std", "zeros"]
        rows = [row for captured in self._found.values() for row in captured.rows()]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in [header, *rows]]
        return "\n".join(lines)

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self._found.values()))
        return f"Captured({inside})"

    def _open(self, site: Site) -> Callable[[int, Tensor], None]:
        # A graph holds its hooks, and what is kept may hold the graph: no collector would see that circle.
        me = weakref.ref(self)

        def observe(index: int, tensor: Tensor) -> None:
            self = me()
            if self is not None:
                self._keep(site, index, tensor)

        return observe

    def _keep(self, site: Site, index: int, tensor: Tensor) -> None:
        if self._most is not None and index >= self._most:
            return
        with _lock:
            captured = self._found[site.name]
            if index == UNKNOWN:
                captured.is_ambiguous = True
                return
            while len(captured.calls) <= index:
                captured.calls.append(Call(captured))
            slots = captured.calls[index].kept.setdefault(site.role, {})
            earlier = slots.get(site.index)
            if earlier is not None and site.role.startswith("grad"):
                # Of several backward passes the gradients add up, as they do in `.grad`.
                tensor = earlier.value(str(site)) + tensor.to(earlier.tensor.device)
            slots[site.index] = self._keeper.keep(tensor)
