"""`experts`: which layers pick experts in the first step, and how many tokens each expert gets."""

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from hookboard.base.torch_private import modules_in, parameters_in
from hookboard.health.rule import Finding, Rule
from hookboard.health.rules.routing import uneven
from hookboard.health.run import Router
from hookboard.tracing.adapters import product_of
from hookboard.tracing.calls import RESHAPES, Op, Value
from hookboard.tracing.loss_rules import TracedStep
from hookboard.tracing.program import StepTrace

ROUTING = frozenset({"topk", "argmax"})
"""Functions by which a router picks experts."""

_SOFTMAXES = frozenset({"softmax", "log_softmax"})
_IN_ORDER = _SOFTMAXES | {"to", "float", "type_as", "contiguous", "clone", "squeeze", "unsqueeze"}
_IN_ORDER |= frozenset({"view", "view_as", "reshape", "reshape_as", "flatten", "unflatten"})
"""Functions that keep all tokens and the order of the scores of each, softmaxes if they run over the scores."""

_PRODUCTS = frozenset(
    {"linear", "matmul", "rmatmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "einsum", "grouped_mm"}
)
"""Functions by which experts in one parameter work: no convolutions, whose kernels are none, nor look-ups in tables."""

Experts: TypeAlias = str | tuple[str, ...]
"""The name of the parameter that holds experts, or the names of the modules that are experts."""


class Choice(NamedTuple):
    """Which experts a call picks, as tensors on its device."""

    counts: Tensor  # how many tokens each expert gets, shape (experts,)
    ties: Tensor  # for how many tokens the last expert picked has the score of one that is not picked
    picks: int  # how many experts each token gets
    is_coarse: bool  # whether rounding to 16 bits or less may make scores equal


def note_choice(op: Op, tensors: Mapping[str, Tensor], results: Sequence[Tensor]) -> Choice | None:
    """Return what a call picks along the last dimension of the scores that a layer gives; None for other calls."""
    scores, picked = next(iter(tensors.values())).detach(), results[-1]
    place, usual = ("2", -1) if op.name == "topk" else ("1", None)
    dim = op.arguments.get("dim", op.arguments.get(place, usual))
    count, picks = scores.shape[-1] if scores.dim() > 1 else 0, 1 if op.name == "argmax" else picked.shape[-1]
    is_last = isinstance(dim, int) and dim in (-1, scores.dim() - 1)
    if not is_last or not picks < count or not op.inputs[0].of_parameters or picked.is_floating_point():
        return None
    best = scores.reshape(-1, count).topk(picks + 1, dim=-1).values
    return Choice(_counts(picked, count), (best[:, -1] == best[:, -2]).sum(), picks, scores.element_size() < 4)


def _counts(picked: Tensor, experts: int) -> Tensor:
    """Return how often each expert is picked, shape (experts,); other numbers, as of dropped tokens, are left out."""
    picked = picked.flatten().long()
    picked = torch.where((picked >= 0) & (picked < experts), picked, experts)
    counts = torch.zeros(experts + 1, dtype=torch.long, device=picked.device)
    return counts.scatter_add_(0, picked, torch.ones_like(picked))[:experts]


def is_choice(tensor: Tensor, router: Router) -> bool:
    """Return True if a tensor looks like what the router picks, or like its scores, whichever its layer returns."""
    width = router.picks if router.has_picks else router.experts
    is_whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)
    return tensor.dim() > 1 and tensor.shape[-1] == width and is_whole == router.has_picks


def tokens_of_experts(tensor: Tensor, router: Router) -> Tensor:
    """Return how many tokens each expert gets, shape (experts, 1), from what `is_choice`."""
    tensor = tensor.detach()
    picked = tensor if router.has_picks else tensor.topk(router.picks, dim=-1).indices
    return _counts(picked, router.experts).to(torch.float32)[:, None]


def routers_of(done: TracedStep) -> dict[Router, Op]:
    """Return each router behind the loss, with the last call in which it picks experts."""
    used = {id(value) for value in done.loss.ancestors()}
    found: dict[Experts, tuple[Router, Op]] = {}
    for op in done.step.ops:
        if not isinstance(op.seen, Choice) or not used.intersection(map(id, op.results)):
            continue
        among = _experts_of(op, done.step)
        if among is not None:
            layer, has_picks = _shown_by(op, done.step)
            parts = () if isinstance(among, str) else among
            router = Router(op.place.module, layer, has_picks, parts, len(op.seen.counts), op.seen.picks)
            # Among the same experts the most picks: a loss that balances them may pick the best, or pick once more.
            if among not in found or router.picks > found[among][0].picks or router == found[among][0]:
                found[among] = router, op
    return dict(found.values())


