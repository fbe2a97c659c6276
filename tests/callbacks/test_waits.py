"""Nothing waits for an accelerator at a due step: on a pretended one, of which each wait is known with its stack."""

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from pretended import CUDA, Functions, Pretended, PretendedAccelerator, pretend_cuda, pretend_kernels
from torch import nn
from toys import Toy, batches, fit, images, mlp, scalars

from hookboard import (
    ActivationLogger,
    CAMLogger,
    FeatureMapLogger,
    GradientLogger,
    HealthMonitor,
    KernelLogger,
    ParameterLogger,
    Statistic,
)
from hookboard.measure import memory

STEPS = 5
DATA = batches(*[8] * STEPS)
NEVER = 10**9


@pytest.fixture(params=["the kernels", "torch's operations"])
def device(request, monkeypatch):
    device = Pretended()

    def backward_there(*args, backward=torch.autograd._engine_run_backward, **options):
        with Functions(device):  # which is off inside of what it has intercepted, as a backward pass
            return backward(*args, **options)

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", backward_there)
    pretend_cuda(device, monkeypatch)
    if request.param == "the kernels":
        pretend_kernels(device, monkeypatch)
    else:
        monkeypatch.setattr(memory, "DEVICES", set())
    return device


def train(folder, device, *callbacks, model=None, data=DATA, **options):
    strategy = SingleDeviceStrategy(device=CUDA, accelerator=PretendedAccelerator())
    with device.modes():
        return fit(folder, model or Toy(mlp()), data, *callbacks, accelerator="auto", strategy=strategy, **options)


def every_callback(every_n_steps=1):
    options = {"every_n_steps": every_n_steps, "histogram": True}
    return [
        ActivationLogger(roles=["output", "input"], **options),
        GradientLogger(["net.2", "net.5"], roles=["grad_output", "grad_input", "parameter_grad"], **options),
        ParameterLogger(**options),
        HealthMonitor(every_n_steps=every_n_steps, audit=False),
    ]


class Adam(Toy):
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


def convolutional():
    torch.manual_seed(0)
    convolution = [nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3)]
    return nn.Sequential(*convolution, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 3))


def scaled():
    return {"plugins": MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))}


def assert_none(waits):
    assert not waits, "\n\n".join(f"{wait.what} in {wait.thread}:\n{wait.stack}" for wait in waits[:3])


def is_later(wait):
    """Whether it waits a batch later, for what a due step has measured, or after the last batch."""
    return "in end_training" in wait.stack or ("in finish" in wait.stack and "in _do_later" not in wait.stack)


WAYS = {
    "convolutions, AdamW, clipped": (lambda: Adam(convolutional()), lambda: {"gradient_clip_val": 1.0}),
    "under a GradScaler": (lambda: Toy(mlp()), scaled),
    "accumulating": (lambda: Toy(mlp()), lambda: {"accumulate_grad_batches": 2}),
}


@pytest.mark.parametrize(("model", "options"), WAYS.values(), ids=WAYS)
def test_no_due_step_waits(tmp_path, device, model, options):
    callbacks = every_callback()
    if len(model().net) < 6:
        callbacks[1] = GradientLogger("net.2", roles=["grad_output", "grad_input", "parameter_grad"], every_n_steps=1)
    run = train(tmp_path, device, *callbacks, model=model(), **options())
    assert_none([wait for wait in device.waits if not is_later(wait)])
    assert len(scalars(tmp_path)["activation_mean/net.0"]) == run.global_step


PICTURES = [part.reshape(8, 1, 2, 2) for part in DATA]
VALIDATED = {"limit_val_batches": 1.0, "num_sanity_val_steps": 0}


def classifier():
    """Of pictures."""
    return Toy(nn.Sequential(*convolutional()[1:]))


def there_and_here(folder, device, read, make_callbacks, make_model=lambda: Toy(mlp()), data=DATA, **options):
    """What is read of a run on the device and of one on the CPU."""
    train(folder / "there", device, *make_callbacks(), model=make_model(), data=data, **options)
    fit(folder / "here", make_model(), data, *make_callbacks(), **options)
    there, here = read(folder / "there"), read(folder / "here")
    assert there.keys() == here.keys()
    return there, here


def assert_same_pictures(there, here):
    assert all((there[tag][step] == here[tag][step]).all() for tag in here for step in here[tag])


def test_class_activation_maps_of_a_device_are_those_of_the_cpu(tmp_path, device):
    def callbacks():
        return [CAMLogger("net.1", method=method, every_n_steps=1) for method in ("layer_cam", "xgrad_cam")]

    there, here = there_and_here(tmp_path, device, images, callbacks, classifier, PICTURES, **VALIDATED)
    assert here.keys() == {"cam/net.1/layer_cam", "cam/net.1/xgrad_cam"}
    assert_same_pictures(there, here)


def test_pictures_of_a_device_are_those_of_the_cpu(tmp_path, device):
    def callbacks():
        maps = FeatureMapLogger("net.1", stage="train", channels=2, every_n_steps=2)
        return [maps, KernelLogger(every_n_steps=2)]

    there, here = there_and_here(tmp_path, device, images, callbacks, lambda: Toy(convolutional()))
    assert {tag: list(steps) for tag, steps in here.items()} == {"feature_maps/net.1": [1, 3], "kernels/net.1": [1, 3]}
    assert_same_pictures(there, here)


def test_in_steps_that_are_not_due_nothing_waits(tmp_path, device):
    callbacks = [ActivationLogger(every_n_steps=NEVER), GradientLogger(every_n_steps=NEVER)]
    train(tmp_path, device, *callbacks, HealthMonitor(every_n_steps=NEVER, window=1, audit=False))
    assert_none([wait for wait in device.waits if not is_later(wait)])


def test_the_training_waits_at_most_while_its_first_step_is_read(tmp_path, device):
    """What the rules compute then is hidden from modes such as those of the pretended device."""
    train(tmp_path, device, HealthMonitor(every_n_steps=NEVER))
    waits = [wait for wait in device.waits if wait.thread == "MainThread" and not is_later(wait)]
    assert_none([wait for wait in waits if "live_step.py" not in wait.stack])


def test_no_number_is_read_before_it_has_arrived(tmp_path, device):
    def callbacks():
        return [ActivationLogger(every_n_steps=1), ParameterLogger("net.0")]

    there, here = there_and_here(tmp_path, device, scalars, callbacks)
    for tag, values in there.items():
        assert values == pytest.approx(here[tag], rel=1e-5, abs=1e-7), tag


def test_a_wait_in_a_hook_is_seen_with_its_stack(tmp_path, device):
    waiting = Statistic("own", lambda x: x.sum() * x.max().item(), merge="sum")
    train(tmp_path, device, ActivationLogger("net.0", statistics=[waiting], every_n_steps=1))
    of_training = [wait for wait in device.waits if wait.thread == "MainThread" and not is_later(wait)]
    assert len(of_training) == STEPS
    assert "taps.py" in of_training[0].stack
