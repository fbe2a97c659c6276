"""Shows tensors inside the graphs of torch.compile to taps.

Equal modules share a graph, which must not contain anything that belongs to one of them: no name, no tap. Instead it
calls the operator `hookboard::show` with the tensor and a key, which stands for the tap and is a tensor too.
"""

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hookboard.base.torch_private import in_transform, modules_in
from hookboard.model.nested import can_be_filled, map_tensors, named_inputs, tensors_in
from hookboard.model.sites import Role

Receive = Callable[[Role, str, Tensor | None], None]
"""Takes a detached tensor of a call of the module, with its role and path; None if it only tells of the call."""

_RECEIVERS: dict[int, Receive] = {}  # by the number that stands for one in graphs
_NUMBERS = itertools.count()

_LIBRARY = torch.library.Library("hookboard", "DEF")
# It runs Python, which a replayed CUDA graph would skip. Older versions of torch have no such tag.
# It says that it changes the key, which it does not: so the compiler neither merges equal calls nor drops any.
_LIBRARY.define(
    "show(Tensor(a!) key, Tensor? tensor, str role, str path) -> ()",
    tags=[tag for name, tag in torch.Tag.__members__.items() if name == "cudagraph_unsafe"],
)


@torch.library.impl(_LIBRARY, "show", "CompositeExplicitAutograd")
def _show(key: Tensor, tensor: Tensor | None, role: Role, path: str) -> None:
    receive = _RECEIVERS.get(int(key))
    if receive is not None:
        receive(role, path, tensor)


@torch.library.register_fake("hookboard::show", lib=_LIBRARY)  # type: ignore[untyped-decorator]  # torch has no types for it
def _(key: Tensor, tensor: Tensor | None, role: str, path: str) -> None:
    pass


KEEPS_ITS_OUTPUT = (nn.ReLU, nn.Hardtanh, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.Threshold, nn.RReLU)
"""Activations that, in place, compute their gradient from their output: it must not be changed in place afterwards."""

NOT_SHOWN = (
    "a compiled graph cannot expose it, as those of an input that the module returns or changes in place, of tensor "
    "subclasses, of containers other than tuples, lists and dicts, and of modules under a function transform"
)


class GraphEnd:
    """The hooks of a tap that torch.compile traces into a graph, which holds this: it may live longer than the tap."""

    def __init__(self, receive: Receive, module: nn.Module) -> None:
        number = self._number = next(_NUMBERS)
        _RECEIVERS[number] = receive
        parts = modules_in(module).values()
        idle = [isinstance(p, (nn.Identity, nn.Sequential)) or (isinstance(p, nn.Dropout) and p.p == 0) for p in parts]
        self._keeps_its_input = all(idle) or any(getattr(part, "inplace", False) for part in parts)
        self._keeps_its_output = isinstance(module, KEEPS_ITS_OUTPUT)
        with torch.inference_mode(False):
            # Not shape (): the compiler may move such a tensor to the device, where reading it would be a wait.
            self._forward_key = torch.tensor([number], device="cpu")
            # The graph of a backward pass must not change a tensor of the forward graph.
            self._backward_key = torch.tensor([number], device="cpu")

    def end(self) -> None:
        """Forget the receiver; graphs that are still alive show nothing from now on."""
        _RECEIVERS.pop(self._number, None)

    def before(self, roles: Collection[Role], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Forward pre-hook: send the inputs to the tap; for "grad_input" return the arguments to call with instead."""
        if in_transform():
            return None
        tensors = list(tensors_in(named_inputs(args, kwargs)))
        if "input" in roles:
            self._show_all("input", tensors)
        if "grad_input" not in roles or self._keeps_its_input:
            return None
        return self._with_gradients_shown("grad_input", (args, kwargs), tensors, [])

    def after(self, roles: Collection[Role], args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Any:
        """Forward hook: tell the tap of the call, and send the output; for "grad_output" return what to use instead."""
        if in_transform():  # tensors outside of the transform, such as the key, must not be changed inside it
            return None
        tensors = list(tensors_in(output))
        torch.ops.hookboard.show(self._forward_key, None, "output", "")  # the module was called
        if "output" in roles:
            self._show_all("output", tensors)
        if "grad_output" not in roles:
            return None
        inputs = [] if self._keeps_its_output else [t for _, t in tensors_in(named_inputs(args, kwargs))]
        return self._with_gradients_shown("grad_output", output, tensors, inputs)

    def _show_all(self, role: Role, tensors: list[tuple[str, Tensor]]) -> None:
        for path, tensor in tensors:
            if _is_taken(tensor):
                torch.ops.hookboard.show(self._forward_key, tensor.detach(), role, path)

    def _with_gradients_shown(
        self, role: Role, value: Any, tensors: list[tuple[str, Tensor]], inputs: list[Tensor]
    ) -> Any:
        """Return a value with copies of its tensors, whose gradients go to the tap; None if none can be replaced."""
        if not can_be_filled(value):
            return None
        shown: list[list[Tensor]] = []  # each tensor with its copy
        for path, tensor in tensors:
            # What was `inputs` to the module stays itself where the module returns it.
            # `tensor in inputs` would compare the elements.
            if not (tensor.requires_grad and _is_taken(tensor)) or any(other is tensor for other in inputs):
                continue
            known = [pair for pair in shown if pair[0] is tensor]
            if not known:
                known = [[tensor, tensor]]
                shown += known
            known[0][1] = _ShownGradient.apply(known[0][1], self._backward_key, role, path)
        if not shown:
            return None
        return map_tensors(lambda tensor: [*[copy for old, copy in shown if old is tensor], tensor][0], value)


class _ShownGradient(torch.autograd.Function):
    """Identity whose backward pass sends the gradient to the tap: tensor hooks with side effects cannot be traced."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, key: Tensor, role: str, path: str) -> Tensor:
        ctx.key, ctx.role, ctx.path = key, role, path
        return tensor.clone()  # the compiler optimizes it away; on a view, a later in-place operation would fail

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        torch.ops.hookboard.show(ctx.key, grad.detach(), ctx.role, ctx.path)
        return grad, None, None, None


def _is_taken(tensor: Tensor) -> bool:
    """Return True if `hookboard::show` takes a tensor, which must be neither nested nor of a subclass."""
    return type(tensor) in (Tensor, nn.Parameter) and not tensor.is_nested
