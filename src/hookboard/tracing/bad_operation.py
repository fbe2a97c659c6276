"""`bad_operation_in`: finds the operation that made the first NaN or Inf, from what the graph of a loss has saved."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from hookboard.base.ranks import local
from hookboard.base.torch_private import number_saved_by, parameters_in, saved_tensors_of, sequence_number_of

_LOGARITHMS = {"log": 0.0, "log2": 0.0, "log10": 0.0, "log1p": -1.0}
"""Name of a logarithm to the largest input at which it is not finite."""

_MAKING = """
div reciprocal sqrt rsqrt pow exp expm1 mul log_softmax softmax safe_softmax mm addmm bmm dot convolution atanh acos
asin tan sinh cosh lgamma digamma logit linalg_vector_norm prod
"""
MAKING = frozenset(_MAKING.split()) | _LOGARITHMS.keys()
"""Operations that can make a NaN or Inf of finite values, but for sums that overflow; as autograd names them."""

_PRODUCTS = frozenset({"mm", "addmm", "bmm", "convolution", "embedding"})
"""Operations that take no mask of -Inf."""

_RESULTS = frozenset({"output", "logsumexp"})
"""Names of saved results, beside those that begin with "result"."""

SOFTMAXES = frozenset({"softmax", "log_softmax", "safe_softmax"})
_OF_ONE = frozenset({"acos", "asin", "acosh", "atanh", "tan", "sinh", "cosh", "lgamma", "digamma"})
_MEANS = frozenset({"MseLossBackward0", "L1LossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0"})
_MAKING_INF = frozenset({"exp", "expm1", "reciprocal"})
_MAKING_NAN = SOFTMAXES | {"sqrt"}
"""Operations that make only one of both of finite values, and of rows of -Inf."""

_MASKS = frozenset({"attn_mask", "attn_bias"})
"""Names under which fused attention saves its mask, whose -Inf leave out what they are added to."""

_JOINING = frozenset({"add", "sub", "rsub", "cat", "stack", "where", "maximum", "minimum", "addcmul", "copy_slices"})
"""Operations that pass on what any of several inputs has."""

_SLOTS = {"other": 1, "target": 1, "mat2": 1, "tensor": 1, "weight": 1, "key": 1, "value": 2, "exponent": 1}
"""Name of a saved input to its place among the inputs, if that is not the first."""


class ProgramStep(NamedTuple):
    """A node behind the loss of an earlier step.

    Args:
        node: its name.
        module: the layer that was running; "" if unknown.
        line: the user's line, such as "model.py:31"; "" if unknown.
        before: calls since the previous node that can make a NaN or Inf, but left no node, as they needed no gradient.
    """

    node: str
    module: str
    line: str
    before: tuple[str, ...] = ()


Program = Sequence[ProgramStep]
"""The nodes behind the loss of an earlier step, in the order in which they were made."""


class CallPlace(NamedTuple):
    """Where an operation was called: layer, line, and calls before, as in `ProgramStep`."""

    module: str = ""
    line: str = ""
    before: tuple[str, ...] = ()
    is_after: bool = False
    """Whether the layer is not known, and `module` is the last one before that has weights."""

    @property
    def at(self) -> str:
        """The line as in " at model.py:31"; "" if it is not known."""
        return f" at {self.line}" if self.line else ""


@dataclass(frozen=True)
class BadOperation:
    """The operation that made the first NaN or Inf.

    Args:
        name: its name, such as `log`; "" if it left no node in the graph: then its result went into `taker`.
        place: where it was called, if that is known; otherwise where its result was taken first.
        taken: its inputs, as far as the graph has saved them.
        given: the first tensor with the NaN or Inf; None if the graph has not saved it.
        taker: the operation that took the result first; "" if none is known.
        is_maker: whether `taker` may have made it itself; then `given` is its result.
    """

    name: str
    place: CallPlace
    taken: Mapping[str, Tensor]
    given: Tensor | None
    taker: str = ""
    is_maker: bool = False


def bad_operation_in(loss: Tensor, model: nn.Module, program: Program = ()) -> BadOperation | None:
    """Return what made the first NaN or Inf behind a loss that is not finite; None if the graph does not tell.

    No code of the user runs: nodes of custom functions, and tensors that hooks have packed, are left out.

    Args:
        loss: the loss, before its backward pass.
        model: the model, whose parameters tell the layers of the nodes.
        program: the nodes of an earlier step. Those that are the same tell layer and line.
    """
    nodes = nodes_behind(loss)
    places = _places(nodes, model, program)
    for node in nodes:
        saved = _floats_saved_by(node)
        bad = [name for name, tensor in saved.items() if not _is_finite(tensor)]
        inputs = [name for name in bad if not _is_result(name)]
        if not bad or (not inputs and operation_of(node) in ("softmax", "log_softmax") and _is_mask(saved[bad[0]])):
            continue
        if not inputs:
            return _made_before(node, node, saved[bad[0]], places)
        given = saved[inputs[0]]
        if _is_mask(given) and _before(node, inputs[0]) is None and operation_of(node) not in _PRODUCTS:
            continue
        return _made_before(node, _before(node, inputs[0]), given, places)
    # Of the loss the sentence says already that it is not finite.
    return _made_before(None, loss.grad_fn, None, places) if loss.grad_fn in places else None


def _made_before(
    taker: Node | None, maker: Node | None, given: Tensor | None, places: Mapping[Node, CallPlace]
) -> BadOperation | None:
    """Return what made a bad tensor, from the node that returned it: None for a leaf and for code without grad.

    Args:
        taker: the node that took the tensor; `maker` itself, if all that is known is that its result is bad.
        maker: the node that returned it.
        given: the tensor; None for the loss.
        places: where each node was made.
    """
    waiting, seen, found = [maker], set[Node](), dict[Node, bool]()
    bad = {maker}  # the nodes whose result is known not to be finite
    is_open = False  # whether it may have come in without a node
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or node not in places:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):  # nobody knows what it took
            return None
        makes, inputs = _makes(node), _not_finite_before(node)
        if makes == "passes" and node in bad and len(inputs) < 2:
            bad |= set(inputs)
            makes = "passes" if inputs else "yes"  # its result is not finite, and all that it took is
        if makes in ("yes", "maybe"):
            found[node] = makes == "yes"
        if makes in ("passes", "maybe"):
            is_open |= operation_of(node) in _JOINING and None in inputs
            waiting += inputs
    certain = [node for node, is_certain in found.items() if is_certain]
    makers = certain or ([] if is_open else list(found))
    if len({(operation_of(node), places[node]) for node in makers}) == 1:  # such as both factors of one line
        made = max(makers, key=list(places).index)
        took = "" if taker is None or taker is made else operation_of(taker)
        saved = _floats_saved_by(made)
        taken = {name: one for name, one in saved.items() if _is_finite(one)} if taker is made else saved
        return BadOperation(operation_of(made), places[made], taken, given, took)
    if taker is None:
        return None
    # Of several, or none that is known: between them and the one that took it.
    numbers = {node: number for number, node in enumerate(places)}
    likely = [node for node in found if node is not taker and operation_of(node) not in _PRODUCTS]
    before = [f"{operation_of(node)}(){places[node].at}" for node in sorted(likely, key=numbers.__getitem__)]
    before += [call for node in places if numbers[node] <= numbers[taker] for call in places[node].before]
    place = places[taker]._replace(before=tuple(dict.fromkeys(before)))
    return BadOperation("", place, {}, given, operation_of(taker), is_maker=taker in found)


def _makes(node: Node) -> Literal["yes", "maybe", "no", "passes"]:
    """Return whether an operation has made a NaN or Inf of finite inputs.

    "no" if its result is finite, and "passes" if it can only have passed one on.
    """
    name, saved = operation_of(node), saved_tensors_of(node)
    one, other = saved.get("self", saved.get("mat1")), saved.get("other", saved.get("mat2"))
    if name == "nll_loss" and "total_weight" in saved:  # what is divided by
        return "no" if saved["total_weight"] else "yes"
    if _is_mean_of_nothing(node.name(), one, number_saved_by(node, "self_sym_numel", 1)):
        return "yes"
    bad = [key for key, tensor in saved.items() if tensor.is_floating_point() and not _is_finite(tensor)]
    if "result" in saved and not bad:
        return "no"
    if any(map(_is_result, bad)):
        return _makes_result(name, saved, bad)
    with torch.no_grad():
        if name in _LOGARITHMS and one is not None:
            return "yes" if bool((one <= _LOGARITHMS[name]).any()) else "no"
        exponent = number_saved_by(node, "exponent")
        if name == "pow" and one is not None and isinstance(exponent, int | float):
            return "no" if _is_finite(one.detach().pow(exponent)) else "yes"
        if one is not None and other is not None and name in ("mul", "div", "mm", "bmm", "addmm"):
            function = {"addmm": "mm"}.get(name, name)
            return "no" if _is_finite(getattr(torch, function)(one.detach(), other.detach())) else "yes"
        if name == "mse_loss" and one is not None and "target" in saved:
            squares = (one.detach() - saved["target"].detach()).square()
            whole = squares.mean() if number_saved_by(node, "reduction") == 1 else squares.sum()
            return "no" if _is_finite(whole) else "yes"
        if name in _OF_ONE and one is not None:
            return "no" if _is_finite(getattr(torch, name)(one.detach())) else "yes"
        if name in _PRODUCTS and _is_bounded(node, saved):
            return "no"
        if name == "mul" and other is not None and bool((other.abs() <= 1).all()):
            return "passes"
        if name == "div" and other is not None:
            return "passes" if bool((other.abs() >= 1).all()) else "yes" if bool((other == 0).any()) else "maybe"
    return "maybe" if name in MAKING else "passes"


def _is_mean_of_nothing(name: str, taken: Tensor | None, count: int) -> bool:
    """Return True for a node that averages no values, such as the loss of an empty selection.

    Args:
        name: the name of the node.
        taken: what it took, if that is saved.
        count: how many values it took, if it has saved that.
    """
    return (name == "MeanBackward0" and not count) or (name in _MEANS and taken is not None and not taken.numel())


def _is_result(name: str) -> bool:
    return name.startswith("result") or name in _RESULTS


def _makes_result(name: str, saved: Mapping[str, Tensor], bad: Sequence[str]) -> Literal["yes", "maybe", "passes"]:
    """Return what `_makes` returns, for an operation that has saved a bad result, among others."""
    if len(saved) > sum(map(_is_result, saved)) and all(map(_is_result, bad)) and name not in SOFTMAXES:
        return "yes"  # of inputs that are finite
    is_nan, is_inf = (any(bool(kind(local(saved[key])).any()) for key in bad) for kind in (torch.isnan, torch.isinf))
    can = is_inf if name in _MAKING_INF else is_nan if name in _MAKING_NAN else name in MAKING
    return "maybe" if can else "passes"


def _is_bounded(node: Node, saved: Mapping[str, Tensor]) -> bool:
    """Return True if a product of an input and a weight is finite, as both are too small to overflow."""
    factors = [one.detach() for one in saved.values() if one.is_floating_point()]
    leaves = [leaf.detach() for leaf in _leaves_of(node)]
    if len(factors) != 1 or not leaves or not all(one.numel() for one in (*factors, *leaves)):
        return False
    largest = [float(local(one).abs().max()) for one in (*factors, *leaves)]
    # A result adds up no more products than a weight has elements, and a bias.
    bound = largest[0] * max(*largest[1:], 1.0) * max(leaf.numel() for leaf in leaves) + max(largest)
    return bound < torch.finfo(factors[0].dtype).max


MAX_NODES = 20_000
"""A graph with more nodes is not looked through: torch frees nodes that Python has seen within each other, and some
29,000 of them overflow a stack of 8 MB."""


def nodes_behind(loss: Tensor) -> list[Node]:
    """Return the nodes of the graph of a loss, without those that accumulate gradients, in the order they were made.

    [] if there are more than MAX_NODES.
    """
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
    """Return the name of a node's operation: "mse_loss" for MseLossBackward0."""
    return named(node.name())


