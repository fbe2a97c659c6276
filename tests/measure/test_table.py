"""What a table has measured is what float64 computes over all tensors of the step, of any kind, whoever reads them.

The cases are rows in which each pair of circumstances meets at least once.
"""

import logging
import math

import numpy as np
import pytest
import torch
from allpairspy import AllPairs
from oracle import assert_derived, assert_true, derived, normal, rows_of_channels
from ways import KERNELS, MANY_VALUES, SITE
from ways import measured as of_one_site

from hookboard import HookboardWarning, Statistic
from hookboard.measure import native
from hookboard.measure.row import MAX_CHANNEL_ROWS, channel_stride
from hookboard.measure.statistics import DERIVED, FORMULAS, plan
from hookboard.measure.table import MOST_READERS, Table
from hookboard.model.sites import Site

AXES = {
    "dtype": ["float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "int32", "bool", "complex64"],
    "layout": [
        "dense",
        "channels last",
        "transposed",
        "every second",
        "gaps",
        "expanded",
        "wide",
        "coo",
        "nested",
    ],
    "values": ["normal", "far from 0", "half zeros", "not finite", "constant", "beyond float32's squares"],
    "role": ["output", "grad_output", "parameter_update"],
    "calls": ["one", "three", "one of them empty", "of two shapes"],
    "kernel": KERNELS,
}


def can_be(row):
    case = dict(zip(AXES, row, strict=False))
    dtype, layout, values, role = (case.get(name) for name in ("dtype", "layout", "values", "role"))
    is_float = dtype in (None, "float32", "float64", "bfloat16", "float16")
    if not is_float and (role != "output" or values in ("not finite", "beyond float32's squares")):
        return role is None and values not in ("not finite", "beyond float32's squares")
    if dtype in ("float16", "bfloat16") and values in ("far from 0", "beyond float32's squares"):
        return False
    if layout in ("coo", "nested") and (role == "parameter_update" or dtype not in (None, "float32", "float64")):
        return False
    return not (role == "parameter_update" and (layout == "expanded" or case.get("calls") not in (None, "one")))


CASES = [dict(zip(AXES, row, strict=True)) for row in AllPairs(list(AXES.values()), filter_func=can_be)]
SCALE = 8.0


def values(kind, *shape):
    x = normal(*shape, dtype=torch.float64)
    if kind == "far from 0":
        x = 1e3 + x
    if kind == "half zeros":
        x = x.relu()
    if kind == "constant":
        x = torch.full_like(x, 1.5)
    if kind == "beyond float32's squares":
        x = x * 1e25
    if kind == "not finite":
        flat = x.view(-1)
        flat[3], flat[7], flat[11] = math.nan, math.inf, -math.inf
    return x


def tensor(case, number):
    """One of a step's tensors, which has its channels in the dimension 1."""
    shape = (4 + number, 6 + (case["calls"] == "of two shapes") * number, 5, 2)
    if case["calls"] == "one of them empty" and number == 1:
        return torch.zeros(0, *shape[1:]).to(getattr(torch, case["dtype"]))
    if case["layout"] == "wide":
        shape = (2, 2 * MAX_CHANNEL_ROWS + 5, 1, 2)
    x = values(case["values"], *shape).to(getattr(torch, case["dtype"]))
    match case["layout"]:
        case "channels last":
            return x.contiguous(memory_format=torch.channels_last)
        case "transposed":
            return x.transpose(0, 1).contiguous().transpose(0, 1)
        case "every second":
            return x.repeat_interleave(2, 0)[::2]
        case "gaps":
            return x.repeat_interleave(2, 2)[:, :, ::2]
        case "expanded":
            return x[:1].expand(3, *x.shape[1:])
        case "coo":
            return x.to_sparse()
        case "nested":
            return torch.nested.as_nested_tensor([x[:1], x[1:]])
    return x


def dense(given):
    """All its values as a dense tensor; of a complex one, their sizes."""
    given = torch.cat(list(given.unbind())) if given.is_nested else given.to_dense()
    return given.to(torch.complex128).abs() if given.is_complex() else given


NEAR_ZERO = Statistic("near_zero", lambda x: (dense(x).double().abs() < 0.5).double().mean(), merge="mean")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested:UserWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(case.values()))
def test_each_statistic_is_that_of_all_values(monkeypatch, case):
    if case["kernel"] == "by torch":
        monkeypatch.setattr(native, "_native", None)
    site = Site("layer", case["role"])
    table = Table(
        plan([*FORMULAS, *DERIVED, NEAR_ZERO]), torch.device("cpu"), histogram=True, channels=lambda site, tensor: 1
    )
    given, true = [], []
    for number in range(1 if case["calls"] == "one" else 3):
        one = tensor(case, number)
        if case["role"] == "grad_output":
            table.scale = torch.tensor(SCALE)
            true.append(dense(one))
            one = one * SCALE
        elif case["role"] == "parameter_update":
            before = one.clone() * 0.5
            wide = torch.float64 if one.dtype is torch.float64 else torch.float32
            true.append(one.to(wide) - before.to(wide))
            table.observe_all([(site, one, before)])
            continue
        else:
            true.append(dense(one))
        given.append(one)
        table.open(site)(one)

    reading = table.send()()[site]

    of_moments = {name: value for name, value in reading.statistics.items() if name in FORMULAS}
    assert_true(of_moments, true)
    has_channels = case["layout"] not in ("coo", "nested") and case["calls"] != "of two shapes"
    has_channels &= case["dtype"] != "complex64"
    assert (reading.channels is not None) == has_channels
    if has_channels:
        every = channel_stride(true[0].shape[1])
        expected = rows_of_channels([each for each in true if each.numel()], 1)[::every]
        np.testing.assert_allclose(reading.channels, expected, rtol=1e-6, atol=1e-6)
        assert reading.width == true[0].shape[1]
    if case["role"] == "parameter_update":
        assert reading.histogram is None
        return
    x = torch.cat([each.double().flatten() for each in true])
    finite = x[x.isfinite()]  # none, where float8 overflows to NaN, as in torch 2.6
    assert reading.histogram.counts.sum() == len(finite)
    if len(finite):
        assert (reading.histogram.edges[0], reading.histogram.edges[-1]) == (finite.min(), finite.max())
    near = [(each.double().abs() < 0.5).double().flatten() for each in true]
    assert reading.statistics["near_zero"] == pytest.approx(torch.cat(near).mean().item(), rel=1e-6)
    if case["layout"] == "dense" and has_channels:
        of_more = {name: value for name, value in reading.statistics.items() if name in DERIVED}
        assert of_more.keys() == derived(true).keys()
        if case["dtype"] not in ("int32", "bool"):
            assert_derived(of_more, true)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("values", MANY_VALUES.values(), ids=MANY_VALUES)
