"""The published faulty programs in five loops: `python -m benchmarks.programs.loops`.

Each is trained under Lightning, with `watch`, Fabric and accelerate, and by Hugging Face's Trainer, from the same
weights on the same batches: once with `HealthMonitor()` and once without.

python -m benchmarks.programs.loops                 all 65, of each at most 60 steps; a line for each
python -m benchmarks.programs.loops --steps 1000    at most 1000 steps
python -m benchmarks.programs.loops --only 31880720 programs whose name contains this
python -m benchmarks.programs.loops --json FILE     all verdicts besides
"""

import argparse
import contextlib
import hashlib
import json
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers  # type: ignore[import-untyped]  # not needed by the other benchmarks
from accelerate import Accelerator
from benchmarks.health.runner import quiet
from benchmarks.programs.catalogue import HELD_OUT, NEWER, POSTS
from benchmarks.programs.trial import Batch, Ported, Post, Program, batches, built, trained
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from hookboard import HealthMonitor, HookboardWarning, for_transformers, watch

EVERY = 10
"""The cadence that the loop tells a monitor, in optimizer steps."""


def in_lightning(program: Program, seed: int, monitor: HealthMonitor | None) -> None:
    trained(program, seed, monitor, EVERY)


def with_watch(program: Program, seed: int, monitor: HealthMonitor | None) -> None:
    net = Ported(program)
    optimizer, schedule = optimizer_of(program, net)
    clip = torch.nn.utils.clip_grad_norm_
    by_hand(program, seed, monitor, net, optimizer, schedule, Tensor.backward, clip, tells_batch=False)


def in_fabric(program: Program, seed: int, monitor: HealthMonitor | None) -> None:
    fabric, net = Fabric(accelerator="cpu", devices=1), Ported(program)
    optimizer, schedule = optimizer_of(program, net)
    net, optimizer = fabric.setup(net, optimizer)

    def clip(_: object, norm: float) -> None:
        fabric.clip_gradients(net, optimizer, max_norm=norm)

    by_hand(program, seed, monitor, net, optimizer, schedule, fabric.backward, clip)


def in_accelerate(program: Program, seed: int, monitor: HealthMonitor | None) -> None:
    accelerator, net = Accelerator(cpu=True), Ported(program)
    optimizer, schedule = optimizer_of(program, net)
    net, optimizer = accelerator.prepare(net, optimizer)
    by_hand(program, seed, monitor, net, optimizer, schedule, accelerator.backward, accelerator.clip_grad_norm_)


def by_hand(
    program: Program,
    seed: int,
    monitor: HealthMonitor | None,
    net: nn.Module,
    optimizer: Any,
    schedule: Any,
    backward: Callable[[Tensor], Any],
    clip: Callable[[Any, float], Any],
    *,
    tells_batch: bool = True,
) -> None:
    """The loop that users write: clear, backward, clip, step."""
    watched: Any = (
        contextlib.nullcontext() if monitor is None else watch(net, optimizer, monitor, log_every_n_steps=EVERY)
    )
    torch.manual_seed(seed)
    with watched as run:
        for batch in batches(program):
            with contextlib.nullcontext() if run is None else run.step(*[batch] if tells_batch else []):
                loss = program.loss_of(batch, net)
                if program.step is not None:
                    program.step(Hands(optimizer, backward), loss)  # type: ignore[arg-type]  # has what it asks for
                    continue
                optimizer.zero_grad()
                backward(loss)
                if program.clip is not None:
                    clip(net.parameters(), program.clip)
                optimizer.step()
                schedule.step()


class Hands:
    """What a program that steps by itself asks of a LightningModule."""

    def __init__(self, optimizer: Any, backward: Callable[[Tensor], Any]) -> None:
        self.optimizers, self.manual_backward = lambda: optimizer, backward


class PortedTrainer(transformers.Trainer):  # type: ignore[misc]  # untyped
    """Hugging Face's, with the program's loss, batches, optimizer and schedule."""

    def __init__(self, program: Program, seed: int, monitor: HealthMonitor | None, folder: str) -> None:
        self.program, self.drawn_by, net = program, seed, Ported(program)
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=program.steps,
            max_grad_norm=program.clip or 0.0,
            logging_steps=EVERY,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        callbacks = [] if monitor is None else [for_transformers(monitor, [])]
        super().__init__(net, arguments, optimizers=optimizer_of(program, net), callbacks=callbacks)
        self.remove_callback(transformers.PrinterCallback)

    def get_train_dataloader(self) -> Any:
        torch.manual_seed(self.drawn_by)
        return batches(self.program)

    def _get_grad_norm(self, *args: Any, **named: Any) -> float:
        return 0.0  # the Trainer's own clips to an infinite norm, which makes NaN of gradients that overflow

    def compute_loss(self, model: nn.Module, inputs: Batch, *args: Any, **named: Any) -> Tensor:
        return self.program.loss_of(inputs, model)


def by_hugging_face(program: Program, seed: int, monitor: HealthMonitor | None) -> None:
    if program.step is not None:
        raise NotImplementedError("the Trainer clears the gradients itself")
    with tempfile.TemporaryDirectory() as folder:
        PortedTrainer(program, seed, monitor, folder).train()


