"""Published faulty trainings with a training step of their own, and what a monitor says of them, for a blind run.

python -m benchmarks.programs.steps --bare         the scores of faulty, fixed and healthy programs, with no monitor
python -m benchmarks.programs.steps                with HealthMonitor(): the alarms of each, and what they come to
python -m benchmarks.programs.steps --json FILE    the rows besides, with every alarm and every note
python -m benchmarks.programs.steps --only ctc     programs whose name or kind contains this
python -m benchmarks.programs.steps --seed 1       another seed than 0
python -m benchmarks.programs.steps --series later the second set, of `unseen_later`, in place of the first, of `unseen`
python -m benchmarks.programs.steps --series language    the third, of `unseen_language`
"""

import argparse
import inspect
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from benchmarks.health.runner import quiet
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Adam
from torch.utils.data import DataLoader

ISSUE = "https://github.com/{}/issues/{}"
PULL = "https://github.com/{}/pull/{}"

MARK = "# fault"
"""Ends the line where the fault is."""


class Learner(LightningModule):
    """A training: the model, its step and optimizers, its batches, and how good it has become.

    It has Adam at `rate` for all parameters unless it says otherwise, and takes `steps` batches.

    Args:
        fixed: with the published fix, or without it.
    """

    rate = 0.003
    steps = 400

    def __init__(self, fixed: bool = True) -> None:
        super().__init__()
        self.fixed = fixed

    def configure_optimizers(self) -> Any:
        return Adam(self.parameters(), self.rate)

    def batch(self) -> Any:
        """Draw a batch."""
        raise NotImplementedError

    def batches(self) -> list[Any]:
        return [self.batch() for _ in range(self.steps)]

    def score(self) -> float:
        """How good the model is at what it is for, in evaluation mode and without gradients; higher is better."""
        raise NotImplementedError

    def descend(self, optimizer: Any, loss: Tensor) -> None:
        """Take a step of manual optimization."""
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


@dataclass(frozen=True)
class Case:
    """A published training with a fault, and the same with the fix.

    Args:
        name: the repository, and the number of the issue or pull request.
        source: its address.
        kind: what sort of training it is.
        fault: what is wrong, in one sentence.
        fix: what was published.
        port: what differs from the source.
        causes: the cause in one plain sentence, written before any monitor saw the program.
        words: an alarm that is about the cause would have one of these in its rule or its sentences; for a first sort,
            which a person then reads.
        build: makes the faulty program, or, given True, the fixed one. The fault is in the line that ends with `MARK`.
    """

    name: str
    source: str
    kind: str
    fault: str
    fix: str
    port: str
    causes: str
    words: tuple[str, ...]
    build: Callable[[bool], Learner]


@dataclass(frozen=True)
class Healthy:
    """Standard code, as tutorials have it, that learns.

    Args:
        name: what it is.
        kind: what sort of training it is.
        build: makes it.
        least: the score that it reaches.
    """

    name: str
    kind: str
    build: Callable[[], Learner]
    least: float


CASES: list[Case] = []
HEALTHY: list[Healthy] = []
"""Both are filled by the files in `unseen`, `unseen_later` and `unseen_language`, whichever is imported."""

SERIES = {"first": "unseen", "later": "unseen_later", "language": "unseen_language"}
"""The package of each set."""


def entered_in(package: str) -> tuple[list[Case], list[Healthy]]:
    """The programs of the files in a package, faulty ones and healthy ones."""
    inside = f"{package}."
    return (
        [known for known in CASES if known.build.__module__.startswith(inside)],
        [known for known in HEALTHY if known.build.__module__.startswith(inside)],
    )


def case(name: str, source: str, **said: Any) -> Callable[[type[Learner]], type[Learner]]:
    """Enter the program that the decorated class is."""

    def kept(build: type[Learner]) -> type[Learner]:
        CASES.append(Case(name, source, build=build, **said))
        return build

    return kept


def healthy(name: str, kind: str, least: float) -> Callable[[type[Learner]], type[Learner]]:
    """Enter the healthy program that the decorated class is."""

    def kept(build: type[Learner]) -> type[Learner]:
        HEALTHY.append(Healthy(name, kind, build, least))
        return build

    return kept


def line_of(known: Case) -> int:
    """The line of the fault in its file."""
    lines, first = inspect.getsourcelines(known.build)  # type: ignore[arg-type]  # a class
    return next(first + at for at, line in enumerate(lines) if line.rstrip().endswith(MARK))


@dataclass
class Trained:
    """How a training ended.

    Args:
        score: -inf if it is not a number.
        seconds: what the fit took.
        alarms: those of the monitor, first to last; empty without one.
        notes: what else it said.
    """

    score: float
    seconds: float
    alarms: list[dict[str, Any]] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)


