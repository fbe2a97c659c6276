"""Memory: a comparison holds one layer's tensors at a time beside one copy of a model's weights."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.large, pytest.mark.spawns]

MEASURE = """
import copy, resource
import torch
from torch import nn
from hookboard import compare

def mib(pages):
    return int(pages) * resource.getpagesize() / 2**20

class Layers(nn.Sequential):
    pass

net = Layers(*(nn.Linear(4096, 4096, bias=False) for _ in range(8)))  # 512 MiB
other = copy.deepcopy(net)
{change}
x = torch.randn(8, 4096)
compare(nn.Linear(2, 2), nn.Linear(2, 2), torch.ones(1, 2))  # what is imported late is not of the models
before = mib(open("/proc/self/statm").read().split()[1])
found = compare(net, other, x, loss={loss})
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
print([one.module for one in found.differences], int(peak - before))
"""


def extra_of(change="", loss=None):
    """Compare in another process; returns the modules that differ, and the MiB at the peak beyond those before."""
    code = MEASURE.format(change=change, loss=loss)
    environment = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], check=True, env=environment, capture_output=True, text=True)
    modules, _, extra = done.stdout.strip().rpartition(" ")
    return modules, int(extra)


pytestmark.append(pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc"))


def test_two_models_of_one_gibibyte_together_need_less_than_three_with_gradients():
    modules, extra = extra_of("other[3].weight.data[0] += 1", "lambda y: y.square().mean()")
    assert modules == "['3']"
    assert extra < 3 * 1024


def test_so_do_a_model_and_its_copy_in_half_precision():
    modules, extra = extra_of("other.bfloat16()")
    assert modules == "[]"
    assert extra < 3 * 1024
