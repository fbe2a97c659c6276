"""What watching a network costs, as a ratio to the bare training step, side by side in one process.

    python benchmarks/overhead.py                   ResNet-18, batch 16, 3x64x64, every leaf module
    python benchmarks/overhead.py --histogram       with histograms on
    python benchmarks/overhead.py --small           50 linear layers of 64 units, batch 16
    python benchmarks/overhead.py --health          HealthMonitor in place of the loggers
    python benchmarks/overhead.py --language        a GPT-2 of 124 million weights, 2x128 tokens: attention's logits and
                                                    entropies, and HealthMonitor

Other tools are compared by peers.py.

One Trainer trains one network. The variants take turns of a few steps, in an order drawn anew for each round, so
that a drift of the machine's speed and the placement of the network in memory meet all of them alike; the first
step of a turn, which attaches the hooks, does not count. Printed is the median over the turns of their mean step, as
a ratio to that of the bare turns, and beside it how the ratio spreads from round to round. The bare step stands in
it twice: the ratio of "bare step again" would be 1 on a machine without noise.

Turns of one step (`--steps 1`) tell small differences best: what stands side by side meets the same machine. Half a
percent of the ResNet-18 takes 330 rounds on a quiet machine.
"""

import argparse
import itertools
import logging
import platform
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import lightning
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torchvision.models import resnet18

from hookboard import ActivationLogger, GradientLogger, HealthMonitor
from hookboard.loops.callback import HookboardCallback
from hookboard.loops.trainer import TrainerLoop

BATCH = 16
NEVER = 10**9


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = resnet18(num_classes=10)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


class Small(Classifier):
    """Its steps are so short that the calls of hooks cost more than what they measure."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(50)))

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images[:, 0, 0]), labels)


class Language(LightningModule):
    """A GPT-2 of its smallest published size, with random weights, whose attention is torch's."""

    def __init__(self) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        super().__init__()
        self.net = GPT2LMHeadModel(GPT2Config())

    def training_step(self, batch: Tensor) -> Tensor:
        loss: Tensor = self.net(input_ids=batch, labels=batch).loss
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


class SameBatch(IterableDataset[Any]):
    """Gives one batch again and again: the given one, or 16 pictures with labels."""

    def __init__(self, batch: Any = None) -> None:
        self.batch = (torch.randn(BATCH, 3, 64, 64), torch.randint(10, (BATCH,))) if batch is None else batch

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(self.batch)


WARM_UP = 2
"""Steps of a turn that are not timed: hookboard's callbacks, once begun, are called from the next batch on."""


