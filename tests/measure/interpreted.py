"""What the Triton kernels compute, on tensors of the CPU under Triton's interpreter: test_triton.py runs this file."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import assert_true, normal, row_of, rows_of_channels
from triton.language import semantic
from ways import MANY_VALUES, statistics

from hookboard.measure import memory, native, on_gpu
from hookboard.measure.by_torch import widened
from hookboard.measure.row import BINS, WIDTH, as_single, bins_of, channel_row_count
from hookboard.measure.statistics import FORMULAS, plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site

sys.path.append(str(Path(__file__).parent))

# Of older interpreters of Triton, on what they do themselves.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim > 0 to a scalar:DeprecationWarning")
ALL = plan(list(FORMULAS))
FLOATS = list(on_gpu.DTYPES)
every_float = pytest.mark.parametrize("dtype", FLOATS, ids=str)


@pytest.fixture(autouse=True)
def kernel_is_used(monkeypatch):
    """Tensors of the CPU take the way of an accelerator; a kernel that fails is an error."""
    monkeypatch.setattr(native, "_native", None)
    monkeypatch.setattr(on_gpu, "_failed", set())
    monkeypatch.setattr(on_gpu, "_compiled", {})
    monkeypatch.setattr(memory, "DEVICES", {"cpu"})
    monkeypatch.setattr(on_gpu, "warn_switched_off", _fail)


def _fail(what, error):
    raise error


@pytest.fixture(autouse=True)
def one_false_is_a_mask(monkeypatch):
    """The interpreter of Triton 3.2 takes a mask of one False for no mask, and stores."""
    store = getattr(semantic, "_store_legacy", None)  # later ones have none

    def stored(to, value, mask, *rest):
        return None if mask is not None and not mask else store(to, value, mask, *rest)

    if store is not None:
        monkeypatch.setattr(semantic, "_store_legacy", stored)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 64 groups or 2 positions, so that few values make many programs with several tiles each."""
    tile = on_gpu._tile

    def small(layout, vector):
        return 8 if layout == memory.LAST else 16, tile(layout, vector)[1]

    monkeypatch.setattr(on_gpu, "_tile", small)
    monkeypatch.setattr(on_gpu, "_form", on_gpu._form.__wrapped__)  # keeps nothing from one test to another


def launches(monkeypatch):
    """The forms of the tensors that are launched from now on."""
    forms, launch = [], on_gpu._launch

    def noted(form, *given):
        forms.append(form)
        return launch(form, *given)

    monkeypatch.setattr(on_gpu, "_launch", noted)
    return forms


def job_of(values, dim=None, minus=None, *, row=0, is_fresh=True, bin_row=-1):
    how = {"has_minus": minus is not None, "with_abs_mean": True}
    form = on_gpu.form_of(values, dim, **how)
    if form is None:
        is_known = values.dtype in on_gpu.DTYPES
        values = (values if is_known else widened(values)).contiguous()
        form = on_gpu.form_of(values, dim, **how)
    return form, values, minus, row, is_fresh, bin_row


def rows_in(form):
    """How many rows a tensor has: its own, and those of its channels."""
    _, _, channels, _, every = form.numbers
    return 1 + (channel_row_count(channels) if every else 0)


def slab_for(jobs):
    """Memory for the rows of jobs, one after the other; and the jobs with these rows."""
    ends = np.cumsum([rows_in(form) for form, *_ in jobs]).tolist()
    jobs = [(*job[:3], row, *job[4:]) for job, row in zip(jobs, [0, *ends], strict=False)]
    return torch.full((ends[-1], WIDTH), math.nan, dtype=torch.float64), jobs


def own_rows(slab, job):
    return slab[job[3] : job[3] + rows_in(job[0])]


def measured(values, dim=None, *, counts=None, into=None):
    """The rows that the kernel gives of a tensor: its own, then those of its channels."""
    job = job_of(values, dim, row=2, is_fresh=into is None, bin_row=-1 if counts is None else 1)
    slab = torch.full((rows_in(job[0]) + 4, WIDTH), 7.0, dtype=torch.float64)
    own = own_rows(slab, job)
    own.copy_(torch.full_like(own, math.nan) if into is None else into)
    bins = NO_BINS if counts is None else torch.stack([torch.zeros_like(counts), counts])
    assert on_gpu.measure_into(job, slab, bins)
    assert (slab[[0, 1, -2, -1]] == 7).all(), "rows of others are left alone"
    if counts is not None:
        assert not bins[0].any()
        counts.copy_(bins[1])
    return own


