"""All uses of torch's private names, except those of its writer to TensorBoard."""

import functools
import operator
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from itertools import chain, starmap
from typing import Any, ParamSpec, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo import OptimizedModule, eval_frame
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensor
from torch.amp import GradScaler
from torch.amp.grad_scaler import OptState
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

P = ParamSpec("P")
T = TypeVar("T")
Hooks = OrderedDict[int, Callable[..., Any]]


def in_backward() -> bool:
    """Return True in a backward pass of this thread, where checkpointing recomputes; torch.compile cannot trace it."""
    return bool(torch._C._current_graph_task_id() != -1)


at_end_of_backward: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback
"""Calls a function when the backward pass that this thread runs has ended."""


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no types for it
def in_transform() -> bool:
    """Return True if a function transform, such as `torch.func.vmap`, is being run, or traced."""
    return torch._C._functorch.peek_interpreter_stack() is not None


sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr
"""Returns the number that autograd gives to the next node of this thread."""

sequence_number_of: Callable[[Node], int] = operator.methodcaller("_sequence_nr")
"""Returns the number that autograd gave to this node when it was made."""

results_of: Callable[[Node], Sequence[Any]] = operator.attrgetter("_input_metadata")
"""Returns the shape, `dtype` and device of each result of the call that made a node."""


def saved_tensors_of(node: Node) -> dict[str, Tensor]:
    """Return the tensors that a node of torch has saved, by name: `self`, `other`, `result`, `mat1`, ..."""
    found = {}
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            raw = getattr(node, name)
            # Left out are those that hooks have packed, because unpacking calls them (torch 2.6 does not tell), and
            # lists.
            if hasattr(raw, "register_hooks") and getattr(raw, "unpack_hook", None) is None:
                with suppress(RuntimeError):  # changed in place since it was saved
                    found[name.removeprefix("_raw_saved_")] = getattr(node, name.replace("_raw", ""))
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, Tensor) and has_memory(tensor)}


def number_saved_by(node: Node, name: str, default: Any = None) -> Any:
    """Return what a node of torch has saved under a name and is no tensor, such as an exponent."""
    saved = default if hasattr(node, f"_raw_saved_{name}") else getattr(node, f"_saved_{name}", default)
    return saved - 2**64 if type(saved) is int and saved >= 2**63 else saved  # it has no sign there


@functools.cache
def operator_named(name: str) -> tuple[Any, Mapping[str, str]]:
    """Return torch's operator of a name, and the types of the arguments of its longest form that changes nothing."""
    found = getattr(torch.ops.aten, name, None) or getattr(torch.ops.aten, f"_{name}", None)
    forms = [] if found is None else [getattr(found, form)._schema for form in found.overloads()]
    tensors = [part.arguments for part in forms if "Tensor" in str(part) and not part.is_mutable]
    return found, {part.name: str(part.type) for part in max(tensors, key=len, default=[])}


def packs_saved_tensors() -> bool | None:
    """Return whether hooks pack what autograd saves now; None where torch does not tell, as 2.6 does not."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return None if top is None else top(True) is not None


def has_memory(tensor: Tensor) -> bool:
    """Return False for a tensor that cannot be read, or whose memory has been freed."""
    return can_be_read(tensor) and (tensor.numel() == 0 or tensor.untyped_storage().nbytes() > 0)


version_of: Callable[[Tensor], int] = operator.attrgetter("_version")
"""Returns how many in-place operations have changed the tensor's memory. RuntimeError for an inference tensor, which
does not count them."""

base_of: Callable[[Tensor], Tensor | None] = operator.attrgetter("_base")
"""Returns the tensor that this one is a view of; None if it is no view."""


def known_again(tensor: Tensor) -> Callable[[Tensor], bool]:
    """Return a function that knows a tensor again among those with its id, without keeping it."""
    if not can_be_read(tensor):  # it has no memory of its own, as a sparse one
        reference = weakref.ref(tensor)
        return lambda other: reference() is other
    # `torch.utils.swap_tensors`, and with it some `load_state_dict` and `to`, refuse a tensor with a weak reference.
    # But while its memory has one, other memory does not get its number.
    memory = StorageWeakRef(tensor.untyped_storage())
    return lambda other: can_be_read(other) and other.untyped_storage()._cdata == memory.cdata


def explicit_values(tensor: Tensor) -> Tensor:
    """Return the values that a sparse tensor stores; in COO layout there may be several for one position."""
    return tensor._values() if tensor.layout is torch.sparse_coo else tensor.values()


forward_hooks_of: Callable[[nn.Module], Hooks] = operator.attrgetter("_forward_hooks")
"""Returns the dict in which the module keeps its own forward hooks, in the order in which they run."""

forward_pre_hooks_of: Callable[[nn.Module], Hooks] = operator.attrgetter("_forward_pre_hooks")
"""Returns the dict in which the module keeps its own forward pre-hooks, in the order in which they run."""

buffers_of: Callable[[nn.Module], dict[str, Tensor | None]] = operator.attrgetter("_buffers")
"""Returns the dict in which the module keeps its own buffers by name: changing it changes the module."""

parameters_of: Callable[[nn.Module], dict[str, nn.Parameter | None]] = operator.attrgetter("_parameters")
"""Returns the dict in which the module keeps its own parameters by name."""


def modules_in(root: nn.Module, prefix: str = "") -> dict[str, nn.Module]:
    """Return `dict(root.named_modules())`, past a `named_modules` of the root's class."""
    return dict(nn.Module.named_modules(root, prefix=prefix))