LOOPS = {
    "lightning": in_lightning,
    "watch": with_watch,
    "fabric": in_fabric,
    "accelerate": in_accelerate,
    "hugging face": by_hugging_face,
}


def optimizer_of(program: Program, net: nn.Module) -> Any:
    """The optimizer, and the schedule that is stepped with it."""
    given: Any = program.optimizer(net.parameters())
    if isinstance(given, dict):
        return given["optimizer"], given["lr_scheduler"]["scheduler"]
    return given, LambdaLR(given, lambda _: 1.0)


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def hearing() -> Iterator[list[str]]:
    """Gives what hookboard says of itself inside the context: that it did not read or measure something."""
    heard, logger = Lines(), logging.getLogger("lightning.pytorch")
    logger.addHandler(heard)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", HookboardWarning)
        try:
            yield heard.lines
        finally:
            logger.removeHandler(heard)
            heard.lines += [str(one.message) for one in given]


def judged(post: Post, loop: Callable[[Program, int, HealthMonitor | None], None], steps: int) -> dict[str, Any]:
    """Train a faulty program in a loop, with a monitor and without."""
    weights, monitor = [], HealthMonitor()
    with hearing() as said:
        for given in (None, monitor):
            program = built(post, False, post.seed)
            program.steps = min(program.steps, steps)
            try:
                loop(program, post.seed, given)
            except NotImplementedError:
                return {}
            weights.append(fingerprint(program.net))
    return {
        "verdicts": [{**vars(one), "line": line_of(one.evidence)} for one in monitor.verdicts],
        "is_same_training": weights[0] == weights[1],
        "weights": weights[0],
        "said": [line for line in said if " not " in line],
    }


def line_of(evidence: str) -> str:
    return next(iter(re.findall(r"\w+\.py:\d+", evidence)), "")


def fingerprint(net: nn.Module) -> str:
    state = [value.detach().numpy().tobytes() for value in net.state_dict().values()] + [
        torch.get_rng_state().numpy().tobytes()
    ]
    return hashlib.sha256(b"".join(state)).hexdigest()[:12]


def marks(row: dict[str, Any], severities: Sequence[str] = ("alarm",)) -> list[str]:
    """Each verdict as rule, layer, line of code and first step."""
    return sorted(
        " ".join(str(one[key]) for key in ("severity", "rule", "module", "line", "since") if one[key] != "")
        for one in row["verdicts"]
        if one["severity"] in severities
    )


def lines_of(name: str, rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A line of the table for what Lightning's loop gives, and one for each loop that differs."""
    first = rows["lightning"]
    for loop, row in rows.items():
        if not row:
            yield f"| {name} | {loop} | cannot be written there | |"
            continue
        differs = marks(row, ("alarm", "note")) != marks(first, ("alarm", "note"))
        notes = [f"not: {row['said'][0]}"] if row["said"] != first["said"] and row["said"] else []
        notes += [] if row["is_same_training"] else ["OTHER WEIGHTS WITH A MONITOR"]
        notes += [] if row["weights"] == first["weights"] else ["other weights than under Lightning"]
        if loop == "lightning" or differs or notes:
            same = "all" if loop == "lightning" else "DIFFERS" if marks(row) != marks(first) else "same alarms"
            shown = marks(row, ("alarm", "note")) if differs else marks(row)
            yield f"| {name} | {loop} | {same} | {'; '.join([*shown, *notes]) or '-'} |"


def sums(table: Sequence[dict[str, dict[str, Any]]]) -> Iterator[str]:
    alarmed = sum(bool(marks(rows["lightning"])) for rows in table)
    yield f"{len(table)} programs, {alarmed} with an alarm under Lightning"
    shared = 0
    for loop in LOOPS:
        pairs = [(rows[loop], rows["lightning"]) for rows in table if rows[loop]]
        same = sum(marks(row) == marks(first) for row, first in pairs)
        alike = sum(marks(row, ("alarm", "note")) == marks(first, ("alarm", "note")) for row, first in pairs)
        bits = sum(row["is_same_training"] for row, _ in pairs)
        equal = sum(row["weights"] == first["weights"] for row, first in pairs)
        shared += same if loop != "lightning" else 0
        yield (
            f"{loop}: of {len(pairs)} the same alarms in {same}, the same alarms and notes in {alike}; weights bit for"
            f" bit those without a monitor in {bits}, and those of Lightning's loop in {equal}"
        )
    others = sum(bool(row) for rows in table for loop, row in rows.items() if loop != "lightning")
    yield f"programs x other loops: {shared} of {others} with the same alarms ({shared / max(others, 1):.1%})"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.programs.loops", description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all verdicts to this file")
    parser.add_argument("--steps", type=int, default=60, help="the most optimizer steps of a program")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    options = parser.parse_args(given)
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for post in POSTS + HELD_OUT + NEWER:
        if options.only in post.name:
            table[post.name] = {loop: judged(post, run, options.steps) for loop, run in LOOPS.items()}
            for line in lines_of(post.name, table[post.name]):
                print(line, flush=True)
            if options.json:
                options.json.write_text(json.dumps(table, indent=1))
    for line in sums(list(table.values())):
        print(line)


if __name__ == "__main__":
    quiet()
    torch.set_num_threads(1)
    main()
