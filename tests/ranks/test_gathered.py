"""What the ranks tell each other before they are connected, and that a fault in it does not end the training."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from hookboard.base import ranks


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
