"""The share of a training's time that passes inside HealthMonitor at its default cadence.

    python benchmarks/inside.py [--steps 500]       HealthMonitor
    python benchmarks/inside.py --loggers           ActivationLogger and GradientLogger in its place

The network is that of overhead.py. A ratio of two trainings cannot show half of a percent where the machine's speed
moves by more, so this one takes the time inside of every hook: those of Lightning, of modules and of tensors. What
Python and torch need to call a hook is not in it: for each hook a function that does nothing is called right after it,
in the same way, and its time is taken off. The caches that a hook leaves cold are not in it either. `overhead.py
--health` has both in the ratio of the monitor that is never due: by as much as this ratio exceeds 1 plus the share of
"inside" in a step that is not due, as it is printed here, calling the hooks takes time too. A difference smaller than
that of "bare step again" from 1 tells nothing.
"""

import argparse
import gc
import logging
import platform
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from overhead import Classifier, SameBatch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hookboard import ActivationLogger, GradientLogger, HealthMonitor

WARM_UP = 20
CADENCE = 50  # Lightning's default


class Clock:
    """Adds up the time inside of the functions that it wraps; what one calls of another counts once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.is_running = False

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self.is_running:
                return function(*args, **kwargs)
            self.is_running = True
            try:
                start = time.perf_counter()
                found = function(*args, **kwargs)
                end = time.perf_counter()
                nothing(*args, **kwargs)
                self.seconds += end - start - (time.perf_counter() - end)
                return found
            finally:
                self.is_running = False

        return timed


def nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing: what its call takes, any call takes."""


class Steps(Callback):
    """Notes how long each step took, and how much of it passed inside. It must stand first in the list."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.start = 0.0
        self.steps: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def on_train_start(self, *args: Any) -> None:
        # A full collection reads 500,000 objects of torch and Lightning for 0.2 s, in whatever step it falls.
        gc.collect()
        gc.freeze()

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        now, done = time.perf_counter(), trainer.global_step
        if done > WARM_UP:
            is_due = done % CADENCE == 0
            self.steps["due" if is_due else "not due"].append((now - self.start, self.clock.seconds))
        self.start, self.clock.seconds = now, 0.0
        # The first allocation of 1 KB or more in a step has glibc join what the last step has freed. In a bare training
        # the first tensor pays for that (here 25 to 90 us); it is not the monitor's if it comes first.
        bytearray(8192)


def time_hooks(callbacks: list[Callback], clock: Clock) -> None:
    for callback in callbacks:
        assert hasattr(callback, "call_safely")  # through which nearly all of its methods are called
        for name in dir(callback):
            if name == "call_safely" or (name.startswith("on_") and not name.endswith("fit_start")):
                setattr(callback, name, clock.timed(getattr(callback, name)))
    for owner, name in ((nn.Module, "register_forward_hook"), (Tensor, "register_hook")):
        register = getattr(owner, name)

        def timed(self: Any, hook: Any, *args: Any, register: Any = register, **kwargs: Any) -> Any:
            function = getattr(hook, "func", hook)  # of a partial
            is_ours = (getattr(function, "__module__", None) or type(function).__module__).startswith("hookboard")
            return register(self, clock.timed(hook) if is_ours else hook, *args, **kwargs)

        setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500, help="optimizer steps")
    parser.add_argument("--loggers", action="store_true", help="the loggers of activations and gradients instead")
    args = parser.parse_args()
    if args.steps < 2 * CADENCE:
        parser.error(f"--steps {args.steps}: give {2 * CADENCE} or more, so that steps of both kinds are timed")

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    clock = Clock()
    callbacks = [ActivationLogger(), GradientLogger()] if args.loggers else [HealthMonitor()]
    time_hooks(callbacks, clock)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            max_steps=args.steps + 1,
            accelerator="cpu",
            logger=TensorBoardLogger(folder),
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
        )
        steps = Steps(clock)
        trainer.callbacks = [steps, *callbacks]
        trainer.fit(Classifier(), DataLoader(SameBatch(), batch_size=None))

    print(f"ResNet-18, torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads")
    means = {name: [sum(each) / len(times) for each in zip(*times, strict=True)] for name, times in steps.steps.items()}
    for name, (whole, inside) in means.items():
        print(f"{name:8} {len(steps.steps[name]):5} steps of {1e3 * whole:6.1f} ms, inside {1e3 * inside:7.3f} ms")
    bare = means["not due"][0] - means["not due"][1]
    added = (means["due"][1] + (CADENCE - 1) * means["not due"][1]) / CADENCE
    print(f"every {CADENCE}th step due: {100 * added / bare:.2f} % of a bare step of {1e3 * bare:.1f} ms")


if __name__ == "__main__":
    main()
