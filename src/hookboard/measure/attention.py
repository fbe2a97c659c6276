"""Attention that torch computes in one function: its largest logits and its entropy, on a sample of the queries."""

import functools
import inspect
import math
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import has_torch_function

from hookboard.base.torch_private import calls_of_modules, can_be_read, computing_plainly, in_backward, unseen
from hookboard.measure.hooked import own_calls
from hookboard.measure.memory import needs_host
from hookboard.measure.table import Table
from hookboard.model.selection import named_submodules
from hookboard.model.sites import ATTENTION_ROLES, Role, Site

MAX_BLOCK_VALUES = 1 << 22  # in a temporary block

MAX_QUERIES = 64  # of the first sequence of a call are looked at (a choice); all heads have the same ones

FAR = 1000.0
"""A key is hidden if so much less is added to its logit than to another's (a choice): -10000 and -1e9 are common."""

_CALLS = frozenset(calls_of_modules())
_FUNCTION = "scaled_dot_product_attention"


class AttentionWatch:
    """Measures attention while it is active: in the modules named `names`, inside of them, and around them."""

    def __init__(self, model: nn.Module, names: Collection[str], roles: Collection[Role], table: Table) -> None:
        self._model, self._roles, self._table = model, roles, table
        self._watched = frozenset(names)
        self._around = {"", *(outer for name in names for outer in _outer(name))}
        self._names: dict[int, str] | None = None
        self._off: set[str] = set()
        self.found: dict[str, None] = {}  # the modules in which attention was seen

    @property
    def active(self) -> bool:
        """Whether calls are measured. If nobody measures any, torch's own function is called, without a detour."""
        return self in _watches

    @active.setter
    def active(self, on: bool) -> None:
        self._names = None  # a model may change
        _watches[:] = [*(other for other in _watches if other is not self), *([self] if on else [])]
        now = getattr(nn.functional, _FUNCTION)
        hidden = getattr(now, "__wrapped__", None)
        is_there = hidden is not None and _seen(hidden) is now  # what others put over it copies its attributes
        if _watches and not is_there:
            setattr(nn.functional, _FUNCTION, _seen(now))
        elif not _watches and is_there:
            setattr(nn.functional, _FUNCTION, hidden)

    def show(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Measure a call in a module, if it is watched. If that fails the module is left out, with one warning."""
        if self._names is None:
            named = {"": self._model, **dict(named_submodules(self._model))}
            self._names = {id(each): name for name, each in named.items() if self._is_seen(name)}
        name = self._names.get(id(module))
        if name is None or name in self._off:
            return
        try:
            numbers = attention_numbers(*args, **kwargs)
            if numbers is not None:
                self.found[name] = None
                for role, tensor in zip(ATTENTION_ROLES, numbers, strict=True):
                    if role in self._roles:
                        self._table.open(Site(name, role))(tensor)
        except Exception as error:  # it would end the training
            self._off.add(name)
            self._table.switch_off([Site(name, role) for role in self._roles], error)

    def _is_seen(self, name: str) -> bool:
        return name in self._around or not self._watched.isdisjoint(_outer(name))


def _outer(name: str) -> set[str]:
    """Return the names of a module and of those around it."""
    parts = name.split(".")
    return {".".join(parts[:depth]) for depth in range(len(parts) + 1)}


_watches: list[AttentionWatch] = []  # those that are active


@functools.cache  # a compiled graph is kept for each function that it calls
def _seen(real: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what calls torch's function, and then measures the call if it stands in that function's place now."""

    @functools.wraps(real)
    def attention(*args: Any, **kwargs: Any) -> Tensor:
        if getattr(nn.functional, _FUNCTION) is not attention:
            return real(*args, **kwargs)
        if not has_torch_function((*args, *kwargs.values())):
            returned = real(*args, **kwargs)
        else:  # modes and subclasses, such as the causal biases of torch, compare what is called with torch's own
            setattr(nn.functional, _FUNCTION, real)
            try:
                returned = real(*args, **kwargs)
            finally:
                if _watches and getattr(nn.functional, _FUNCTION) is real:
                    setattr(nn.functional, _FUNCTION, attention)
        if not torch.compiler.is_compiling() and _watches:
            _show(args, kwargs)
        return returned

    return attention


@unseen
def _show_all(args: Any, kwargs: Any) -> None:
    """Show a call to all that watch the innermost module that runs in this thread."""
    if own_calls or in_backward():  # a checkpoint recomputes what has been shown before
        return
    frame = inspect.currentframe()
    while frame is not None and frame.f_code not in _CALLS:
        frame = frame.f_back
    if frame is None:
        return
    for watch in tuple(_watches):
        watch.show(frame.f_locals["self"], args, kwargs)


_show = torch.compiler.disable(_show_all)  # between two graphs torch.compile would compile it, and all that it calls


@computing_plainly
def attention_numbers(
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor] | None:
    """Return the largest logit and the entropy (in nats) of some queries, (heads, queries), or None."""
    tensors = (query, key) if attn_mask is None else (query, key, attn_mask)
    # A class with operations of its own may attend to other numbers than it holds.
    are_plain = all(can_be_read(tensor) and type(tensor) in (Tensor, nn.Parameter) for tensor in tensors)
    if not are_plain or query.dim() != 4 or key.dim() != 4 or not (query.numel() and key.numel()):
        return None
    with torch.no_grad():
        (batch, heads, length, width), (groups, keys) = query.shape, key.shape[1:3]
        count, each = min(length, MAX_QUERIES), heads // groups
        rows = torch.arange(count, device=query.device) * length // count
        is_past = rows[:, None] >= torch.arange(keys, device=query.device)
        mask = None if attn_mask is None else attn_mask.expand(batch, heads, length, keys)[0]
        wide = torch.float32 if needs_host(query.device) else torch.float64
        scale = 1 / math.sqrt(width) if scale is None else scale
        some, found = max(1, MAX_BLOCK_VALUES // (keys * max(width, each * count))), []
        for at in range(0, groups, some):
            own = slice(at * each, (at + some) * each)
            queries = query[0, own, rows].to(wide).view(-1, each * count, width) * scale
            logits = (queries @ key[0, at : at + some].to(wide).mT).view(-1, count, keys)
            added = torch.zeros_like(logits)
            if is_causal:
                added.masked_fill_(~is_past, -math.inf)
            elif mask is not None and mask.dtype is torch.bool:
                added.masked_fill_(~mask[own, rows], -math.inf)
            elif mask is not None:  # some hide by the smallest number of the type, to which nothing can be added
                picked = mask[own, rows]
                added += picked.to(wide).masked_fill(picked <= torch.finfo(picked.dtype).min / 2, -math.inf)
            logits += added
            seen = ((added >= added.amax(-1, keepdim=True) - FAR) & (added > -math.inf)).sum(-1)
            entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
            # -Inf is the entropy of a query that sees fewer than two keys, and the largest logit of one that sees none.
            found.append((logits.amax(-1), entropy.masked_fill(seen < 2, -math.inf)))
        logit, entropy = map(torch.cat, zip(*found, strict=True))
        return logit, entropy[:, int(is_causal and min(length, keys) > 1) :]  # the first query has one key
