"""Hooks on modules, in their order; listeners to backward passes; calls of the model that hookboard makes itself."""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hookboard.base.torch_private import forward_hooks_of, forward_pre_hooks_of

READS_BEFORE_EDITS, EDITS_VALUES, READS, EDITS_GRADIENTS = range(4)
"""The place of a hook among those of its module; hooks of others have `READS`."""


class Hooks(dict[str, RemovableHandle]):
    """The handles of the hooks that `hooked` has put on a module; as a context manager it takes them off at its end."""

    def __enter__(self) -> "Hooks":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Take the hooks off; again, if Ctrl-C has come in the middle of it."""
        for handle in self.values():
            handle.remove()
        self.clear()


def hooked(
    module: nn.Module,
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
    *,
    place: int = READS,
    with_kwargs: bool = False,
    always_call: bool = False,
) -> Hooks:
    """Hook a module with functions that torch calls before and after each call, until the returned hooks are closed."""
    hooks = Hooks()
    try:
        if after is not None:
            # `with_kwargs` only where needed: torch may leave them out if another thread calls the module meanwhile.
            hook, how = _OnModule(after), {"with_kwargs": with_kwargs, "always_call": always_call}
            hooks["after"] = hook.handle = nn.Module.register_forward_hook(module, hook, **how)
            hook.place = place
        if before is not None:
            hook = _OnModule(before)
            hooks["before"] = hook.handle = nn.Module.register_forward_pre_hook(module, hook, with_kwargs=True)
            hook.place = place
        _sort(forward_hooks_of(module))
        _sort(forward_pre_hooks_of(module))
    except BaseException:  # Ctrl-C: nobody has the hooks yet
        hooks.close()
        raise
    return hooks


class _OnModule(functools.partial[Any]):
    """A hook that stays behind where its module is copied: in its place is what takes itself off when it is called."""

    handle: RemovableHandle
    place: int

    def __reduce__(self) -> tuple[Any, ...]:
        # Of Python and torch alone: hookboard may not be installed where the module is loaded. Unlike that of the
        # handle, this `__exit__` takes any number of arguments.
        last = ExitStack()
        last.push(self.handle)
        return getattr, (closing(last), "__exit__")


def _sort(hooks: "OrderedDict[int, Callable[..., Any]]") -> None:

    def order(key: int) -> tuple[int, int]:
        place = getattr(hooks[key], "place", READS)
        return place, -key if place == EDITS_GRADIENTS else 0  # backward runs in reverse

    for key in sorted(hooks, key=order):
        hooks.move_to_end(key)


P = ParamSpec("P")
T = TypeVar("T")


class _Spares(dict[int, tuple[Any, Any]]):
    """The id of an original to (original, copy). It equals itself alone."""

    __eq__ = object.__eq__


own_calls: list[_Spares] = []  # one for each running own call, the innermost last


@contextmanager
def own_call() -> Iterator[None]:
    """Mark all calls of a model inside the context as made by hookboard itself. Contexts may be nested."""
    spares = _Spares()
    try:
        own_calls.append(spares)
        yield
    finally:
        # Not by `pop`: calls in several threads end in any order. In place, because taps hold this very list.
        own_calls.remove(spares)


def as_own_call(run: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call a function inside `own_call`, of which nothing is left whenever Ctrl-C comes."""
    spares = _Spares()
    try:
        own_calls.append(spares)
        return run(*args, **named)
    finally:
        own_calls.remove(spares)


def is_own_call() -> bool:
    """Return True if hookboard itself is calling a model, in any thread; see `own_call`."""
    return bool(own_calls)


def spare_of(original: T, make_copy: Callable[[T], T]) -> T:
    """Return the copy, made once, that the running own call uses in place of `original`; else `original` itself."""
    current = original
    for spares in own_calls:  # an inner call copies the copy of the outer one
        if id(current) not in spares:
            spares[id(current)] = current, make_copy(current)
        current = spares[id(current)][1]
    return current


Listener = Callable[[Callable[[], None], Sequence[Tensor]], None]
"""Is called in place of a backward pass, with a function that runs it, and with the losses."""

_listeners: list[tuple[int, Listener]] = []
"""Threads, and who listens to their backward passes. `torch.autograd.backward` is replaced while there are any."""

_ours: Any = None  # what was put in place of `torch.autograd.backward` last; that is its `__wrapped__`

_changing, _in_backward = threading.Lock(), threading.local()


def hear_backward(listener: Listener) -> None:
    """Call a listener at each backward pass of this thread from now on."""
    global _ours
    with _changing:
        _listeners.append((threading.get_ident(), listener))
        if _ours is None or torch.autograd.backward is not _ours:
            # One for all threads: with one each, the thread that ends last would put back that of another.
            _ours = torch.autograd.backward = _heard(torch.autograd.backward)


def unhear_backward(listener: Listener) -> None:
    """Call a listener no longer; it may be called again, as after an interrupt in the middle of it."""
    with _changing:
        _listeners[:] = [entry for entry in _listeners if entry[1] != listener]
        # If somebody else has replaced it since, theirs stays: it calls ours, which passes all on without listeners.
        if not _listeners and torch.autograd.backward is _ours:
            torch.autograd.backward = vars(_ours)["__wrapped__"]


def _heard(real: Callable[..., None]) -> Callable[..., None]:
    """Return what stands in for `torch.autograd.backward`: the backward pass runs through this thread's listeners."""

    @functools.wraps(real)
    def backward(tensors: Any, *args: Any, **named: Any) -> None:
        run: Callable[[], None] = functools.partial(real, tensors, *args, **named)
        listeners = [listener for thread, listener in _listeners if thread == threading.get_ident()]
        # Activation checkpointing calls `backward` again inside that of the loss.
        if not listeners or vars(_in_backward):
            return run()
        several = tensors if isinstance(tensors, list | tuple) else [tensors]
        losses = [tensor for tensor in several if isinstance(tensor, Tensor)]
        _in_backward.is_inside = True
        try:
            for listener in listeners:
                run = functools.partial(listener, run, losses)
            run()
        finally:
            del _in_backward.is_inside

    return backward
