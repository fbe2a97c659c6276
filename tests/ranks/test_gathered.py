"""What ranks tell each other before they are connected, and tensors that would need the others."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial

from hookboard import HookboardWarning
from hookboard.base import ranks
from hookboard.measure.statistics import plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "all_gather_object", lambda everyones, mine: None)


def test_objects_go_by_way_of_the_device_that_the_rank_trains_on(monkeypatch, alone):
    """NCCL takes the current one: without `set_device` the first, on every rank."""
    now, used = [None], []

    @contextmanager
    def current(device):
        now.append(device)
        yield
        now.pop()

    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(dist, "all_gather_object", lambda everyones, mine: used.append(now[-1]))
    assert ranks.gathered("mine", torch.device("cuda", 3)) == ["mine"]
    ranks.gathered("mine", torch.device("cpu"))
    assert used == [torch.device("cuda", 3), None]


def test_ranks_that_cannot_connect_say_why(monkeypatch, alone):
    def broken(**options):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    monkeypatch.setattr(dist, "new_group", broken)
    with pytest.raises(RuntimeError, match=r"could not connect .* GLOO_SOCKET_IFNAME .*broken on purpose"):
        ranks.Ranks()


@pytest.fixture
def partial_sums():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        yield DTensor.from_local(torch.ones(4, 5), init_device_mesh("cpu", (1,)), [Partial()])
    finally:
        dist.destroy_process_group()


def test_partial_sums_are_not_measured_and_named_once(partial_sums):
    table, site = Table(plan("mean"), torch.device("cpu")), Site("layer", "output")
    with pytest.warns(HookboardWarning, match="output of 'layer' is switched off.*the tensor holds partial sums"):
        table.open(site)(partial_sums)
    table.open(site)(partial_sums)  # a second warning would be an error
    assert site not in table.send()()
