"""What watching a ResNet-50 costs on a GPU. docs/cost.md has what it said on an H200.

    python benchmarks/gpu.py --rounds 4 --steps 5   the published table, with the name of the card
    python benchmarks/gpu.py --precision bf16-true  with weights in bf16 too
    python benchmarks/gpu.py --device cpu           a tiny net on the CPU, to try this program; its times mean nothing

Variants take turns as in overhead.py; at the ends of a turn the clock waits for the device and for what the callbacks
still have to do. Before that, two checks: how much longer the first due step takes with no compiled kernel on disk, and
whether values made in CUDA graphs are those of float64 on the CPU. It ends with an error if they are not, or if a fault
switches measuring off. `pytest -m gpu` checks more values, and that nothing waits for the device.
"""

import argparse
import copy
import functools
import math
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning
import torch
from lightning.pytorch import Callback, LightningModule
from overhead import NEVER, Turns, fit, ratio, take_turns
from torch import Tensor, nn
from torchvision.models import ResNet
from torchvision.models.resnet import BasicBlock, Bottleneck

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, Reading

LARGEST_DEVIATION = 1e-4
"""Of values of a network in float32 from those in float64."""


class Trained(LightningModule):
    """Trains a network on batches of inputs and targets, by SGD."""

    def __init__(self, net: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], rate: float, momentum: float) -> None:
        super().__init__()
        self.net, self.loss = net, loss
        self.rate, self.momentum = rate, momentum

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return self.loss(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.rate, momentum=self.momentum)


def resnet(is_tiny: bool) -> Trained:
    block, layers = (BasicBlock, [1, 1, 1, 1]) if is_tiny else (Bottleneck, [3, 4, 6, 3])
    net = ResNet(block, layers).to(memory_format=torch.channels_last)  # as on a GPU one should
    return Trained(net, nn.functional.cross_entropy, rate=0.01, momentum=0.9)


def pictures(device: torch.device, is_tiny: bool) -> tuple[Tensor, Tensor]:
    size, side = (2, 32) if is_tiny else (64, 224)
    images = torch.randn(size, 3, side, side, device=device).to(memory_format=torch.channels_last)
    return images, torch.randint(1000, (size,), device=device)


def loggers(every_n_steps: int, **options: Any) -> list[Any]:
    return [logger(every_n_steps=every_n_steps, **options) for logger in (ActivationLogger, GradientLogger)]


def variants() -> dict[str, list[Callback]]:
    return {
        "bare step": [],
        "bare step again": [],
        "both loggers, never due": loggers(NEVER),
        "both loggers, due on every step": loggers(1),
        "both with histograms, due on every step": loggers(1, histogram=True),
        "`HealthMonitor`, never due": [HealthMonitor(every_n_steps=NEVER)],
        "`HealthMonitor`, due on every step": [HealthMonitor(every_n_steps=1)],
    }


def settled(device: torch.device) -> float:
    """The time when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def wait_for(device: torch.device, callbacks: Sequence[Callback]) -> None:
    """Wait until the device and the callbacks have done all that they were given."""
    settled(device)
    for callback in callbacks:
        # Only callbacks that have either are given.
        _ = callback.verdicts if isinstance(callback, HealthMonitor) else callback.readings  # type: ignore[attr-defined]


def show_steps(device: torch.device, is_tiny: bool, rounds: int, steps: int, options: Mapping[str, Any]) -> None:
    turns = Turns(variants(), rounds, steps, functools.partial(wait_for, device))
    means = take_turns(turns, resnet(is_tiny), pictures(device, is_tiny), **options)
    bare = means["bare step"]
    print("\n| variant | step / bare step | step |\n|---|---|---|")
    for name, seconds in means.items():
        print(f"| {name} | {ratio(seconds, bare):.2f} | {1e3 * statistics.median(seconds):.0f} ms |")


class Starts(Callback):
    """Notes when each step starts, which waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.times: list[float] = []

    def on_train_batch_start(self, *args: Any) -> None:
        self.times.append(settled(self.device))


