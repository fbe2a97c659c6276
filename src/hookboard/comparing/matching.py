"""Which module of one model is which of the other."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import SequenceMatcher

from hookboard.base.messages import unknown
from hookboard.comparing.recorded import Index
from hookboard.comparing.running import Spot
from hookboard.model.patterns import STAR, expression_of

SAME_NAMES_MIN = 0.5
"""Share of the modules that must have the same name in both models to be matched by name (a choice)."""


def matched(
    recorded: Index,
    others: Collection[str],
    ran: Mapping[Spot, tuple[int, ...]],  # the shapes of the other model's tensors
    names: Mapping[str, str] | None,  # pattern of a recorded name -> pattern of the other
) -> dict[str, str]:
    """Return each compared module's name -> its recorded name; ValueError for a pattern that matches nothing."""
    here = list(dict.fromkeys([*recorded.modules, *(spot.module for spot in recorded.spots)]))
    if names is not None:
        return {"": ""} | _by_patterns(here, others, names)
    same = {name: name for name in here if name in others}
    if len(same) >= SAME_NAMES_MIN * min(len(here), len(others)):
        return {"": ""} | same
    # By order and shape of what modules without modules inside first returned.
    shapes = {spot: entry.shape for spot, entry in recorded.spots.items()}
    return {"": ""} | _by_order(_first_outputs(recorded.modules, shapes), _first_outputs(others, ran))


def _by_patterns(here: Iterable[str], others: Collection[str], names: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    used = set()
    for name in here:
        for pattern, other in names.items():
            match = re.fullmatch(f"{expression_of(pattern)}(\\..*)?", name)
            if match is None:
                continue
            used.add(pattern)
            *parts, rest = match.groups(default="")
            twin = _filled(other, parts) + rest
            if twin in others:
                found.setdefault(twin, name)
            break
        else:
            if name in others:
                found.setdefault(name, name)
    for pattern, other in names.items():
        if pattern not in used:
            raise unknown("name in names", pattern, here)
        if not any(re.fullmatch(f"{expression_of(other)}(\\..*)?", name) for name in others):
            raise unknown("name in names", other, others)
    return found


def _filled(pattern: str, parts: Iterable[str]) -> str:
    """Return a pattern with each star replaced by a part.

    >>> _filled("blocks.*.attn", ["3"])
    'blocks.3.attn'
    """
    texts = iter(parts)
    return re.sub(STAR, lambda star: next(texts, star[0]), pattern)


def _first_outputs(
    modules: Collection[str], shapes: Mapping[Spot, tuple[int, ...]]
) -> list[tuple[str, tuple[int, ...]]]:
    """Return (name, shape of the first output of its first call) of modules without modules inside, as they ran."""
    inner = {name.rpartition(".")[0] for name in modules if name}
    return [
        (spot.module, shape)
        for spot, shape in shapes.items()
        if spot.part == "output" and not spot.call and spot.path in ("", "0") and spot.module not in inner
    ]


def _by_order(
    here: Sequence[tuple[str, tuple[int, ...]]], there: Sequence[tuple[str, tuple[int, ...]]]
) -> dict[str, str]:
    shapes = [shape for _, shape in here], [shape for _, shape in there]
    blocks = SequenceMatcher(None, *shapes, autojunk=False).get_matching_blocks()
    return {there[b + i][0]: here[a + i][0] for a, b, size in blocks for i in range(size)}
