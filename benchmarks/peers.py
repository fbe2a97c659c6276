"""What other tools that watch a network cost beside hookboard, as a Markdown table.

    .venv/bin/python -m pip install --group peers
    python benchmarks/peers.py                         all tools that can be imported, in about 6 minutes
    python benchmarks/peers.py --only hookboard        some of them; --help has the names

Each tool runs in a process of its own, by turns with the bare training step as in overhead.py: ResNet-18, batch 16,
3x64x64, on every step. What cannot be imported is listed with the reason. composer asks for an older torch, so
`pip install --no-deps mosaicml` and what it then lacks is needed; wandb runs offline.
"""

import argparse
import importlib.metadata
import json
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass

import torch
from overhead import BATCH, Classifier, Turns, ratio, setting, take_turns
from tools import TOOLS, Tool

HEADINGS = (
    "tool",
    "version",
    "what it measures",
    "step / bare step",
    "bare step",
)

MOST_SECONDS = 150
"""A tool that takes longer is given up."""


@dataclass
class Result:
    """What the process of one tool prints.

    Args:
        seconds: the mean step in each of its turns.
        bare: the same of the bare turns beside them.
    """

    seconds: list[float]
    bare: list[float]


def measured(name: str, rounds: int, steps: int) -> Result:
    """Measure one tool in this process."""
    torch.manual_seed(0)
    means = take_turns(Turns({"bare step": [], name: TOOLS[name].make()}, rounds, steps), Classifier())
    return Result(means[name], means["bare step"])


def measured_elsewhere(name: str, rounds: int, steps: int) -> Result | str:
    """Measure one tool in a process of its own; returns why that failed, if it did."""
    command = [sys.executable, __file__, "--inside", name, "--rounds", str(rounds), "--steps", str(steps)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        return f"not done after {MOST_SECONDS} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    printed = next(line for line in done.stdout.splitlines() if line.startswith('{"seconds"'))  # beside what tools say
    return Result(**json.loads(printed))


def version_of(tool: Tool) -> str:
    try:
        return importlib.metadata.version(tool.package) if tool.package else ""
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def row(name: str, result: Result) -> str:
    tool = TOOLS[name]
    cells = [
        name,
        version_of(tool),
        tool.measures,
        f"{ratio(result.seconds, result.bare):.2f}",
        f"{1e3 * statistics.median(result.bare):.0f} ms",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="turns of each tool, 2 or more")
    parser.add_argument("--steps", type=int, default=5, help="timed steps in each turn")
    parser.add_argument("--only", nargs="+", choices=TOOLS, default=list(TOOLS), help="these tools")
    parser.add_argument("--inside", choices=TOOLS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(asdict(measured(args.inside, args.rounds, args.steps))))
        return

    print(f"ResNet-18, batch {BATCH}, 3x64x64, on every step; {setting(args.rounds, args.steps)}\n")
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    failed = dict[str, str]()
    for name in args.only:
        result = measured_elsewhere(name, args.rounds, args.steps)
        if isinstance(result, str):
            failed[name] = f"{version_of(TOOLS[name])}: {result}"
        else:
            print(row(name, result), flush=True)
    print("\nNot compared:\n" if failed else "")
    for name, why in failed.items():
        print(f"- {name}: {why}")


if __name__ == "__main__":
    main()
