"""Trains cases, several at once, and keeps a trace of each."""

import hashlib
import logging
import multiprocessing
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from benchmarks.health.cases import Case, build
from benchmarks.health.collector import Extras, RecordingMonitor
from benchmarks.health.judge import WINDOW
from benchmarks.health.trace import FOLDER, Head, Trace
from benchmarks.health.training import Setup, Task
from lightning.pytorch import Callback, Trainer

from hookboard import HookboardWarning

EVERY = 5
"""A look is taken once in so many optimizer steps, and at the first."""

ROOT = Path(__file__).parents[2]

SOURCES = (
    "benchmarks/health/*.py",
    "benchmarks/health/plants/*.py",
    "benchmarks/health/controls/*.py",
    "src/hookboard/callbacks/*.py",
    "src/hookboard/health/look.py",
    "src/hookboard/measure/*.[cp]*",
)
"""What decides what is in a trace."""

READERS = ("table.py", "judge.py", "harm.py", "alarms.py", "monitors.py", "__main__.py")
"""Of these, files that only read traces: a change in them leaves traces as they are."""


def path_of(case: Case) -> Path:
    return FOLDER / f"{case}.trace"


def source() -> str:
    """A fingerprint of the code that decides what is in a trace."""
    files = [path for pattern in SOURCES for path in sorted(ROOT.glob(pattern)) if path.name not in READERS]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def train(case: Case) -> Trace:
    """Train a case."""
    torch.set_num_threads(1)
    quiet()
    setup, truth = build(case)
    task = (setup.task or Task)(setup, case.seed)
    trace = Trace(truth, EVERY, source())
    started = time.perf_counter()
    trace.failure, trace.warnings = fit(setup, task, [Extras(trace, EVERY), RecordingMonitor(trace, WINDOW)])
    trace.seconds = time.perf_counter() - started
    batches = setup.trainer.get("accumulate_grad_batches", 1)
    trace.losses, trace.entropies = _by_step(task.losses, batches), _by_step(task.entropies, batches)
    trace.accuracies, trace.held_out = _by_step(task.accuracies, batches), task.held_out
    return trace


def fit(setup: Setup, task: Task, callbacks: list[Callback]) -> tuple[str, list[str]]:
    """Train a setup beside these callbacks; returns the error that ended it, or "", and hookboard's warnings."""
    trainer = Trainer(
        accelerator="cpu",
        max_steps=setup.steps,
        max_epochs=-1,
        val_check_interval=50 * setup.trainer.get("accumulate_grad_batches", 1),
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=EVERY,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **setup.trainer,
    )
    failure = ""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", HookboardWarning)
        try:
            trainer.fit(task)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
    return failure, list(dict.fromkeys(str(one.message) for one in given))


def _by_step(values: list[float], batches: int) -> list[float]:
    """The mean over the batches of each step."""
    return [sum(values[i : i + batches]) / batches for i in range(0, len(values), batches)]


def train_and_keep(case: Case) -> tuple[Case, float, str]:
    """Train a case and write its trace; returns the case, the seconds it took, and what went wrong."""
    trace = train(case)
    trace.save(path_of(case))
    return case, trace.seconds, " ".join([trace.failure, *trace.warnings[:1]])


def run(cases: Iterable[Case], processes: int, again: bool = False) -> Iterator[tuple[Case, float, str]]:
    """Train those cases of which there is no trace made by this code; yields each when it is done."""
    now = source()
    missing = [case for case in cases if again or not _is_fresh(path_of(case), now)]
    if len(missing) <= 1 or processes == 1:
        yield from map(train_and_keep, missing)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(train_and_keep, missing)


def _is_fresh(path: Path, now: str) -> bool:
    return path.exists() and Head.of(path).source == now


def quiet() -> None:
    """Leave out what Lightning says of itself."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
