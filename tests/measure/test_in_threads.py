"""Several threads measure at once, as in a server or a parallel evaluation, while another may flush."""

import sys
import threading

import pytest
import torch
from oracle import assert_true, normal
from torch import nn

from hookboard import Statistic
from hookboard.measure.row import FIELDS
from hookboard.measure.statistics import FORMULAS, plan
from hookboard.measure.table import Table
from hookboard.measure.taps import Taps
from hookboard.model.selection import select
from hookboard.model.sites import Site

THREADS, CALLS, FLUSHED, CHANNELS = 4, 60, 300, 5
ROLES = ("input", "output", "grad_input", "grad_output")


def in_threads(work, meanwhile=None):
    """Runs work(k) in thread k, all at once, and `meanwhile` until they end; an error in one of them is raised here."""
    errors = []
    start = threading.Barrier(THREADS)

    def run(k):
        try:
            start.wait()
            work(k)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    while meanwhile and any(thread.is_alive() for thread in threads):
        meanwhile()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Doubles(nn.Module):
    def forward(self, x):
        return 2 * x


FACTORS = {
    ("0", "input"): 1,
    ("0", "output"): 2,
    ("1", "input"): 2,
    ("1", "output"): 4,
    ("1", "grad_output"): 1,
    ("1", "grad_input"): 2,
    ("0", "grad_output"): 2,
    ("0", "grad_input"): 4,
}
"""How many times as large as the input of its call each tensor is."""


def test_every_call_of_every_thread_is_measured_once():
    """Each thread makes forward and backward passes of its own."""
    net = nn.Sequential(Doubles(), Doubles())
    own = Statistic("own", lambda x: x.double().square().sum(), merge="sum")
    table = Table(plan((*FORMULAS, own)), torch.device("cpu"), histogram=True)
    taps = Taps(select(net), ROLES, table.open)
    taps.attach()
    taps.active = True
    inputs = [[normal(64 + k, 33 + call).requires_grad_() for call in range(CALLS)] for k in range(THREADS)]

    def passes(k):
        for x in inputs[k]:
            (net(x) * x.detach()).sum().backward()

    in_threads(passes)
    found = {(reading.site.name, reading.site.role): reading for reading in table.send()().values()}
    taps.detach()
    assert found.keys() == FACTORS.keys()
    for site, factor in FACTORS.items():
        statistics = dict(found[site].statistics)
        tensors = [factor * x.detach() for of_thread in inputs for x in of_thread]
        own = statistics.pop("own")
        assert own == pytest.approx(sum(t.double().square().sum().item() for t in tensors))
        assert_true(statistics, tensors)
        assert found[site].histogram.counts.sum() == sum(t.numel() for t in tensors)


class Adds(nn.Module):
    def forward(self, x, y):
        return x + y


def test_what_a_module_passes_back_to_inputs_that_another_thread_has_made_is_its_own_part():
    add = Adds()
    found = {}
    taps = Taps({"add": add}, ["grad_input"], lambda site: lambda grad: found.setdefault(site.index, grad.clone()))
    taps.attach()
    taps.active = True
    x, made = torch.ones(2, requires_grad=True), []
    numbers_here = torch.autograd._get_sequence_nr()

    def work():
        while torch.autograd._get_sequence_nr() <= numbers_here + 10:  # each thread counts by itself
            x.sin()
        made.append(3 * x)
        made.append(5 * made[0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    add(*made).sum().backward()
    taps.detach()
    assert {index: grad.tolist() for index, grad in found.items()} == {"0": [1.0, 1.0], "1": [1.0, 1.0]}


@pytest.fixture
def switching():
    """Threads take turns after a microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def flushed(table, give):
    """The readings of all flushes that are made without a pause while threads call `give(thread, call)`."""
    found = []

    def work(k):
        for call in range(FLUSHED):
            give(k, call)

    in_threads(work, meanwhile=lambda: found.extend(table.send()().values()))
    found.extend(table.send()().values())
    return found


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("samples", [lambda call: 8, lambda call: 4 + call % 7], ids=["of one shape", "of others"])
def test_the_channels_and_the_histogram_of_a_flush_are_those_of_its_rows(samples):
    table = Table(plan("mean"), torch.device("cpu"), histogram=True, channels=lambda site, tensor: 1)
    sites = [Site("a", "output"), Site("b", "output")]
    tensors = {count: torch.ones(count, CHANNELS) for count in range(4, 11)}
    found = flushed(table, lambda k, call: table.open(sites[k % 2])(tensors[samples(call)]))
    for reading in found:
        assert reading.channels is not None
        assert reading.channels[:, FIELDS.index("count")].tolist() == [reading.moments.count / CHANNELS] * CHANNELS
        assert sum(reading.histogram.counts) == reading.moments.count
    assert sum(r.moments.count for r in found) == THREADS * CHANNELS * sum(map(samples, range(FLUSHED)))


@pytest.mark.usefixtures("switching")
def test_a_site_that_comes_during_a_flush_has_all_its_values():
    table = Table(plan("mean"), torch.device("cpu"), channels=lambda site, tensor: 1)
    ones = torch.ones(3, CHANNELS)
    found = flushed(table, lambda k, call: table.open(Site(f"{k}.{call}", "output"))(ones))
    assert sorted(r.site.name for r in found) == sorted(
        f"{k}.{call}" for k in range(THREADS) for call in range(FLUSHED)
    )
    assert {r.moments.count for r in found} == {ones.numel()}
