"""Python runs this file at the start of a process of `hookboard run`; only a training that begins imports hookboard."""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

WATCHED = {
    "lightning.pytorch.trainer.trainer": ("Trainer", "fit", "before_fit"),
    "pytorch_lightning.trainer.trainer": ("Trainer", "fit", "before_fit"),
    "transformers.trainer": ("Trainer", "train", "before_train"),
}
"""Module -> a class in it, a method, and the function of `callbacks/in_script.py` that is called before the method."""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the watched modules as Python does, and wraps the method once they have run."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in WATCHED:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                wrap(module, *WATCHED[name])

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]  # of this loader alone
        return spec


def wrap(module: ModuleType, kind: str, method: str, act: str) -> None:
    """Have a function of ours called with the object before the method runs."""
    owner = getattr(module, kind)
    real = getattr(owner, method)

    @functools.wraps(real)
    def wrapped(self: Any, *args: Any, **named: Any) -> Any:
        try:
            _ = importlib.import_module("hookboard").HealthMonitor  # imported like this, it leaves random numbers alone
            getattr(importlib.import_module("hookboard.callbacks.in_script"), act)(self)
        except Exception as error:  # a process that the script has started may run another Python, without hookboard
            sys.stderr.write(f"hookboard: training is not watched ({type(error).__name__}: {error})\n")
        return real(self, *args, **named)

    setattr(owner, method, wrapped)


def run_hidden() -> None:
    """Run the file of this name that this one has hidden, such as Debian's, as Python would have done."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def say_if_nothing_was_watched() -> None:
    """Say how to watch a loop of one's own, if a script that uses torch has ended without a Trainer."""
    has_ended_well = not hasattr(sys, "last_value")
    others = {"hookboard.loops.bare", "torch.distributed.launcher", "accelerate.commands"}  # its ranks are
    if has_ended_well and "torch" in sys.modules and others.isdisjoint(sys.modules):
        sys.stderr.write(
            "hookboard: nothing was watched because the script called no Trainer. Wrap a loop of your own "
            "in `with hookboard.watch(model, optimizer, hookboard.HealthMonitor()) as run:`, a step in `run.step()`.\n"
        )


folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != folder]
sys.meta_path.insert(0, _Finder())
if os.environ.pop("HOOKBOARD_RUN_SCRIPT", None):  # not in other processes that the script starts
    atexit.register(say_if_nothing_was_watched)
run_hidden()