def test_every_value_is_measured_truly_whole_and_in_parts(kernel, values):
    assert_true(of_one_site(values, kernel=kernel).statistics, [values])
    parts = [*values.flatten().double()[:3].split(1), values.flatten().double()[3:]]
    assert_true(of_one_site(*parts, kernel=kernel).statistics, [values])


def test_a_site_of_empty_tensors_has_no_reading():
    table = Table(plan("mean"), torch.device("cpu"))
    table.open(Site("layer", "output"))(torch.zeros(0, 3))
    assert not table.send()()


def test_another_number_of_channels_in_one_step_leaves_those_of_the_next_steps_and_of_other_sites_alone():
    table = Table(plan("dead_fraction"), torch.device("cpu"), channels=lambda site, tensor: 1)
    site, other = Site("layer", "output"), Site("other", "output")
    for _ in range(3):
        table.open(site)(torch.ones(2, 3))
        table.open(other)(torch.full((2, 5), 7.0))
        table.open(site)(torch.ones(2, 4))
        found = table.send()()
        assert found[site].channels is None
        assert found[site].moments.count == 14
        assert found[other].moments.count == 10
        assert found[other].moments.mean == 7.0
    table.open(site)(torch.full((2, 4), 2.0))
    assert table.send()()[site].channels[:, 1].tolist() == [2.0] * 4


