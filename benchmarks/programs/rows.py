"""The rows of the table, each made in a process of its own."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.health.runner import quiet
from benchmarks.programs.catalogue import HELD_OUT, NEWER, POSTS
from benchmarks.programs.repair import followed, is_repaired
from benchmarks.programs.trial import Post, Program, Trained, built, trained

from hookboard import HealthMonitor

SEEDS = (0, 1, 2)

HARM_MARGIN = 0.1
"""A fix must score so much better than its fault for the program to be in the table: on each seed, or, where the
fault or its fix comes and goes with the seed, as its `port` says, on the seed that is judged."""


def each(act: Callable[[str], Any], names: Sequence[str], processes: int) -> Iterator[Any]:
    if processes == 1:
        yield from map(act, names)
        return
    with multiprocessing.get_context("spawn").Pool(processes, quiet) as pool:
        yield from pool.imap(act, names)


def by_name(name: str) -> Post:
    return next(post for post in POSTS + HELD_OUT + NEWER if post.name == name)


def harm(name: str) -> str:
    """The scores of fault and fix on each seed, and whether the fix beats the fault on all of them."""
    post = by_name(name)
    pairs = [[trained(built(post, fixed, seed), seed, None).score for fixed in (False, True)] for seed in SEEDS]
    harmed = [seed for seed, pair in zip(SEEDS, pairs, strict=True) if is_harm(*pair)]
    verdict = "harm" if len(harmed) == len(pairs) else f"harm on {harmed}" if post.seed in harmed else "NO HARM"
    scores = "  ".join(f"{wrong:.3g} -> {right:.3g}" for wrong, right in pairs)
    return f"{name:33} {verdict:15} {scores}"


def is_harm(wrong: float, right: float) -> bool:
    return right - wrong >= HARM_MARGIN


def judged(name: str, every: int) -> dict[str, Any]:
    """Train a program faulty and fixed on each seed, on one of them with a monitor; returns its row of the table.

    A fix that is no better than its fault, as one that diverges with the rounding of this machine, is none: what is
    said of it is no false alarm, and its seed does not count for the repair.
    """
    post = by_name(name)

    def run(fixed: bool, seed: int) -> Trained:
        monitor = HealthMonitor() if seed == post.seed else None
        return trained(built(post, fixed, seed), seed, monitor, every)

    fault, fix = run(False, post.seed), run(True, post.seed)
    scores = {
        seed: (fault.score, fix.score) if seed == post.seed else (run(False, seed).score, run(True, seed).score)
        for seed in SEEDS
    }
    harmed = {seed: pair for seed, pair in scores.items() if is_harm(*pair)}
    return {
        "post": post.name,
        "source": post.source,
        "fault": post.fault,
        "causes": post.causes,
        "found": bool(fault.alarms),
        "cause": bool(fault.alarms) and fault.alarms[0]["rule"] in post.causes,
        "false_alarm": bool(fix.alarms) and post.seed in harmed,
        **by_advice(post, fault, harmed),
        "harmed": list(harmed),
        "scores": [fault.score, fix.score],
        "seconds": [fault.seconds, fix.seconds],
        "alarms": fault.alarms,
        "alarms_on_fix": fix.alarms,
    }


def by_advice(post: Post, fault: Trained, harmed: dict[int, tuple[float, float]]) -> dict[str, Any]:
    """Follow the advice of the first alarm, and train for as many steps as the fix, on each seed that shows the harm.

    Args:
        post: the program.
        fault: its faulty training, as it was judged.
        harmed: seed to the scores of fault and fix.

    Returns:
        `followed`: the words of the advice that a script could follow, "" for none; `repaired_seeds`; and `repaired`:
        most seeds are. What as many steps alone repair does not count.
    """
    done = followed(built(post, False, post.seed), **_first(fault)) if fault.alarms else None
    if done is None:
        return {"followed": "", "repaired_seeds": [], "repaired": False}
    repaired = [seed for seed, pair in harmed.items() if _is_repaired(post, fault, seed, *pair)]
    return {"followed": done[0], "repaired_seeds": repaired, "repaired": 2 * len(repaired) > len(harmed)}


def _first(fault: Trained) -> dict[str, str]:
    return {what: fault.alarms[0][what] for what in ("advice", "module")}


def _is_repaired(post: Post, fault: Trained, seed: int, wrong: float, right: float) -> bool:
    program, steps = built(post, False, seed), built(post, True, seed).steps
    done = followed(built(post, False, seed), **_first(fault))
    assert done is not None  # the same advice could be followed on another seed
    if not is_repaired(wrong, right, scored_after(done[1], max(steps, program.steps), seed)):
        return False
    return steps <= program.steps or not is_repaired(wrong, right, scored_after(program, steps, seed))


def scored_after(program: Program, steps: int, seed: int) -> float:
    return trained(replace(program, steps=steps), seed, None).score
