"""Memory: a comparison holds one layer's tensors at a time beside one copy of a model's weights."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.large, pytest.mark.spawns]

MEASURE = """
import copy, ctypes, resource
import torch
from torch import nn
from hookboard import compare

def mib(pages):
    return int(pages) * resource.getpagesize() / 2**20

ctypes.CDLL(None).mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: weights that are freed go back to the system

class Layers(nn.Sequential):
    pass

net = Layers(*(nn.Linear(2048, 2048, bias=False) for _ in range(8)))  # 128 MiB
other = copy.deepcopy(net)
{change}
x = torch.randn(8, 2048)
compare(nn.Linear(2, 2), nn.Linear(2, 2), torch.ones(1, 2))  # what is imported late is not of the models
before = mib(open("/proc/self/statm").read().split()[1])
found = compare(net, other, x, loss={loss})
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
print([one.module for one in found.differences], int(peak - before))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
@pytest.mark.parametrize(
    ("change", "loss", "differ"),
    [
        ("other[3].weight.data[0] += 1", "lambda y: y.square().mean()", "['3']"),
        ("other.bfloat16()", None, "[]"),
    ],
    ids=["with gradients", "in another precision"],
)
def test_two_models_of_256_mebibytes_together_need_less_than_768(change, loss, differ, python):
    code = MEASURE.format(change=change, loss=loss)
    environment = os.environ | {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([python, "-c", code], check=True, env=environment, capture_output=True, text=True)
    modules, _, extra = done.stdout.strip().rpartition(" ")
    assert modules == differ
    assert int(extra) < 3 * 256
