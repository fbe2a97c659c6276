"""What watching costs as the number of layers and the size of tensors grow, and what memory it takes.

    python benchmarks/scaling.py           everything; writes docs/images/scaling.png
    python benchmarks/scaling.py --quick   small ones alone, in under 40 seconds; writes no picture

Three Markdown tables are printed. *Sites*: a training step of a chain of tiny layers, with `ActivationLogger` and
`GradientLogger` due on every step, never due, and without them, which take turns as in overhead.py; a logger takes the
numbers and drops them. *Size*: the time to measure one tensor beside one read of it by torch's sum. *Memory*: what a
run holds after more and more steps.
"""

import argparse
import gc
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from overhead import NEVER, Turns, fit, take_turns
from torch import Tensor, nn

from hookboard import ActivationLogger, GradientLogger, HealthMonitor, ParameterLogger
from hookboard.measure.statistics import DEFAULT, plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site

CPU = torch.device("cpu")
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "scaling.png"


class Chain(LightningModule):
    """A chain of tiny layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))

    def training_step(self, batch: Tensor) -> Tensor:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Nowhere(Logger):
    """Takes numbers and drops them, so that no writer grows and nothing waits for a disk."""

    @property
    def name(self) -> str:
        return "nowhere"

    @property
    def version(self) -> int:
        return 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        pass

    def log_hyperparams(self, *args: object, **kwargs: object) -> None:
        pass


class At(Callback):
    """Calls a function at the start of these steps."""

    def __init__(self, steps: Sequence[int], do: Callable[[int], None]) -> None:
        self.steps, self.do = frozenset(steps), do

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: object) -> None:
        if trainer.global_step in self.steps:
            self.do(trainer.global_step)


class CostOfSites(NamedTuple):
    """Seconds of a step of a net with so many layers."""

    layers: int
    bare: float
    never_due: float
    due: float


def watching(every_n_steps: int) -> list[Callback]:
    return [ActivationLogger(every_n_steps=every_n_steps), GradientLogger(every_n_steps=every_n_steps)]


def cost_of_sites(layers: int) -> CostOfSites:
    """Steps of a chain of layers; the median over turns."""
    rounds, steps = (9, 1) if layers > 2_000 else (10, max(2, 300 // layers))
    variants = {"bare": [], "never due": watching(NEVER), "due": watching(1)}
    means = take_turns(Turns(variants, rounds, steps), Chain(layers), torch.randn(4, 4), logger=Nowhere())
    return CostOfSites(layers, *(statistics.median(means[name]) for name in variants))


class CostOfSize(NamedTuple):
    """Seconds to measure a tensor of so many values."""

    values: int
    one_read: float
    row: float
    with_histogram: float


def cost_of_size(values: int, repeats: int) -> CostOfSize:
    """A tensor is measured again and again; the fastest counts, which others on the machine disturb least."""
    tensor, site = torch.randn(values), Site("layer", "output")
    row, with_histogram = (Table(plan(DEFAULT), CPU, histogram=wants).open(site) for wants in (False, True))

    def seconds(do: Callable[[], object]) -> float:
        do()
        took = []
        for _ in range(repeats):
            start = time.perf_counter()
            do()
            took.append(time.perf_counter() - start)
        return min(took)

    return CostOfSize(
        values,
        seconds(tensor.sum),
        seconds(lambda: row(tensor)),
        seconds(lambda: with_histogram(tensor)),
    )


def growth(at: Sequence[int], every_n_steps: int) -> list[tuple[int, int]]:
    """These steps, and the bytes that a run of a tiny net then holds, with all callbacks that log numbers."""
    held = []

    def note(step: int) -> None:
        gc.collect()
        held.append((step, tracemalloc.get_traced_memory()[0]))

    parameters, monitor = ParameterLogger(every_n_steps=every_n_steps), HealthMonitor(every_n_steps=every_n_steps)
    callbacks = [At(at, note), *watching(every_n_steps), parameters, monitor]
    tracemalloc.start()
    fit(Chain(2), torch.randn(4, 4), max(at) + 1, callbacks, logger=Nowhere())
    tracemalloc.stop()
    return held


def draw(sites: Sequence[CostOfSites], sizes: Sequence[CostOfSize], path: Path) -> None:
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    layers = [each.layers for each in sites]
    left.loglog(layers, [1e3 * each.due for each in sites], "o-", color="#b2182b", label="due on every step")
    left.loglog(layers, [1e3 * each.never_due for each in sites], "s-", color="#2166ac", label="never due")
    left.loglog(layers, [1e3 * each.bare for each in sites], ".--", color="#333333", label="without hookboard")
    left.set(title="One training step", xlabel="layers of 4 units, two sites each", ylabel="milliseconds")
    values = [each.values for each in sizes]
    right.loglog(
        values, [1e3 * e.with_histogram for e in sizes], "^-", color="#e08214", label="five statistics, histogram"
    )
    right.loglog(values, [1e3 * e.row for e in sizes], "o-", color="#b2182b", label="five statistics")
    right.loglog(values, [1e3 * e.one_read for e in sizes], ".--", color="#333333", label="one read: torch's sum")
    right.set(title="Measuring one tensor", xlabel="values in it (float32)", ylabel="milliseconds")
    for each in sites:
        note_ratio(left, each.layers, 1e3 * each.due, each.due / each.bare)
    for e in sizes:
        note_ratio(right, e.values, 1e3 * e.with_histogram, e.with_histogram / e.one_read)
    for axes in (left, right):
        axes.margins(y=0.1)
        axes.plot([], [], " ", label="2x: times the dashed line")
        axes.legend(frameon=False, loc="upper left")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100, facecolor="white")
    pyplot.close(figure)


def note_ratio(axes: Any, x: float, y: float, ratio: float) -> None:
    """How many times the lowest line the highest one is."""
    axes.annotate(f"{ratio:.1f}x", (x, y), (0, 6), textcoords="offset points", ha="center", fontsize=8)


def show_sites(counts: Sequence[int]) -> list[CostOfSites]:
    print("| layers | bare step | never due | due | due: per site |\n|---|---|---|---|---|")
    rows = []
    for layers in counts:
        row = cost_of_sites(layers)
        rows.append(row)
        per_site = 1e6 * (row.due - row.bare) / (2 * layers)
        print(
            f"| {layers:,} | {1e3 * row.bare:.2f} ms | {row.never_due / row.bare:.2f} | {row.due / row.bare:.2f} "
            f"| {per_site:.1f} us |",
            flush=True,
        )
    return rows


def show_sizes(sizes: Sequence[int]) -> list[CostOfSize]:
    print("\n| values | one read | five statistics | with histogram |\n|---|---|---|---|")
    rows = []
    for values in sizes:
        row = cost_of_size(values, max(3, min(200, 10**8 // values)))
        rows.append(row)
        cells = [f"{values:.0e}", *(f"{1e6 * seconds:,.1f} us" for seconds in row[1:])]
        print(f"| {' | '.join(cells)} |", flush=True)
    return rows


def show_memory(steps: Sequence[int], every_n_steps: int) -> None:
    print(f"\nAll callbacks, due on every {every_n_steps}th step:\n")
    print("| step | held by Python and NumPy |\n|---|---|")
    for step, traced in growth(steps, every_n_steps):
        print(f"| {step:,} | {traced / 1e6:.2f} MB |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small ones alone, and no picture")
    args = parser.parse_args()

    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads\n")
    if args.quick:
        show_sites([10, 100])
        show_sizes([10**2, 10**4, 10**6])
        show_memory([100, 300], 10)
        return
    sites = show_sites([10, 100, 1_000, 10_000])
    sizes = show_sizes([10**power for power in range(2, 9)])
    draw(sites, sizes, PICTURE)
    show_memory([1_000, 2_000, 5_000, 10_000], 10)


if __name__ == "__main__":
    main()
