"""What watching a network costs on a GPU, and what only a GPU can show. docs/cost.md has what it said on an H200.

    python benchmarks/gpu.py                        everything, as Markdown with the name of the card
    python benchmarks/gpu.py --precision bf16-true  with weights in bf16 too
    python benchmarks/gpu.py --device cpu           tiny sizes on the CPU, to try this program; its times mean nothing

*Step* trains a ResNet-50 and a transformer of GPT-2's size under a Trainer. Variants take turns as in overhead.py; at
the ends of a turn the clock waits for the device and for what the callbacks still have to do. *Kernel* measures one
tensor beside one read of it by torch's sum. *Checks*: who waits for the device in a due step; the first due step with
no compiled kernel on disk; values that are made in another CUDA stream, and in CUDA graphs, against float64 on the CPU.
It ends with an error if hookboard waits for more than the copy of a look, if values are not true, or if a fault
switches measuring off. `pytest -m gpu` checks more values.
"""

import argparse
import functools
import logging
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning
import torch
from gpu_checks import Waits, aside, deviation, first_due_step, graphed, wait_for, waits
from gpu_tasks import Task, pictures, text
from lightning.pytorch import Callback
from overhead import NEVER, Turns, interval, quartiles, ratio, take_turns

from hookboard import ActivationLogger, GradientLogger, HealthMonitor
from hookboard.measure.statistics import plan
from hookboard.measure.table import Table
from hookboard.model.sites import Site

DEFAULT = plan(["mean", "std", "abs_max", "zero_fraction", "nonfinite_count"])
SITE = Site("layer", "output")
CHANNELS = 100
LARGE = 10**7
LARGEST_DEVIATION = 1e-4
"""Of values of a network in float32 from those in float64."""


def loggers(every_n_steps: int, histogram: bool = False) -> list[Callback]:
    return [logger(every_n_steps=every_n_steps, histogram=histogram) for logger in (ActivationLogger, GradientLogger)]


def variants() -> dict[str, list[Callback]]:
    return {
        "bare step": [],
        "bare step again": [],
        "both loggers, never due": loggers(NEVER),
        "both loggers, due on every step": loggers(1),
        "both with histograms, due on every step": loggers(1, histogram=True),
        "`HealthMonitor`, never due": [HealthMonitor(every_n_steps=NEVER)],
        "`HealthMonitor`, due on every step": [HealthMonitor(every_n_steps=1)],
    }


def show_steps(task: Task, device: torch.device, rounds: int, steps: int, options: Mapping[str, Any]) -> None:
    turns = Turns(variants(), rounds, steps, functools.partial(wait_for, device))
    print(f"\n{task.name}, {options['precision']}; {rounds} rounds of {steps} steps\n")
    print("| variant | step / bare step | by round: median | 95 % | quartiles | step |\n|---|---|---|---|---|---|")
    try:
        means = take_turns(turns, task.make(), task.batch, **options)
    except torch.OutOfMemoryError:
        print("| not enough memory | | | | | |")
        return
    bare = means["bare step"]
    for name, seconds in means.items():
        least, most = interval(seconds, bare)
        low, middle, high = quartiles(seconds, bare)
        print(
            f"| {name} | {ratio(seconds, bare):.3f} | {middle:.3f} | {least:.3f} to {most:.3f} "
            f"| {low:.3f} to {high:.3f} | {1e3 * statistics.median(seconds):.1f} ms |"
        )


