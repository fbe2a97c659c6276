"""What a recorder asks of an accelerator, on a pretended one."""

import numpy as np
import pytest
import torch
from oracle import assert_true, normal, rows_of_channels
from pretended import CUDA, Operations, Pretended, in_another_thread, pretend_cuda, pretend_kernels

from hookboard import Statistic
from hookboard.base.jobs import finished
from hookboard.base.rounds import run
from hookboard.measure import DERIVED, FORMULAS, Recorder, card, native, on_gpu, plan
from hookboard.model.sites import Site

HOST = torch.device("cpu")
FREE = {"detach", "alias", "view", "_unsafe_view", "slice", "select", "unbind", "empty", "new_empty", "as_strided"}
"""They launch nothing."""


class Counted(Operations):
    """Notes what is launched on a device, copies to the host among it."""

    def __init__(self, device):
        super().__init__(device)
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        given = torch.utils._pytree.tree_leaves((args, kwargs))
        if name not in FREE and any(isinstance(each, torch.Tensor) and each in self.pretended for each in given):
            self.names.append(name)
        return super().__torch_dispatch__(function, types, args, kwargs)


@pytest.fixture
def device(monkeypatch):
    device = Pretended()
    pretend_cuda(device, monkeypatch)
    pretend_kernels(device, monkeypatch)
    with device.modes():
        yield device


def there(device, tensor, index=0):
    """A copy of a tensor on a device."""
    return device.take(in_another_thread(tensor.clone), index)


def recorder(*statistics, **options):
    return Recorder(plan(statistics or tuple(FORMULAS)), CUDA, **options)


def channels(site, tensor):
    return tensor.dim() - 1 if tensor.dim() > 1 else None


@pytest.mark.parametrize("has_channels", [False, True], ids=["rows", "channels"])
@pytest.mark.parametrize("histogram", [False, True], ids=["", "histogram"])
def test_a_tensor_takes_one_launch_and_a_flush_as_many_operations_as_with_few_sites(device, has_channels, histogram):
    mine = recorder(histogram=histogram, channels=channels if has_channels else None)
    for count in (3, 60, 60):
        tensors = {Site(f"layer.{number}", "output"): there(device, normal(4, 40)) for number in range(count)}
        device.launches.clear()
        with Counted(device) as measuring:
            for site, tensor in tensors.items():
                mine.open(site)(tensor)
        with Counted(device) as flushing:
            readings = mine.send()
        assert device.launches == ["measure"] * count
        assert len(flushing.names) <= 20, flushing.names
    assert not measuring.names, "nothing but the launches, once there is memory"
    assert len(finished(readings)) == 60
    assert {wait.what for wait in device.waits} == {"sleep"}, "only the end, which has come too soon, waits"


def test_what_is_forgotten_is_in_no_reading_and_costs_no_wait(device):
    mine, site, tensor = recorder(histogram=True, channels=channels), Site("layer", "output"), normal(4, 40)
    mine.open(site)(there(device, normal(8, 40)))
    mine.forget()
    assert not device.waits
    mine.open(site)(there(device, tensor))
    reading = mine.flush()[site]
    assert_true(reading.statistics, [tensor])
    assert reading.histogram.counts.sum() == tensor.numel()


def test_all_weights_and_updates_of_a_step_take_at_most_six_launches(device):
    mine, given, true = recorder(channels=lambda site, tensor: 0 if tensor.dim() > 1 else None), [], {}
    for number, shape in enumerate([(64, 32), (64,), (10, 27), (10,), (64, 16, 3, 3), (7,)]):
        tensors = normal(*shape), normal(*shape, std=2.0)
        after, before = (there(device, tensor) for tensor in tensors)
        name = f"layer.{number}"
        true |= {(name, "parameter"): tensors[0], (name, "parameter_update"): tensors[0] - tensors[1]}
        given += [(Site(name, "parameter"), after, None), (Site(name, "parameter_before"), before, None)]
        given += [(Site(name, "parameter_update"), after, before), (Site(name, "parameter_grad"), before, None)]
    with Counted(device) as counted:
        mine.observe_all(given)
    assert set(device.launches) == {"measure_many"}
    assert len(device.launches) <= 6  # values with and without bins, and differences, each at 16 bytes or not
    assert not counted.names
    assert not device.waits
    found = {(reading.site.name, reading.site.role): reading for reading in mine.flush().values()}
    for site, values in true.items():
        assert_true(found[site].statistics, [values])


