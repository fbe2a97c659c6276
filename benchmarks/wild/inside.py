"""Trains a project inside its environment: `inside.py NAME FILE VARIANT... [--faulty]`.

A script in `projects` says where its recipe is from, and has

    FAULT = ("rate", "lr=1 instead of 1e-3")   the kind of its fault, one of `FAULTS` in `__main__.py`, and what is done
    VARIANTS = ("triplet", "arcface")          the names of its trainings, if there are several; the first has the fault
    FALLS = False                              if its loss does not measure learning, as in games
    def train(run): ...                        trains, with the fault if `run.faulty`

`Run` has what it trains with: callbacks for a Trainer, `descend` for the usual loop, `loop` for any other.

Each is trained without a monitor and with one, from the same seed, and what must be the same is compared bit for bit;
then the first with its fault. FILE gets a row for each.
"""

import hashlib
import importlib
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from benchmarks.recipes.recipe import ends, has_fallen
from lightning.pytorch import Callback

from hookboard import HealthMonitor, for_transformers, watch

EVERY = 10


class Run:
    """What a script trains with.

    Args:
        variant: the name of the training.
        faulty: whether the fault is planted.
        monitor: None for a plain run.
    """

    def __init__(self, variant: str, faulty: bool, monitor: HealthMonitor | None) -> None:
        self.variant, self.faulty, self.monitor = variant, faulty, monitor
        self.losses: list[float] = []
        self.kept: list[Any] = []

    @property
    def callbacks(self) -> list[Any]:
        """The callbacks for a Lightning Trainer."""
        return [_kept_by_lightning(self), *([] if self.monitor is None else [self.monitor])]

    @property
    def hugging_face(self) -> list[Any]:
        """The callbacks for Hugging Face's Trainer; its `logging_steps` says how often the loss is kept."""
        monitor = [] if self.monitor is None else [for_transformers(self.monitor)]
        return [_kept_by_hugging_face(self), *monitor]

    @contextmanager
    def loop(self, model: torch.nn.Module, optimizers: Any, **options: Any) -> Iterator[Any]:
        """Watch a loop, as `hookboard.watch` does; without a monitor, its `step` and `evaluate` do nothing."""
        plain = SimpleNamespace(step=lambda batch=None, **_: nullcontext(), evaluate=nullcontext)
        watched = nullcontext(plain)
        if self.monitor is not None:
            watched = watch(model, optimizers, [self.monitor], **options)  # type: ignore[assignment]  # both are contexts
        with watched as steps:
            yield steps
        self.keep(model, {})

    def descend(
        self, model: torch.nn.Module, optimizer: Any, batches: Iterable[Any], loss_of: Any, clip: float | None = None
    ) -> None:
        """Take a step for each batch, watched.

        Args:
            model: what is trained.
            optimizer: of its weights.
            batches: one for each step, drawn when its step begins.
            loss_of: returns the loss of a batch; the parts of a tuple or list are arguments of their own.
            clip: the largest norm of the gradients.
        """
        with self.loop(model, optimizer) as steps:
            for batch in batches:
                with steps.step(batch):
                    optimizer.zero_grad()
                    loss = loss_of(*batch) if isinstance(batch, tuple | list) else loss_of(batch)
                    loss.backward()
                    if clip is not None:
                        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                    optimizer.step()
                self.loss(loss)

    def loss(self, value: Any) -> None:
        """Keep the loss of a batch."""
        self.losses.append(float(value.detach() if isinstance(value, torch.Tensor) else value))

    def keep(self, model: torch.nn.Module, metrics: Any) -> None:
        """Keep what must be the same with and without a monitor."""
        named = [*model.named_parameters(), *((name, at) for name, at in model.state_dict().items() if _is_tensor(at))]
        self.kept.append([_digest(named), {name: repr(float(value)) for name, value in dict(metrics).items()}])


class _Kept(Callback):
    """Keeps each loss and, at the end, weights and metrics of a Lightning Trainer."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is None:  # optimized by hand
            said = {**trainer.callback_metrics, **(outputs or {})}
            loss = said.get("train_loss", said.get("generator_loss"))
        if loss is not None:
            self.run.loss(loss)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self.run.keep(pl_module, trainer.callback_metrics)


def _kept_by_lightning(run: Run) -> Any:
    """Make a `_Kept` that is also a Callback of pytorch_lightning, if the project has imported that."""
    other = sys.modules.get("pytorch_lightning")
    return _Kept(run) if other is None else type("Kept", (_Kept, other.Callback), {})(run)


def _kept_by_hugging_face(run: Run) -> Any:
    from transformers import TrainerCallback

    class Kept(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
            for name in ("loss", "embedding_loss"):  # setfit's name of it
                if logs and name in logs:
                    run.loss(logs[name])

        def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **given: Any) -> None:
            run.keep(model, {})

    return Kept()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.UninitializedParameter)


def _digest(named: Any) -> str:
    seen = hashlib.sha256()
    for name, tensor in named:
        tensor = tensor.detach().cpu()
        tensor = (tensor.to_dense() if tensor.is_sparse else tensor).contiguous()
        seen.update(name.encode())
        seen.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return seen.hexdigest()[:16]


def trained(script: Any, run: Run) -> tuple[str, float]:
    """Train in a new folder; returns the error that ended it, or "", and the seconds of this process."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    started, here, error = time.process_time(), Path.cwd(), ""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            script.train(run)
        except Exception as raised:
            traceback.print_exc()
            error = f"{type(raised).__name__}: {raised}"[:300]
        finally:
            os.chdir(here)
    return error, time.process_time() - started


def rows(name: str, variants: list[str], faulty: bool) -> Iterator[dict[str, Any]]:
    """Train a project; yields the rows of its table."""
    torch.set_num_threads(1)
    script = importlib.import_module(f"benchmarks.wild.projects.{name}")
    jobs = [(variant, False) for variant in variants] + [(variants[0], True)] * faulty
    for variant, planted in jobs:
        run = Run(variant, planted, HealthMonitor(every_n_steps=EVERY))
        plain, took = Run(variant, planted, None), 0.0
        if not planted:
            _, took = trained(script, plain)
        error, seconds = trained(script, run)
        assert run.monitor is not None
        yield {
            "name": name,
            "variant": variant,
            "fault": script.FAULT[0] if planted else "",
            "planted": script.FAULT[1] if planted else "",
            "error": error,
            "batches": len(run.losses),
            "loss": ends(run.losses),
            "learned": has_fallen(run.losses) or not getattr(script, "FALLS", True),
            "identical": None if planted else identical(script, plain, run),
            "seconds": [round(took, 1), round(seconds, 1)],
            "verdicts": [vars(said.in_sentences()) for said in run.monitor.verdicts],
        }


def identical(script: Any, plain: Run, run: Run) -> bool | str:
    """Return whether both were the same; if they were not, plain runs may not be either."""
    if same(plain, run):
        return True
    again = Run(plain.variant, plain.faulty, None)
    trained(script, again)
    return False if same(plain, again) else "two plain runs differ"


def same(one: Run, other: Run) -> bool:
    return repr([one.losses, one.kept]) == repr([other.losses, other.kept])


if __name__ == "__main__":
    _, name, file, *variants = sys.argv
    done: list[Any] = []
    for row in rows(name, [variant for variant in variants if variant != "--faulty"], "--faulty" in variants):
        done.append(row)
        Path(file).write_text(json.dumps(done, default=str))
