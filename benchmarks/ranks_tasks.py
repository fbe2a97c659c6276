"""What one process of ranks.py does, and how it counts what merging takes."""

import ctypes
import functools
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DataLoader

from hookboard import ActivationLogger, GradientLogger, HealthMonitor
from hookboard.base.ranks import Ranks
from hookboard.callbacks.health_monitor import HealthState, some_units
from hookboard.measure.table import Table
from hookboard.model.sites import Site
from hookboard.writers.loggers import Loggers

LATER = 5
"""Looks that are timed, after the first, and as many again whose memory is measured."""


class Shape(NamedTuple):
    """Of a language model such as Llama 3."""

    name: str
    blocks: int
    width: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int


SHAPES = {
    "tiny": Shape("tiny", 2, 64, 160, 4, 2, 500),
    "1B": Shape("1B", 16, 2048, 8192, 32, 8, 128256),
    "8B": Shape("8B", 32, 4096, 14336, 32, 8, 128256),
}


class Look(NamedTuple):
    """What merging took in one look. `seconds` passed until all was merged, `extra` is bytes of memory."""

    handed: int = 0
    sent: int = 0
    messages: int = 0
    cpu: float = 0.0
    extra: int = 0
    seconds: float = 0.0


class Tally:
    """Counts what this process hands to collectives of `Ranks`, and what they take.

    Where the process group is torch's fake one, it gives what this rank has, as if the others had nothing.
    """

    def __init__(self) -> None:
        self.start = {"connections": 0, "connecting": 0.0}
        self._look, self._held, self._cpu, self._start = Look(), 0, 0.0, 0.0
        c10d = dist.distributed_c10d  # where `all_gather_object` finds its `all_gather`
        self._reduce, self._gather, self._new_group = dist.all_reduce, c10d.all_gather, dist.new_group
        dist.all_reduce, c10d.all_gather, dist.new_group = self._reduced, self._gathered, self._grouped
        at = Ranks.at

        def begins(*given: Any) -> Any:
            self.begin()
            return at(*given)

        Ranks.at = begins

    def begin(self) -> None:
        """A look begins, unless it has begun."""
        if not self._held:
            Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now
            self._held, self._cpu, self._start = memory("VmRSS"), time.process_time(), time.perf_counter()

    def take(self) -> Look:
        """What was counted since the look began."""
        extra, cpu, seconds = memory("VmHWM") - self._held, time.process_time(), time.perf_counter()
        look, self._look, self._held = self._look, Look(), 0
        return look._replace(extra=extra, cpu=cpu - self._cpu, seconds=seconds - self._start)

    def _add(self, **counted: float) -> None:
        self._look = self._look._replace(**{key: getattr(self._look, key) + by for key, by in counted.items()})

    def _reduced(self, given: Tensor, *args: Any, **options: Any) -> Any:
        if options.get("group") is not None:  # gloo reduces in a ring: each number passes twice, in parts
            others, size = dist.get_world_size() - 1, dist.get_world_size()
            self._add(handed=given.nbytes, sent=2 * given.nbytes * others // size, messages=2 * others)
        return self._reduce(given, *args, **options)

    def _gathered(self, into: Any, given: Tensor, **options: Any) -> Any:
        if options.get("group") is not None:
            others = dist.get_world_size() - 1
            self._add(handed=given.nbytes, sent=others * given.nbytes, messages=others)
        return self._gather(into, given, **options)

    def _grouped(self, **options: Any) -> Any:
        self.start["connections"] += dist.get_world_size() - 1
        start = time.perf_counter()
        group = self._new_group(**options)
        self.start["connecting"] += time.perf_counter() - start
        return group


def memory(kind: str) -> int:
    """Bytes of this process in memory: now (VmRSS), or at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(kind))


def give_back_memory() -> None:
    """From now on memory that is freed goes back to the system at once, so that a peak can be seen again."""
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    for option in (-1, -3):  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD; glibc raises them otherwise
        libc.mallopt(option, 1 << 16)


class Net(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(7)))

    def training_step(self, batch: Tensor) -> Tensor:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Pretending(SingleDeviceStrategy):
    """One process that takes itself for one of many."""

    def __init__(self, size: int) -> None:
        super().__init__(device="cpu")
        self.world_size = size


class Looks(Callback):
    """Has each look merged by itself, while the training stands still."""

    def __init__(self, tally: Tally, watched: Sequence[Any]) -> None:
        self.tally, self.watched = tally, watched
        self.looks: list[Look] = []

    def on_train_batch_start(self, *args: Any) -> None:
        if len(self.looks) == 1 + LATER:
            give_back_memory()

    def on_train_batch_end(self, *args: Any) -> None:
        for callback in self.watched:
            callback.finish()
            assert callback.readings
        self.looks.append(self.tally.take())


def trained(strategy: Any, devices: int) -> dict[str, Any]:
    tally = Tally()
    watched: list[Any] = [tool(every_n_steps=1) for tool in (HealthMonitor, ActivationLogger, GradientLogger)]
    looks = Looks(tally, watched)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            strategy=strategy,
            devices=devices,
            accelerator="cpu",
            max_epochs=1,
            use_distributed_sampler=False,
            callbacks=[*watched, looks],
            logger=TensorBoardLogger(folder),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Net(), DataLoader((1 + 2 * LATER) * [torch.randn(16, 512)], batch_size=None))
    return {**tally.start, "looks": looks.looks}


def in_a_process(size: int) -> dict[str, Any]:
    return trained(DDPStrategy(process_group_backend="gloo"), size)


def among(size: int) -> dict[str, Any]:
    pretend(size)
    return trained(Pretending(size), 1)


def pretend(size: int) -> None:
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())


class Llama(LightningModule):
    """The layers of a language model, each called once; attention only passes its queries on."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        kv = shape.width // shape.heads * shape.kv_heads
        linear = functools.partial(nn.Linear, bias=False)
        with torch.device("meta"):  # whose device is still the CPU
            self.embedding = nn.Embedding(shape.vocabulary, shape.width)
            self.blocks = nn.ModuleList()
            for _ in range(shape.blocks):
                wide, narrow = linear(shape.width, shape.width), linear(shape.feed_forward, shape.width)
                block = {"attention_norm": nn.RMSNorm(shape.width), "q": wide, "k": linear(shape.width, kv)}
                block |= {"v": linear(shape.width, kv), "o": linear(shape.width, shape.width)}
                block |= {"norm": nn.RMSNorm(shape.width), "gate": linear(shape.width, shape.feed_forward)}
                block |= {"silu": nn.SiLU(), "up": linear(shape.width, shape.feed_forward), "down": narrow}
                self.blocks.append(nn.ModuleDict(block))
            self.norm = nn.RMSNorm(shape.width)
            self.head = linear(shape.width, shape.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            y = block["attention_norm"](x)
            _ = block["k"](y), block["v"](y)
            x = x + block["o"](block["q"](y))
            y = block["norm"](x)
            x = x + block["down"](block["silu"](block["gate"](y)) * block["up"](y))
        return self.head(self.norm(x))


class Monitor(HealthMonitor):
    """What it would measure of a model, and with what, without a training."""

    def table(self, model: LightningModule, ranks: Ranks) -> Table:
        self._ranks = ranks
        given = {"loggers": Loggers([], ""), "selection": self._select(model), "layout": {}}
        state = HealthState(stage="train", every_n_steps=1, **given)
        return self._table(SimpleNamespace(model=model, device=torch.device("cpu")), state)

    def shapes(self, model: LightningModule) -> dict[Site, torch.Size]:
        """Of every tensor, for two tokens; the model may be without values."""
        shapes: dict[Site, torch.Size] = {}
        for name, module in self._select(model).modules.items():

            def note(module: nn.Module, args: Any, output: Tensor, name: str = name) -> None:
                shapes[Site(name, "output")] = shapes[Site(name, "grad_output")] = output.shape

            module.register_forward_hook(note)
        model(torch.zeros(1, 2, dtype=torch.long, device="meta"))
        for name, weight in model.named_parameters():
            for role in ("parameter_before", "parameter_grad", "parameter_update"):
                shapes[Site(name, role)] = some_units(weight).shape
        return shapes


def dtype_of(site: Site) -> torch.dtype:
    """As in mixed precision, where what is not a weight has a histogram."""
    return torch.float32 if site.role.startswith("parameter") else torch.bfloat16


def merged(name: str, size: int) -> dict[str, Any]:
    pretend(size)
    tally, ranks = Tally(), Ranks()
    model, monitor = Llama(SHAPES[name]), Monitor()
    table, shapes, looks = monitor.table(model, ranks), monitor.shapes(model), []
    for look in range(1 + 2 * LATER):
        if look == 1 + LATER:
            give_back_memory()
        table.observe_all((site, torch.randn(shape, dtype=dtype_of(site)), None) for site, shape in shapes.items())
        tally.begin()
        readings = table.send()().values()
        looks.append(tally.take())
    channels = sum(0 if reading.channels is None else len(reading.channels) for reading in readings)
    return {**tally.start, "looks": looks, "sites": len(shapes), "channels": channels}


TASKS = {"processes": in_a_process, "ranks": among, "widths": merged}