def own(x):
    return x.double().sum()


def test_no_statistic_waits_for_the_device_nor_a_site_that_is_off(device):
    once = []

    def bad(x):
        once.append(x)
        if len(once) == 2:
            raise ValueError("once")
        return x.double().sum()

    every = (*FORMULAS, *DERIVED, Statistic("own", own, merge="sum"), Statistic("bad", bad, merge="sum"))
    mine = recorder(*every, histogram=True, channels=channels)
    tensors = [there(device, normal(30, 20)) for _ in range(2)]
    for _ in range(3):
        for name, tensor in zip("ab", tensors * 2, strict=False):
            if len(once) == 1:
                with pytest.warns(UserWarning, match="switched off"):
                    mine.open(Site(name, "output"))(tensor)
            mine.open(Site(name, "output"))(tensor)
        sent = mine.send(torch.tensor([1.0], device=HOST))
        assert not [wait for wait in device.waits if wait.what != "sleep"], device.waits
        assert {reading.site.name for reading in finished(sent).values()} == {"a"}


class TwoAlike:
    """Two ranks that measure the same."""

    size, rank = 2, 0

    def merge(self, merging):
        yield
        return run(merging, lambda kind, numbers: 2 * numbers if kind == "sum" else numbers)

    def union(self, items):
        yield
        return items


def test_only_what_fetches_the_numbers_of_two_ranks_waits(device):
    mine, part = recorder(histogram=True, channels=channels, ranks=TwoAlike()), normal(30, 20)
    mine.open(Site("a", "output"))(there(device, part))
    sent = mine.send()
    assert not device.waits
    (reading,) = finished(sent).values()
    assert {wait.what for wait in device.waits} == {"sleep"}
    assert_true(reading.statistics, [part, part])
    assert reading.histogram.counts.sum() == 2 * part.numel()


def test_a_tensor_on_the_host_is_measured_there_though_its_site_has_bins_on_a_device(device, monkeypatch):
    read, given = native.read, []

    def checked(tensor, form, *, counts=None, **options):
        given.append(counts in device)
        return read(tensor, form, counts=counts, **options)

    monkeypatch.setattr("hookboard.measure.recorder.read", checked)
    mine, parts = recorder(histogram=True, channels=channels), [normal(50, 8), normal(30, 8), normal(20, 8)]
    mine.open(Site("a", "output"))(there(device, parts[0]))
    for part in parts[1:]:
        mine.open(Site("a", "output"))(in_another_thread(part.clone))
    (reading,) = mine.flush().values()
    assert given
    assert not any(given)
    assert_true(reading.statistics, parts)
    assert reading.histogram.counts.sum() == 800
    np.testing.assert_allclose(reading.channels, rows_of_channels(parts, 1), rtol=1e-6)


def test_tensors_of_several_devices_are_measured_each_on_its_own(device):
    mine = recorder(histogram=True)
    parts = {name: [normal(100), normal(70)] for name in "ab"}
    for name, tensors in parts.items():
        for index, tensor in enumerate(tensors):  # as the replicas of DataParallel, or layers here and there
            mine.open(Site(name, "output"))(there(device, tensor, index))
    readings = mine.flush()  # a launch whose arguments lie on two devices is an error of `pretend_kernels`
    for reading in readings.values():
        assert_true(reading.statistics, parts[reading.site.name])
        assert reading.histogram.counts.sum() == 170


def test_weights_of_several_devices_are_launched_on_each(device):
    weights = {Site(f"{n}", "parameter"): there(device, normal(9, 4), n % 2) for n in range(4)}
    mine = recorder()
    mine.observe_all((site, weight, None) for site, weight in weights.items())
    assert device.launches == ["measure_many"] * 2
    assert len(mine.flush()) == 4


def test_a_gradient_is_unscaled_on_its_own_device(device):
    mine, gradient = recorder(), normal(10)
    mine.scale = there(device, torch.tensor(4.0))
    mine.open(Site("a", "grad_output"))(there(device, gradient * 4, 1))
    (reading,) = mine.flush().values()
    assert_true(reading.statistics, [gradient])


