"""What a due step costs in transfers and events, and one that is not due in measurements."""

import pytest
import torch
from toys import Toy, batches, fit, mlp, records

from hookboard import ActivationLogger, GradientLogger, ParameterLogger
from hookboard.measure.slab import sent_together
from hookboard.measure.statistics import plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site


def everything(**options):
    return [
        ActivationLogger(roles=["output", "input"], **options),
        GradientLogger("net.2", roles=["grad_output", "grad_input", "parameter_grad"], **options),
        ParameterLogger(**options),
    ]


@pytest.mark.parametrize("histogram", [False, True])
def test_each_callback_has_one_transfer_and_one_event_for_each_due_step(tmp_path, histogram, monkeypatch):
    transfers, others = [], []
    to_cpu = torch.Tensor.cpu

    def counted(tensors):
        transfers.append(tensors)
        return sent_together(tensors)

    def noticed(self, *args, **kwargs):
        if self.dtype is torch.float64:  # Lightning brings its loss, in float32
            others.append(self)
        return to_cpu(self, *args, **kwargs)

    monkeypatch.setattr("hookboard.measure.slab.sent_together", counted)
    monkeypatch.setattr(torch.Tensor, "cpu", noticed)
    fit(tmp_path, Toy(mlp()), batches(*[4] * 6), *everything(every_n_steps=2, histogram=histogram))
    assert others == []
    assert len(transfers) == 3 * 3
    ours = [e for e in records(tmp_path) if any("/" in value.tag for value in e.summary.value)]
    assert [event.step for event in ours] == [1, 1, 1, 3, 3, 3, 5, 5, 5]
    assert min(len(event.summary.value) for event in ours) >= 20


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_host_waits_once_for_each_flush(monkeypatch):
    table = Table(plan(["mean", "std", "abs_max", "l1", "zero_fraction"]), torch.device("cuda"), histogram=True)
    observers = [table.open(Site(name, "output")) for name in "abc"]
    tensors = [torch.randn(1000, device="cuda") for _ in observers]
    waits, synchronize = [], torch.cuda.Event.synchronize  # of which the debug mode knows nothing
    monkeypatch.setattr(torch.cuda.Event, "synchronize", lambda event: waits.append(event) or synchronize(event))

    def step():
        for observe, tensor in zip(observers, tensors, strict=True):
            observe(tensor)
        return table.send()

    step()()  # compiles the kernels
    waits.clear()
    torch.cuda.set_sync_debug_mode("error")
    try:
        sent = step()
        assert waits == []
        assert len(sent()) == 3
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 1
