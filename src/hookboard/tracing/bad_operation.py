"""`bad_operation_in`: finds the operation that made the first NaN or Inf, from what the graph of a loss has saved."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from hookboard.base.ranks import local
from hookboard.base.torch_private import (
    computing_plainly,
    has_memory,
    number_saved_by,
    operator_named,
    parameters_in,
    results_of,
    saved_tensors_of,
    sequence_number_of,
)

_MAKING = """
div reciprocal sqrt rsqrt pow exp expm1 log log2 log10 log1p mul mm addmm bmm dot convolution prod
log_softmax softmax safe_softmax atanh acos asin acosh tan sinh cosh lgamma digamma logit linalg_vector_norm
"""
MAKING = frozenset(_MAKING.split())
"""Operations that can make a NaN or Inf of finite values, but for sums that overflow; as autograd names them."""

_MEANS = "mean nll_loss nll_loss2d mse_loss smooth_l1_loss huber_loss binary_cross_entropy"
_COMPUTED = MAKING.union(_MEANS.split(), ["binary_cross_entropy_with_logits"])
"""Operations that are computed again: they draw no random numbers, and change nothing."""

SOFTMAXES = frozenset({"softmax", "log_softmax", "safe_softmax"})
_MAKING_ONLY = {
    **dict.fromkeys(("exp", "expm1", "reciprocal"), torch.isinf),
    **dict.fromkeys((*SOFTMAXES, "sqrt"), torch.isnan),
}
"""Operations that make only one of both, to what tells it."""

_HANDING = """
view unsafe_view reshape_alias t transpose permute squeeze unsqueeze expand slice select alias clone to_copy neg abs
relu sum mean
"""
_HANDING_ON = frozenset(_HANDING.split())
"""Operations that only hand on a NaN or Inf, but for sums that overflow; others, as `masked_fill`, may put one in."""

_RESULTS = ("result", "result0", "output")  # the names under which a node saves what it has returned


class CallPlace(NamedTuple):
    """Where an operation was called."""

    module: str = ""  # the layer that was running; "" if unknown
    line: str = ""  # the user's, such as "model.py:31"; "" if unknown
    before: tuple[str, ...] = ()  # calls since the previous node that can make a NaN or Inf, but needed no gradient
    is_after: bool = False  # whether the layer is not known, and `module` is the last one before that has weights

    @property
    def at(self) -> str:
        """The line as in " at model.py:31"; "" if it is not known."""
        return f" at {self.line}" if self.line else ""


class ProgramStep(NamedTuple):
    """A node behind the loss of an earlier step: its operation, its weights and its place."""

    name: str
    weights: tuple[int, ...]  # the ids of those that it takes, perhaps transposed or cast
    place: CallPlace


Program = Sequence[ProgramStep]
"""The nodes behind the loss of an earlier step, in the order in which they were made."""

Edge = tuple[Node | None, int]
"""A result of a node, by its index; the node is None if that needs no gradient."""

_NO_NODE: Edge = (None, 0)

_How = Literal["made", "may have made", "took"]


@dataclass(frozen=True)
class BadOperation:
    """The operation that made the first NaN or Inf, or the first that is known to have met one."""

    names: Sequence[str]  # such as `log`; several if they share a line; () if it is known of the loss alone
    how: _How
    place: CallPlace
    taken: Mapping[str, Tensor]  # its finite inputs, as far as they are known, by their names in torch
    given: Tensor | None  # the tensor with the NaN or Inf, if it is known
    earlier: Sequence[str] = ()  # unless it has made it, the calls before it that may have
    is_last: bool = False  # whether it has returned the loss


@computing_plainly
@torch.no_grad()
def bad_operation_in(loss: Tensor, model: nn.Module, programs: Sequence[Program] = ()) -> BadOperation | None:
    """Return what made the first NaN or Inf behind a loss, before its backward pass; None if that cannot be told."""
    # No code of the user runs: nodes of custom functions, and tensors that hooks have packed, are left out.
    nodes, finite = nodes_behind(loss), set[Edge]()
    places = _places(nodes, model, programs)
    taker, start, output = _first_met(nodes, finite) or (None, (loss.grad_fn, 0), None)
    found = _makers_before(start, finite) if nodes else None
    if found is None:
        return None
    certain, possible, is_open = found
    order = {node: number for number, node in enumerate(nodes)}
    makers = sorted(certain or ([] if is_open else possible), key=order.__getitem__)
    # Operations on one line have one place; without a line, one operation has, such as both factors of a product.
    if len({(places[node].module, places[node].line or operation_of(node)) for node in makers}) == 1:
        call, names = _Call(makers[-1]), [*dict.fromkeys(map(operation_of, makers))]
        output = call.computed() if output is None and len(names) == 1 else output
        inputs = {name: tensor for name, tensor in call.taken.items() if is_finite(tensor)}
        return BadOperation(names, "made", places[call.node], inputs, output, is_last=call.node is loss.grad_fn)
    likely = sorted({*(certain or possible)} - {taker}, key=order.__getitem__)
    earlier = [f"{plain(operation_of(node))}(){places[node].at}" for node in likely]
    if is_open:
        until = len(nodes) if taker is None else order[taker] + 1
        earlier += [call for node in nodes[:until] for call in places[node].before]
    earlier = [*dict.fromkeys(earlier)]
    if taker is None:
        return BadOperation((), "took", CallPlace(), {}, None, earlier) if earlier else None
    how: _How = "may have made" if taker in possible else "took"
    return BadOperation([operation_of(taker)], how, places[taker], {}, output, earlier)


def _first_met(nodes: Sequence[Node], finite: set[Edge]) -> tuple[Node, Edge, Tensor] | None:
    """Return the first node that has saved a NaN or Inf, with edge and tensor; None if none has. Adds to `finite`."""
    for node in nodes:
        call = _Call(node)
        finite.update({call.edge_of(name) for name, one in call.taken.items() if is_finite(one)} - {_NO_NODE})
        result = call.result
        if result is not None and is_finite(result):  # whatever it has taken
            finite.add((node, 0))
            continue
        computes = call.name in _COMPUTED  # others may take a mask
        bad = [name for name, one in call.taken.items() if not is_finite(one) and (computes or not is_mask(one))]
        if bad:
            again = call.computed()
            if again is None or not is_finite(again):
                return node, call.edge_of(bad[0]), call.taken[bad[0]]
        elif result is not None and not is_mask(result):
            return node, (node, 0), result
    return None


def _makers_before(start: Edge, finite: Collection[Edge]) -> tuple[list[Node], list[Node], bool] | None:
    """Return which nodes made a NaN or Inf, which may have, and whether it may have come in without a node."""
    certain, possible, is_open = list[Node](), list[Node](), start == _NO_NODE
    waiting, seen, bad = [start], set[Edge](), {start}
    while waiting:
        edge = waiting.pop()
        node = edge[0]
        if node is None or edge in seen or edge in finite:
            continue
        seen.add(edge)
        if isinstance(node, BackwardCFunction):  # nobody knows what it took
            return None
        call = _Call(node)
        unknown, makes = call.unknown(finite), _makes(call)
        if edge in bad and not unknown:
            again = call.computed()
            # All that it took is finite, and its result is not, unless a later call has put that into it.
            makes = "made" if again is None or not is_finite(again) else "passed on"
        elif edge in bad and makes == "passed on" and call.name in _HANDING_ON and len(unknown) == 1:
            bad.update(unknown)
        if makes == "made":
            certain.append(node)
            continue
        if makes == "may have made":
            possible.append(node)
        is_open |= _NO_NODE in unknown
        waiting += unknown
    return certain, possible, is_open


def _makes(call: "_Call") -> Literal["made", "may have made", "passed on"]:
    """Return whether a call has made a NaN or Inf; what is known of its inputs is finite."""
    # A cast overflows only if it gives float16.
    can = call.name in MAKING or (call.name == "to_copy" and results_of(call.node)[0].dtype is torch.float16)
    if call.result is not None:
        can = can and bool(_MAKING_ONLY.get(call.name, _is_bad)(local(call.result)).any())
        return "may have made" if can else "passed on"
    largest = torch.finfo(call.like.dtype).max
    finite = [call.is_finite_with(fill) for fill in (0.0, largest, -largest)]
    if all(each is False for each in finite):
        return "made"
    return "may have made" if can and not all(finite) else "passed on"


class _Call:
    """The call that made a node, as far as the node has saved it."""

    def __init__(self, node: Node) -> None:
        self.node, self.name = node, operation_of(node)
        # The tensors of a custom function may be packed by code of the user.
        saved = {} if isinstance(node, BackwardCFunction) else saved_tensors_of(node)
        self._saved = {name: one.detach() for name, one in saved.items()}
        sizes = number_saved_by(node, "self_sym_sizes") or ()
        if 0 in sizes:  # then it is known without its numbers
            self._saved.setdefault("self", torch.empty(sizes))
        self._operator, self._kinds = operator_named(self.name)
        tensors = [name for name, kind in self._kinds.items() if "Tensor" in kind] or ["self"]
        # A condition, as of `where`, has no edge.
        self._inputs = [name for name in tensors if name not in saved or saved[name].dtype is not torch.bool]
        floats = {name: one for name, one in self._saved.items() if one.is_floating_point()}
        self.taken = {name: one for name, one in floats.items() if name in self._inputs}  # by their names in torch
        self.result = next((floats[name] for name in _RESULTS if name in floats), None)  # None if it is not saved
        self.like = next(iter(self.taken.values()), torch.empty(()))  # of the same type and device

    def edge_of(self, name: str) -> Edge:
        edges, slot = self.node.next_functions, self._inputs.index(name)
        return edges[slot] if slot < len(edges) else _NO_NODE

    def unknown(self, finite: Collection[Edge]) -> list[Edge]:
        """Return the edges of its inputs but for weights and those that are known to be finite."""
        found = list[Edge]()
        for slot, edge in enumerate(self.node.next_functions):
            name = self._inputs[slot] if slot < len(self._inputs) else ""
            is_known = name in self.taken and is_finite(self.taken[name])
            if edge == _NO_NODE:  # it needs no gradient, or is not there at all
                is_mask_or_bias = name == "self" and "beta" in self._kinds  # which is added to a product
                is_known = name in self._saved or self._kinds.get(name, "").startswith("Opt") or is_mask_or_bias
            if not is_known and edge not in finite and _leaf_behind(edge[0]) is None:
                found.append(edge)
        return found

    def computed(self, fill: float | None = None) -> Tensor | None:
        """Return its result, computed again, with `fill` for an input that is not known; None if it is not to be."""
        arguments, tensors = dict[str, Any](), self._saved.values()
        # Tensors of other classes, such as DTensor, would ask other ranks.
        if self.name not in _COMPUTED or not tensors or any(type(tensor) is not Tensor for tensor in tensors):
            return None
        for name, kind in self._kinds.items():
            value = self._saved[name] if name in self._saved else number_saved_by(self.node, name)
            if value is None and kind == "Tensor":
                value = _weight_behind(self.edge_of(name)[0], self.like)
                if value is None and fill is not None:
                    value = self.like.new_full((), fill)
            if value is not None or kind.startswith("Optional"):
                arguments[name] = value
        with suppress(Exception):  # as where something is missing
            result: Tensor = self._operator(**arguments)
            return result
        return None

    def is_finite_with(self, fill: float) -> bool | None:
        """Return True if its result, computed again as by `computed`, is finite; None if it is not to be."""
        result = self.computed(fill)
        return None if result is None else is_finite(result)


def _weight_behind(node: Node | None, like: Tensor) -> Tensor | None:
    """Return the weight that a node is, as that node gives it but in the type of another tensor; None if it is none."""
    leaf = _leaf_behind(node)
    if node is None or leaf is None or not has_memory(leaf):
        return None
    weight = leaf.detach().to(like)
    return weight.t() if operation_of(node) in ("t", "transpose") else weight


def _leaf_behind(node: Node | None) -> Tensor | None:
    """Return the weight that a node is, perhaps transposed or cast; None if it is none."""
    while node is not None and operation_of(node) in ("t", "transpose", "to_copy"):
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)


MAX_NODES = 20_000
"""Larger graphs are skipped: torch frees nodes that Python saw recursively; some 29,000 overflow an 8 MB stack."""


def nodes_behind(loss: Tensor) -> list[Node]:
    """Return the nodes behind a loss, but accumulators, in the order they were made; [] if more than MAX_NODES."""
    found, waiting = dict[Node, int](), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found and not hasattr(node, "variable"):
            found[node] = sequence_number_of(node)
            waiting += [before for before, _ in node.next_functions]
        if len(found) > MAX_NODES:
            return []
    return sorted(found, key=found.__getitem__)


def operation_of(node: Node) -> str:
    """Return the name of a node's operation: `smooth_l1_loss` for SmoothL1LossBackward0, `log1p` for Log1PBackward0."""
    name = node.name().rpartition("::")[2].partition("Backward")[0]
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=\d)(?=[A-Z][a-z])", "_", name).lower()