NO_BINS = torch.zeros(0, BINS, dtype=torch.long)


def counts():
    return torch.zeros(BINS, dtype=torch.long)


def bins_in(values):
    return torch.bincount(bins_of(as_single(values)), minlength=BINS)


def assert_rows(rows, tensors, dim, every=1):
    np.testing.assert_allclose(rows, rows_of_channels(tensors, dim)[::every], rtol=1e-6, atol=1e-12)


SHORT = {
    name: values
    for name, values in MANY_VALUES.items()
    if values.dtype in on_gpu.DTYPES and 0 < values.numel() <= 20_000 and values.is_contiguous()
}
"""Others are in SHAPES."""


@pytest.mark.parametrize("values", SHORT.values(), ids=SHORT)
def test_every_statistic_equals_the_truth(values):
    assert_true(statistics(measured(values)[0]), [values])


@pytest.mark.parametrize(
    ("first", "mean"),
    [([math.nan] * 8, -1e4), ([0.0] * 300, 1e4), ([1e30], -1e4)],
    ids=["NaN first", "zeros first", "far"],
)
def test_a_small_deviation_about_a_large_mean_is_true(small_tiles, first, mean):
    values = torch.cat([torch.tensor(first), normal(700, mean=mean, std=0.1)])
    assert_true(statistics(measured(values)[0]), [values])


def test_a_first_tile_without_a_finite_value_takes_no_precision(small_tiles, monkeypatch):
    monkeypatch.setattr(on_gpu, "processors", lambda device: 1)
    monkeypatch.setattr(on_gpu, "PROGRAMS_PER_PROCESSOR", 1)
    values = torch.cat([torch.full((200,), math.nan), normal(900, mean=12345.678, std=0.005)])
    assert_true(statistics(measured(values)[0]), [values])


def test_a_channel_without_a_finite_value_in_the_first_tiles_takes_no_precision(small_tiles, monkeypatch):
    monkeypatch.setattr(on_gpu, "processors", lambda device: 1)
    values = normal(200, 4, mean=1e5, std=0.1)
    values[:40, 1], values[:8, 2], values[:, 3] = math.nan, -math.inf, math.nan
    assert_rows(measured(values, 1)[1:], [values], 1)


@pytest.mark.parametrize("length", [49, 98, 103])
def test_equal_values_have_themselves_as_their_mean_and_no_deviation(length):
    for value in (1.0, 0.1, -1e30):
        row = measured(torch.full((length,), value))[0]
        assert row[1:3].tolist() == [torch.tensor(value).item(), 0.0]


@every_float
@pytest.mark.parametrize("length", [1, 63, 64, 65, 500])
@pytest.mark.parametrize("first", [0, 3])
def test_sums_are_true_at_the_borders_of_tiles_wherever_a_tensor_begins(small_tiles, dtype, length, first):
    values = normal(length + first, dtype=dtype)[first:]
    np.testing.assert_allclose(measured(values)[0], np.array(row_of(values.double().numpy()), dtype=float), rtol=1e-6)


def test_many_programs_with_several_tiles_each_are_true(small_tiles, monkeypatch):
    monkeypatch.setattr(on_gpu, "processors", lambda device: 2)
    values = torch.cat([torch.zeros(100), normal(900, mean=1e4, std=0.1), normal(400, std=1e30), normal(5)])
    assert_true(statistics(measured(values)[0]), [values])