def first_due_step(device: torch.device, is_tiny: bool, options: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds of the first and of the second step that is due for both loggers, beyond those of bare steps."""
    starts, every = Starts(device), 8
    callbacks = [starts, *loggers(every, histogram=True)]
    fit(resnet(is_tiny), pictures(device, is_tiny), 2 * every + 1, callbacks, **options)
    seconds = [end - start for start, end in zip(starts.times, starts.times[1:], strict=False)]
    bare = statistics.median(seconds[every // 2 : every - 1])
    return seconds[every - 1] - bare, seconds[2 * every - 1] - bare


def deviation_in_graphs(device: torch.device, options: Mapping[str, Any]) -> float:
    """The largest relative deviation of a logged mean, std or RMS of a net that is compiled with CUDA graphs."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
    batch = torch.randn(32, 64, device=device), torch.zeros(32, 64, device=device)
    truth = true_values(net, batch)
    # In place, so that its modules keep their names.
    net.compile(**({"mode": "reduce-overhead"} if device.type == "cuda" else {"backend": "aot_eager"}))
    callbacks = loggers(1, statistics=["mean", "std", "rms"])
    model = Trained(net, nn.functional.mse_loss, rate=0.0, momentum=0.0)
    fit(model, batch, 6, callbacks, **{**options, "precision": "32-true"})
    readings: list[Reading] = [reading for callback in callbacks for reading in callback.readings]
    found = {(reading.site.role, reading.site.name.removeprefix("net.")): reading.statistics for reading in readings}
    if truth.keys() - found.keys():
        return math.inf
    return max(off(found[site], values) for site, values in truth.items())


def true_values(net: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[tuple[str, str], Tensor]:
    """The tensors themselves, by role and name of the module, in float64 on the CPU; loss is the mean square."""
    plain, (inputs, targets) = copy.deepcopy(net).cpu().double(), (each.cpu().double() for each in batch)
    outputs: dict[str, Tensor] = {}
    x = inputs
    for name, module in plain.named_children():
        x = module(x)
        x.retain_grad()
        outputs[name] = x
    nn.functional.mse_loss(x, targets).backward()
    gradients = {("grad_output", name): output.grad for name, output in outputs.items() if output.grad is not None}
    return {("output", name): output.detach() for name, output in outputs.items()} | gradients


def off(found: Mapping[str, float], values: Tensor) -> float:
    scale = values.square().mean().sqrt().item()
    true = {"mean": values.mean().item(), "std": values.std().item(), "rms": scale}
    return max(abs(found[name] - value) for name, value in true.items()) / scale


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: a tiny net")
    parser.add_argument("--precision", choices=["bf16-mixed", "bf16-true", "32-true"], default="bf16-mixed")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each variant, 2 or more")
    parser.add_argument("--steps", type=int, default=10, help="timed steps in each turn")
    args = parser.parse_args(arguments)
    is_tiny = args.device == "cpu"
    if not (is_tiny or torch.cuda.is_available()):
        print("no CUDA device: there is nothing to measure here (--device cpu tries the program)")
        return

    device = torch.device("cpu") if is_tiny else torch.device("cuda", torch.cuda.current_device())
    card = f"{platform.machine()}, a tiny net" if is_tiny else torch.cuda.get_device_name(device)
    print(f"{card}, torch {torch.__version__}, lightning {lightning.__version__}, {args.precision}\n")
    options = {"accelerator": args.device, "devices": 1, "precision": args.precision}
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as no_kernels:
        os.environ["TRITON_CACHE_DIR"] = no_kernels
        first, second = first_due_step(device, is_tiny, options)
        print(f"first due step, with no kernel on disk: {first:.2f} s more than a bare step; the second {second:.3f} s")
        largest = deviation_in_graphs(device, options)
        print(f"values made in CUDA graphs: largest relative deviation {largest:.1e}", flush=True)
        show_steps(device, is_tiny, args.rounds, args.steps, options)
    if not largest <= LARGEST_DEVIATION:
        sys.exit("Wrong: values made in CUDA graphs are not true.")


if __name__ == "__main__":
    main()
