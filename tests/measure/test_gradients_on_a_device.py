import torch
from pretended import CUDA, Pretended

from hookboard.measure.gradients import UNCLEAR, Switch, ViewGradient, memory_of


def test_a_gradient_that_only_its_values_could_tell_apart_is_unclear_on_a_device_which_is_not_waited_for():
    device, on, unclear = Pretended(), Switch(), []
    on.on = True
    base = torch.ones(4, requires_grad=True) * 2
    view = base[:2]
    memory = memory_of(view)
    hooks = ViewGradient(memory, lambda grad: None, memory.of_view, on, unclear.append)
    base[2:].mul_(3)
    with device.modes():
        hooks.at_view(torch.ones(2, device=CUDA))
        hooks.at_base(torch.ones(4, device=CUDA))
    assert unclear == [UNCLEAR]
    assert device.waits == []
