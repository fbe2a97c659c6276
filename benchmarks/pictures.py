"""What the pictures of the digits demo cost, as a share of its fit, at their default cadence.

    python benchmarks/pictures.py --rounds 10

Fits of configs/digits.yaml without its pictures and with them, in random order.
Printed is the share of the fit that passes in the hooks of the picture callbacks and, on the thread of TensorBoard's
writer, in writing what they have drawn; and beside it the ratio of the median fits, which says little unless there are
many rounds: two equal fits differ by more.
"""

import argparse
import logging
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.cli import LightningCLI
from tensorboard.summary.writer.record_writer import RecordWriter

from hookboard.callbacks.pictures import PictureLogger

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from digits import Digits, DigitsClassifier

ROOT = Path(__file__).parents[1]


class Spent:
    """Seconds that pass in functions which are wrapped in it."""

    seconds = 0.0

    def timing(self, function: Callable[..., Any], is_counted: Callable[..., bool] = lambda *_: True) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds += (time.perf_counter() - start) * is_counted(*args)
            return result

        return run

    def of_hooks(self, callback: Callback) -> Callback:
        for name in dir(callback):
            if name.startswith("on_"):
                setattr(callback, name, self.timing(getattr(callback, name)))
        return callback


def holds_picture(writer: RecordWriter, record: bytes) -> bool:
    return b"PNG" in record or b"JFIF" in record


def fit(has_pictures: bool, hooks: Spent) -> float:
    """Seconds that the demo's fit takes, to the last byte in its log."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--config", str(ROOT / "configs" / "digits.yaml"), f"--trainer.logger.init_args.save_dir={folder}"]
        cli = LightningCLI(DigitsClassifier, Digits, run=False, args=arguments)
        kept = [c for c in cli.trainer.callbacks if has_pictures or not isinstance(c, PictureLogger)]
        cli.trainer.callbacks = [hooks.of_hooks(c) if isinstance(c, PictureLogger) else c for c in kept]
        start = time.perf_counter()
        cli.trainer.fit(cli.model, cli.datamodule)
        cli.trainer.logger.experiment.close()
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    hooks, writing, fits = Spent(), Spent(), {"without": [], "with": []}
    RecordWriter.write = writing.timing(RecordWriter.write, holds_picture)
    fit(True, hooks)
    hooks.seconds = writing.seconds = 0.0
    for _ in range(rounds):
        for name in random.sample(list(fits), 2):
            fits[name].append(fit(name == "with", hooks))
    total = sum(fits["with"])
    print(f"in the hooks of the pictures   {hooks.seconds / total:6.2%} of the fit ({rounds} rounds)")
    print(f"writing the pictures           {writing.seconds / total:6.2%}")
    ratio = statistics.median(fits["with"]) / statistics.median(fits["without"])
    print(f"ratio of the median fits       {ratio:6.3f}")


if __name__ == "__main__":
    main()
