"""What it takes to merge over ranks: bytes, messages, connections, memory and time of one rank.

    python benchmarks/ranks.py                      all three tables
    python benchmarks/ranks.py --part processes     2, 4 and 8 real processes (gloo), through a Trainer
    python benchmarks/ranks.py --part ranks         8 to 512 ranks, of which one is real, through a Trainer
    python benchmarks/ranks.py --part widths        the rows of a language model of 1 and of 8 billion weights
    python benchmarks/ranks.py --quick              the smallest of each

The first two train 7 linear layers of 512 units with `HealthMonitor`, `ActivationLogger` and `GradientLogger`. Where
one rank is real, torch's fake process group stands for the others: what this rank computes and holds is as in a real
run, and no byte goes over a network. The third has no training: a table as `HealthMonitor` has it measures tensors
in the shapes of the model, and merges the rows.

Bytes are counted where they are handed to collectives of hookboard's own groups ("hands over"). "Sends" is computed
from that: in a ring, all but a rank's share of each number passes twice; what is gathered counts once for each rank
that gets it. "Look" is the time from the end of the step until all of it is merged and read, CPU time that of the
process meanwhile, "start" the time of connecting the ranks. Memory is the peak of the process beyond what it held when
the look began, in looks of their own, in which freed memory goes back to the system at once. Network times are
computed: what is sent, divided by the bandwidth. Of several looks the median counts, of several processes the largest.
"""

import argparse
import json
import logging
import os
import platform
import socket
import statistics
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from ranks_tasks import LATER, TASKS, Look

MB = 1e6


def launch(script: str, given: Sequence[str], processes: int) -> list[Any]:
    """Start a script once for each rank; returns what each has printed last, read as JSON."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    environment["WORLD_SIZE"] = str(processes)
    started = [
        # With a LOCAL_RANK Lightning starts no processes of its own.
        subprocess.Popen(
            [sys.executable, script, *given],
            env={**environment, "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{script} {' '.join(given)}: a process has failed")
    return [json.loads(each.splitlines()[-1]) for each in printed]


def run(part: str, *given: Any, processes: int = 1) -> dict[str, Any]:
    """Has new processes do a task. Returns what the first has found, with its first look and a later one."""
    found = launch(__file__, ["--task", json.dumps([part, *given])], processes)
    first, later, last = (
        typical([each["looks"][looks] for each in found])
        for looks in (slice(1), slice(1, 1 + LATER), slice(1 + LATER, None))
    )
    return {**found[0], "first": first, "later": later._replace(extra=last.extra)}


def typical(looks: Sequence[Sequence[Sequence[float]]]) -> Look:
    """The median of the looks of each process; of these the largest."""
    medians = [[statistics.median(values) for values in zip(*each, strict=True)] for each in looks]
    return Look(*(max(values) for values in zip(*medians, strict=True)))


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def table(*headings: str) -> None:
    print(f"\n| {' | '.join(headings)} |\n|{'---|' * len(headings)}", flush=True)


def row(*cells: object) -> None:
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def mb(size: float) -> str:
    return f"{size / MB:.2f} MB" if size < 10 * MB else f"{size / MB:,.0f} MB"


def of_processes(sizes: Sequence[int]) -> None:
    table("processes", "hands over at first", "later", "sends", "memory", "CPU time", "look", "start")
    for size in sizes:
        found = run("processes", size, processes=size)
        first, later = found["first"], found["later"]
        row(
            size,
            mb(first.handed),
            mb(later.handed),
            mb(later.sent),
            mb(later.extra),
            f"{1e3 * later.cpu:.1f} ms",
            f"{1e3 * later.seconds:.0f} ms",
            f"{1e3 * found['connecting']:.0f} ms",
        )


def of_ranks(sizes: Sequence[int]) -> None:
    table("ranks", "hands over at first", "later", "sends", "messages", "connections", "memory", "CPU time")
    for size in sizes:
        found = run("ranks", size)
        first, later = found["first"], found["later"]
        row(
            f"{size:,}",
            mb(first.handed),
            mb(later.handed),
            mb(later.sent),
            f"{later.messages:,.0f}",
            f"{found['connections']:,}",
            mb(later.extra),
            f"{1e3 * later.cpu:.0f} ms",
        )


def of_widths(names: Sequence[str], sizes: Sequence[int]) -> None:
    computed = [f"computed: {speed} Gbit/s" for speed in (10, 100)]
    table("model", "tensors", "rows of channels", "ranks", "sends at first", "later", "memory", "CPU time", *computed)
    for name in names:
        for size in sizes:
            found = run("widths", name, size)
            first, later = found["first"], found["later"]
            row(
                name,
                f"{found['sites']:,}",
                f"{found['channels']:,}",
                f"{size:,}",
                mb(first.sent),
                mb(later.sent),
                mb(later.extra),
                f"{later.cpu:.2f} s",
                *(f"{later.sent * 8 / (speed * 1e9):.3f} s" for speed in (10, 100)),
            )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(TASKS), help="one table of the three")
    parser.add_argument("--quick", action="store_true", help="the smallest of each")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.task:
        for part in ("pytorch", "fabric"):
            logging.getLogger(f"lightning.{part}").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", ".*is switched off from now on")
        part, *given = json.loads(args.task)
        print("\n" + json.dumps(TASKS[part](*given)))
        return
    print(f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, one thread for each process")
    quick = args.quick
    if args.part in (None, "processes"):
        of_processes([2] if quick else [2, 4, 8])
    if args.part in (None, "ranks"):
        of_ranks([8] if quick else [8, 64, 512])
    if args.part in (None, "widths"):
        of_widths(["tiny"] if quick else ["1B", "8B"], [8] if quick else [8, 64, 1024])


if __name__ == "__main__":
    main()
