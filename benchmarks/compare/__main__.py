"""Runs the benchmark of `compare`: `python -m benchmarks.compare`.

python -m benchmarks.compare                all models, and the table; the large ones of torchvision and timm take long
python -m benchmarks.compare --only bert    models whose name contains this, and what is said of each
python -m benchmarks.compare --family timm  one family
python -m benchmarks.compare --classifiers  every classifier of torchvision, copies without a mistake alone

It needs timm and transformers beside torchvision; a model that cannot be made here is listed with the reason.

Of each model, copies in other precisions and in another memory format have no mistake: whatever is reported of them is
wrong. Then mistakes of several kinds are planted, one at a time, in modules drawn at random. The right answer is the
module that has it, or, if code between the modules inside it is wrong, the first of these that is given something else.
"""

import argparse
import copy
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.compare.mistakes import Planted, planted_in
from benchmarks.compare.models import Case, all_cases, classifiers, loss
from benchmarks.compare.others import TOLERANCE, Call, Norms, first_apart, norms_of_modules, norms_of_operations
from torch import nn

from hookboard import Comparison, compare
from hookboard.model.nested import map_tensors

MISTAKES_EACH = 3

HEADINGS = (
    "models",
    "number",
    "copies without a mistake",
    "reported",
    "with gradients",
    "reported",
    "mistakes",
    "module named",
    "and no other",
    "seconds",
)

WAYS: dict[str, tuple[Callable[[nn.Module, Call], Norms | None], float]] = {
    f"norms of modules, {TOLERANCE:g}": (norms_of_modules, TOLERANCE),
    f"DebugMode, {TOLERANCE:g}": (norms_of_operations, TOLERANCE),
    "DebugMode, any": (norms_of_operations, 0.0),
}


@dataclass
class Counts:
    """What was found in a family.

    Args:
        models: how many models.
        copies: how many copies without a mistake were compared forward.
        backward: how many were compared with their gradients.
        mistakes: how many mistakes were planted.
        wrong: way to how many copies it reports something of.
        right: way to how many mistakes it names the module of.
        seconds: of each call of `compare`.
        missed: the mistakes whose module `compare` does not name.
        not_run: why a copy or model could not run.
    """

    models: int = 0
    copies: int = 0
    backward: int = 0
    mistakes: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)


def _call_with(inputs: Any) -> Call:
    def call(model: nn.Module) -> Any:
        like = next(one for one in model.parameters() if one.is_floating_point())
        given = map_tensors(lambda one: one.to(like.dtype) if one.is_floating_point() else one, inputs)
        torch.manual_seed(0)
        with torch.no_grad():  # LeViT keeps a tensor of its first call, which would hold the graph of that call
            return model(**given) if isinstance(given, dict) else model(given)

    return call