class Turns(Callback):
    """Gives each variant's callbacks turns of a few steps of one fit, and times the steps.

    They are timed from the start of a batch to the start of another, which holds all that they cost.

    Args:
        variants: the callbacks of each.
        rounds: turns of each that count; there is one more, which warms up.
        steps: timed steps in each turn.
        settle: waits for what a step has left to others, such as a device. It is called with the callbacks whose turn
            it is, before each look at the clock.
        clock: tells the time in seconds.
    """

    def __init__(
        self,
        variants: Mapping[str, list[Callback]],
        rounds: int,
        steps: int,
        settle: Callable[[list[Callback]], None] = lambda callbacks: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if rounds < 2 or steps < 1:
            raise SystemExit(f"{rounds} rounds of {steps} steps: give 2 rounds or more, of 1 step or more.")
        self.variants = variants
        self.settle = settle
        self.clock = clock
        self.means: dict[str, list[float]] = {name: [] for name in variants}
        self.steps = steps
        shuffled = random.Random(0)
        turns = [shuffled.sample(list(variants), len(variants)) for _ in range(rounds + 1)]
        self.waiting = list(itertools.chain.from_iterable(turns))
        self.total_steps = len(self.waiting) * (WARM_UP + steps) + 1
        self.active: list[Callback] = []
        self.name = ""
        self.done = 0
        self.start = 0.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if not self.name:
            self._next_turn(trainer, pl_module)
        elif self.done == WARM_UP:
            self.settle(self.active)
            self.start = self.clock()
        elif self.done == WARM_UP + self.steps:
            self.settle(self.active)
            self.means[self.name].append((self.clock() - self.start) / self.steps)
            self._next_turn(trainer, pl_module)
        self.done += 1
        for callback in self.active:
            callback.on_train_batch_start(trainer, pl_module, *args)

    def _next_turn(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for callback in self.active:
            if isinstance(callback, HookboardCallback):
                callback.end_run(TrainerLoop.of(trainer))  # which would tell it the end of the fit
            else:
                callback.teardown(trainer, pl_module, "fit")
        self.active = []
        assert not any(isinstance(one, TrainerLoop) for one in trainer.callbacks), "the last turn has not ended"
        if self.waiting:
            self.name = self.waiting.pop(0)
            self.active = self.variants[self.name]
        for callback in self.active:
            callback.on_fit_start(trainer, pl_module)
        self.done = 0

    def on_before_backward(self, *args: Any) -> None:
        for callback in self.active:
            callback.on_before_backward(*args)

    def on_after_backward(self, *args: Any) -> None:
        for callback in self.active:
            callback.on_after_backward(*args)

    def on_before_optimizer_step(self, *args: Any) -> None:
        for callback in self.active:
            callback.on_before_optimizer_step(*args)

    def on_train_batch_end(self, *args: Any) -> None:
        for callback in self.active:
            callback.on_train_batch_end(*args)


def variants(histogram: bool, health: bool) -> dict[str, list[Callback]]:
    def watching(every_n_steps: int) -> list[Callback]:
        if health:
            return [HealthMonitor(every_n_steps=every_n_steps)]
        return [
            ActivationLogger(every_n_steps=every_n_steps, histogram=histogram),
            GradientLogger(every_n_steps=every_n_steps, histogram=histogram),
        ]

    name = "HealthMonitor" if health else "hookboard"
    return {
        "bare step": [],
        "bare step again": [],
        f"{name}, never due": watching(NEVER),
        f"{name}, due on every step": watching(1),
    }


def language_variants() -> dict[str, list[Callback]]:
    return {
        "bare step": [],
        "bare step again": [],
        "attention, due on every step": [
            ActivationLogger(every_n_steps=1, roles=["attention_logit", "attention_entropy"])
        ],
        "HealthMonitor, never due": [HealthMonitor(every_n_steps=NEVER)],
        "HealthMonitor, due on every step": [HealthMonitor(every_n_steps=1)],
    }


def fit(model: LightningModule, batch: Any, steps: int, callbacks: Sequence[Callback], **options: Any) -> None:
    """Train on one batch again and again, without a word from Lightning; callbacks that switch themselves off fail.

    Args:
        model: what is trained.
        batch: on it; None for pictures with labels.
        steps: optimizer steps.
        callbacks: of the Trainer.
        **options: others of the Trainer's.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    warnings.filterwarnings("error", ".*is switched off from now on")  # what does not measure costs nothing
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_steps=steps,
            callbacks=list(callbacks),
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            **{"accelerator": "cpu", "logger": TensorBoardLogger(folder), **options},
        )
        trainer.fit(model, DataLoader(SameBatch(batch), batch_size=None))


def take_turns(turns: Turns, model: LightningModule, batch: Any = None, **options: Any) -> dict[str, list[float]]:
    """Train the model as `fit` does, and time the variants.

    Returns:
        By variant the mean seconds of a step in each of its turns, without the first, which warms up.
    """
    fit(model, batch, turns.total_steps, [turns], **options)
    return {name: seconds[1:] for name, seconds in turns.means.items()}


def ratio(seconds: Sequence[float], bare: Sequence[float]) -> float:
    """The median over the turns, as a ratio to that of the bare turns."""
    return statistics.median(seconds) / statistics.median(bare)


def quartiles(seconds: Sequence[float], bare: Sequence[float]) -> list[float]:
    """The quartiles of the ratio from round to round; at least two rounds."""
    return statistics.quantiles([s / b for s, b in zip(seconds, bare, strict=True)], n=4)


def setting(rounds: int, steps: int) -> str:
    return (
        f"torch {torch.__version__}, lightning {lightning.__version__}, {platform.machine()}, "
        f"{torch.get_num_threads()} threads; {rounds} rounds of {steps} steps"
    )


def said(name: str, seconds: Sequence[float], bare: Sequence[float]) -> str:
    low, middle, high = quartiles(seconds, bare)
    by_round = f"by round: median {middle:.3f}, quartiles {low:.3f} to {high:.3f}"
    return f"{name:32} {ratio(seconds, bare):6.3f}  ({by_round}; {1e3 * statistics.median(seconds):.1f} ms)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="turns of each variant")
    parser.add_argument("--steps", type=int, default=5, help="timed steps in each turn")
    parser.add_argument("--small", action="store_true", help="a net of many small layers in place of the ResNet-18")
    parser.add_argument("--language", action="store_true", help="a GPT-2 of 124 million weights in its place")
    parser.add_argument("--histogram", action="store_true", help="with histograms")
    parser.add_argument("--health", action="store_true", help="HealthMonitor in place of the loggers")
    args = parser.parse_args()

    torch.manual_seed(0)
    model: LightningModule
    batch = None
    if args.language:
        model, title = Language(), "GPT-2, 2x128 tokens"
        chosen, batch = language_variants(), torch.randint(50_000, (2, 128))
    else:
        model, title = (Small(), "50 layers of 64") if args.small else (Classifier(), "ResNet-18, 3x64x64")
        title += f", batch {BATCH}"
        chosen = variants(args.histogram, args.health)
    means = take_turns(Turns(chosen, args.rounds, args.steps), model, batch)

    print(f"{title}, every leaf module; {setting(args.rounds, args.steps)}")
    bare = means["bare step"]
    for name, seconds in means.items():
        print(said(name, seconds, bare))


if __name__ == "__main__":
    main()
