"""What a callback holds while a stage is watched, and which modules of the model it has selected."""

import operator
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from torch import nn

from hookboard.messages import folded
from hookboard.selection import named_submodules
from hookboard.sites import Role, Stage
from hookboard.writers import Loggers


@dataclass(frozen=True)
class Selection:
    """What a callback has selected in a model.

    Args:
        modules: those whose calls are watched or changed.
        owners: those whose own parameters are read.
    """

    modules: dict[str, nn.Module] = field(default_factory=dict)
    owners: dict[str, nn.Module] = field(default_factory=dict)

    def what_is_left(self, model: nn.Module) -> "Selection":
        """The same without the modules that the model does not have any more."""
        there = {"": model, **dict(named_submodules(model))}
        modules, owners = (
            {name: module for name, module in given.items() if there.get(name) is module}
            for given in (self.modules, self.owners)
        )
        return Selection(modules, owners)


@dataclass
class Watch:
    """What a callback holds of one stage, from its start to its end.

    Args:
        stage: where it watches.
        every_n_steps: the cadence in force.
        loggers: those that are written to.
        selection: what is watched.
        layout: all modules of the model by name, as they were when the selection was made.
        said: the modules of which a change has been said; the same set for all stages of a callback.
        is_due: whether the batch that runs is watched.
        until_end: undone when the watch ends.
        until_batch_end: undone when the batch that is watched has ended.
    """

    stage: Stage
    every_n_steps: int
    loggers: Loggers
    selection: Selection
    layout: dict[str, nn.Module]
    said: set[str]
    is_due: bool = False
    until_end: ExitStack = field(default_factory=ExitStack)
    until_batch_end: ExitStack = field(default_factory=ExitStack)


def is_same(one: Mapping[str, nn.Module], other: Mapping[str, nn.Module]) -> bool:
    """Whether both have the same modules under the same names. Metrics have an `==` of their own."""
    return one.keys() == other.keys() and all(map(operator.is_, one.values(), other.values()))


def changes(old: Selection, new: Selection) -> dict[str, str]:
    """Name to what has happened to it: `new`, `replaced` or `gone`."""
    found: dict[str, str] = {}
    for before, now in ((old.modules, new.modules), (old.owners, new.owners)):
        for name in {**before, **now}:
            if before.get(name) is not now.get(name):
                found[name] = "new" if name not in before else "replaced" if name in now else "gone"
    return found


def said_of_changes(found: dict[str, str], among: Iterable[str]) -> str:
    """In one line: which are new, which replaced, which gone.

    Args:
        found: name to what has happened to it.
        among: all names there are.
    """
    among = list(among)
    kinds = dict.fromkeys(found.values())
    return "; ".join(f"{kind}: {folded((name for name in found if found[name] == kind), among)}" for kind in kinds)


def listed_gaps(gaps: Iterable[tuple[str, Role, str]], among: Iterable[str] = ()) -> str:
    """The gaps grouped by their causes, each group in a line of its own.

    Args:
        gaps: name, role and cause of each.
        among: the names of all that is watched.
    """
    among, causes = list(among), dict[str, list[str]]()
    for name, role, cause in gaps:
        causes.setdefault(f"{role}: {cause}", []).append(name)
    return "".join(f"\n  - {folded(names, among)}: {cause}" for cause, names in causes.items())
