"""Holds a watched run against the bare one and against the oracle: what is wrong, one sentence each."""

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from combinations.case import Case, OnPurposeError
from combinations.raw import Raw, Slot, Step
from combinations.running import Outcome, case_of, run
from lightning.pytorch import Callback
from oracle import truth
from torch import Tensor

import hookboard as hb
from hookboard import Reading
from hookboard.model.sites import ATTENTION_ROLES


def faults(names: Sequence[str], folder: Path) -> list[str]:
    """What is wrong with hookboard in these circumstances."""
    case = case_of(names, folder)
    bare, watched = run(names, "bare", folder), run(names, "watched", folder)
    found = [f"disturbed: {fault}" for fault in differences(bare.state, watched.state)]
    if type(bare.error) is not type(watched.error):
        found.insert(0, f"disturbed: it ended with {bare.error!r} without hookboard, with {watched.error!r} beside it")
    found += [f"left behind: {fault}" for fault in differences(bare.left, watched.left)]
    found += [f"lost: {line}" for line in watched.said if "switched off" in line]
    if bare.error is not None and not was_on_purpose(bare.error):
        is_same_end = type(watched.error) is type(bare.error) or case.is_compiled  # a graph is another with hooks in it
        error = f"{type(bare.error).__name__}: {bare.error}"
        return [f"cannot be: without hookboard it ends with {error}"] if is_same_end else found
    observed = run(names, "observed", folder)
    if not case.is_compiled and not case.rounds:
        alike = differences(bare.state, observed.state)
        found += [f"the oracle itself disturbs: {fault}" for fault in alike]
    return found + (untrue(case, watched, observed) if is_alike(case, bare, observed) else [])


def is_alike(case: Case, bare: Outcome, observed: Outcome) -> bool:
    """Whether the oracle has seen the same run: uncompiled, other random numbers may be drawn.

    Losses that are not finite do not tell.
    """
    losses = [key for key in bare.state if ": loss " in key]
    if case.is_compiled and not all(bare.state[key].isfinite() for key in losses):
        return False
    return all(
        key in observed.state
        and torch.allclose(bare.state[key], observed.state[key], 5e-3 if case.is_half else 1e-3, equal_nan=True)
        for key in losses
    )


def was_on_purpose(error: BaseException) -> bool:
    """Whether the case asked for this end; Lightning exits after an interrupt."""
    return isinstance(error, (OnPurposeError, SystemExit))


