"""Runs the benchmark of `HealthMonitor`: `python -m benchmarks.health`.

python -m benchmarks.health                    train what has no trace yet, and print the table of the reported half
python -m benchmarks.health --half tuning      the half that thresholds are set on; look at no other while tuning
python -m benchmarks.health --replay           judge the traces that there are, and train nothing
python -m benchmarks.health --only bias_layer  cases whose name contains this, and what is said of each
python -m benchmarks.health --monitor my.module:Monitor     a row for a monitor of your own, see README.md
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks.health.alarms import Alarm
from benchmarks.health.cases import Case, all_cases
from benchmarks.health.judge import judged
from benchmarks.health.monitors import factory_of, watched_all
from benchmarks.health.runner import path_of, run
from benchmarks.health.table import JUDGES, lines
from benchmarks.health.trace import Trace


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.health", description=__doc__.splitlines()[0])
    parser.add_argument("--half", choices=["tuning", "reported"], default="reported")
    parser.add_argument("--only", default="", help="cases whose name contains this, and what is said of each")
    parser.add_argument("--replay", action="store_true", help="train nothing: judge the traces that there are")
    parser.add_argument("--again", action="store_true", help="train even where there is a trace")
    parser.add_argument("--monitor", default="", help="a monitor of your own, as package.module:factory")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args(given)
    if options.monitor:
        try:
            factory_of(options.monitor)
        except ValueError as error:  # before anything is trained
            parser.error(str(error))
    cases = [case for case in all_cases() if options.only in str(case)]
    if options.only:
        cases = [case for case in cases if case.half == options.half]
    if not options.replay:
        _train(cases, options.processes, options.again)
    kept = [case for case in cases if path_of(case).exists()]
    others: dict[str, dict[Case, list[Alarm]]] = {}
    if options.monitor:
        of_half = [case for case in kept if case.half == options.half]
        others[options.monitor] = dict(watched_all(options.monitor, of_half, options.processes))
    if options.only:
        for case in kept:
            _show(case, Trace.load(path_of(case)), {name: alarms[case] for name, alarms in others.items()})
    else:
        print("\n".join(lines(kept, options.half, options.processes, others)))


def _train(cases: Sequence[Case], processes: int, again: bool) -> None:
    started = time.perf_counter()
    for number, (case, seconds, failure) in enumerate(run(cases, processes, again), 1):
        print(f"{number:4} of at most {len(cases)}: {case}, {seconds:.1f} s {failure}", file=sys.stderr, flush=True)
    print(f"trained in {time.perf_counter() - started:.0f} s", file=sys.stderr)


def _show(case: Case, trace: Trace, others: Mapping[str, list[Alarm]]) -> None:
    truth = trace.truth
    print(f"\n{case}: loss {trace.losses[0]:.3g} to {trace.losses[-1]:.3g}, {len(trace.looks)} looks {trace.failure}")
    if case.kind == "plant":
        places = ", ".join(place or "the model" for place in sorted(truth.places))
        print(f"  true: {' or '.join(sorted(truth.causes)) or 'no rule'} at {places} since {truth.onset}")
    for verdict in judged(trace).verdicts:
        where = verdict.module or "the model"
        print(f"  {verdict.severity} {verdict.rule} {where} since {verdict.since}: {verdict.evidence}")
    alarms_of = {name: judging(trace) for name, judging in JUDGES.items() if name != "hookboard"} | dict(others)
    for name, alarms in alarms_of.items():
        print(
            f"  {name}: {alarms[0].says} at {alarms[0].module or 'the model'} since {alarms[0].since}"
            if alarms
            else f"  {name}: nothing"
        )


if __name__ == "__main__":
    main()