def test_tensors_of_ever_new_sizes_leave_no_more_and_more_memory_behind():
    table = Table(plan("dead_fraction"), torch.device("cpu"), histogram=True, channels=lambda *_: 0)
    for width in range(1, 400):
        table.open(SITE)(torch.ones(width))
        reading = table.send()()[SITE]
        assert (len(reading.channels), reading.histogram.counts.sum()) == (width, width)
    (slab,), (slot,) = table._slabs.values(), table._slots.values()
    assert len(slab.rows) <= 4 * 400
    assert len(slab.bins) == 1
    assert len(slot.readers) <= MOST_READERS


def test_the_update_of_a_complex_parameter_is_the_modulus_of_the_difference():
    table, site = Table(plan(["l2", "max"]), torch.device("cpu")), Site("weight", "parameter_update")
    before = torch.complex(normal(7), normal(7, mean=3.0))
    after = before + torch.complex(normal(7, std=1e-2), normal(7, std=0.1))
    for _ in range(2):
        table.observe_all([(site, after, before)])
        assert_true(table.send()()[site].statistics, [(after - before).to(torch.complex128).abs()])


def test_a_gradient_is_divided_by_the_scale_that_it_carries_while_the_scale_changes_within_a_step():
    own = Statistic("own", lambda x: x.double().max(), merge="max")
    table = Table(plan(["max", "dead_fraction", own]), torch.device("cpu"), histogram=True, channels=lambda *_: 0)
    both, first, empty = (Site(name, "grad_output") for name in ("both", "first", "empty"))
    for _ in range(2):
        table.open(empty)(torch.ones(0))
        for scale in (8.0, 4.0):
            table.scale = torch.tensor(scale)
            table.open(both)(torch.tensor([0.0, 3.0, 1.0]) * scale)
            if scale == 8.0:
                table.open(first)(torch.tensor([5.0]) * scale)
                table.open(empty)(torch.tensor([6.0]) * scale)
        table.scale = None
        found = table.send()()
        for site, largest, count in ((both, 3.0, 6), (first, 5.0, 1), (empty, 6.0, 1)):
            assert found[site].statistics["max"] == found[site].statistics["own"] == largest
            assert found[site].moments.count == found[site].histogram.counts.sum() == count
        assert found[both].statistics["dead_fraction"] == pytest.approx(1 / 3)
        assert found[empty].statistics["dead_fraction"] == 0


def test_a_step_has_nothing_of_the_step_before_nor_of_one_that_did_not_end():
    table = Table(plan(["min", "max"]), torch.device("cpu"), histogram=True, channels=lambda site, tensor: 0)
    site = Site("layer", "output")
    table.open(site)(torch.tensor([-5.0, 6.0]))
    first = table.send()()[site]
    table.open(site)(torch.tensor([7.0]))
    table.forget()
    table.open(site)(torch.tensor([1.0, 2.0, 2.0]))
    second = table.send()()[site]
    assert second.statistics == {"min": 1.0, "max": 2.0}
    assert second.histogram.counts.sum() == 3
    assert site not in table.send()()
    assert first.statistics == {"min": -5.0, "max": 6.0}
    assert first.channels[:, 1].tolist() == [-5.0, 6.0]


def test_a_count_beyond_what_float32_holds_is_exact():
    assert of_one_site(torch.zeros(1).expand(2**24 + 1)).moments.zeros == 2**24 + 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_deviation_much_smaller_than_the_mean_is_exact(kernel):
    parts = [normal(100_000, mean=1e6, std=1e-3, dtype=torch.float64) for _ in range(3)]
    assert_true(of_one_site(*parts, kernel=kernel).statistics, parts)


def test_a_site_that_cannot_be_measured_is_named_once_and_others_go_on():
    table = Table(plan("mean"), torch.device("cpu"))
    with pytest.warns(HookboardWarning, match="output of 'bad' is switched off.*a meta tensor has no values"):
        table.open(Site("bad", "output"))(torch.zeros(2, device="meta"))
    table.open(Site("bad", "output"))(torch.zeros(2))  # a second warning would be an error
    table.open(Site("good", "output"))(torch.ones(2))
    assert [site.name for site in table.send()()] == ["good"]
    assert table.is_off("bad", "output")


