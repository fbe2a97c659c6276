"""The published faulty programs in five loops: `python -m benchmarks.programs.loops`.

Each is trained under Lightning, with `watch`, Fabric and accelerate, and by Hugging Face's Trainer, from the same
weights on the same batches: once with `HealthMonitor()` and once without.

python -m benchmarks.programs.loops                 all 65, of each at most 60 steps; what differs, and the sums
python -m benchmarks.programs.loops --steps 1000    at most 1000 steps
python -m benchmarks.programs.loops --only 31880720 programs whose name contains this
"""

import argparse
import contextlib
import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import transformers  # type: ignore[import-untyped]  # not needed by the other benchmarks
from accelerate import Accelerator
from benchmarks.health.runner import quiet
from benchmarks.programs.catalogue import SETS
from benchmarks.programs.program import Batch, Case, Ported, Program, batches, trained
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from hookboard import HealthMonitor, for_transformers, watch

EVERY = 10
"""A look is taken once in so many optimizer steps."""


class Net(nn.Module):
    """A program's net, with the name that it has in a `Ported`, for a loop without a LightningModule."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.net = program.net

    forward = Ported.forward  # the line that a finding names is the same


def in_lightning(program: Program, seed: int, monitor: HealthMonitor | None) -> None:
    trained(lambda: Ported(program), seed, [] if monitor is None else [monitor])


def with_watch(program: Program, seed: int, monitor: HealthMonitor | None) -> None:
    net = Net(program)
    optimizer, schedule = optimizer_of(program, net)
    clip = torch.nn.utils.clip_grad_norm_
    by_hand(program, seed, monitor, net, optimizer, schedule, Tensor.backward, clip, tells_batch=False)


def in_fabric(program: Program, seed: int, monitor: HealthMonitor | None) -> None:
    fabric, net = Fabric(accelerator="cpu", devices=1), Net(program)
    optimizer, schedule = optimizer_of(program, net)
    net, optimizer = fabric.setup(net, optimizer)

    def clip(_: object, norm: float) -> None:
        fabric.clip_gradients(net, optimizer, max_norm=norm)

    by_hand(program, seed, monitor, net, optimizer, schedule, fabric.backward, clip)


def in_accelerate(program: Program, seed: int, monitor: HealthMonitor | None) -> None:
    accelerator, net = Accelerator(cpu=True), Net(program)
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
    watched: Any = contextlib.nullcontext() if monitor is None else watch(net, optimizer, monitor)
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
        self.program, self.drawn_by, net = program, seed, Net(program)
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=program.steps,
            max_grad_norm=program.clip or 0.0,
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


def judged(known: Case, loop: Callable[[Program, int, HealthMonitor | None], None], steps: int) -> dict[str, Any]:
    """Train a faulty program in a loop, with a monitor and without; {} if it cannot be written there."""
    weights, monitor = [], HealthMonitor(every_n_steps=EVERY)
    for given in (None, monitor):
        torch.manual_seed(known.seed)
        program: Program = known.build(False).program  # type: ignore[assignment]  # a Ported
        program.steps = min(program.steps, steps)
        try:
            loop(program, known.seed, given)
        except NotImplementedError:
            return {}
        weights.append(fingerprint(program.net))
    said = [(one.severity, one.rule, one.module, line_of(one.evidence), one.since) for one in monitor.verdicts]
    return {"said": sorted(said, key=str), "is_same_training": weights[0] == weights[1]}


def line_of(evidence: str) -> str:
    return next(iter(re.findall(r"\w+\.py:\d+", evidence)), "")


def fingerprint(net: nn.Module) -> str:
    state = [value.detach().numpy().tobytes() for value in net.state_dict().values()]
    return hashlib.sha256(b"".join([*state, torch.get_rng_state().numpy().tobytes()])).hexdigest()


def lines_of(name: str, rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    """What Lightning's loop gives, and each loop that differs."""
    for loop, row in rows.items():
        if row and not row["is_same_training"]:
            yield f"{name}, {loop}: OTHER WEIGHTS WITH A MONITOR"
        if row and (loop == "lightning" or row["said"] != rows["lightning"]["said"]):
            yield f"{name}, {loop}: {row['said']}"


def sums(table: Sequence[dict[str, dict[str, Any]]]) -> Iterator[str]:
    for loop in LOOPS:
        pairs = [(rows[loop], rows["lightning"]) for rows in table if rows[loop]]
        alike = sum(row["said"] == first["said"] for row, first in pairs)
        same = sum(row["is_same_training"] for row, _ in pairs)
        yield f"{loop}: of {len(pairs)} programs the same verdicts in {alike}, weights as without a monitor in {same}"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.programs.loops", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="the most optimizer steps of a program")
    parser.add_argument("--only", default="", help="programs whose name contains this")
    options = parser.parse_args(given)
    table = []
    for known in SETS["seen"] + SETS["held_out"] + SETS["newer"]:
        if options.only in known.name and isinstance(known, Case):
            rows = {loop: judged(known, run, options.steps) for loop, run in LOOPS.items()}
            table.append(rows)
            for line in lines_of(known.name, rows):
                print(line, flush=True)
    for line in sums(table):
        print(line)


if __name__ == "__main__":
    quiet()
    torch.set_num_threads(1)
    main()
