"""What is true: float64 library functions over the raw numbers of a step, all in one array."""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor


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
    """Each measured statistic equals the truth to `rel`.

    A mean that cancels to nothing is known to float64's own precision of the numbers that went into it, not better.
    """
    tensors = list(tensors)
    expected = truth(tensors)
    assert measured, "nothing was measured"
    for name, value in measured.items():
        true = expected[name]
        rounding = 1e-14 * expected["abs_max"] if name == "mean" and math.isfinite(expected["abs_max"]) else 0.0
        close = math.isclose(value, true, rel_tol=rel, abs_tol=rounding)
        assert close or (math.isnan(value) and math.isnan(true)), f"{name}: measured {value!r}, true {true!r}"


def normal(*shape: int, mean: float = 0.0, std: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * std + mean).to(dtype)


def rows_of_channels(tensors: Iterable[Tensor], dim: int) -> np.ndarray:
    """The row of each channel of all tensors together: the columns of `hookboard.measure.FIELDS`."""
    parts = [t.detach().movedim(dim, 0).reshape(t.shape[dim], -1).double().numpy(force=True) for t in tensors]
    return np.array([row_of(values) for values in np.concatenate(parts, axis=1)], dtype=np.float64)


def row_of(values: np.ndarray) -> list[float]:
    """The row of some numbers."""
    x = values[np.isfinite(values)].astype(np.longdouble)
    found = [np.isnan(values).sum(), np.isposinf(values).sum(), np.isneginf(values).sum()]
    if not x.size:
        return [0.0, 0.0, 0.0, 0.0, 0.0, *found, math.inf, -math.inf]
    return [x.size, x.mean(), x.std(), np.abs(x).mean(), (x == 0).sum(), *found, x.min(), x.max()]
