"""What the pictures of the digits demo cost, as a share of its run, at their default cadence.

    python benchmarks/pictures.py --rounds 10

A round is one fit without pictures and one with them, in random order, of the same seed and with the callbacks of
configs/digits.yaml. Printed is the median over rounds of how much longer the fit with pictures takes, to the last
byte in the file, and the share of it that passes inside the hooks of the picture callbacks.
"""

import argparse
import logging
import random
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from digits import Digits, DigitsClassifier

from hookboard import ActivationLogger, CAMLogger, FeatureMapLogger, GradientLogger, KernelLogger, ParameterLogger


def numbers() -> list[Callback]:
    return [
        ActivationLogger(types=["Conv2d", "BatchNorm2d", "ReLU", "Linear"], histogram=True),
        GradientLogger(["stem.*", "blocks.*.*", "head", "!**.norm*"], roles=["grad_output", "parameter_grad"]),
        ParameterLogger(types=["Conv2d", "Linear"], histogram=True),
    ]


def timed(callback: Callback, spent: list[float]) -> Callback:
    """The callback, each of whose hooks adds the time that it takes to `spent`."""
    for name in dir(callback):
        if name.startswith("on_"):
            setattr(callback, name, _timed(getattr(callback, name), spent))
    return callback


def _timed(hook: Any, spent: list[float]) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = hook(*args, **kwargs)
        spent.append(time.perf_counter() - start)
        return result

    return run


def fit(pictures: list[Callback]) -> float:
    """Seconds of the fit."""
    seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=15,
            log_every_n_steps=10,
            logger=TensorBoardLogger(folder, name=None, version=""),
            callbacks=[*numbers(), *pictures],
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
        )
        start = time.perf_counter()
        trainer.fit(DigitsClassifier(), Digits())
        trainer.logger.experiment.close()
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    fit([FeatureMapLogger(), KernelLogger(), CAMLogger()])
    added, shares = [], []
    for _ in range(rounds):
        spent: list[float] = []
        pictures = [timed(callback, spent) for callback in (FeatureMapLogger(), KernelLogger(), CAMLogger())]
        turns = [("without", []), ("with", pictures)]
        random.shuffle(turns)
        took = {name: fit(callbacks) for name, callbacks in turns}
        added.append(took["with"] / took["without"] - 1)
        shares.append(sum(spent) / took["with"])
    low, middle, high = statistics.quantiles(added, n=4)
    print(f"pictures add     {middle:6.2%}  (median of {rounds} rounds, quartiles {low:.2%} to {high:.2%})")
    print(f"in their hooks   {statistics.median(shares):6.2%}  of the fit")


if __name__ == "__main__":
    main()