def differences(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What is not the same, bit for bit."""
    return [
        f"{key}: {short(mine.get(key))} became {short(theirs.get(key))}"
        for key in dict.fromkeys([*mine, *theirs])
        if key not in mine or key not in theirs or not is_same(mine[key], theirs[key])
    ]


def is_same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, Tensor) and isinstance(theirs, Tensor):
        return mine.dtype == theirs.dtype and mine.shape == theirs.shape and bits(mine).equal(bits(theirs))
    if isinstance(mine, np.ndarray):
        return np.array_equal(mine, theirs)
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(is_same(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return len(mine) == len(theirs) and all(map(is_same, mine, theirs))
    return bool(mine == theirs) or (mine != mine and theirs != theirs)


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().flatten().contiguous().view(torch.uint8)


def short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.flatten()[:3].tolist()}, {value.dtype}" if value.numel() > 1 else repr(value.item())
    text = repr(value)
    return text if len(text) < 300 else f"{text[:300]}..."


# Numbers.


def untrue(case: Case, watched: Outcome, observed: Outcome) -> list[str]:
    """Readings that are not what the oracle computes, and tensors without a reading of which nothing is said."""
    found = []
    raw = observed.raw
    assert raw is not None
    for (number, fit, stage, step), readings in watched.readings.items():
        one = watched.ours[number]
        where = f"{type(one).__name__} in {stage} {step} of fit {fit}"
        alike = 0 if case.is_compiled else 1  # the last step before rounding has parted the two runs
        if case.is_half and (case.is_compiled or case.rounds) and (fit > 1 or step > alike):
            continue
        tensors = raw.steps.get((fit, stage, step))
        if tensors is None:
            found.append(f"untrue: {where}: the oracle has seen no such step")
        elif not (isinstance(one, hb.HealthMonitor) and stage == "validate"):  # it looks at the first batches only
            found += [f"untrue: {where}: {wrong}" for reading in readings for wrong in wrong_in(case, reading, tensors)]
            found += [f"missing: {where}: {slot}" for slot in missing(case, one, readings, tensors, raw, watched.said)]
    steps = [key for key in raw.steps if key[1] == "train"]
    if observed.error is not None:
        steps = steps[:-1]  # a step that others end in its middle need not be measured
    for number, one in enumerate(watched.ours):
        if hasattr(one, "readings") and one.every_n_steps == 1:
            have = {key[1:] for key in watched.readings if key[0] == number}
            none = [
                key
                for key in steps
                if key not in have and any(kept and is_wanted(one, slot, raw) for slot, kept in raw.steps[key].items())
            ]
            found += [f"missing: {type(one).__name__} has nothing of step {key}" for key in none]
    return found


def wrong_in(case: Case, reading: Reading, tensors: Step) -> list[str]:
    """The statistics of a reading that are not true."""
    site = reading.site
    if (site.role, site.name) in case.changed_later or site.name in case.not_defined or not site.name:
        return []
    if site.role in ATTENTION_ROLES:
        return []  # the oracle sees no call of a function; tests/measure/test_attention.py has one of attention
    name = f"{site.role} {site.path}"
    values = tensors.get((site.role, site.name, site.index))
    if not values:
        is_zero = values is not None and reading.moments.max == reading.moments.min == 0
        # A graph makes zeros of a gradient that does not come; what a module changed in place has no oracle.
        is_open = values is not None and (site.role == "grad_input" or (case.is_compiled and is_zero))
        return [] if is_open else [f"{name}: the oracle has seen no such tensor"]
    if case.rounds and site.role == "grad_input":
        return []  # its parts are added up in half precision, in an order that is torch's own
    is_loose = case.is_compiled or case.rounds
    if site.role == "parameter_update":
        expected = of_update(values)
    else:
        expected = truth(plain(value) for value in values)
        count = sum(plain(value).numel() for value in values)
        measured = reading.moments.count + reading.moments.nonfinite
        if measured == measured and measured != count:
            return [f"{name}: {measured} values were measured, there were {count}"]
    wrong = []
    for statistic, value in reading.statistics.items():
        if statistic not in expected or (reading.overflowed and not statistic.endswith("_count")):
            continue
        if is_loose and statistic in ("zero_fraction", "unchanged_fraction"):
            continue
        true, size = expected[statistic], expected.get("abs_max", 0.0)
        size = size if math.isfinite(size) else 0.0
        rel = (3e-2 if case.is_half else 1e-3) if is_loose else 1e-6
        if not close(value, true, rel, (0.1 * rel if is_loose else 1e-12) * size):
            wrong.append(f"{name}: {statistic} is {value!r}, truly {true!r}")
    return wrong


def close(value: float, true: float, rel: float, of_size: float) -> bool:
    return math.isclose(value, true, rel_tol=rel, abs_tol=of_size) or (math.isnan(value) and math.isnan(true))


def of_update(values: list[Tensor]) -> dict[str, float]:
    """As everywhere, of what is finite; of nothing there is no fraction."""
    before, after = (value.double().flatten() for value in values[-2:])
    change = (after - before)[(after - before).isfinite()]
    norm, size = change.norm().item(), before[before.isfinite()].norm().item()
    norm = norm if len(change) else math.nan
    ratio = norm / size if size else math.nan if norm != norm or norm == 0 else math.inf
    return {"update_norm": norm, "update_ratio": ratio, "unchanged_fraction": (change == 0).double().mean().item()}


def plain(tensor: Tensor) -> Tensor:
    return torch.cat([part.flatten() for part in tensor.unbind()]) if tensor.is_nested else tensor


def missing(
    case: Case, one: Callback, readings: Sequence[Reading], tensors: Step, raw: Raw, said: Sequence[str]
) -> list[Slot]:
    """What the oracle has seen, and our callback neither measured nor named."""
    have = {(reading.site.role, reading.site.name, reading.site.index) for reading in readings}
    lines = [line for line in said if "hookboard" in line]
    return [
        slot
        for slot, values in tensors.items()
        if values and slot not in have and is_wanted(one, slot, raw) and slot[:2] not in case.changed_later
        if not any(is_named(slot[1], line) for line in lines)
        if not (case.is_compiled and is_beyond_graphs(slot, values, raw))
    ]


def is_named(name: str, line: str) -> bool:
    """Whether a line names a module, if by a pattern or as one of those that it leaves out."""
    words = (word.strip(",:'") for word in line.split())
    return name in line or " more" in line or any("*" in word and fnmatchcase(name, word) for word in words)


def is_beyond_graphs(slot: Slot, values: Sequence[Tensor], raw: Raw) -> bool:
    """Whether it is what compiled graphs cannot show, as docs/limits.md says."""
    return any(value.is_nested for value in values) or (slot[0] == "grad_output" and slot[1] in raw.passing)


ROLES: dict[type[Callback], list[str]] = {
    hb.ParameterLogger: ["parameter"],
    hb.HealthMonitor: ["output", "grad_output", "parameter_before"],
}


def is_wanted(one: Any, slot: Slot, raw: Raw) -> bool:
    """Whether a callback of ours should measure this."""
    role, name, _ = slot
    wanted = ROLES.get(type(one)) or ([one.roles] if isinstance(one.roles, str) else one.roles)
    return role in wanted and (role.startswith("parameter") or name in raw.leaves or one.modules == "**")