def _shown_by(op: Op, step: StepTrace) -> tuple[str, bool]:
    """Return the layer that returns the picks of a call, and True; or their scores, and False; or "", and False."""
    value, count = op.inputs[0], len(op.seen.counts)
    if op.results[-1].shape == (*value.shape[:-1], op.seen.picks) and _leaves(op.results[-1], op.place.module, step):
        return op.place.module, True
    while value.shape[-1:] == (count,) and (before := value.op) is not None:
        if product_of(value)[0] is not None and before.name not in RESHAPES:
            return before.place.module if _leaves(value, before.place.module, step) else "", False
        dim = before.arguments.get("dim", before.arguments.get("1"))
        is_over_scores = dim in (-1, len(value.shape) - 1) and not op.seen.is_coarse
        if before.name not in _IN_ORDER or (before.name in _SOFTMAXES and not is_over_scores):
            break
        value = before.inputs[0]
    return "", False


def _leaves(value: Value, module: str, step: StepTrace) -> bool:
    """Return True if a layer, not the whole model, returns a value or a view of it: calls elsewhere take it."""
    return module != "" and any(
        op.place.module != module and any(part.origin is value for part in op.inputs) for op in step.ops
    )


def experts(done: TracedStep) -> Iterator[Finding]:
    """Yield a finding for each router that leaves out most experts, or whose scores are equal, see `uneven`."""
    for router, op in routers_of(done).items():
        found = uneven(router.module, op.seen.counts.tolist(), router.picks, int(op.seen.ties))
        if found is not None:
            yield found


EXPERTS = Rule("experts", experts, of="step")


def _experts_of(op: Op, step: StepTrace) -> Experts | None:
    """Return the experts among which a call picks by the outputs of a layer; None if it picks anything else."""
    count = len(op.seen.counts)
    made = op.inputs[0].ancestors(lambda value: value.parameter is None)
    if not any(product_of(value)[0] is not None and value.shape[-1:] == (count,) for value in made):
        return None
    parts = op.place.module.split(".") if op.place.module else []
    around = (".".join(parts[:end]) for end in range(len(parts), max(-1, len(parts) - 3), -1))
    candidates = (each for name in around for each in _alike_in(name, step.model.get_submodule(name), count))
    return next((each for each in candidates if _are_picked(each, op, step)), None)


def _alike_in(name: str, module: nn.Module, count: int) -> Iterator[Experts]:
    """Yield what may be this many experts in a module: the name of a parameter, or those of modules of one kind."""
    for path, part in modules_in(module, name).items():
        for own, one in parameters_in(part, recurse=False).items():
            if len(one.shape) > 2 and one.shape[0] == count:
                yield f"{path}.{own}" if path else own
        children = dict(nn.Module.named_children(part))
        kinds = {type(one) for one in children.values()}
        if len(children) == count and len(kinds) == 1 and parameters_in(part):
            yield tuple(f"{path}.{child}" if path else child for child in children)


def _are_picked(among: Experts, choice: Op, step: StepTrace) -> bool:
    """Return True if experts work side by side, and a choice decides what they take or what becomes of their output."""
    behind = dict[int, int]()  # by value, as bits: what the choice has a part in, and what each of the parts has
    is_picked = False
    for op in step.ops:
        parts = [behind.get(id(value), 0) for value in op.inputs]
        bits = functools.reduce(operator.or_, parts, 0)
        if isinstance(op.seen, Choice) and bits & ~_CHOSEN:
            return is_picked  # the next choice, by scores that depend on them; or this one, as of the best class: False
        own = _parts_at(op, among)
        if own and bits & ~_CHOSEN & ~own:
            return False  # these are blocks of a network: each takes what another gives
        joins = [each for each, value in zip(parts, op.inputs, strict=True) if value.shape]
        is_joined = any(each & _CHOSEN for each in joins) and any(each & ~_CHOSEN for each in joins)
        is_picked |= bool(own and bits & _CHOSEN) or (is_joined and any(value.shape for value in op.results))
        bits |= own | (_CHOSEN if op is choice else 0)
        behind.update((id(value), bits) for value in op.results if bits)
    return is_picked


_CHOSEN = 1


def _parts_at(op: Op, among: Experts) -> int:
    """Return the bit of the part that makes a call; 0 if none does."""
    if isinstance(among, str):
        is_used = op.name in _PRODUCTS and any(value.origin.parameter == among for value in op.inputs)
        return 2 if is_used else 0
    for place, name in enumerate(among):
        if f"{op.place.module}.".startswith(f"{name}."):
            return 2 << place
    return 0
