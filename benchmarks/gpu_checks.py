"""What gpu.py checks beside the time: that nothing waits for the device, and that the values of two ways are true."""

import copy
import functools
import math
import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from gpu_tasks import Task, Trained
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from overhead import SameBatch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import hookboard
from hookboard import ActivationLogger, GradientLogger, HealthMonitor, Reading

WAITING = "called a synchronizing CUDA operation"
"""What torch warns of where the host waits."""

PACKAGE = str(Path(hookboard.__file__).parent)


def settled(device: torch.device) -> float:
    """The time when the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def fit(model: LightningModule, batch: Any, steps: int, *callbacks: Callback, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_steps=steps,
            callbacks=list(callbacks),
            logger=TensorBoardLogger(folder),
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            **options,
        )
        trainer.fit(model, DataLoader(SameBatch(batch), batch_size=None))


def watching(every_n_steps: int, histogram: bool) -> list[Callback]:
    return [
        logger(every_n_steps=every_n_steps, histogram=histogram, statistics=["mean", "std", "rms", "abs_max"])
        for logger in (ActivationLogger, GradientLogger)
    ]


def wait_for(device: torch.device, callbacks: Sequence[Callback]) -> None:
    """Wait until the device and the callbacks have done all that they were given."""
    settled(device)
    for callback in callbacks:
        # Only callbacks that have either are given.
        _ = callback.verdicts if isinstance(callback, HealthMonitor) else callback.readings  # type: ignore[attr-defined]


class Waits:
    """Who waits for the device: torch's warnings of it by the code that they come from, and the waits for an event.

    The mode of `torch.cuda.set_sync_debug_mode` is "warn": with "error" the first wait of Lightning would end the run.
    """

    def __init__(self) -> None:
        self.of_hookboard: list[str] = []
        """The stack of each wait in hookboard, or in what it calls, without those for the copy of a look."""
        self.of_looks = 0
        """How often hookboard has waited for an event: that of the copy of a look, which was started a step before."""
        self.of_others = 0

    def note(self, *, is_event: bool) -> None:
        stack = traceback.extract_stack()[:-2]
        if not any(frame.filename.startswith(PACKAGE) for frame in stack):
            self.of_others += 1
        elif is_event:
            self.of_looks += 1
        else:
            self.of_hookboard.append("".join(traceback.format_list(stack)))

    def show(self, message: Warning | str, *args: Any, **kwargs: Any) -> None:
        """In the place of `warnings.showwarning`."""
        if WAITING in str(message):
            self.note(is_event=False)

    @contextmanager
    def noted(self, device: torch.device) -> Iterator[None]:
        event: Any = torch.cuda.Event
        synchronize = event.synchronize

        def counted(each: Any) -> None:  # torch does not warn of it
            self.note(is_event=True)
            synchronize(each)

        with warnings.catch_warnings():
            warnings.filterwarnings("always", WAITING)
            warnings.showwarning = self.show
            event.synchronize = counted
            try:
                if device.type == "cuda":
                    torch.cuda.set_sync_debug_mode("warn")
                yield
            finally:
                if device.type == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
                event.synchronize = synchronize


class Counted(Callback):
    """Notes who waits from the start of one step to the start of another. It must stand before the callbacks."""

    def __init__(
        self, first: int, last: int, waits: Waits, device: torch.device, callbacks: Sequence[Callback]
    ) -> None:
        self.first, self.last = first, last
        self.noted = waits.noted(device)
        self.settle = functools.partial(wait_for, device, callbacks)

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        if trainer.global_step == self.last:
            self.noted.__exit__(None, None, None)
        if trainer.global_step in (self.first, self.last):
            self.settle()
        if trainer.global_step == self.first:
            self.noted.__enter__()


DUE = 4
"""Due steps in which waits are counted."""


def waits(task: Task, device: torch.device, more: Mapping[str, Any]) -> tuple[Waits, int]:
    """Who waits for the device in due steps, by the two loggers with histograms and HealthMonitor.

    Returns:
        The waits, and how many there should be for the copies of looks: one for each due step and callback.
    """
    found, callbacks = Waits(), [*watching(1, histogram=True), HealthMonitor(every_n_steps=1)]
    counted = Counted(3, 3 + DUE, found, device, callbacks)
    fit(task.make(), task.batch, 4 + DUE, counted, *callbacks, **more)
    return found, DUE * len(callbacks)


class Starts(Callback):
    """Notes when each step starts, which waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.times: list[float] = []

    def on_train_batch_start(self, *args: Any) -> None:
        self.times.append(settled(self.device))


def first_due_step(task: Task, device: torch.device, more: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds of the first and of the second step that is due for both loggers, beyond those of bare steps."""
    starts, every = Starts(device), 8
    fit(task.make(), task.batch, 2 * every + 1, starts, *watching(every, histogram=True), **more)
    seconds = [end - start for start, end in zip(starts.times, starts.times[1:], strict=False)]
    bare = statistics.median(seconds[every // 2 : every - 1])
    return seconds[every - 1] - bare, seconds[2 * every - 1] - bare


class Aside(nn.Module):
    """Calls a module in a CUDA stream of its own, which is late."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return self.module(x)
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # noqa: SLF001 - some 10 ms
            y = self.module(x)
        current.wait_stream(stream)
        return y


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))


def aside(device: torch.device) -> nn.Module:
    return Aside(layers())


def graphed(device: torch.device) -> nn.Module:
    """Compiled with CUDA graphs; in place, so that its modules keep their names."""
    net = layers()
    net.compile(**({"mode": "reduce-overhead"} if device.type == "cuda" else {"backend": "aot_eager"}))
    return net


def deviation(make: Callable[[torch.device], nn.Module], device: torch.device, more: Mapping[str, Any]) -> float:
    """The largest relative deviation of a logged mean, std or RMS from a float64 computation on the CPU."""
    torch.manual_seed(0)
    net, batch = make(device), (torch.randn(32, 64, device=device), torch.zeros(32, 64, device=device))
    model = Trained(net, nn.functional.mse_loss, lambda p: torch.optim.SGD(p, lr=0.0))
    truth = true_values(net, batch)
    loggers = watching(1, histogram=True)
    fit(model, batch, 6, *loggers, **more)
    # A list of callbacks, since a Trainer takes no list of loggers alone.
    readings: list[Reading] = [reading for logger in loggers for reading in logger.readings]  # type: ignore[attr-defined]
    found = {(reading.site.role, reading.site.name.removeprefix("net.")): reading.statistics for reading in readings}
    missing = truth.keys() - found.keys()
    return math.inf if missing else max(off(found[site], values) for site, values in truth.items())


def true_values(net: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[tuple[str, str], Tensor]:
    """The tensors themselves, by role and name of the module, in float64 on the CPU; loss is the mean square."""
    plain, (inputs, targets) = copy.deepcopy(net).cpu().double(), (each.cpu().double() for each in batch)
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def kept(module: nn.Module, args: object, output: Tensor) -> None:
            output.retain_grad()
            outputs[name] = output

        return kept

    for name, module in plain.named_modules():
        if not list(module.children()):
            module.register_forward_hook(keep(name))
    nn.functional.mse_loss(plain.forward(inputs), targets).backward()
    gradients = {("grad_output", name): output.grad for name, output in outputs.items() if output.grad is not None}
    return {("output", name): output.detach() for name, output in outputs.items()} | gradients


def off(found: Mapping[str, float], values: Tensor) -> float:
    scale = values.square().mean().sqrt().item()
    true = {"mean": values.mean().item(), "std": values.std().item(), "rms": scale}
    return max(abs(found[name] - value) for name, value in true.items()) / scale
