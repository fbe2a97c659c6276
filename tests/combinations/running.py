"""Runs a case bare, watched by hookboard, or under the eyes of the oracle, and keeps how it ended."""

import contextlib
import logging
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import toys
from combinations.case import Batch, Case, Student, batches
from combinations.circumstances import AXES
from combinations.raw import Raw
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

import hookboard
from hookboard import Reading

Kind = Literal["bare", "watched", "observed"]

Readings = dict[tuple[int, int, str, int], tuple[Reading, ...]]
"""By our callback's number, the number of the fit, the stage and the step or the number of the loop."""


class Kept(Callback):
    """Keeps what each of our callbacks read; stands last in the list."""

    def __init__(self, ours: Sequence[Callback]) -> None:
        self.ours = [(number, one) for number, one in enumerate(ours) if hasattr(one, "readings")]
        self.readings: Readings = {}
        self.last: dict[int, Any] = {}
        self.fits = self.loops = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.fits += 1
        self.loops = 0

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self.keep("train", trainer.fit_loop.epoch_loop._batches_that_stepped)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.loops += 1
            self.keep("validate", self.loops)

    def keep(self, stage: str, step: int) -> None:
        for number, one in self.ours:
            found = one.readings  # type: ignore[attr-defined]  # it has some
            if found and found is not self.last.get(number) and found[0].stage == stage:
                self.last[number] = found
                self.readings[number, self.fits, stage, step] = found


@dataclass
class Outcome:
    """How a run ended."""

    error: BaseException | None = None
    state: dict[str, Any] = field(default_factory=dict)
    left: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    readings: Readings = field(default_factory=dict)
    raw: Raw | None = None
    ours: list[Callback] = field(default_factory=list)


class Run:
    """One run of a case: what `Case.go` is given.

    Args:
        case: the case.
        kind: with nobody watching, with our callbacks, or with the oracle.
    """

    def __init__(self, case: Case, kind: Kind) -> None:
        self.case, self.kind = case, kind
        self.data, self.held_out = batches(3, seed=1), batches(2, seed=2)
        self.ours = [make() for make in case.ours] if kind == "watched" else []
        self.kept = Kept(self.ours)
        self.raw = Raw(case.rounds)
        self.models: list[Student] = []
        self.trainers: list[Trainer] = []

    def model(self) -> Student:
        """A new model."""
        torch.manual_seed(len(self.models))
        model = Student(self.case)
        for change in self.case.changes:
            change(model)
        self.models.append(model)
        return model

    def trainer(self, **options: Any) -> Trainer:
        """A new Trainer with the callbacks of the run."""
        others = [make() for make in self.case.others]
        first = [self.raw] if self.kind == "observed" else []
        last = [LateHooks(self.case.late_hooks)] + ([self.kept] if self.kind == "watched" else [])
        in_order = [*others, *self.ours] if self.case.others_first else [*self.ours, *others]
        given = {
            "default_root_dir": self.case.folder,
            "max_epochs": 2,
            "num_sanity_val_steps": 0,
            **self.case.options,
            **options,
        }
        for configure in self.case.configure:
            configure(given)
        folder = self.case.folder / self.kind / str(len(self.trainers))
        trainer = toys.trainer(folder, *first, *in_order, *last, **given)
        self.trainers.append(trainer)
        return trainer

    def loader(self, data: list[Batch]) -> DataLoader[Batch]:
        return DataLoader(data, batch_size=None)  # type: ignore[arg-type]  # a list will do

    def fit(
        self, model: Student | None = None, trainer: Trainer | None = None, checkpoint: Path | None = None
    ) -> tuple[Student, Trainer]:
        """Train a model."""
        model, trainer = model or self.model(), trainer or self.trainer()
        trainer.fit(model, self.loader(self.data), self.loader(self.held_out), ckpt_path=checkpoint)
        return model, trainer


class LateHooks(Callback):
    """Calls what somebody would do with the model once all hooks are on."""

    def __init__(self, hooks: list[Callable[[Student], None]]) -> None:
        self.hooks = hooks

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for hook in self.hooks:
            hook(pl_module)  # type: ignore[arg-type]  # it is a Student


def case_of(names: Sequence[str], folder: Path) -> Case:
    """The case of these circumstances, in the order of the axes."""
    known = {name: circumstance for axis in AXES.values() for name, circumstance in axis.items()}
    unknown = [name for name in names if name not in known]
    assert not unknown, f"unknown circumstances: {unknown}"
    case = Case(folder)
    for axis in AXES.values():
        chosen = [name for name in axis if name in names] or list(axis)[:1]
        assert len(chosen) == 1, f"only one of these can be: {chosen}"
        axis[chosen[0]](case)
    return case


