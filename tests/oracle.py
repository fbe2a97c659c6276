"""What is true: float64 library functions over the raw numbers of a step, all in one array."""

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from hookboard.measure.statistics import DERIVED

QUANTILES = [name for name in DERIVED if re.fullmatch(r"p\d\d", name)]
"""`p01` is the quantile at 0.01."""


def losses_of_descent(model: nn.Module, batch: tuple[Tensor, Tensor], rate: float, steps: int) -> list[float]:
    """The squared error of a gradient descent in float64: before each step, and after the last. Changes the model."""
    model, losses = model.double(), []
    x, y = (part.double() for part in batch)
    for _ in range(steps + 1):
        loss = mse_loss(model(x), y)
        losses.append(loss.item())
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= rate * p.grad
    return losses


def fall_of(losses: list[float]) -> float:
    """The share of the loss that is gone, by the mean of the last five."""
    return 1 - sum(losses[-5:]) / 5 / losses[0]


def truth(tensors: Iterable[Tensor]) -> dict[str, float]:
    """Every built-in statistic of all elements of the tensors together."""
    everything = np.concatenate([t.detach().double().numpy(force=True).ravel() for t in tensors])
    x = everything[np.isfinite(everything)]
    empty = not x.size
    if (not empty and np.max(np.abs(x)) > 1e100) or 0 < np.max(np.abs(x), initial=0) < 1e-100:
        x = x.astype(np.longdouble)  # whose squares do not overflow
    numbers = {
        "mean": math.nan if empty else np.mean(x),
        "std": math.nan if empty else np.std(x, ddof=1) if x.size > 1 else 0.0,
        "var": math.nan if empty else np.var(x, ddof=1) if x.size > 1 else 0.0,
        "min": math.nan if empty else np.min(x),
        "max": math.nan if empty else np.max(x),
        "abs_max": math.nan if empty else np.max(np.abs(x)),
        "abs_mean": math.nan if empty else np.mean(np.abs(x)),
        "rms": math.nan if empty else np.sqrt(np.mean(np.square(x))),
        "l1": math.nan if empty else np.linalg.norm(x, 1),
        "l2": math.nan if empty else np.linalg.norm(x, 2),
        "zero_fraction": math.nan if empty else np.mean(x == 0),
        "nonfinite_count": float(np.sum(~np.isfinite(everything))),
        "nan_count": float(np.sum(np.isnan(everything))),
        "inf_count": float(np.sum(np.isinf(everything))),
    }
    return {name: float(number) for name, number in numbers.items()}


def assert_true(measured: dict[str, float], tensors: Iterable[Tensor], rel: float = 1e-6) -> None:
    """Each measured statistic equals the truth to `rel`."""
    assert_equals(measured, truth(tensors), rel)


def assert_equals(measured: dict[str, float], expected: dict[str, float], rel: float = 1e-6) -> None:
    """Each measured statistic equals what `truth` gave to `rel`.

    A mean that cancels to nothing is known to float64's own precision of the numbers that went into it, not better.
    """
    assert measured, "nothing was measured"
    for name, value in measured.items():
        assert name in expected, f"add {name!r} to `truth` in tests/oracle.py"
        true = expected[name]
        rounding = 1e-14 * expected["abs_max"] if name == "mean" and math.isfinite(expected["abs_max"]) else 0.0
        close = math.isclose(value, true, rel_tol=rel, abs_tol=rounding)
        assert close or (math.isnan(value) and math.isnan(true)), f"{name}: measured {value!r}, true {true!r}"


def normal(*shape: int, mean: float = 0.0, std: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * std + mean).to(dtype)


def rows_of_channels(tensors: Iterable[Tensor], dim: int) -> np.ndarray:
    """The row of each channel of all tensors together: the columns of `hookboard.measure.row.FIELDS`."""
    parts = [t.detach().movedim(dim, 0).reshape(t.shape[dim], -1).double().numpy(force=True) for t in tensors]
    return np.array([row_of(values) for values in np.concatenate(parts, axis=1)], dtype=np.float64)


def row_of(values: np.ndarray) -> list[float]:
    """The row of some numbers."""
    x = values[np.isfinite(values)].astype(np.longdouble)
    found = [np.isnan(values).sum(), np.isposinf(values).sum(), np.isneginf(values).sum()]
    if not x.size:
        return [0.0, 0.0, 0.0, 0.0, 0.0, *found, math.inf, -math.inf]
    return [x.size, x.mean(), x.std(), np.abs(x).mean(), (x == 0).sum(), *found, x.min(), x.max()]


def derived(tensors: Iterable[Tensor], dim: int = 1) -> dict[str, float]:
    """The built-in statistics that need more than moments, of all tensors together; without those that do not apply.

    Quantiles are exact here.
    """
    tensors = [t.detach() for t in tensors]
    dtype = tensors[0].dtype
    everything = np.concatenate([t.double().numpy(force=True).ravel() for t in tensors])
    x = everything[np.isfinite(everything)].astype(np.longdouble)
    size = np.abs(x[x != 0])
    numbers = {
        **{name: np.quantile(x, int(name[1:]) / 100) if x.size else math.nan for name in QUANTILES},
        "fp16_underflow_fraction": np.mean(size < 2.0**-14) if size.size else math.nan,
    }
    if tensors[0].dim() > 1:
        columns = np.concatenate([t.movedim(dim, 0).reshape(t.shape[dim], -1).double() for t in tensors], axis=1)
        seen = np.isfinite(columns).any(axis=1)
        numbers["dead_fraction"] = np.mean((columns[seen] == 0).all(axis=1)) if seen.any() else math.nan
    if dtype.is_floating_point:
        largest = math.inf if not size.size else float(np.log2(torch.finfo(dtype).max) - np.log2(size.max()))
        numbers["headroom"] = largest if x.size else math.nan
        if dtype is not torch.float64:
            numbers["underflow_fraction"] = np.mean(size < torch.finfo(dtype).tiny) if size.size else math.nan
    return {name: float(number) for name, number in numbers.items()}


def assert_derived(measured: dict[str, float], tensors: Iterable[Tensor], dim: int = 1, **options: Any) -> None:
    """Each derived statistic that applies is there and equals the truth; quantiles to half the width of a bin."""
    tensors = list(tensors)
    expected = derived(tensors, dim, **options)
    assert measured.keys() == expected.keys(), f"here or there alone: {sorted(measured.keys() ^ expected.keys())}"
    for name, true in expected.items():
        value = measured[name]
        near = 1e-12 if name == "headroom" else 2.0**-131
        if name in QUANTILES and not math.isnan(true):
            near += max(abs(other) for other in _between(tensors, int(name[1:]) / 100)) / 32
        rel = 0.0 if name in QUANTILES else 1e-6
        close = math.isclose(value, true, rel_tol=rel, abs_tol=near)
        assert close or (math.isnan(value) and math.isnan(true)), f"{name}: measured {value!r}, true {true!r}"


def _between(tensors: list[Tensor], share: float) -> list[float]:
    """The two values that a quantile lies between."""
    x = torch.cat([t.double().flatten() for t in tensors])
    x = x[x.isfinite()]
    return [torch.quantile(x, share, interpolation=how).item() for how in ("lower", "higher")]
