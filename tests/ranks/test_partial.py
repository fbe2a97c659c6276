"""A DTensor of partial sums is named, and asks no other rank for anything."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial

from hookboard import HookboardWarning
from hookboard.measure.statistics import plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site

SITE = Site("layer", "output")


@pytest.fixture
def partial_sums():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        yield DTensor.from_local(torch.ones(4, 5), init_device_mesh("cpu", (1,)), [Partial()])
    finally:
        dist.destroy_process_group()


def test_partial_sums_are_not_measured_and_named_once(partial_sums):
    table = Table(plan("mean"), torch.device("cpu"))
    with pytest.warns(HookboardWarning, match="output of 'layer' is switched off.*the tensor holds partial sums"):
        table.open(SITE)(partial_sums)
    table.open(SITE)(partial_sums)  # a second warning would be an error
    assert SITE not in table.send()()
