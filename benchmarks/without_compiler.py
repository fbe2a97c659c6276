"""What measuring costs on the CPU where hookboard was installed without a C compiler, beside what it costs with one.

    python benchmarks/without_compiler.py --rounds 20

trains the ResNet-18 of overhead.py in processes of their own with and without the compiled kernel, and prints the
processor time that a step takes longer where `HealthMonitor` is due: the median over the rounds of the difference to
the bare step. All threads count, so one thread (`OMP_NUM_THREADS=1`) tells most.
"""

import argparse
import multiprocessing
import statistics
import sys
import time

KERNEL = "hookboard.measure._native"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="turns of each variant, of one step each")
    rounds = parser.parse_args().rounds

    bare, compiled = in_new_process(True, rounds)
    _, without = in_new_process(False, rounds)
    print(f"bare step: {1e3 * bare:.1f} ms")
    print(f"HealthMonitor, due on every step: {1e3 * compiled:.1f} ms more")
    print(f"the same without the compiled kernel: {1e3 * without:.1f} ms more")
    print(f"factor: {without / compiled:.1f}")


def in_new_process(is_compiled: bool, rounds: int) -> tuple[float, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(cost, (is_compiled, rounds))


def cost(is_compiled: bool, rounds: int) -> tuple[float, float]:
    """The seconds of the bare step, and how many more it takes where the monitor is due."""
    if not is_compiled:
        sys.modules[KERNEL] = None  # an import of it fails from here on
    import overhead

    chosen = overhead.variants(histogram=False, health=True)
    chosen = {name: callbacks for name, callbacks in chosen.items() if name == "bare step" or "every step" in name}
    turns = overhead.Turns(chosen, rounds, steps=1, clock=time.process_time)
    bare, due = overhead.take_turns(turns, overhead.Classifier()).values()
    return statistics.median(bare), statistics.median(d - b for d, b in zip(due, bare, strict=True))


if __name__ == "__main__":
    main()