def trained(build: Callable[[], Learner], seed: int, callbacks: Sequence[Callback] = (), steps: int = -1) -> Trained:
    """Train a program on one thread.

    Args:
        build: makes the program.
        seed: draws all that is drawn.
        callbacks: watch the training.
        steps: at most so many; -1 for all that the program takes.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    learner = build()
    loader: Any = DataLoader(learner.batches()[: None if steps < 0 else steps], batch_size=None)  # type: ignore[arg-type]
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
    started = time.perf_counter()
    trainer.fit(learner, loader)
    seconds = time.perf_counter() - started
    torch.manual_seed(seed + 1000)
    with torch.no_grad():
        score = learner.eval().score()
    return Trained(score if math.isfinite(score) else -math.inf, seconds)


def watched(build: Callable[[], Learner], seed: int) -> Trained:
    """Train a program with a monitor at its defaults."""
    from hookboard import HealthMonitor  # not needed to train bare

    monitor = HealthMonitor()
    done = trained(build, seed, [monitor])
    for said in monitor.verdicts:
        (done.alarms if said.severity == "alarm" else done.notes).append(vars(said))
    return done


def names_cause(known: Case, alarm: dict[str, Any]) -> bool:
    """Whether the rule or the sentences of an alarm have one of the words of the cause."""
    said = " ".join(str(alarm[what]) for what in ("rule", "evidence", "advice")).lower()
    return any(word.lower() in said for word in known.words)


def row_of(known: Case, seed: int, run: Callable[[Callable[[], Learner], int], Trained]) -> dict[str, Any]:
    wrong, right = (run(lambda fixed=fixed: known.build(fixed), seed) for fixed in (False, True))  # type: ignore[misc]
    return {
        "name": known.name,
        "kind": known.kind,
        "causes": known.causes,
        "line": line_of(known),
        "scores": [wrong.score, right.score],
        "seconds": [wrong.seconds, right.seconds],
        "found": bool(wrong.alarms),
        "cause": any(names_cause(known, alarm) for alarm in wrong.alarms),
        "alarms": wrong.alarms,
        "notes": wrong.notes,
        "alarms_on_fix": right.alarms,
    }


def row_of_healthy(known: Healthy, seed: int, run: Callable[..., Trained]) -> dict[str, Any]:
    done = run(known.build, seed)
    return {
        "name": known.name,
        "kind": known.kind,
        "learns": done.score >= known.least,
        "scores": [done.score],
        "seconds": [done.seconds],
        "alarms_on_fix": done.alarms,
    }


def shown(row: dict[str, Any]) -> str:
    scores = " -> ".join(f"{score:.2f}" for score in row["scores"])
    seconds = " + ".join(f"{seconds:.1f}" for seconds in row["seconds"])
    lines = [f"{row['name']:38} {row['kind']:24} {scores:14} {seconds} s"]
    if "causes" in row:
        lines[0] += f", fault in line {row['line']}"
    for what, alarms in (("alarm", row.get("alarms", ())), ("FALSE", row["alarms_on_fix"])):
        lines += [f"    {what}: {said['rule']} {said['module'] or '-'}: {said['evidence']}" for said in alarms]
    if row.get("alarms"):
        lines.append(f"    cause: {row['causes']}{'' if row['cause'] else ' (no alarm has its words)'}")
    return "\n".join(lines)


def sums(rows: Sequence[dict[str, Any]]) -> str:
    faulty = [row for row in rows if "causes" in row]
    others = [row for row in rows if "causes" not in row]
    return (
        f"{len(faulty)} faulty: found {sum(row['found'] for row in faulty)},"
        f" with words of the cause {sum(row['cause'] for row in faulty)};"
        f" false alarms on {sum(bool(row['alarms_on_fix']) for row in faulty)} fixes"
        f" and on {sum(bool(row['alarms_on_fix']) for row in others)} of {len(others)} healthy programs"
    )


def main(given: Sequence[str] | None = None) -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="benchmarks.programs.steps", description=__doc__.splitlines()[0])
    parser.add_argument("--bare", action="store_true", help="with no monitor")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--only", default="", help="programs whose name or kind contains this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--series", choices=SERIES, default="first", help="which set of programs")
    options = parser.parse_args(given)
    run = trained if options.bare else watched
    rows = []
    package = import_module(f"benchmarks.programs.{SERIES[options.series]}")  # it enters its programs here
    for known in (*package.CASES, *package.HEALTHY):
        if options.only.lower() in f"{known.name} {known.kind}".lower():
            make: Any = row_of if isinstance(known, Case) else row_of_healthy
            rows.append(make(known, options.seed, run))
            print(shown(rows[-1]), flush=True)
    if not options.bare:
        print(sums(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, default=str))


if __name__ == "__main__":
    from benchmarks.programs import steps  # the one that the programs enter themselves in

    quiet()
    steps.main()
