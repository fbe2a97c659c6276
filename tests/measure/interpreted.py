"""What the Triton kernels compute, on tensors of the CPU under Triton's interpreter: test_triton.py runs this file."""

import functools
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import assert_true, normal, row_of, rows_of_channels
from torch.utils._python_dispatch import TorchDispatchMode
from ways import statistics

from hookboard.measure import BINS, FORMULAS, accelerator, measure, measure_channels, merge_rows, native, plan
from hookboard.measure.histogram import as_single, bins_of
from hookboard.measure.values import unscaled
from hookboard.recording import Recorder
from hookboard.recording.rows import RowBuffer
from hookboard.sites import Site

sys.path.append(str(Path(__file__).parent))
from test_truth import MANY_VALUES

ALL = plan(list(FORMULAS))
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


@pytest.fixture(autouse=True)
def kernel_is_used(monkeypatch):
    """Tensors of the CPU take the way of an accelerator; a kernel that fails is an error."""
    monkeypatch.setattr(native, "_native", None)
    monkeypatch.setattr(accelerator, "_state", accelerator._State())
    monkeypatch.setattr(accelerator, "DEVICES", {"cpu"})
    monkeypatch.setattr(accelerator, "warn_switched_off", _fail)


def _fail(what, error):
    raise error


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 64 values: under the interpreter a sum of pairs is a loop in Python."""
    monkeypatch.setattr(accelerator, "TILES", {"flat": (64, 1), "spread": (64, 1), "last": (16, 16)})


@pytest.fixture
def pairs(monkeypatch, small_tiles):
    monkeypatch.setattr(accelerator, "adds_float64_fast", lambda device: False)


def launches(monkeypatch):
    """The names of the kernels that are launched from now on."""
    names, launch = [], accelerator._launch
    monkeypatch.setattr(accelerator, "_launch", lambda name, *rest: names.append(name) or launch(name, *rest))
    return names


def as_row(parts):
    assert parts.dim() == 2
    return merge_rows(parts, torch.zeros(len(parts), dtype=torch.long), 1, [])[0]


def counts():
    return torch.zeros(BINS, dtype=torch.long)


SHORT = {name: values for name, values in MANY_VALUES.items() if values.numel() <= 20_000}


@pytest.mark.parametrize("values", SHORT.values(), ids=SHORT)
def test_every_statistic_equals_the_truth(values):
    assert_true(statistics(as_row(measure(values, ALL))), [values])


@pytest.mark.parametrize("sign", [1, -1])
def test_a_small_deviation_about_a_large_mean_is_true(sign):
    values = normal(10_000, mean=sign * 1e4, std=0.1)
    assert_true(statistics(as_row(measure(values, ALL))), [values])


PAIRED = ["standard normal", "mean", "3e38", "subnormal", "NaN and infinities", "squares below float32", "bfloat16"]


@pytest.mark.parametrize("name", PAIRED)
def test_sums_of_pairs_are_as_true(pairs, name):
    values = normal(500, mean=1e4, std=0.1) if name == "mean" else MANY_VALUES[name][-500:]
    assert_true(statistics(as_row(measure(values, ALL))), [values])


@every_float
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 1000])
def test_sums_are_true_at_the_borders_of_tiles(small_tiles, dtype, length):
    values = normal(length, dtype=dtype)
    row = as_row(measure(values, ALL))
    np.testing.assert_allclose(row, np.array(row_of(values.double().numpy()), dtype=float), rtol=1e-6)


def test_many_programs_with_several_tiles_each_are_true(small_tiles, monkeypatch):
    monkeypatch.setattr(accelerator, "MAX_PROGRAMS", 8)
    values = torch.cat([torch.zeros(100), normal(2000, mean=1e4, std=0.1), normal(900, std=1e30), normal(5)])
    parts = measure(values, ALL)
    assert len(parts) == 8
    assert_true(statistics(as_row(parts)), [values])


SHAPES = {
    "Linear": (normal(33, 48), 1),
    "Linear, few channels": (normal(100, 10), 1),
    "a transformer": (normal(2, 9, 70), -1),
    "Conv": (normal(4, 6, 5, 7), 1),
    "channels_last": (normal(4, 6, 5, 7).to(memory_format=torch.channels_last), 1),
    "a weight": (normal(7, 5, 3, 3), 0),
    "permuted": (normal(4, 5, 6).permute(2, 0, 1), 1),
    "gaps": (normal(8, 6, 5)[:, ::2], 1),
    "one channel": (normal(50, 1), 1),
    "no values": (torch.empty(0, 3), 1),
}


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
@pytest.mark.parametrize(("values", "dim"), SHAPES.values(), ids=SHAPES)
def test_rows_of_channels_equal_the_truth(small_tiles, values, dim, dtype):
    values = values.to(dtype)
    if values.numel() > 20:
        values = values.clone()
        values[(0,) * values.dim()] = math.nan
    row, channels = measure_channels(values, dim, ALL)
    np.testing.assert_allclose(channels, rows_of_channels([values], dim % values.dim()), rtol=1e-6, atol=1e-12)
    assert as_row(row)[0] == values.isfinite().sum()


@every_float
@pytest.mark.parametrize(
    ("shape", "memory_format"),
    [
        ((2, 10, 10, 5), torch.contiguous_format),  # one program for each channel
        ((2, 50, 2, 5), torch.channels_last),  # one for as many as a tile has
    ],
    ids=str,
)
def test_bins_are_exactly_those_of_torch(dtype, shape, memory_format):
    values = torch.cat([normal(400).relu(), normal(400, std=1e-3), normal(160, std=1e30), -torch.zeros(40)]).to(dtype)
    values = values.view(shape).to(memory_format=memory_format)
    for measured in (measure, functools.partial(measure_channels, dim=1)):
        found = counts()
        measured(values, plan=ALL, counts=found)
        assert torch.equal(found, torch.bincount(bins_of(as_single(values)), minlength=BINS))


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_a_scale_is_divided_out_as_torch_does_it(dtype):
    values, scale = normal(300, dtype=dtype), torch.tensor(3.0)
    found, true = counts(), unscaled(values, scale)
    row = as_row(measure(values, ALL, counts=found, scale=scale))
    assert_true(statistics(row), [true])
    assert torch.equal(found, torch.bincount(bins_of(true), minlength=BINS))
    _, channels = measure_channels(values.view(30, 10), 1, ALL, scale=scale)
    np.testing.assert_allclose(channels, rows_of_channels([true.view(30, 10)], 1), rtol=1e-6, atol=1e-12)


class Watched(TorchDispatchMode):
    """Counts torch's operations that a device would run, and forbids those for which the host waits."""

    WAITS = ("_local_scalar_dense", "nonzero", "bincount", "masked_select", "_to_copy", "item")
    FREE = ("empty", "view", "detach", "slice", "select", "unsqueeze", "_unsafe_view", "permute", "alias", "t")

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        assert name not in self.WAITS, f"the host waits for {function}"
        if name not in self.FREE:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


