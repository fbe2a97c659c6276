"""Monitors of others: a Lightning callback that watches a training, and then has its alarms in `alarms`.

It is given as `package.module:factory`, the place of what makes one without arguments, such as its class.
"""

import importlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from benchmarks.health.alarms import Alarm
from benchmarks.health.cases import Case, build
from benchmarks.health.runner import fit, quiet
from benchmarks.health.training import Task


def factory_of(place: str) -> Callable[[], Any]:
    """Return what stands at `package.module:factory`.

    Raises:
        ValueError: there is no colon, no such module, or no such name in it.
    """
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]  # whatever stands there
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"--monitor {place}: give package.module:factory; {error}") from None


def watched(place: str, case: Case) -> list[Alarm]:
    """Train a case beside a new monitor alone; returns its alarms, the first one first."""
    torch.set_num_threads(1)
    quiet()
    setup, _ = build(case)
    monitor = factory_of(place)()
    fit(setup, (setup.task or Task)(setup, case.seed), [monitor])
    return sorted(monitor.alarms, key=lambda alarm: alarm.since)


def watched_all(place: str, cases: Iterable[Case], processes: int) -> Iterator[tuple[Case, list[Alarm]]]:
    """Yield each case with the alarms of the monitor, when it has been trained."""
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_watched, [(place, case) for case in cases])


def _watched(job: tuple[str, Case]) -> tuple[Case, list[Alarm]]:
    return job[1], watched(*job)