@pytest.mark.parametrize("has_kernels", [True, False], ids=["Triton", "no Triton"])
def test_nothing_is_launched_into_a_graph_that_is_captured(device, monkeypatch, has_kernels):
    if not has_kernels:
        monkeypatch.setattr(card, "DEVICES", set())
    mine, tensor = recorder(histogram=True), there(device, normal(100))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with Counted(device) as counted, pytest.warns(UserWarning, match="a CUDA graph is being captured"):
        mine.open(Site("a", "output"))(tensor)
    assert not counted.names + device.launches + device.waits


def test_readings_that_are_kept_hold_no_page_locked_memory(device):
    mine, kept = recorder(histogram=True, channels=channels), []
    for _ in range(3):
        for number in range(20):
            mine.open(Site(f"layer.{number}", "output"))(there(device, normal(3, 4)))
        kept.append(mine.flush())
    for readings in kept:
        arrays = [readings.rows, *(part for part in readings.channels if part is not None), readings.statistics.values]
        for array in arrays:
            while array.base is not None:
                array = array.base
            assert array.nbytes < 1e5


def test_memory_on_the_device_grows_no_further_once_all_sites_are_known(device):
    mine = recorder(histogram=True, channels=channels)
    sizes = []
    for step in range(6):
        for number in range(30):
            mine.open(Site(f"layer.{number}", "output"))(there(device, normal(3, 100 + step)))
        mine.flush()
        arena = mine._main.arena
        sizes.append([sum(map(len, slabs.parts)) for slabs in (arena._rows, arena._bins)])
    assert sizes == [[30 * (101 + step), 30] for step in range(6)]


def test_an_evaluation_under_inference_mode_is_read_outside_of_it(device):
    mine, parts = recorder(), {"a": normal(4), "b": normal(4, dtype=torch.float64), "c": normal(9)}
    with torch.inference_mode():
        for name, tensor in parts.items():
            mine.open(Site(name, "output"))(there(device, tensor))
        mine.open(Site("c", "output"))(normal(5))
        arrived = mine.send()
    readings = {reading.site.name: reading for reading in finished(arrived).values()}
    assert_true(readings["b"].statistics, [parts["b"]])
    assert_true(readings["c"].statistics, [parts["c"], normal(5)])


def no_memory(*args):
    raise torch.OutOfMemoryError("CUDA out of memory.")


def test_where_memory_lacks_for_a_launch_torch_measures_and_nothing_is_left_behind(device, monkeypatch):
    mine, weights = recorder(histogram=True), {name: normal(8, 4, std=size) for name, size in [("a", 1), ("b", 2)]}
    tensors = {Site(name, "parameter"): there(device, weight) for name, weight in weights.items()}
    monkeypatch.setattr(on_gpu, "_workspace", no_memory)
    mine.observe_all((site, tensor, None) for site, tensor in tensors.items())
    for site, tensor in tensors.items():
        mine.open(site)(tensor)
    readings = mine.flush()
    assert len(readings) == 2
    for reading in readings.values():
        assert_true(reading.statistics, [weights[reading.site.name]] * 2)
        assert reading.histogram.counts.sum() == 64


def failing_once(function, error, after=0):
    """The function, which fails at one call."""
    calls = []

    def failing(*args, **options):
        calls.append(args)
        if len(calls) == after + 1:
            raise error
        return function(*args, **options)

    return failing


NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory.")


def test_rows_that_nobody_has_written_are_not_read_where_memory_lacks_for_bins_alone(device):
    mine, values = recorder(histogram=True), normal(100)
    arena = mine._main.arena
    new_rows, arena._bins._new = arena._rows._new, failing_once(arena._bins._new, NO_MEMORY)
    arena._rows._new = lambda count: new_rows(count).fill_(77.0)  # what was in this memory before
    mine.open(Site("a", "output"))(there(device, values))
    (reading,) = mine.flush().values()
    assert_true(reading.statistics, [values])
    assert reading.histogram.counts.sum() == 100


@pytest.mark.parametrize("error", [NO_MEMORY, RuntimeError("CUDA error: out of memory")], ids=["device", "page-locked"])
def test_what_a_first_launch_has_measured_is_not_measured_again_where_memory_lacks_for_a_second(
    device, monkeypatch, error
):
    mine = recorder(histogram=True)
    weights = {Site("a", "parameter"): normal(8, 4), Site("b", "parameter"): normal(8, 4).bfloat16()}
    monkeypatch.setattr(on_gpu, "uploaded_from", failing_once(on_gpu.uploaded_from, error, after=1))
    for _ in range(2):
        mine.observe_all((site, there(device, weight), None) for site, weight in weights.items())
    for reading in mine.flush().values():
        assert_true(reading.statistics, [weights[reading.site]] * 2)
        assert reading.histogram.counts.sum() == 64


