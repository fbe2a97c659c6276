"""`experts`: which layers pick experts in the first step, and how many tokens each expert gets."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hookboard.health import Finding, Router, Rule, uneven
from hookboard.tracing.adapters import product_of
from hookboard.tracing.calls import RESHAPES, Op
from hookboard.tracing.rules import TracedStep

ROUTING = frozenset({"topk", "argmax"})
"""Functions by which a router picks experts."""

_IN_ORDER = RESHAPES | {"softmax", "log_softmax", "sigmoid", "to", "float", "type_as"}
"""Functions that keep the order of the scores of a token."""


class Choice(NamedTuple):
    """Which experts a call picks, as tensors on its device.

    Args:
        counts: how many tokens each expert gets, shape (experts,).
        ties: for how many tokens the last expert that is picked has the score of one that is not.
        picks: how many experts each token gets.
    """

    counts: Tensor
    ties: Tensor
    picks: int


def note_choice(op: Op, given: Mapping[str, Tensor], results: Sequence[Tensor]) -> Choice | None:
    """Return what is picked from the last dimension of scores that a layer gives; None for others."""
    scores, picked = next(iter(given.values())).detach(), results[-1]
    place, usual = ("2", -1) if op.name == "topk" else ("1", None)
    dim = op.arguments.get("dim", op.arguments.get(place, usual))
    count, picks = scores.shape[-1] if scores.dim() > 1 else 0, 1 if op.name == "argmax" else picked.shape[-1]
    is_last = isinstance(dim, int) and dim in (-1, scores.dim() - 1)
    if not is_last or not picks < count or not op.inputs[0].of_parameters or picked.is_floating_point():
        return None
    best = scores.reshape(-1, count).topk(picks + 1, dim=-1).values
    return Choice(_counts(picked, count), (best[:, -1] == best[:, -2]).sum(), picks)


def _counts(picked: Tensor, experts: int) -> Tensor:
    """Return how often each expert is picked, shape (experts,)."""
    picked = picked.flatten()
    return torch.zeros(experts, dtype=torch.long, device=picked.device).scatter_add_(0, picked, torch.ones_like(picked))


def tokens_of_experts(scores: Tensor, picks: int) -> Tensor:
    """Return how many tokens each expert gets if those with the best scores are picked, shape (experts, 1).

    Args:
        scores: shape (..., experts).
        picks: how many experts each token gets.
    """
    picked = scores.detach().topk(picks, dim=-1).indices
    return _counts(picked, scores.shape[-1]).to(torch.float32)[:, None]


def routers_of(done: TracedStep) -> dict[Router, Op]:
    """Return each router behind the loss, with its call that picks experts; of several calls of one the last."""
    used = {id(value) for value in done.loss.ancestors()}
    picking = (op for op in done.step.ops if isinstance(op.seen, Choice) and used.intersection(map(id, op.results)))
    found: dict[Router, Op] = {}
    for op in picking:
        parts = _parts_of(op, done.step.model)
        if parts is not None:
            found[Router(op.place.module, _scored_by(op), parts, len(op.seen.counts), op.seen.picks)] = op
    return found


def _scored_by(op: Op) -> str:
    """Return the layer whose output has the scores from which a call picks, in their order; "" if there is none."""
    value, count = op.inputs[0], len(op.seen.counts)
    while value.shape[-1:] == (count,) and value.op is not None:
        if product_of(value)[0] is not None:
            return value.op.place.module
        if value.op.name not in _IN_ORDER:
            break
        value = value.op.inputs[0]
    return ""


def experts(done: TracedStep) -> Iterator[Finding]:
    """Yield one finding for each router that leaves out most experts, or whose scores are equal, see `uneven`."""
    for router, op in routers_of(done).items():
        found = uneven(router.module, op.seen.counts.tolist(), router.picks, int(op.seen.ties))
        if found is not None:
            yield found


EXPERTS = Rule("experts", experts, of="step")


def _parts_of(op: Op, model: nn.Module) -> tuple[str, ...] | None:
    """Return the experts among which a call picks by the outputs of a layer, see `Router`; None if it picks others."""
    count = len(op.seen.counts)
    made = op.inputs[0].ancestors(lambda value: value.parameter is None)
    if not any(product_of(value)[0] is not None and value.shape[-1:] == (count,) for value in made):
        return None
    parts = op.place.module.split(".") if op.place.module else []
    around = (".".join(parts[:end]) for end in range(len(parts), max(-1, len(parts) - 3), -1))
    found = (_experts_in(name, model.get_submodule(name), count) for name in around)
    return next((each for each in found if each is not None), None)


def _experts_in(name: str, module: nn.Module, count: int) -> tuple[str, ...] | None:
    """Return the names of this many experts in a module; () if they are one parameter, None if there are none."""
    for path, part in module.named_modules(prefix=name):
        if any(len(one.shape) > 2 and one.shape[0] == count for one in part.parameters(recurse=False)):
            return ()
        children = dict(part.named_children())
        kinds = {type(one) for one in children.values()}
        if len(children) == count and len(kinds) == 1 and next(part.parameters(), None) is not None:
            return tuple(f"{path}.{child}" if path else child for child in children)
    return None
