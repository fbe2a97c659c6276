"""What only a GPU can show. It has run on an H200: please tell what `pytest -m gpu` says on another card."""

import math
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import assert_true, normal, rows_of_channels
from torch import nn
from toys import Toy, batches, fit, mlp

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger
from hookboard.measure import memory
from hookboard.measure.statistics import FORMULAS, plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site

sys.path.insert(0, str(Path(__file__).parent))  # there is another one in tests/callbacks
from ways import MANY_VALUES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
CUDA = torch.device("cuda", 0)
FLOATS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def no_kernel_fails(monkeypatch):
    on_gpu = pytest.importorskip("hookboard.measure.on_gpu", reason="there is no Triton here")
    monkeypatch.setattr(on_gpu, "_failed", set())
    yield
    assert not on_gpu._failed


def table(**options):
    return Table(plan(list(FORMULAS)), CUDA, histogram=True, **options)


def measured(tensors, **options):
    mine = table(**options)
    for tensor in tensors:
        mine.open(Site("a", "output"))(tensor)
    (reading,) = mine.send()().values()
    return reading


@pytest.mark.parametrize("values", MANY_VALUES.values(), ids=MANY_VALUES)
def test_every_statistic_equals_the_truth(values):
    assert_true(measured([values.cuda()]).statistics, [values])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("shape", "dim"), [((300, 70), 1), ((8, 512, 768), 2), ((16, 33, 14, 14), 1), ((16, 32, 7, 7), 1), ((7, 5000), 1)]
)
def test_channels_and_histograms_equal_the_truth(dtype, shape, dim):
    parts = [normal(*shape, mean=3.0, dtype=dtype), normal(*shape, std=0.1, dtype=dtype)]
    reading = measured([part.cuda() for part in parts], channels=lambda site, tensor: dim)
    every = -(-shape[dim] // 4096)
    np.testing.assert_allclose(reading.channels, rows_of_channels(parts, dim)[::every], rtol=1e-6)
    assert_true(reading.statistics, parts)
    assert reading.histogram.counts.sum() == 2 * parts[0].numel()


@pytest.mark.large
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_tensor_of_many_programs_is_true_each_time(dtype):
    """The programs of a launch end in another order each time."""
    values = torch.randn(50_000_011, device="cuda").to(dtype)
    wide = values.double()
    for _ in range(20):
        found = measured([values]).statistics
        assert found["mean"] == pytest.approx(wide.mean().item(), rel=1e-6)
        assert found["std"] == pytest.approx(wide.std().item(), rel=1e-6)
        assert found["l1"] == pytest.approx(wide.abs().sum().item(), rel=1e-6)
    from hookboard.measure import on_gpu

    assert not any(counters.any() for _, counters in on_gpu._workspaces.values())


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_bins_that_torch_counts_are_those_of_the_cpu(monkeypatch, is_deterministic):
    monkeypatch.setattr(memory, "DEVICES", set())
    part = torch.cat([normal(5_000_000), torch.tensor([math.nan, math.inf, 0.0, -0.0, 1e-40])])
    on_cpu = Table(plan("mean"), torch.device("cpu"), histogram=True)
    on_cpu.open(Site("a", "output"))(part)
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        found = measured([part.cuda()]).histogram
    finally:
        torch.use_deterministic_algorithms(False)
    (expected,) = on_cpu.send()().values()
    assert np.array_equal(found.counts, expected.histogram.counts)
    assert np.array_equal(found.edges, expected.histogram.edges)


def test_what_another_stream_makes_is_waited_for():
    stream, parts = torch.cuda.Stream(), []
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        parts = [torch.full((1000,), float(each), device="cuda") for each in range(5)]
        mine = table()
        for part in parts:
            mine.open(Site("a", "output"))(part)
    (reading,) = mine.send()().values()
    assert_true(reading.statistics, [part.cpu() for part in parts])


def test_the_capture_of_a_cuda_graph_is_not_disturbed():
    x = normal(1000).cuda()
    observe = Table(plan("mean"), CUDA).open(Site("a", "output"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        with pytest.warns(UserWarning, match="CUDA graph"):
            observe(y)
    graph.replay()
    assert torch.equal(y, x + 1)


def test_a_tensor_on_the_host_has_bins_of_its_own():
    parts = [normal(100), normal(50)]
    reading = measured([parts[0].cuda(), parts[1]])
    assert_true(reading.statistics, parts)
    assert reading.histogram.counts.sum() == 150


@needs_two
def test_each_device_measures_its_own_tensors():
    parts = [normal(1000), normal(300, mean=9.0)]
    reading = measured([part.to(f"cuda:{index}") for index, part in enumerate(parts)])
    assert_true(reading.statistics, parts)
    assert reading.histogram.counts.sum() == 1300


def due(**options):
    return [
        ActivationLogger(every_n_steps=1, **options),
        GradientLogger(every_n_steps=1, roles=["grad_output", "parameter_grad"], **options),
        ParameterLogger(every_n_steps=1, **options),
        HealthMonitor(every_n_steps=1),
    ]


WAYS = {
    "bf16": {"precision": "bf16-true"},
    "bf16-mixed": {"precision": "bf16-mixed"},
    "16-mixed": {"precision": "16-mixed"},
    "accumulation": {"accumulate_grad_batches": 2},
    "DDP on NCCL": {"strategy": "ddp_notebook", "devices": 2},
    "FSDP": {"strategy": "fsdp", "devices": 1},
}


@pytest.mark.spawns
@pytest.mark.parametrize("way", WAYS)
def test_a_fit_measures_everything_without_a_word(tmp_path, way):
    if WAYS[way].get("devices") == 2 and torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    callbacks = due(histogram=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*is switched off from now on")
        fit(tmp_path, Toy(mlp()), batches(*[8] * 6), *callbacks, accelerator="gpu", **{"devices": 1} | WAYS[way])
    if WAYS[way].get("devices") == 1 or "devices" not in WAYS[way]:  # others have trained in other processes
        assert all(len(callback.readings) for callback in callbacks[:3])


def convolutions():
    torch.manual_seed(0)
    convolution = [nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    return nn.Sequential(nn.Linear(4, 16), *convolution, nn.Dropout(0.1), nn.Flatten(), nn.Linear(128, 3))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_weights_are_those_without_callbacks(tmp_path, monkeypatch, precision):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    ends = []
    for callbacks in ([], due(histogram=True)):
        torch.manual_seed(0)
        model = Toy(convolutions())
        options = {"accelerator": "gpu", "devices": 1, "precision": precision}
        fit(tmp_path / str(len(ends)), model, batches(*[8] * 6), *callbacks, **options)
        ends.append([parameter.detach().cpu() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))
