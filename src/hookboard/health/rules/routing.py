"""`experts`: the share of tokens that a router gives to each expert, in the first step and at later looks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hookboard.base.messages import listed
from hookboard.health.look import Look
from hookboard.health.rule import Finding, Rule
from hookboard.health.run import Router, Run
from hookboard.measure.row import FIELDS

TOKENS_PER_EXPERT = 32
"""A router is judged if each expert would get so many tokens on average (a choice): where they are spread evenly one of
64 experts is then without any in one of 10^12 batches."""

IDLE_SHARE = 0.5
"""Share of experts without tokens above which it is a note (a choice: new routers of small models leave out a few)."""

TIED_SHARE = 0.5
"""Share of tokens with ties for the last expert above which scores tell nothing (a choice: bfloat16 makes a few)."""

_COUNT, _MEAN = map(FIELDS.index, ("count", "mean"))


def experts(run: Run) -> Iterator[Finding]:
    """Report routers that leave out most experts; the first step is told as that step until a look counts."""
    first = {found.module: found for found in run.facts.findings if found.rule == "experts"}
    for router in run.facts.routers:
        said, counts = first.get(router.module), _counts_at(run, run.now, router)
        earlier = [_favourites(_counts_at(run, look, router), router.picks) for look in run.looks]
        if len({each for each in earlier if each}) > 1:  # as where each batch has one language
            continue
        found = uneven(router.module, counts, router.picks) if counts else said
        if not counts and said is not None and run.first is not None:
            found = replace(said, until=run.first.step)
        if found is not None and said is not None:
            found = replace(found, advice=said.advice)
        if found is not None:
            # No loss need show that a model of many experts has become one of few.
            yield replace(found, is_hard=found.severity == "alarm", is_root=found.severity == "alarm")


def _counts_at(run: Run, look: Look, router: Router) -> list[int]:
    return _tokens_of(look, router) or _rows_of(run, look, router)


def _favourites(counts: Sequence[int], picks: int) -> tuple[int, ...]:
    """Return the experts that all tokens get; () if others get some too."""
    used = tuple(number for number, each in enumerate(counts) if each)
    return used if len(used) == picks < len(counts) else ()


def _tokens_of(look: Look, router: Router) -> list[int]:
    """Return how many tokens each expert gets by what a layer returns; [] if that is not known, or not the only one."""
    sites = [site for site in look.readings.places.of_role("expert_tokens") if site.name == router.layer]
    seen = look.of(router.layer, "expert_tokens") if len(sites) == 1 else None
    if seen is None or seen.channels is None:
        return []
    return [round(each) for each in (seen.channels[:, _COUNT] * seen.channels[:, _MEAN]).tolist()]


def _rows_of(run: Run, look: Look, router: Router) -> list[int]:
    """Return how many vectors each expert gives, which is how many tokens it gets; [] if that is not known of all."""
    found = list[int]()
    for part in router.parts:
        inside = [layer.name for layer in run.layers if f"{layer.name}.".startswith(f"{part}.")]
        inside = [name for name in inside if name not in run.facts.unhooked]
        if not inside:
            return []
        readings = (look.of(name, "output") for name in inside)
        first = next((reading for reading in readings if reading is not None and reading.width), None)
        found.append(0 if first is None else round((first.moments.count + first.moments.nonfinite) / first.width))
    # Experts that work on all tokens give as many; and no expert gets more than there can be.
    return found if len(set(found)) > 1 and max(found) * router.picks <= sum(found) else []


def uneven(module: str, counts: Sequence[int], picks: int, ties: int = 0) -> Finding | None:
    """Return a finding if most experts are left out, or the scores are equal; None if not, or for few tokens."""
    tokens, count = sum(counts) // picks, len(counts)
    idle = [number for number, each in enumerate(counts) if not each]
    is_tied, takes_all = ties > TIED_SHARE * tokens, len(idle) == count - picks
    if tokens * picks < TOKENS_PER_EXPERT * count or not (is_tied or takes_all or len(idle) > IDLE_SHARE * count):
        return None
    most = max(range(count), key=counts.__getitem__)
    which = f" ({listed([str(number) for number in idle], 4)})" if idle else ""
    verb = "gets" if len(idle) == 1 else "get"
    who = f"{len(idle)} of {count} experts {verb} none" if idle else f"each of {count} experts gets some"
    evidence = f"{who} of the {tokens:,} tokens{which}; expert {most} gets {counts[most] / tokens:.0%}"
    if is_tied:
        evidence += f"; for {ties / tokens:.0%} of the tokens, a selected expert is tied with an unselected one"
    advice = (
        "initialize the router with random numbers"
        if is_tied
        else (
            "check the router's initialization and the scale of its input, and add a load-balancing loss if there is "
            "none"
        )
    )
    return Finding(module, evidence, advice, "alarm" if takes_all else "note")


EXPERTS = Rule("experts", experts)
