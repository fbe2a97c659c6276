"""`RecordingMonitor`: a monitor that keeps what it shows its judge. `Extras`: what only rules of other tools ask."""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.health.trace import Extra, Trace
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from hookboard import HealthMonitor
from hookboard.loops.loop import Loop
from hookboard.measure.taps import Taps
from hookboard.model.sites import Site

TOLD = ("see", "see_evaluation", "add", "end")
"""Everything that a judge is told by."""

BENT = (nn.ReLU, nn.Tanh, nn.Sigmoid)
"""The modules that the rules of other tools look into."""


class RecordingMonitor(HealthMonitor):
    """The monitor with its defaults, which writes down what it tells its judge.

    Args:
        trace: what it fills.
        window: how many looks a finding must last.
    """

    def __init__(self, trace: Trace, window: int) -> None:
        super().__init__(window=window)
        self.trace = trace

    def _prepare(self, loop: Loop, watch: Any) -> None:
        super()._prepare(loop, watch)
        if watch.reporter is not None:
            judge = watch.reporter.judge
            self.trace.layers = {layer.name: layer for layer in judge.run.layers}
            for name in TOLD:
                setattr(judge, name, self._recorded(name, getattr(judge, name)))

    def _recorded(self, name: str, tell: Callable[..., Any]) -> Callable[..., Any]:
        def keep(*given: Any, **named: Any) -> Any:
            self.trace.entries.append((name, given, named))
            return tell(*given, **named)

        return keep


class Extras(Callback):
    """Reads the inputs and outputs of ReLUs, tanhs and sigmoids in the steps that are looked at.

    Args:
        trace: what it fills.
        every: once in so many optimizer steps, and at the first.
    """

    def __init__(self, trace: Trace, every: int) -> None:
        self.trace = trace
        self.every = every
        self.seen: dict[str, Extra] = {}
        self.taps: Taps | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        modules = {name: module for name, module in pl_module.named_modules() if isinstance(module, BENT)}
        self.taps = Taps(modules, ("input", "output"), self._opener(modules))
        self.taps.attach()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        step = _step(trainer)
        assert self.taps is not None
        self.taps.active = step == 0 or (step + 1) % self.every == 0

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        assert self.taps is not None
        if self.taps.active:
            self.taps.end_step()
            self.trace.extras[_step(trainer)] = self.seen
            self.seen = {}

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if self.taps is not None:
            self.taps.detach()

    def _opener(self, modules: Mapping[str, nn.Module]) -> Callable[[Site], Callable[[Tensor], None]]:
        def opened(site: Site) -> Callable[[Tensor], None]:
            def observe(tensor: Tensor) -> None:
                extra = self.seen.setdefault(site.name, Extra())
                if site.role == "input":
                    extra.read_input(tensor.detach())
                else:
                    extra.read_output(_by_channel(tensor.detach()))

            return observe

        return opened


def _step(trainer: Trainer) -> int:
    """The step that the batch belongs to, as the monitor counts them."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped  # noqa: SLF001  # as hookboard itself


def _by_channel(tensor: Tensor) -> Tensor:
    """Shape (channels, samples and places)."""
    return tensor.movedim(1 if tensor.ndim == 4 else -1, 0).flatten(1)
