"""Threads measure while another flushes: each flush is whole, and nothing is lost between two of them."""

import itertools
import sys
import threading

import pytest
import torch

from hookboard.measure.row import FIELDS
from hookboard.measure.statistics import plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site

pytestmark = pytest.mark.unit

COUNT = FIELDS.index("count")
THREADS, CALLS, CHANNELS = 4, 300, 5


@pytest.fixture
def switching():
    """Threads take turns after a microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def flushed(table, give):
    """The readings of all flushes that are made without a pause while threads call `give(thread, call)`."""
    errors = []

    def work(k):
        try:
            for call in range(CALLS):
                give(k, call)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(THREADS)]
    for thread in threads:
        thread.start()
    found = []
    while any(thread.is_alive() for thread in threads):
        found.append(list(table.send()().values()))
    found.append(list(table.send()().values()))
    assert not errors
    return list(itertools.chain.from_iterable(found))


@pytest.mark.usefixtures("switching")
@pytest.mark.parametrize("samples", [lambda call: 8, lambda call: 4 + call % 7], ids=["of one shape", "of others"])
def test_the_channels_and_the_histogram_of_a_flush_are_those_of_its_rows(samples):
    table = Table(plan("mean"), torch.device("cpu"), histogram=True, channels=lambda site, tensor: 1)
    sites = [Site("a", "output"), Site("b", "output")]
    tensors = {count: torch.ones(count, CHANNELS) for count in range(4, 11)}
    found = flushed(table, lambda k, call: table.open(sites[k % 2])(tensors[samples(call)]))
    for reading in found:
        assert reading.channels is not None
        assert reading.channels[:, COUNT].tolist() == [reading.moments.count / CHANNELS] * CHANNELS
        assert sum(reading.histogram.counts) == reading.moments.count
    assert sum(r.moments.count for r in found) == THREADS * CHANNELS * sum(map(samples, range(CALLS)))


@pytest.mark.usefixtures("switching")
def test_a_site_that_comes_during_a_flush_has_all_its_values():
    table = Table(plan("mean"), torch.device("cpu"), channels=lambda site, tensor: 1)
    ones = torch.ones(3, CHANNELS)
    found = flushed(table, lambda k, call: table.open(Site(f"{k}.{call}", "output"))(ones))
    assert sorted(r.site.name for r in found) == sorted(f"{k}.{call}" for k in range(THREADS) for call in range(CALLS))
    assert {r.moments.count for r in found} == {ones.numel()}