def _copies(case: Case, net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    yield "copy", copy.deepcopy(net)
    yield "float64", copy.deepcopy(net).double()
    yield "bfloat16", copy.deepcopy(net).bfloat16()
    if case.family != "transformers":
        yield "channels_last", copy.deepcopy(net).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _named(found: Comparison, planted: Planted) -> bool:
    """Return True if the first difference is in the module that has the mistake, or in the code between its parts."""
    first = found.first
    if first is None:
        return False
    is_between = first.spot.part == "input" and f"code of {planted.module} " in first.cause
    return first.module == planted.module or is_between


def _timed(counts: Counts, *args: Any, **options: Any) -> Comparison:
    began = time.perf_counter()
    found = compare(*args, **options)
    counts.seconds.append(time.perf_counter() - began)
    return found


def run(case: Case, counts: Counts, say: Callable[[str], None], mistakes: int) -> None:
    """Compare a model with its copies, and with as many copies that have a mistake."""
    net, call = case.model(), _call_with(case.inputs)
    counts.models += 1
    here = {way: measure(net, call) for way, (measure, _) in WAYS.items()}

    def others(other: nn.Module) -> dict[str, set[str]]:
        there = {measure: measure(other, call) for measure, _ in WAYS.values()}
        pairs = ((way, here[way], there[measure], tolerance) for way, (measure, tolerance) in WAYS.items())
        return {way: first_apart(one, two, tolerance) for way, one, two, tolerance in pairs if one and two}

    for kind, other in _copies(case, net):
        try:
            call(other)
        except RuntimeError as why:
            counts.not_run.append(f"{case.name} in {kind}: {str(why).splitlines()[0]}")
            continue
        found = _timed(counts, net, other, case.inputs)
        counts.copies += 1
        counts.wrong["compare"] += bool(found.differences)
        counts.wrong.update(way for way, modules in others(other).items() if modules)
        say(f"{case.name}, {kind}: {len(found.differences)} differences {found.first or ''}")
        if kind == "bfloat16":
            found = _timed(counts, net, other, case.inputs, loss=loss)
            counts.backward += 1
            counts.wrong["backward"] += bool(found.differences)
            say(f"{case.name}, {kind}, with gradients: {len(found.differences)} differences {found.first or ''}")
    for planted in planted_in(net, call, mistakes, case.name) if mistakes else ():
        found = _timed(counts, net, planted.model, case.inputs)
        counts.mistakes += 1
        is_right = _named(found, planted)
        counts.right["compare"] += is_right
        counts.right["nothing else"] += is_right and len({one.module for one in found.differences}) == 1
        named = others(planted.model)
        counts.right.update(way for way, modules in named.items() if planted.module in modules)
        say(
            f"{case.name}, {planted.kind} in {planted.module}: {'right' if is_right else 'WRONG'} {found.first} {named}"
        )
        if not is_right:
            counts.missed.append(f"{case.name}, {planted.kind} in {planted.module}: {found.first}")


def lines(families: dict[str, Counts]) -> Iterator[str]:
    """Yield the lines of the tables."""
    total = Counts()
    for one in families.values():
        for name in ("models", "copies", "backward", "mistakes"):
            setattr(total, name, getattr(total, name) + getattr(one, name))
        total.wrong.update(one.wrong)
        total.right.update(one.right)
        total.seconds += one.seconds
    rows = {**families, "all": total}
    yield f"| {' | '.join(HEADINGS)} |"
    yield f"|{'---|' * len(HEADINGS)}"
    for family, one in rows.items():
        cells = [
            one.models, one.copies, one.wrong["compare"], one.backward, one.wrong["backward"], one.mistakes,
            one.right["compare"], one.right["nothing else"], f"{statistics.median(one.seconds or [0.0]):.1f}",
        ]  # fmt: skip
        yield f"| {family} | {' | '.join(map(str, cells))} |"
    yield f"\n| way | reported, of {total.copies} copies | module named, of {total.mistakes} mistakes |"
    yield f"|{'---|' * 3}"
    for way in ("compare", *WAYS):
        yield f"| {way} | {total.wrong[way]} | {total.right[way]} |"


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models whose name contains this, and what is said of each")
    parser.add_argument("--family", default="", help="families whose name begins so")
    parser.add_argument("--classifiers", action="store_true", help="every classifier of torchvision, without mistakes")
    options = parser.parse_args(given)
    cases, mistakes = (classifiers(), 0) if options.classifiers else (all_cases(), MISTAKES_EACH)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    families: dict[str, Counts] = {}
    for case in cases:
        if options.only not in case.name or not case.family.startswith(options.family):
            continue
        counts = families.setdefault(case.family, Counts())
        try:
            run(case, counts, print if options.only else lambda text: None, mistakes)
        except (ImportError, RuntimeError) as why:
            counts.not_run.append(f"{case.name}: {str(why).splitlines()[0]}")
        done = f"{counts.models} models, {counts.copies} copies, {counts.mistakes} mistakes"
        print(f"{case.name} ({done}; {dict(counts.wrong)}, {dict(counts.right)})", file=sys.stderr, flush=True)
    print("\n".join(lines(families)))
    for title, name in (("Missed", "missed"), ("Not run", "not_run")):
        if found := [line for one in families.values() for line in getattr(one, name)]:
            print(f"\n{title}:\n\n" + "\n".join(f"- {line}" for line in found))


if __name__ == "__main__":
    main()