def test_a_common_launch_that_fails_switches_its_sites_off_and_the_training_goes_on(device, monkeypatch):
    mine = recorder()
    monkeypatch.setattr(mine._main.arena, "measure", failing_once(None, ValueError("no idea")))
    with pytest.warns(UserWarning, match="parameter of 'a' is switched off .*no idea"):
        mine.observe_all([(Site("a", "parameter"), there(device, normal(8, 4)), None)])
    assert not len(mine.flush())


def test_memory_that_is_given_back_is_kept_for_the_stream_that_used_it_last(device):
    mine = recorder(channels=channels)
    for name in "xy":  # the memory grows, and is joined at the flush
        mine.open(Site(name, "output"))(there(device, normal(3, 400)))
    grown = mine._main.arena._rows.parts
    assert len(grown) > 1
    mine.flush()
    assert [*map(id, device.kept_for_stream)] == [*map(id, grown)]


def test_launches_of_other_needs_take_turns_in_the_same_memory(device):
    large, of_many = (CUDA, 20_000, 10), (CUDA, 10, 9_000)
    on_gpu._workspace(*large)
    grown = on_gpu._workspace(*of_many)
    for needs in (large, of_many):
        assert [*map(id, on_gpu._workspace(*needs))] == [*map(id, grown)]


def test_an_empty_call_leaves_the_channels_of_the_others(device):
    mine, part = recorder(channels=channels), normal(3, 4)
    observe = mine.open(Site("a", "output"))
    for tensor in (part, torch.empty(0, 4)):  # as an expert without tokens
        observe(there(device, tensor))
    (reading,) = mine.flush().values()
    np.testing.assert_allclose(reading.channels, rows_of_channels([part], 1), rtol=1e-6)


@pytest.mark.parametrize("shape", [(10_000_000, 16), (1, 70_000, 7), (1, 1 << 23)], ids=str)
@pytest.mark.parametrize("dim", [0, 1])
def test_no_launch_has_more_groups_than_a_card_takes_nor_much_memory(monkeypatch, shape, dim):
    monkeypatch.setattr(card, "DEVICES", {"cpu"})
    tensor = torch.empty(shape)  # of which no page is ever touched
    form = on_gpu.form_of(tensor, dim, has_bins=False, has_minus=False, with_abs_mean=True)
    if form is not None:  # otherwise torch takes each k-th channel out of it first
        programs, scratch, _ = form.needs
        assert programs <= 65535
        assert scratch * 80 < 11e6


def test_memory_that_was_freed_is_not_read_as_another_dtype(monkeypatch):
    tensor = torch.ones(1000, dtype=torch.int8)
    tensor.untyped_storage().resize_(0)
    monkeypatch.setattr(card, "DEVICES", {"cpu"})
    with pytest.raises(TypeError, match="memory has been freed"):
        on_gpu.readable(tensor)


class Stream:
    """Notes for which other it waits. As in torch up to 2.11, neither `== None` nor `!= None` is true of it."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other

    def __ne__(self, other):
        return other is not None and self is not other

    def __init__(self, name, waits):
        self.name, self.waits = name, waits

    def wait_stream(self, other):
        self.waits.append((self.name, other.name))


def test_streams_wait_for_each_other_and_none_is_remembered(device, monkeypatch):
    waits = []
    streams = [Stream(name, waits) for name in "ab"]
    current = streams[:1]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[0])
    mine, tensor = recorder(), there(device, normal(5))
    for stream in (streams[0], streams[1], streams[0]):
        current[0] = stream
        mine.open(Site("a", "output"))(tensor)
    assert waits == [("b", "a"), ("a", "b")], "launches run in the order in which they are made"
    assert {number for _, number in on_gpu._workspaces} == {*map(id, streams)}, "of each its own"
    monkeypatch.setattr("hookboard.measure.store.sent_together", lambda tensors: iter(()))
    mine.send()
    assert waits[2:] == [("a", "b"), ("b", "a")]
    assert len(mine._main._streams) == 1