def parameters_in(root: nn.Module, *, recurse: bool = True, remove_duplicate: bool = True) -> dict[str, nn.Parameter]:
    """Return `dict(root.named_parameters())`, past a `named_parameters` of the root's class."""
    return dict(nn.Module.named_parameters(root, recurse=recurse, remove_duplicate=remove_duplicate))


def is_compiled(module: nn.Module) -> bool:
    """Return True for what `torch.compile(module)` returned, or `module.compile()` compiled; see `runs_compiled`."""
    return isinstance(module, OptimizedModule) or module._compiled_call_impl is not None


def runs_compiled(module: nn.Module) -> bool:
    """Return True if torch.compile runs the module's forward, or another function of the module or its class."""
    attributes = [each for owner in (module, *type(module).__mro__) for each in vars(owner).values()]
    functions = [vars(each) for each in attributes if isinstance(each, types.FunctionType)]
    # A function that `torch.compiler.disable` returns has both.
    return is_compiled(module) or any(
        "_torchdynamo_orig_callable" in each and "_torchdynamo_disable" not in each for each in functions
    )


def forget_graphs() -> None:
    """Drop all graphs of torch.compile, if there are any, so that new ones contain the hooks that modules have now."""
    if counters["stats"]:
        torch.compiler.reset()


scale_of: Callable[[GradScaler], Tensor | None] = operator.attrgetter("_scale")
"""Returns the scale in force, shape (); unlike `get_scale()` it does not wait. None before the first one is set."""

is_inside_transform: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
"""Returns True if the tensor is a wrapper that `torch.func` passes in (vmap, grad, jvp, functionalize)."""


def can_be_read(tensor: Tensor) -> bool:
    """Return False for a tensor without values, one whose values a transform hides, and those that are not dense."""
    is_hidden = tensor.is_meta or isinstance(tensor, FakeTensor) or is_inside_transform(tensor)
    return not (is_hidden or tensor.is_nested or tensor.layout is not torch.strided)


def as_plain(tensor: Tensor) -> Tensor:
    """Return a plain `torch.Tensor` that shares the memory of `tensor`, past its class's `__torch_function__`."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(Tensor)


def has_unscaled(scaler: GradScaler, optimizer: Optimizer) -> bool:
    """Return True if the scaler has divided its scale out of the optimizer's gradients since they were made."""
    return scaler._per_optimizer_states[id(optimizer)]["stage"] is not OptState.READY


def remove_step_hooks(*hooks: Callable[..., object]) -> None:
    """Remove these hooks on the steps of all optimizers, if they are there."""
    for known in (_global_optimizer_pre_hooks, _global_optimizer_post_hooks):
        for key in [key for key, hook in known.items() if hook in hooks]:
            known.pop(key, None)


STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")  # of an optimizer


def set_timeout(timeout: timedelta, group: dist.ProcessGroup) -> None:
    """Set the time after which a collective of a process group raises an error."""
    public = getattr(dist, "set_timeout", None)  # older versions of torch have only the other
    (public or dist.distributed_c10d._set_pg_timeout)(timeout, group)


