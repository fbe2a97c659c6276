"""Kernels go through the real launcher of Triton, over a driver that does nothing; and what the driver is asked for."""

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from hookboard.measure import card

sys.path.append(str(Path(__file__).parent))
from test_triton import needs_today

HERE = Path(__file__).parent


@pytest.mark.spawns
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton here")
@needs_today
@pytest.mark.parametrize("target", [("cuda", "90", "32"), ("hip", "gfx942", "64")], ids=["NVIDIA", "AMD"])
def test_a_variant_is_looked_up_once_and_then_launched_as_it_is(target, tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", HERE / "launched.py", *target]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    said = json.loads(run.stdout)
    assert all(said["worked"]), said
    assert not said["given up"]
    assert said["launched"] == 3 * ["measure"] + 2 * ["measure_many"]
    # The second of each is not looked up; one that begins elsewhere is another variant. For AMD all are: Triton also
    # compiles for the size of a tensor's memory.
    assert said["looked up"] == (2 * ["measure"] + ["measure_many"] if target[0] == "cuda" else said["launched"])
    for first, second in (said["same numbers"], said["same of many"]):
        assert first == second != []


class Driver:
    """In place of CUDA's: it knows cards by their place on the bus."""

    def __init__(self, ratios, status=0):
        self.ratios, self.status = ratios, status

    def cuDeviceGetByPCIBusId(self, number, name):  # noqa: N802
        number._obj.value = list(self.ratios).index(name.decode())
        return self.status

    def cuDeviceGetAttribute(self, into, attribute, number):  # noqa: N802
        assert attribute == 87
        into._obj.value = list(self.ratios.values())[number.value]
        return self.status


CARDS = {"0000:0a:00.0": 2, "0000:1b:00.0": 44, "0000:2c:00.0": 64}


@pytest.mark.parametrize(("index", "is_fast"), [(0, True), (1, False), (2, False)])
def test_float64_is_fast_by_its_speed_not_by_the_generation_of_the_card(monkeypatch, index, is_fast):
    bus = [SimpleNamespace(pci_domain_id=0, pci_bus_id=int(name[5:7], 16), pci_device_id=0) for name in CARDS]
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(CARDS))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: bus[device.index])
    assert card.adds_float64_fast.__wrapped__(torch.device("cuda", index)) is is_fast


def no_driver(name):
    raise OSError("there is none")


@pytest.mark.parametrize("library", [no_driver, lambda name: Driver(CARDS, status=1)], ids=["none", "fails"])
def test_without_an_answer_of_the_driver_float64_is_taken_to_be_fast(monkeypatch, library):
    monkeypatch.setattr(ctypes, "CDLL", library)
    bus = SimpleNamespace(pci_domain_id=0, pci_bus_id=10, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: bus)
    assert card.adds_float64_fast.__wrapped__(torch.device("cuda", 0))