def named(node: str) -> str:
    """Return the name of the operation of a node with this name.

    >>> named("MseLossBackward0"), named("AddmmBackward0"), named("torch::autograd::CopySlices")
    ('mse_loss', 'addmm', 'copy_slices')
    """
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", node.rpartition("::")[2].partition("Backward")[0]).lower()


def _places(nodes: Sequence[Node], model: nn.Module, program: Program) -> dict[Node, CallPlace]:
    """Return where each node was made: as in the program, up to where its nodes are others, and from there on back.

    In between it is told by the weights that a node uses; one without any has the layer of the one before it.
    """
    owners = {id(p): name.rpartition(".")[0] for name, p in parameters_in(model, remove_duplicate=False).items()}
    found, last = dict[Node, CallPlace](), ""
    for node in nodes:
        own = [owners[id(leaf)] for leaf in _leaves_of(node) if id(leaf) in owners]
        last = own[0] if own else last
        found[node] = CallPlace(last, is_after=not own)
    fewer = min(len(nodes), len(program))
    is_same = [node.name() == step.node for node, step in zip(nodes, program, strict=False)]
    start = [*is_same, False].index(False)
    is_same = [node.name() == step.node for node, step in zip(nodes[::-1], program[::-1], strict=False)]
    end = [*is_same[: fewer - start], False].index(False)
    known = [*zip(nodes[:start], program, strict=False), *zip(nodes[::-1][:end], program[::-1], strict=False)]
    return found | {node: CallPlace(*step[1:]) for node, step in known}


