"""The rows of the table, each made in a process of its own."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.health.runner import quiet
from benchmarks.programs.catalogue import HELD_OUT, POSTS
from benchmarks.programs.repair import followed, is_repaired
from benchmarks.programs.trial import Post, Program, Trained, built, trained

from hookboard import HealthMonitor

HARM_SEEDS = (0, 1, 2)

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
    return next(post for post in POSTS + HELD_OUT if post.name == name)


def harm(name: str) -> str:
    """The scores of fault and fix on each seed, and whether the fix beats the fault on all of them."""
    post = by_name(name)
    pairs = [[trained(built(post, fixed, seed), seed, None).score for fixed in (False, True)] for seed in HARM_SEEDS]
    harmed = [seed for seed, (wrong, right) in zip(HARM_SEEDS, pairs, strict=True) if right - wrong >= HARM_MARGIN]
    verdict = "harm" if len(harmed) == len(pairs) else f"harm on {harmed}" if post.seed in harmed else "NO HARM"
    scores = "  ".join(f"{wrong:.3g} -> {right:.3g}" for wrong, right in pairs)
    return f"{name:33} {verdict:15} {scores}"


def judged(name: str, every: int, experiments: bool = False) -> dict[str, Any]:
    """Train a program faulty and fixed with a monitor; returns its row of the table."""
    post = by_name(name)
    fault = trained(built(post, False, post.seed), post.seed, HealthMonitor(experiments=experiments), every)
    fix = trained(built(post, True, post.seed), post.seed, HealthMonitor(experiments=experiments), every)
    return {
        "post": post.name,
        "source": post.source,
        "fault": post.fault,
        "causes": post.causes,
        "found": bool(fault.alarms),
        "cause": bool(fault.alarms) and fault.alarms[0]["rule"] in post.causes,
        "false_alarm": bool(fix.alarms),
        **by_advice(post, fault, fix),
        "scores": [fault.score, fix.score],
        "seconds": [fault.seconds, fix.seconds],
        "alarms": fault.alarms,
        "alarms_on_fix": fix.alarms,
    }


def by_advice(post: Post, fault: Trained, fix: Trained) -> dict[str, Any]:
    """Follow the advice of the first alarm, and train for as many steps as the fix.

    Returns:
        `followed`: the words of the advice that a script could follow, "" for none; `score_by_advice`; and `repaired`.
        What as many steps alone repair does not count.
    """
    steps = built(post, True, post.seed).steps
    program = built(post, False, post.seed)
    done = followed(program, fault.alarms[0]["advice"], fault.alarms[0]["module"]) if fault.alarms else None
    if done is None:
        return {"followed": "", "score_by_advice": None, "repaired": False}
    words, changed = done
    score = scored_after(changed, max(steps, program.steps), post.seed)
    is_near = is_repaired(fault.score, fix.score, score)
    if is_near and steps > program.steps:
        is_near = not is_repaired(fault.score, fix.score, scored_after(built(post, False, post.seed), steps, post.seed))
    return {"followed": words, "score_by_advice": score, "repaired": is_near}


def scored_after(program: Program, steps: int, seed: int) -> float:
    return trained(replace(program, steps=steps), seed, None).score