CASES = {
    "plain": (normal(100, 20), None, {}, 1),
    "channels_last": (normal(4, 6, 5, 7).to(memory_format=torch.channels_last), None, {}, 1),
    "gaps": (normal(100, 20)[:, ::2], None, {}, 2),
    "scaled": (normal(100, 20, dtype=torch.float16), None, {"scale": torch.tensor(2.0)}, 1),
    "histogram": (normal(100, 20), None, {"counts": counts()}, 1),
    "channels": (normal(100, 20), 1, {}, 2),
    "channels, gaps, histogram, scale": (
        *(normal(100, 20)[:, ::2], 1),
        *({"counts": counts(), "scale": torch.tensor(2.0)}, 4),
    ),
}


@pytest.mark.parametrize(("values", "dim", "options", "most"), CASES.values(), ids=CASES)
def test_a_tensor_takes_few_launches_and_no_wait(small_tiles, monkeypatch, values, dim, options, most):
    launched = []
    monkeypatch.setattr(accelerator, "_launch", lambda name, *rest: launched.append(name) or True)
    with Watched() as watched:
        if dim is None:
            measure(values, ALL, **options)
        else:
            measure_channels(values, dim, ALL, **options)
    assert len(launched) + len(watched.names) <= most, launched + watched.names


def test_many_sites_of_a_recorder_are_merged_at_the_flush(small_tiles, monkeypatch):
    mine = Recorder(ALL, torch.device("cpu"), histogram=True, channels=lambda site, tensor: 1)
    tensors = {name: normal(50, 4 + len(name), mean=len(name)) for name in ("a", "bb", "ccc")}
    names = launches(monkeypatch)
    with Watched():
        for name, tensor in tensors.items():
            observe = mine.open(Site(name, "output"))
            observe(tensor)
            observe(tensor[:20])
    assert len(names) <= 2 * 6
    readings = {reading.site.path: reading for reading in mine.flush().values()}
    for name, tensor in tensors.items():
        parts = [tensor, tensor[:20]]
        assert_true(readings[name].statistics, parts)
        np.testing.assert_allclose(readings[name].channels, rows_of_channels(parts, 1), rtol=1e-6)
        assert readings[name].histogram.counts.sum() == 70 * tensor.shape[1]