class NoCollectives(TorchDispatchMode):
    """Inside this context a collective raises a RuntimeError, which ends with `why`, before it begins."""

    supports_higher_order_operators = True

    def __init__(self, why: str) -> None:
        super().__init__()
        self._why = why

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator; raise a RuntimeError instead if it is a collective."""
        if operator.namespace in ("c10d", "_c10d_functional", "_c10d_functional_autograd"):
            raise RuntimeError(f"the collective {operator} cannot run here: {self._why}")
        return operator(*args, **(kwargs or {}))


def copied_together(tensors: Sequence[Tensor], spares: Sequence[Tensor | None]) -> list[Tensor]:
    """Copy tensors in a few launches, each into its spare tensor if that has its shape, dtype and device."""
    copies = [
        spare
        if spare is not None and (spare.shape, spare.dtype, spare.device) == (tensor.shape, tensor.dtype, tensor.device)
        else torch.empty_like(tensor)
        for tensor, spare in zip(tensors, spares, strict=True)
    ]
    if tensors:
        torch._foreach_copy_(copies, [*tensors])
    return copies


def waited(tensor: Tensor) -> Tensor:
    """Wait for the collective that computes this tensor, if there is one, and return the plain result."""
    return tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def stream_number(device: torch.device) -> int:
    """Return the number of the current stream of a CUDA device, as Triton asks for it: an object would take longer."""
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(torch._C._cuda_getCurrentRawStream(index))


def is_left_to_ranks(parameter: Tensor) -> bool:
    """Return True for what DistributedDataParallel is told to ignore, and for a shard of `FullyShardedDataParallel`."""
    return hasattr(parameter, "_ddp_ignored") or hasattr(parameter, "_fsdp_flattened")


def put_on_stack(mode: TorchFunctionMode) -> None:
    """Put a mode on this thread's stack of torch function modes, below all others but that of `set_default_device`."""
    modes = torch.overrides._get_current_function_mode_stack()
    # There it stays when another mode is left, which pops the uppermost one, whichever that is.
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    place = 1 if default is not None and modes[:1] == [default] else 0
    _stack(modes, [*modes[:place], mode, *modes[place:]])


def take_off_stack(mode: TorchFunctionMode) -> bool:
    """Take a mode off this thread's stack of torch function modes; return False if it is not there."""
    modes = torch.overrides._get_current_function_mode_stack()
    others = [other for other in modes if other is not mode]
    if len(others) < len(modes):
        _stack(modes, others)
    return len(others) < len(modes)


def _stack(old: Sequence[Any], new: Sequence[Any]) -> None:
    """Replace the modes on the stack in one call in C: Ctrl-C between two would lose those of the user."""
    pops = starmap(torch._C._pop_torch_function_stack, [()] * len(old))
    deque(chain(pops, map(torch._C._push_on_torch_function_stack, new)), maxlen=0)


def unseen(run: Callable[P, T]) -> Callable[P, T]:
    """Make a function call neither the modes nor the torch functions of others; a default device is such a mode."""

    @functools.wraps(run)
    def alone(*args: P.args, **named: P.kwargs) -> T:
        return run_unseen(run, args, named)

    return alone


def run_unseen(run: Callable[..., T], args: Any, named: Any) -> T:
    """Call a function as `unseen` makes it."""
    # Torch's context takes its time, and hardly anyone has a mode.
    with torch._C.DisableTorchFunction():
        if torch._C._len_torch_dispatch_stack():
            with _disable_current_modes():
                return run(*args, **named)
        return run(*args, **named)


def computing_plainly(run: Callable[P, T]) -> Callable[P, T]:
    """Make a function `unseen` that computes with gradients and without autocast."""

    @unseen
    @functools.wraps(run)
    def plainly(*args: P.args, **named: P.kwargs) -> T:
        # Without inference mode gradients are on, unless someone switches them off in between.
        with torch._C._InferenceMode(False), torch._C._DisableAutocast():
            return run(*args, **named)

    return plainly


unheard: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunction
"""Returns a context in which torch functions call neither modes nor the `__torch_function__` of subclasses."""

COMPILED_CODE = (eval_frame, "_maybe_set_eval_frame")
"""The module and the name of the function that compiled code calls when it begins and when it ends."""

COMPILED_CALLERS = frozenset({"compile_wrapper", "_fn"})
"""The names of the functions that run compiled code between two such calls."""

_PASSING_ON = ("torch.distributed.fsdp.", "torch.nn.parallel.")
"""How the names of the files begin whose custom functions pass gradients on to their inputs."""


def is_opaque(node: Any) -> bool:
    """Return True for the node of a custom function, whose backward may reach more than its `next_functions`."""
    forward: Any = getattr(type(node), "_forward_cls", nn.Module)
    return isinstance(node, BackwardCFunction) and not forward.__module__.startswith(_PASSING_ON)


def calls_of_modules() -> tuple[types.CodeType, ...]:
    """Return the code of the functions that a call of a module runs first, with `self`, `args` and `kwargs`."""
    return nn.Module._wrapped_call_impl.__code__, nn.Module._call_impl.__code__


_open: int = 0
_stance: Any = None


@contextmanager
def run_eagerly() -> Iterator[None]:
    """Run compiled code uncompiled inside the context, in the whole process."""
    # Several contexts may be open at once and end in any order, as those of two callbacks do.
    global _open, _stance
    if not _open:
        _stance = torch.compiler.set_stance("force_eager")
    _open += 1
    try:
        yield
    finally:
        _open -= 1
        if not _open:
            _stance.__exit__(None, None, None)