_PLAIN = {"addmm": "linear", "linalg_vector_norm": "norm", "safe_softmax": "softmax", "to_copy": "to"} | dict.fromkeys(
    ("mm", "bmm"), "matmul"
)
"""Name of an operation in autograd to the function that users know it by."""


def plain(operation: str) -> str:
    """Return the name by which users know an operation."""
    return _PLAIN.get(operation, operation.removeprefix("native_"))


def _places(nodes: Sequence[Node], model: nn.Module, programs: Sequence[Program]) -> dict[Node, CallPlace]:
    """Return where each node was made: as in a program, from both ends while the nodes agree, else by its weights."""
    owners = {id(p): name.rpartition(".")[0] for name, p in parameters_in(model, remove_duplicate=False).items()}
    found, last = dict[Node, CallPlace](), ""
    for node in nodes:
        own = [owners[weight] for weight in step_of(node, CallPlace()).weights if weight in owners]
        last = own[0] if own else last
        found[node] = CallPlace(last, is_after=not own)
    return found | max((_places_in(program, nodes) for program in programs), key=len, default={})


def _places_in(program: Program, nodes: Sequence[Node]) -> dict[Node, CallPlace]:
    """Return the places of the nodes that are those of a program, at the begin and at the end."""
    start = [*takewhile(_is_same, zip(nodes, program, strict=False))]
    rest = len(start)
    end = takewhile(_is_same, zip(reversed(nodes[rest:]), reversed(program[rest:]), strict=False))
    return {node: step.place for node, step in (*start, *end)}


def _is_same(pair: tuple[Node, ProgramStep]) -> bool:
    node, step = pair
    return step_of(node, step.place) == step


def step_of(node: Node, place: CallPlace) -> ProgramStep:
    """Return a node as a step of a program."""
    leaves = [_leaf_behind(before) for before, _ in node.next_functions]
    return ProgramStep(operation_of(node), tuple(id(leaf) for leaf in leaves if leaf is not None), place)


def is_finite(tensor: Tensor) -> bool:
    """Return True if a tensor has neither NaN nor Inf."""
    return not bool(_is_bad(local(tensor)).any())


def is_mask(tensor: Tensor) -> bool:
    """Return True if a tensor that is not finite has -Inf alone, as masks and what they are added to have."""
    tensor = local(tensor)
    return bool((torch.isfinite(tensor) | (tensor == -torch.inf)).all())


def _is_bad(tensor: Tensor) -> Tensor:
    return ~torch.isfinite(tensor)