def test_of_weights_that_are_measured_together_only_the_one_that_fails_is_switched_off():
    weights = {Site(f"weight{number}", "parameter"): torch.full((4,), float(number)) for number in range(3)}
    table = Table(plan("mean"), torch.device("cpu"))
    table.observe_all((site, weight, None) for site, weight in weights.items())
    assert len(table.send()()) == 3
    weights[Site("weight1", "parameter")].untyped_storage().resize_(0)
    with pytest.warns(HookboardWarning, match="parameter of 'weight1' is switched off.*its memory has been freed"):
        table.observe_all((site, weight, None) for site, weight in weights.items())
    found = table.send()()
    assert {site.name: found[site].statistics["mean"] for site in found} == {"weight0": 0.0, "weight2": 2.0}


def test_packed_values_of_a_quantized_parameter_are_not_taken_for_numbers():
    class Packed(torch.nn.Parameter):
        def __new__(cls, data):
            return torch.Tensor._make_subclass(cls, data, False)

    table = Table(plan("mean"), torch.device("cpu"))
    with pytest.warns(HookboardWarning, match="holds values that only the module can unpack"):
        table.open(Site("weight", "parameter"))(Packed(torch.zeros(3, dtype=torch.uint8)))


def test_many_sites_grow_the_table_and_keep_their_numbers():
    table = Table(plan("mean"), torch.device("cpu"), channels=lambda site, tensor: 0)
    sites = [Site(f"layer{number}", "output") for number in range(300)]
    table.observe_all((site, torch.full((7,), float(number)), None) for number, site in enumerate(sites))
    found = table.send()()
    assert [found[site].statistics["mean"] for site in sites] == list(range(300))


@pytest.mark.parametrize(
    ("merge", "whole"), [("mean", torch.mean), ("sum", torch.sum), ("min", torch.min), ("max", torch.max)]
)
def test_a_statistic_of_ones_own_merges_unequal_calls_by_its_rule(merge, whole):
    parts = [normal(3), normal(500), normal(20, mean=2.0)]
    mine = Statistic("mine", lambda x: getattr(x.double(), merge)(), merge=merge)
    found = of_one_site(*parts, statistics=[mine]).statistics["mine"]
    assert found == pytest.approx(whole(torch.cat(parts).double()).item(), rel=1e-9)


def test_a_statistic_of_ones_own_gets_a_detached_tensor_of_each_call():
    mine = Statistic("mine", lambda x: float(x.numpy().max()), merge="max")
    parts = [normal(5).requires_grad_() * 2 for _ in range(3)]
    assert of_one_site(*parts, statistics=[mine]).statistics["mine"] == parts[0].max().item()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_sparse_tensor_that_stores_every_value_has_no_zero_in_its_range(kernel):
    values = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    moments = of_one_site(values.to_sparse(), kernel=kernel).moments
    assert (moments.min, moments.max, moments.zeros, moments.count) == (1.0, 5.0, 0.0, 4.0)


@pytest.mark.parametrize("has_kernel", [True, False])
def test_without_the_kernel_alone_one_line_says_what_it_costs_and_how_to_get_it(has_kernel, monkeypatch, caplog):
    if has_kernel:
        pytest.importorskip("hookboard.measure._native", reason="installed without a C compiler")
    else:
        monkeypatch.setattr(native, "_native", None)
    native.report_missing_kernel.cache_clear()
    with caplog.at_level(logging.INFO, "lightning.pytorch"):
        for _ in range(2):
            Table(plan("mean"), torch.device("cpu")).send()()
    native.report_missing_kernel.cache_clear()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (0 if has_kernel else 1)
    for line in lines:
        assert line.startswith("hookboard: the compiled kernel is missing")
        assert "4 to 17 times as long" in line
        assert "install a C compiler" in line