SHAPES = {
    "Linear": (normal(17, 24), 1),
    "Linear, few channels": (normal(60, 5), 1),
    "Linear, many channels": (normal(5, 150), 1),
    "a transformer": (normal(2, 5, 70), -1),
    "Conv": (normal(2, 3, 5, 7), 1),
    "Conv, aligned": (normal(2, 3, 4, 8), 1),
    "channels_last": (normal(2, 6, 5, 7).to(memory_format=torch.channels_last), 1),
    "a weight": (normal(4, 5, 3, 3), 0),
    "a weight, aligned": (normal(4, 5, 4, 4), 0),
    "each third unit of a weight": (normal(12, 40)[::3], 0),
    "permuted": (normal(4, 5, 6).permute(2, 0, 1), 1),
    "gaps": (normal(8, 6, 5)[:, ::2], 1),
    "one channel": (normal(50, 1), 1),
    "one position": (normal(1, 50), 1),
}


@pytest.mark.parametrize(("values", "dim"), SHAPES.values(), ids=SHAPES)
def test_rows_of_channels_and_of_all_equal_the_truth(small_tiles, values, dim):
    values = values.bfloat16()
    if values.numel() > 20:
        values = values.clone() if values.is_contiguous() or values.dim() == 4 else values
        values[(0,) * values.dim()] = math.nan
        values[(-1,) * values.dim()] = math.inf
        values[(0,) * (values.dim() - 1) + (-1,)] = 0
    rows = measured(values, dim)
    assert_rows(rows[1:], [values], dim % values.dim())
    np.testing.assert_allclose(rows[0], np.array(row_of(values.double().numpy()), dtype=float), rtol=1e-6, atol=1e-12)


ONE_OF_EACH_LAYOUT = ["Linear", "Conv", "channels_last", "a weight", "each third unit of a weight"]


@pytest.mark.parametrize("name", ONE_OF_EACH_LAYOUT)
def test_calls_of_a_site_are_merged_into_its_rows(small_tiles, name):
    values, dim = SHAPES[name]
    other = values * 3 + 100
    rows = measured(other, dim, into=measured(values, dim))
    assert_rows(rows[1:], [values, other], dim % values.dim())
    assert_true(statistics(rows[0]), [values, other])


@pytest.mark.parametrize(
    ("dtype", "shape", "memory_format", "dim"),
    [
        (FLOATS[0], (2, 5, 10, 5), torch.contiguous_format, None),
        (FLOATS[1], (2, 5, 10, 5), torch.contiguous_format, 1),
        (FLOATS[0], (2, 25, 2, 5), torch.channels_last, 1),
    ],
    ids=["whole", "channels", "channels last"],
)
def test_bins_are_exactly_those_of_torch(small_tiles, dtype, shape, memory_format, dim):
    values = torch.cat([normal(200).relu(), normal(200, std=1e-3), normal(80, std=1e30), -torch.zeros(20)]).to(dtype)
    values[:3] = torch.tensor([math.inf, -math.inf, math.nan])
    values, found = values.view(shape).to(memory_format=memory_format), counts() + 7
    for _ in range(2):  # what is left in memory would be found the second time
        measured(values, dim, counts=found)
    assert torch.equal(found - 7, 2 * bins_in(values))


DIFFERENT = {
    "weights": (lambda dtype: normal(8, 20, dtype=dtype), None),
    "a bias": (lambda dtype: normal(7, dtype=dtype), None),
    "units of a weight": (lambda dtype: normal(12, 16, dtype=dtype)[::3], 0),
    "no alignment": (lambda dtype: normal(41, dtype=dtype)[1:], None),
}


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_tensors_and_differences_of_all_kinds_are_true(small_tiles, dtype):
    jobs, true = [], []
    for make, dim in DIFFERENT.values():
        tensor = make(dtype)
        less = (tensor * 0.99).contiguous()
        for minus in (None, less):
            jobs.append(job_of(tensor, None if minus is not None else dim, minus))
            true.append(tensor if minus is None else tensor.float() - minus.float())
    slab, jobs = slab_for(jobs)
    assert all(on_gpu.measure_into(job, slab, NO_BINS) for job in jobs)
    for job, values in zip(jobs, true, strict=True):
        own = own_rows(slab, job)
        assert_true(statistics(own[0]), [values])
        if rows_in(job[0]) > 1:
            assert_rows(own[1:], [values], 0)


def table(channels=None, **options):
    mine = Table(ALL, torch.device("cpu"), histogram=True, channels=channels, **options)
    assert mine._slabs[torch.device("cpu")].kernel is on_gpu
    return mine


