"""What a prompt shows of callbacks and verdicts."""

import copy
import pickle
import subprocess
import sys

import pytest
from toys import Toy, batches, fit, mlp

from hookboard import ActivationLogger, HealthMonitor, Intervention, Scale


@pytest.mark.parametrize(
    "written",
    [
        "HealthMonitor()",
        "HealthMonitor(window=4, stop_on='alarm')",
        "ActivationLogger(modules='net.*', histogram=True)",
        "Intervention(rule=Scale(factor=0.5), modules='net.0')",
    ],
)
def test_a_callback_is_shown_as_the_call_that_makes_it(written):
    names = {kind.__name__: kind for kind in (ActivationLogger, HealthMonitor, Intervention, Scale)}
    assert repr(eval(written, names)) == written


def test_verdicts_are_shown_as_sentences_and_a_copy_of_the_monitor_as_its_call():
    net = mlp()
    net[0].bias.data.fill_(-100.0)
    sick = HealthMonitor(every_n_steps=1)
    fit(None, Toy(net), batches(*[4] * 8), sick)
    verdicts = sick.verdicts
    assert repr(verdicts).splitlines() == [str(verdict) for verdict in verdicts]
    assert str(verdicts[0]).startswith(f"{verdicts[0].title}: ")
    assert ". Try: " in str(verdicts[0])
    assert repr(HealthMonitor().verdicts) == "()"
    for copied in (copy.deepcopy(sick), pickle.loads(pickle.dumps(sick))):
        assert repr(copied) == "HealthMonitor(every_n_steps=1)"
        assert copied.verdicts == verdicts


@pytest.mark.spawns
def test_a_line_in_a_notebook_is_named_by_its_cell():
    pytest.importorskip("IPython")
    cells = """import torch, hookboard; from torch import nn
net, y = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), torch.arange(8) % 3
step = lambda batch: nn.functional.cross_entropy(net(batch), y)
hookboard.audit(net, torch.randn(8, 4), step)
"""
    command = [sys.executable, "-m", "IPython", "--simple-prompt", "--colors=NoColor", "--no-banner"]
    done = subprocess.run(command, input=cells, capture_output=True, text=True, timeout=120)
    assert "cross_entropy at In [3]:1 expects logits" in done.stdout
