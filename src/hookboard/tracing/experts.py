"""`experts`: the share of tokens that a router gives to each expert in the first step."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hookboard.base.messages import listed
from hookboard.health import Finding, Rule
from hookboard.tracing.adapters import product_of
from hookboard.tracing.calls import Op
from hookboard.tracing.rules import TracedStep

ROUTING = frozenset({"topk", "argmax"})
"""Functions by which a router picks experts."""

TOKENS_PER_EXPERT = 32
"""A router is judged if each expert would get so many tokens on average (a choice): where they are spread evenly one of
64 experts is then without any in one of 10^12 batches."""

IDLE_SHARE = 0.5
"""If more than this share of the experts gets no token, that is a note (a choice: new routers of small models leave out
a few, as the states of all tokens are alike at first)."""

TIED_SHARE = 0.5
"""If the last expert that is picked ties with one that is not for more than this share of the tokens, the scores tell
nothing (a choice: rounding to bfloat16 makes a few equal)."""


class Choice(NamedTuple):
    """Which experts a call picks, as tensors on its device.

    Args:
        counts: how many tokens each expert gets, shape (experts,).
        ties: for how many tokens the last expert that is picked has the score of one that is not.
        tokens: how many tokens there are.
        picks: how many experts each of them gets.
    """

    counts: Tensor
    ties: Tensor
    tokens: int
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
    tokens = scores.numel() // count
    if tokens * picks < TOKENS_PER_EXPERT * count:
        return None
    best = scores.reshape(tokens, count).topk(picks + 1, dim=-1).values
    counts = torch.zeros(count, dtype=torch.long, device=picked.device)
    counts.scatter_add_(0, picked.flatten(), torch.ones_like(picked.flatten()))
    return Choice(counts, (best[:, -1] == best[:, -2]).sum(), tokens, picks)


def experts(done: TracedStep) -> Iterator[Finding]:
    """Yield one finding for each router that leaves out most experts, or whose scores are equal.

    It is an alarm if no token gets anything but the same experts, and a note otherwise.
    """
    used = {id(value) for value in done.loss.ancestors()}
    routers = (op for op in done.step.ops if isinstance(op.seen, Choice) and used.intersection(map(id, op.results)))
    for module, choice in {op.place.module: op.seen for op in routers if _is_router(op, done.step.model)}.items():
        counts, ties = choice.counts.tolist(), int(choice.ties)
        idle, count = [number for number, each in enumerate(counts) if not each], len(counts)
        is_tied, takes_all = ties > TIED_SHARE * choice.tokens, len(idle) == count - choice.picks
        if not is_tied and not takes_all and len(idle) <= IDLE_SHARE * count:
            continue
        most = max(range(count), key=counts.__getitem__)
        evidence = (
            f"of {count} experts {len(idle)} get none of the {choice.tokens:,} tokens"
            + (f" ({listed([str(number) for number in idle], 4)})" if idle else "")
            + f"; expert {most} gets {counts[most] / choice.tokens:.0%}"
        )
        if is_tied:
            evidence += f"; for {ties / choice.tokens:.0%} of them an expert that is picked ties with one that is not"
        advice = (
            "initialize the router with random numbers"
            if is_tied
            else "check the router's initialization and the scale of its input, and whether a loss balances experts"
        )
        yield Finding(module, evidence, advice, "alarm" if takes_all else "note")


EXPERTS = Rule(
    "experts",
    experts,
    of="step",
    about="a router that gives all tokens to the same experts in the first step; as a note, more than half of the "
    "experts without a token, or scores that are equal",
)


def _is_router(op: Op, model: nn.Module) -> bool:
    """Return True for a choice from the outputs of a layer, beside which there are as many experts."""
    count = len(op.seen.counts)
    made = op.inputs[0].ancestors(lambda value: value.parameter is None)
    if not any(product_of(value)[0] is not None and value.shape[-1:] == (count,) for value in made):
        return False
    parts = op.place.module.split(".") if op.place.module else []
    around = (".".join(parts[:end]) for end in range(len(parts), max(-1, len(parts) - 3), -1))
    return any(_has_experts(model.get_submodule(name), count) for name in around)


def _has_experts(module: nn.Module, count: int) -> bool:
    """Return True if a module holds this many experts: as one parameter, or as children of one type with parameters."""
    for part in module.modules():
        if any(len(one.shape) > 2 and one.shape[0] == count for one in part.parameters(recurse=False)):
            return True
        children = list(part.children())
        if (
            len(children) == count
            and len({type(one) for one in children}) == 1
            and next(children[0].parameters(), None) is not None
        ):
            return True
    return False
