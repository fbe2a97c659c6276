"""What is measured of an optimizer's own state: its moments, and how far a gradient is from what they expect."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from hookboard.measure import FORMULAS, Moments, StatisticColumns, blocks_of, measuring_device, single_at_least
from hookboard.parameters import Weight
from hookboard.recording import Readings, Recorder
from hookboard.sites import Site

STATES = {"exp_avg_rms": "exp_avg", "exp_avg_sq_rms": "exp_avg_sq", "momentum_buffer_rms": "momentum_buffer"}
"""The RMS of what the optimizers of torch keep for each parameter, by the name of the statistic."""

SURPRISE = "rms_t"
"""How large a gradient is, as the second moment of the optimizer expects it."""

NEEDS = FORMULAS["rms"].needs

WHY_NOT = "the optimizer keeps no such state of it, or none yet"


def measure_states(
    recorder: Recorder, optimizers: Iterable[Optimizer], weights: Mapping[str, Weight], statistics: Collection[str]
) -> None:
    """Measure what the optimizers keep of these weights now.

    Args:
        recorder: measures.
        optimizers: all optimizers of the fit.
        weights: the watched weights by name.
        statistics: names from `STATES`.
    """
    for optimizer in optimizers:
        for name, parameter, _ in _held(optimizer, weights):
            state = optimizer.state.get(parameter, {})
            for statistic in statistics:
                kept = state.get(STATES[statistic])
                if isinstance(kept, Tensor):
                    recorder.open(Site(name, "parameter_state", statistic))(kept)


def measure_surprise(recorder: Recorder, optimizer: Optimizer, weights: Mapping[str, Weight]) -> None:
    """Measure `g / sqrt(max(v, eps²))` of the weights that have a second moment. Their gradients must still be there.

    Args:
        recorder: measures.
        optimizer: has just stepped.
        weights: the watched weights by name.
    """
    for name, parameter, group in _held(optimizer, weights):
        state = optimizer.state.get(parameter, {})
        if parameter.grad is None or not _has_second_moment(state, group):
            continue
        observe = recorder.open(Site(name, "parameter_state", SURPRISE))
        for gradient, kept in blocks_of(parameter.grad.detach(), state["exp_avg_sq"]):
            gradient = gradient.to_dense() if gradient.is_sparse else gradient
            expected = _without_bias(kept, state["step"], group["betas"][1])
            observe(gradient.to(single_at_least(gradient.dtype)) / expected.clamp_(min=group["eps"] ** 2).sqrt_())


def after_next_step(optimizer: Optimizer, do: Callable[[], None]) -> Callable[[], None]:
    """Have something done once, right after the optimizer has stepped; returns what takes that back.

    Nothing is done for an optimizer that takes no hooks: Lightning knows others than those of torch.
    """
    is_done = False

    def hook(*given: Any) -> None:
        nonlocal is_done
        if not is_done:
            is_done = True
            do()

    if not isinstance(optimizer, Optimizer):
        return lambda: None
    return optimizer.register_step_post_hook(hook).remove


def with_states(readings: Readings) -> StatisticColumns:
    """Return the statistics of the readings, with those of an optimizer's state at the row of their parameter."""
    columns, places = readings.statistics, readings.places
    columns = StatisticColumns(columns.names, columns.values.copy(), columns.is_there.copy())
    of_states = places.of_role("parameter_state")
    if of_states:
        with np.errstate(all="ignore"):
            rms = np.asarray(FORMULAS["rms"].value(Moments(*readings.rows.T)))
        names, owners = (tuple(getattr(site, part) for site in of_states) for part in ("index", "name"))
        rows, owner = np.array([places.row(site) for site in of_states]), places.rows("parameter", owners)
        is_kept = readings.is_filled[rows] & (owner >= 0)
        for name in dict.fromkeys(names):
            mine = is_kept & np.array([each == name for each in names])
            values, is_there = np.full(len(readings), np.nan), np.zeros(len(readings), bool)
            values[owner[mine]], is_there[owner[mine]] = rms[rows[mine]], True
            columns = columns.joined({name: values}, is_there)
    return columns


def _has_second_moment(state: Mapping[str, Any], group: Mapping[str, Any]) -> bool:
    is_kept = isinstance(state.get("exp_avg_sq"), Tensor) and state.get("step") is not None
    return is_kept and "betas" in group and "eps" in group


def _without_bias(kept: Tensor, step: Any, beta: float) -> Tensor:
    """The second moment without its bias towards the 0 that it began with, in memory of its own."""
    steps = torch.as_tensor(step, device=measuring_device(kept.device)).double()
    wide = single_at_least(kept.dtype)
    moment: Tensor = kept.to(wide) / (1 - beta**steps).to(wide)
    return moment


def _held(optimizer: Optimizer, weights: Mapping[str, Weight]) -> Iterator[tuple[str, Parameter, dict[str, Any]]]:
    """Name, parameter and group of each weight that the optimizer holds and no parametrization computes."""
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    for name, weight in weights.items():
        if not weight.is_computed and id(weight.parameters[0]) in groups:
            yield name, weight.parameters[0], groups[id(weight.parameters[0])]