def run(names: Sequence[str], kind: Kind, folder: Path) -> Outcome:
    """Run the case once."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    threads = set(threading.enumerate())
    case = case_of(names, folder)
    torch.manual_seed(0)
    one, outcome = Run(case, kind), Outcome()
    if case.is_compiled:
        torch.compiler.reset()
    eager = torch.compiler.set_stance("force_eager") if kind == "observed" and case.is_compiled else None
    with listening(outcome.said), eager or contextlib.nullcontext():
        try:
            with one.raw.watching() if kind == "observed" else contextlib.nullcontext():
                case.go(one)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            outcome.error = error.with_traceback(None) if kind != "watched" else error
    outcome.raw, outcome.readings, outcome.ours = one.raw, one.kept.readings, one.ours
    outcome.state = state_of(one)
    outcome.left = left_behind(one, threads)
    return outcome


@contextlib.contextmanager
def listening(said: list[str]) -> Iterator[None]:
    """Keeps every warning and every line of the loggers."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    lines = Lines()
    logger = logging.getLogger("lightning.pytorch")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handlers, propagates = logger.handlers, logger.propagate
        logger.handlers, logger.propagate = [lines], False
        try:
            yield
        finally:
            logger.handlers, logger.propagate = handlers, propagates
            said += [str(w.message) for w in caught if issubclass(w.category, hookboard.HookboardWarning)]


def state_of(one: Run) -> dict[str, Any]:
    """All that must be the same bit for bit."""
    state: dict[str, Any] = {
        "random state of torch": torch.get_rng_state(),
        "random state of numpy": np.random.get_state()[1],  # type: ignore[index]
        "random state of python": random.getstate(),
    }
    for number, model in enumerate(one.models):
        for index, loss in enumerate(model.losses):
            state[f"model {number}: loss {index}"] = loss
        for name, value in model.state_dict(keep_vars=True).items():
            if torch.nn.parameter.is_lazy(value):
                continue
            state[f"model {number}: {name}"] = value.detach() if isinstance(value, torch.Tensor) else value
            if getattr(value, "grad", None) is not None:
                state[f"model {number}: gradient of {name}"] = value.grad
        state[f"model {number}: modes"] = [module.training for module in model.modules()]
        extras = {name: getattr(module, "counted", None) for name, module in model.named_modules()}
        state[f"model {number}: counters"] = {name: count for name, count in extras.items() if count is not None}
    for number, trainer in enumerate(one.trainers):
        state[f"trainer {number}: steps"] = trainer.global_step
        metrics = {name: value for name, value in trainer.callback_metrics.items() if "hookboard" not in name}
        state |= {f"trainer {number}: metric {name}": value for name, value in metrics.items()}
        for index, optimizer in enumerate(trainer.optimizers):
            state[f"trainer {number}: optimizer {index}"] = optimizer.state_dict()
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        state[f"trainer {number}: scaler"] = scaler.state_dict() if scaler is not None else None
    return state


HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_post_accumulate_grad_hooks",
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
)


def left_behind(one: Run, threads: set[threading.Thread]) -> dict[str, Any]:
    """What stands on modules, tensors, optimizers and the process after the run."""
    left: dict[str, Any] = {}
    for number, model in enumerate(one.models):
        for name, module in model.named_modules():
            left[f"model {number}: {name or 'root'}"] = (
                sorted(vars(module)),
                hooks_of(module),
                type(module).__name__,
                vars(module).get("_compiled_call_impl") is None,
            )
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            own = sorted(key for key in vars(tensor) if not key.startswith("_dynamo"))  # the mark of a compiled run
            left[f"model {number}: {name}, the tensor"] = hooks_of(tensor), own, type(tensor).__name__
    for number, trainer in enumerate(one.trainers):
        for index, optimizer in enumerate(trainer.optimizers):
            left[f"trainer {number}: optimizer {index}"] = hooks_of(optimizer), sorted(vars(optimizer))
        kinds = [type(callback) for callback in trainer.callbacks]
        ours = [type(callback) for callback in [*one.ours, one.kept, one.raw]]
        left[f"trainer {number}: callbacks"] = [kind.__name__ for kind in kinds if kind not in ours]
        left[f"trainer {number}: attributes"] = sorted(vars(trainer))
    left["threads"] = sorted(
        type(thread).__name__
        for thread in threading.enumerate()
        if thread not in threads and type(thread).__name__ != "TMonitor"  # tqdm's lasts as long as the process
    )
    left["grad mode"] = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    left["modes"] = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    left["stance of the compiler"] = torch._dynamo.eval_frame._stance.stance
    every = vars(torch.nn.modules.module)
    left["hooks of all modules"] = [
        len(every[name]) for name in every if name.startswith("_global") and "hooks" in name
    ]
    return left


def hooks_of(holder: Any) -> dict[str, int]:
    """How many hooks of each kind it holds."""
    return {name: len(hooks) for name in HOOKS if (hooks := getattr(holder, name, None))}