def test_a_gradient_of_a_recorder_is_unscaled_by_the_kernel(monkeypatch):
    mine = Recorder(ALL, torch.device("cpu"))
    mine.scale = torch.tensor(1024.0)
    gradient = normal(10, 20, dtype=torch.float16)
    names = launches(monkeypatch)
    mine.open(Site("a", "grad_output"))(gradient)
    assert names == ["rows_of"]
    (reading,) = mine.flush().values()
    assert_true(reading.statistics, [gradient.double() / 1024])


def test_statistics_of_the_whole_tensor_stand_behind_the_merged_row():
    with_tails = plan(["mean", "std", "kurtosis"])
    values = normal(5000)
    row = measure(values, with_tails, counts=counts())
    assert row.shape == (with_tails.width,)
    kurtosis = (row[-1] / row[2]) ** 4
    away = values.double() - values.double().mean()
    assert abs(kurtosis - away.pow(4).mean() / away.square().mean() ** 2) < 1e-5


def test_rows_of_parts_in_a_long_loop_take_bounded_memory(small_tiles, monkeypatch):
    monkeypatch.setattr("hookboard.recording.rows.MOST_PARTS", 16)
    buffer, values = RowBuffer([], torch.device("cpu")), normal(160)
    for _ in range(12):
        buffer.append(0, measure(values, ALL))
        assert sum(len(row) for _, row in buffer.kept if isinstance(row, torch.Tensor)) <= 16
    assert_true(statistics(buffer.merged(buffer.take(), 1)[0]), [values] * 12)


def test_where_a_kernel_fails_torch_measures_and_one_warning_says_so(monkeypatch):
    said = []
    monkeypatch.setattr(accelerator, "_state", accelerator._State())
    monkeypatch.setattr(accelerator, "warn_switched_off", lambda what, error: said.append(str(error)))
    monkeypatch.setattr(accelerator, "_compile", lambda run: 1 / 0)
    values, found, scale = normal(100), counts(), torch.tensor(2.0)
    for _ in range(2):
        row = measure(values, ALL, counts=found, scale=scale)
        assert_true(statistics(torch.as_tensor(row)), [values / 2])
    assert said == ["division by zero"]
    assert found.sum() == 200


def test_long_compiling_is_said_once_with_its_seconds(monkeypatch):
    said, state = [], accelerator._State()
    monkeypatch.setattr(accelerator, "_state", state)
    monkeypatch.setattr(accelerator, "inform", said.append)
    for seconds in (0.5, 3.2, 9.0):
        state.seconds += seconds
        accelerator.report_compile_time()
    assert len(said) == 1
    assert "took 3.7 s" in said[0]


@pytest.mark.parametrize(("shape", "dim"), [((9, 50), 1), ((2, 3, 50), 2), ((2, 50, 3, 2), 1)], ids=str)
@pytest.mark.parametrize("way", ["plain", "scaled", "scaled, without kernels for channels"])
def test_every_kth_channel_of_a_wide_tensor_has_its_row(small_tiles, monkeypatch, shape, dim, way):
    monkeypatch.setattr("hookboard.measure.row.MAX_CHANNEL_ROWS", 16)
    tensor, scale = normal(*shape), None if way == "plain" else torch.tensor(1024.0)
    if way.endswith("channels"):
        rows_of = accelerator.rows_of
        monkeypatch.setattr(accelerator, "rows_of", lambda x, dim=None, **o: None if dim else rows_of(x, **o))
    _, rows = measure_channels(tensor if scale is None else tensor * scale, dim, ALL, scale=scale)
    np.testing.assert_allclose(np.asarray(rows), rows_of_channels([tensor], dim)[::4], rtol=1e-6, atol=1e-12)
