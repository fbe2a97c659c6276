"""The command `hookboard`: runs a script with a monitor, shows verdicts and runs, and writes a page."""

import argparse
import json
import os
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

from hookboard.base.messages import HookboardWarning, explained, more_on, sections
from hookboard.board.board import Board
from hookboard.board.folders import open_folders
from hookboard.board.logged_run import LoggedRun, loss_tag
from hookboard.board.one_file import page_of
from hookboard.model.patterns import is_pattern

ALARM, BAD_INPUT = 1, 2
"""Exit statuses: `verdicts` found an alarm; bad input, no command, or, without an alarm, a record that `verdicts` could
not read or no run that HealthMonitor watched."""

MAX_RUNS = 8
"""Maximum number of runs of a report, which holds the comparison of every two of them."""

WIDTH = 100
"""Width of the output, in characters, as in the terminal while a run trains."""


def main(command: Sequence[str] | None = None) -> int:
    """Run the command, with these arguments or those of the process; return the exit status."""
    made = parser()
    arguments = made.parse_args(command)
    if arguments.command is None:
        made.print_help(sys.stderr)
        return BAD_INPUT
    try:
        return int(arguments.command(arguments))
    except (ValueError, OSError) as error:
        _print([f"hookboard: {error}"], sys.stderr)
        return BAD_INPUT


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; its arguments have as `command` the function to call with them, or None."""
    made = argparse.ArgumentParser(
        prog="hookboard", description="Runs a script with a HealthMonitor, or shows what hookboard logged."
    )
    made.add_argument("--version", action="version", version=f"hookboard {metadata.version('hookboard')}")
    made.set_defaults(command=None)
    commands = made.add_subparsers(title="commands", metavar="command", description="See hookboard COMMAND --help.")
    run = commands.add_parser(
        "run",
        help="run a script, with a HealthMonitor in each Trainer it creates",
        usage="%(prog)s [-h] [--json FILE] [--every-n-steps N] [--stop-on RULE] [--off RULE] (SCRIPT | -m MODULE) ...",
        description="Runs a script as `python SCRIPT ...` does, and adds HealthMonitor() to each Lightning or "
        "Hugging Face Trainer that has none. The exit status is the script's.",
    )
    run.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts to this file at the end")
    run.add_argument("--every-n-steps", type=int, metavar="N", help="measure every N optimizer steps")
    run.add_argument(
        "--stop-on", metavar="RULE", help="stop training when this rule raises an alarm; `alarm` stands for any rule"
    )
    run.add_argument("--off", metavar="RULE", action="append", default=[], help="switch a rule off; may be repeated")
    run.add_argument("-m", dest="is_module", action="store_true", help="run a module, as `python -m` does")
    run.add_argument("script", nargs=argparse.REMAINDER, metavar="SCRIPT ...", help="the script and its arguments")
    run.set_defaults(command=_run)
    verdicts = commands.add_parser("verdicts", help="print the verdicts; exit status 1 if there is an alarm")
    verdicts.add_argument("folder", nargs="+", help="the folder of a run, or a folder with several runs")
    verdicts.add_argument("--json", action="store_true", help="print a JSON list with one object per run")
    verdicts.set_defaults(command=_verdicts)
    report = commands.add_parser("report", help="write the tab to a single file that you can share")
    report.add_argument("folder", nargs="+", help="the folder of a run, or several to compare")
    report.add_argument(
        "-o", "--output", type=Path, default="report.html", help="the file to write (default: %(default)s)"
    )
    report.set_defaults(command=_report)
    runs = commands.add_parser("runs", help="list all runs, worst first")
    runs.add_argument("folder", nargs="+", help="a folder with runs")
    runs.set_defaults(command=_runs)
    explain = commands.add_parser("explain", help="explain a rule: its causes, the fix, and when the rule is wrong")
    explain.add_argument("rule", nargs="*", help="the name of a rule (default: list all names)")
    explain.set_defaults(command=_explain)
    return made


def _run(arguments: argparse.Namespace) -> int:
    """Become the Python that runs the script: what Python does at its start tells it to watch, see `sitecustomize`."""
    if not arguments.script:
        raise ValueError("run needs a script, as in: hookboard run train.py")
    if arguments.every_n_steps is not None and arguments.every_n_steps < 1:
        raise ValueError(f"--every-n-steps must be 1 or more, not {arguments.every_n_steps}.")
    for rule in filter(None, [*arguments.off, arguments.stop_on]):
        if rule != "alarm" and not is_pattern(rule):
            explained(rule)
    if arguments.json and os.environ.get("RANK", "0") == "0":
        _begin_json(arguments.json)
    folder = Path(__file__).parent / "beside_script"
    options = {
        "off": arguments.off,
        "stop_on": arguments.stop_on,
        "every_n_steps": arguments.every_n_steps,
        "json": arguments.json and str(arguments.json.resolve()),
    }
    os.environ["HOOKBOARD_RUN"] = json.dumps(options)
    os.environ["HOOKBOARD_RUN_SCRIPT"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, *(["-m"] if arguments.is_module else []), *arguments.script]
    if os.name != "nt":  # there a process that becomes another one ends at once for who waits for it
        os.execv(sys.executable, command)
    return subprocess.call(command)


def _begin_json(path: Path) -> None:
    """Write an empty list; a file that is there must hold a list of JSON, and not be a script, say."""
    with suppress(FileNotFoundError):
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.strip() and not text.lstrip().startswith("["):
            raise ValueError(f"--json: '{path}' exists and is not a JSON list. Put the output file right after --json.")
    path.write_text("[]", encoding="utf-8")


def _verdicts(arguments: argparse.Namespace) -> int:
    with catch_warnings(record=True) as caught:
        simplefilter("always", HookboardWarning)
        board, names = open_folders(arguments.folder)
    runs = [board.logged_run(name) for name in names]
    judged = [(run.name, run.health) for run in runs if run.health is not None]
    if arguments.json:
        found = [{"run": name, "headline": said.headline, "verdicts": said.verdicts} for name, said in judged]
        _print([json.dumps(found, indent=2)])
    else:
        _print(line for run in runs for line in _verdict_lines(run))
    warnings = [str(shown.message) for shown in caught]
    warnings += [f"hookboard: {run.name}: {warning}" for run in runs for warning in run.warnings]
    if not judged:
        warnings.append("hookboard: HealthMonitor watched none of these runs.")
    _print(warnings, sys.stderr)
    has_alarm = any(verdict["severity"] == "alarm" for _, said in judged for verdict in said.verdicts)
    if has_alarm:
        return ALARM
    return BAD_INPUT if warnings else 0


def _report(arguments: argparse.Namespace) -> int:
    board, names = open_folders(arguments.folder)
    shown = names  # in the order in which they were given
    if len(names) > MAX_RUNS:
        shown = [run["name"] for run in _worst_first(board)[:MAX_RUNS]]
    content = page_of(board, shown).encode()
    arguments.output.write_bytes(content)
    _print([f"{arguments.output}: {', '.join(shown)}, {len(content) / 1e6:.1f} MB"])
    if len(shown) < len(names):
        _print([f"These are the {len(shown)} worst of {len(names)} runs."])
    return 0


def _runs(arguments: argparse.Namespace) -> int:
    board, _ = open_folders(arguments.folder)
    _print(_run_lines(board))
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    for rule in arguments.rule:
        paragraphs = [f"{head}: {text}" for head, text in explained(rule).items()]
        _print([rule, *(line for paragraph in paragraphs for line in _wrapped(paragraph, "  "))])
    if not arguments.rule:
        for section, rules in sections().items():
            _print([f"{section}:", *_wrapped(", ".join(rules), "    ")])
    return 0


def _print(lines: Iterable[str], file: object = None) -> None:
    """Print lines; what the terminal cannot show, or would act upon, becomes a question mark."""
    stream = file or sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    for line in lines:
        shown = "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in line)
        print(shown.encode(encoding, "replace").decode(encoding), file=stream)  # type: ignore[arg-type]  # text


def _verdict_lines(run: LoggedRun) -> list[str]:
    if run.health is None:
        return [f"{run.name}: HealthMonitor did not watch this run."]
    lines = _wrapped(f"{run.name}: {run.health.headline}", "")
    for paragraph in run.health.texts:
        lines += _wrapped(paragraph, "  ")
    return lines + _wrapped(more_on(verdict["rule"] for verdict in run.health.verdicts), "  ")


def _wrapped(text: str, start: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), WIDTH, initial_indent=start, subsequent_indent="    ", break_on_hyphens=False
    )


def _run_lines(board: Board) -> Iterator[str]:
    """Yield the header and the lines of a table of runs; below a run stand the rules of its verdicts."""
    yield f"{'alarms':>6} {'notes':>6} {'steps':>9}  {'last point':16}  {'loss':24}  run"
    for run in _worst_first(board):
        name = run["name"]
        alarms, notes = ("-" if count is None else str(count) for count in (run["alarms"], run["notes"]))
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(run["written"]))
        tag = loss_tag(board.source.last_scalars(name).get(name, {}))
        loss = f"{float(run['loss']):.4g} {tag}" if tag else "-"
        yield f"{alarms:>6} {notes:>6} {run['step']:>9}  {written}  {loss:24}  {name}"
        rules: dict[str, list[str]] = {}
        counted = Counter((verdict["severity"], verdict["rule"]) for verdict in board.logged_run(name).verdicts)
        for (severity, rule), count in counted.items():
            rules.setdefault(severity, []).append(f"{rule} ({count})" if count > 1 else rule)
        yield from _wrapped("; ".join(f"{severity}: {', '.join(some)}" for severity, some in rules.items()), " " * 7)


def _worst_first(board: Board) -> list[dict[str, Any]]:
    """Return what `Board.runs` says of each run; those without a health record come last."""

    def rank(run: dict[str, Any]) -> tuple[bool, int, int]:
        return run["alarms"] is None, -(run["alarms"] or 0), -(run["notes"] or 0)

    return sorted(board.runs()["runs"], key=rank)