def _leaves_of(node: Node) -> Iterator[Tensor]:
    """Yield the leaves that a node takes, also through transpositions and casts."""
    for before, _ in node.next_functions:
        if before is not None and operation_of(before) in ("t", "transpose", "to_copy"):
            yield from _leaves_of(before)
        elif before is not None and hasattr(before, "variable"):
            yield before.variable


def _before(node: Node, name: str) -> Node | None:
    """Return the node that made the input that is saved under a name."""
    inputs, slot = node.next_functions, _slot(node, name)
    return inputs[slot][0] if slot < len(inputs) else None


def _slot(node: Node, name: str) -> int:
    """Return which input of a node is saved under a name."""
    if operation_of(node) == "addmm":  # its first input is the bias
        return 0 if name == "self" else _SLOTS.get(name, 0) + 1
    return _SLOTS.get(name, 0)


def _not_finite_before(node: Node) -> list[Node | None]:
    """Return the nodes that made the inputs of a node, but for those inputs that it has saved and that are finite."""
    saved = _floats_saved_by(node).items()
    finite = {_slot(node, name) for name, one in saved if not _is_result(name) and _is_finite(one)}
    return [before for slot, (before, _) in enumerate(node.next_functions) if slot not in finite]


def _floats_saved_by(node: Node) -> dict[str, Tensor]:
    """Return the floating-point tensors that a node has saved, by their names in torch, without masks of attention."""
    if isinstance(node, BackwardCFunction):  # its tensors may be packed by code of the user
        return {}
    floats = {name: one.detach() for name, one in saved_tensors_of(node).items() if one.is_floating_point()}
    return {name: one for name, one in floats.items() if name not in _MASKS or not _is_mask(one)}


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(local(tensor)).all())


def _is_mask(tensor: Tensor) -> bool:
    """Return True if a tensor that is not finite has -Inf alone, as masks and what they are added to have."""
    tensor = local(tensor)
    return bool((torch.isfinite(tensor) | (tensor == -torch.inf)).all())
