"""What only a GPU can show. It has not run on one yet."""

import sys
from pathlib import Path

import pytest
import torch
from oracle import assert_true, normal

from hookboard.measure import FORMULAS, accelerator, plan
from hookboard.recording import Recorder
from hookboard.sites import Site

sys.path.append(str(Path(__file__).parent))
from test_truth import MANY_VALUES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def measured(tensors):
    mine = Recorder(plan(list(FORMULAS)), torch.device("cuda"), histogram=True)
    for tensor in tensors:
        mine.open(Site("a", "output"))(tensor)
    (reading,) = mine.flush().values()
    return reading.statistics


@pytest.mark.parametrize("values", MANY_VALUES.values(), ids=MANY_VALUES)
@pytest.mark.parametrize("is_fast", [True, False])
def test_every_statistic_equals_the_truth(monkeypatch, values, is_fast):
    monkeypatch.setattr(accelerator, "adds_float64_fast", lambda device: is_fast)
    assert_true(measured([values.cuda()]), [values])
    assert not accelerator._state.has_failed


def test_what_another_stream_makes_is_waited_for():
    stream, parts = torch.cuda.Stream(), []
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        parts = [torch.full((1000,), float(each), device="cuda") for each in range(5)]
        mine = Recorder(plan(list(FORMULAS)), torch.device("cuda"), histogram=True)
        for part in parts:
            mine.open(Site("a", "output"))(part)
    (reading,) = mine.flush().values()
    assert_true(reading.statistics, [part.cpu() for part in parts])


def test_the_capture_of_a_cuda_graph_is_not_disturbed():
    x = normal(1000).cuda()
    observe = Recorder(plan("mean"), torch.device("cuda")).open(Site("a", "output"))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
        with pytest.warns(UserWarning, match="CUDA graph"):
            observe(y)
    graph.replay()
    assert torch.equal(y, x + 1)