def fastest(run: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Seconds of the fastest run, on CUDA by its own clock."""
    for _ in range(3):
        run()
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1000)
        else:
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
    return min(times)


def show_kernels(device: torch.device, sizes: Sequence[int]) -> None:
    print("\nOne tensor, fastest of 20; the read floor is torch's sum, which reads each value once.\n")
    print("| values | dtype | read floor | row | with bins | with channels | read floor | row |")
    print("|---|---|---|---|---|---|---|---|")
    found = []
    for size in sizes:
        for dtype in (torch.float32, torch.bfloat16):
            bytes_read = size * dtype.itemsize
            if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < 3 * bytes_read:
                print(f"| {size:.0e} | {str(dtype)[6:]} | not enough memory | | | | | |")
                continue
            times = kernel_times(size, dtype, device)
            speeds = [bytes_read / times[0] / 1e9, bytes_read / times[1] / 1e9]
            found.append((size, *speeds))
            cells = [f"{1e6 * each:,.1f} us" for each in times] + [f"{each:,.0f} GB/s" for each in speeds]
            print(f"| {size:.0e} | {str(dtype)[6:]} | {' | '.join(cells)} |", flush=True)
    best = max(floor for _, floor, _ in found)
    share = min(row / best for size, _, row in found if size >= min(LARGE, sizes[-1]))
    print(
        f"\nFrom {LARGE:.0e} values on the row reads at {share:.0%} or more of {best:,.0f} GB/s, the best of the floor."
    )


def kernel_times(size: int, dtype: torch.dtype, device: torch.device) -> list[float]:
    """Seconds of one read, of the row, of the row with bins, of the row with that of each channel."""
    tensor = torch.randn(size // CHANNELS, CHANNELS, device=device, dtype=dtype)
    tables = [
        Table(DEFAULT, device),
        Table(DEFAULT, device, histogram=True),
        Table(DEFAULT, device, channels=lambda site, given: 1),
    ]
    ways: list[Callable[[], object]] = [tensor.sum]
    ways += [functools.partial(table.open(SITE), tensor) for table in tables]
    return [fastest(way, 20, device) for way in ways]


def show_checks(tasks: Sequence[Task], device: torch.device, options: Mapping[str, Any]) -> list[str]:
    """Print the table of checks; returns what is wrong."""
    wrong: list[str] = []
    print("\n| check | found |\n|---|---|")
    first, second = first_due_step(tasks[0], device, options)
    print(f"| first due step with no kernel on disk, {tasks[0].name} | {first:.2f} s more than a bare step |")
    print(f"| second due step | {second:.3f} s more |", flush=True)
    for task in tasks:
        found, most = waits(task, device, options)
        print(f"| waits in due steps, {task.name} | {said_of(found, most)} |", flush=True)
        wrong += found.of_hookboard
        wrong += [f"{found.of_looks} waits for the copy of a look, {task.name}"] if found.of_looks > most else []
    in_float32 = {**options, "precision": "32-true"}
    for name, make in (("another CUDA stream", aside), ("CUDA graphs (`reduce-overhead`)", graphed)):
        largest = deviation(make, device, in_float32)
        print(f"| values made in {name}: largest relative deviation | {largest:.1e} |", flush=True)
        if not largest <= LARGEST_DEVIATION:
            wrong.append(f"values made in {name} are not true: {largest}")
    return wrong


def said_of(found: Waits, most: int) -> str:
    return (
        f"of hookboard in training {len(found.of_hookboard)}, of others {found.of_others}; "
        f"for the copy of a look, a step later, {found.of_looks} (one for each due step and callback is {most})"
    )


def setting(device: torch.device) -> str:
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, tiny sizes"
    return f"{card}, torch {torch.__version__}, lightning {lightning.__version__}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: tiny sizes")
    parser.add_argument("--precision", choices=["bf16-mixed", "bf16-true", "32-true"], default="bf16-mixed")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each variant, 2 or more")
    parser.add_argument("--steps", type=int, default=10, help="timed steps in each turn")
    args = parser.parse_args(arguments)
    is_tiny = args.device == "cpu"
    if not (is_tiny or torch.cuda.is_available()):
        print("no CUDA device: there is nothing to measure here (--device cpu tries the program)")
        return

    device = torch.device("cpu") if is_tiny else torch.device("cuda", torch.cuda.current_device())
    options = {"accelerator": args.device, "devices": 1, "precision": args.precision}
    tasks = [pictures(device, is_tiny), text(device, is_tiny)]
    print(setting(device))
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as no_kernels:
        os.environ["TRITON_CACHE_DIR"] = no_kernels
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", ".*is switched off from now on")
        wrong = show_checks(tasks, device, options)
        for task in tasks:
            show_steps(task, device, args.rounds, args.steps, options)
        show_kernels(device, [10**power for power in range(2, 4 if is_tiny else 10)])
    if wrong:
        sys.exit("\n".join(["", "Wrong:", *wrong]))


if __name__ == "__main__":
    main()