def test_many_sites_of_a_recorder_take_one_launch_for_each_tensor(small_tiles, monkeypatch):
    mine = table(lambda site, tensor: 1)
    tensors = {name: normal(30, 4 + len(name), mean=len(name)) for name in ("a", "bb")}
    forms = launches(monkeypatch)
    for _ in range(2):  # in the second step there is memory already
        forms.clear()
        for name, tensor in tensors.items():
            observe = mine.open(Site(name, "output"))
            observe(tensor)
            observe(tensor[:10])
        assert len(forms) == 4
        readings = {reading.site.path: reading for reading in mine.send()().values()}
        for name, tensor in tensors.items():
            parts = [tensor, tensor[:10]]
            assert_true(readings[name].statistics, parts)
            assert_rows(readings[name].channels, parts, 1)
            assert readings[name].histogram.counts.sum() == 40 * tensor.shape[1]


def test_calls_of_a_site_that_no_kernel_reads_are_merged_with_those_that_one_does(small_tiles):
    mine, parts = table(), [normal(300), normal(50, dtype=torch.float64), normal(20).to_sparse()]
    for part in parts:
        mine.open(Site("a", "output"))(part)
    (reading,) = mine.send()().values()
    assert_true(reading.statistics, [part.to_dense() for part in parts])
    assert reading.histogram.counts.sum() == 370


def test_a_gradient_of_a_recorder_is_unscaled(monkeypatch):
    mine = table()
    mine.scale = torch.tensor(1024.0)
    gradient = normal(10, 20, dtype=torch.float16)
    forms = launches(monkeypatch)
    mine.open(Site("a", "grad_output"))(gradient)
    assert len(forms) == 1
    (reading,) = mine.send()().values()
    assert_true(reading.statistics, [gradient.double() / 1024])


def fails_to_launch(monkeypatch, *messages):
    """Each launch fails with the next of these messages, then all work; returns what is said of it."""
    said, errors, workspace = [], list(messages), on_gpu._workspace
    monkeypatch.setattr(on_gpu, "warn_switched_off", lambda what, error: said.append(str(error)))

    def failing(*args):
        if errors:
            raise RuntimeError(errors.pop(0))
        return workspace(*args)

    monkeypatch.setattr(on_gpu, "_workspace", failing)
    return said


def test_where_a_kernel_fails_torch_measures_and_one_warning_says_so(monkeypatch):
    said = fails_to_launch(monkeypatch, "no such instruction")
    mine, values = table(), normal(100)
    mine.open(Site("a", "output"))(values)
    mine.open(Site("a", "output"))(values)
    (reading,) = mine.send()().values()
    assert_true(reading.statistics, [values] * 2)
    assert reading.histogram.counts.sum() == 200
    assert said == ["no such instruction"]


def launched(tensor):
    """Whether a tensor could be measured."""
    slab, (job,) = slab_for([job_of(tensor)])
    return on_gpu.measure_into(job, slab, NO_BINS)


def test_a_variant_that_fails_leaves_the_others(monkeypatch):
    said = fails_to_launch(monkeypatch, "no such instruction")
    worked = [launched(normal(9, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16, torch.float32)]
    assert worked == [False, True, False]
    assert said == ["no such instruction"]


def test_a_lack_of_memory_is_not_the_end_of_a_kernel(monkeypatch):
    said = fails_to_launch(monkeypatch, "Triton Error [CUDA]: out of memory")
    assert [launched(normal(9)) for _ in range(2)] == [False, True]
    assert not said


@pytest.mark.parametrize(("shape", "dim"), [((9, 20), 1), ((2, 20, 3, 2), 1), ((20, 2), 0)], ids=str)
def test_every_kth_channel_of_a_wide_tensor_has_its_row(small_tiles, monkeypatch, shape, dim):
    monkeypatch.setattr("hookboard.measure.row.MAX_CHANNEL_ROWS", 16)
    memory.shape_in_memory.cache_clear()
    tensor = normal(*shape)
    rows = measured(tensor, dim)
    memory.shape_in_memory.cache_clear()
    assert_rows(rows[1:], [tensor], dim, every=2)
    assert_true(statistics(rows[0]), [tensor])
