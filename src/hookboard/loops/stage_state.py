"""What a callback has decided at the start of a run, what it has selected, and what it holds of one stage."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from hookboard.parameters import weights_of
from hookboard.patterns import folded
from hookboard.ranks import gathered
from hookboard.selection import named_submodules
from hookboard.sites import Role, Stage
from hookboard.writers import Loggers


@dataclass(frozen=True)
class Selection:
    """What a callback has selected in a model.

    Args:
        modules: name to module, for modules whose calls are watched or changed.
        owners: name to module, for modules whose own parameters are read.
    """

    modules: dict[str, nn.Module] = field(default_factory=dict)
    owners: dict[str, nn.Module] = field(default_factory=dict)

    def what_is_left(self, model: nn.Module) -> "Selection":
        """Return the same selection without the modules that the model no longer has."""
        there = {"": model, **dict(named_submodules(model))}
        modules, owners = (
            {name: module for name, module in given.items() if there.get(name) is module}
            for given in (self.modules, self.owners)
        )
        return Selection(modules, owners)


@dataclass
class StageState:
    """What a callback holds of one stage, from its start to its end.

    Args:
        stage: the stage.
        every_n_steps: how many optimizer steps there are from one due step to the next.
        loggers: the loggers to write to.
        selection: the modules that are watched.
        layout: all modules of the model by name at the time of the selection.
        said: names of modules whose replacement has been reported; all stages of a callback share this set.
        is_due: whether the running batch is watched.
        is_open: whether a watched batch has begun since `until_batch_end` was emptied at the start of a batch.
        stretch: by which factor the cadence is stretched to keep to `max_overhead`.
        is_stretch_said: whether that has been said.
        last_due: the last step that was due; None before.
        wanted: the factor that the slowest rank wants from the next due step on; None before it is known.
        has_fault: whether a fault of ours has ended it.
        sees_backward: whether `_before_backward` and `_after_backward` are called in watched batches.
        sees_steps: whether `_before_optimizer_step` is called in watched batches.
        until_end: undoes, when the stage ends, what was done for it.
        until_batch_end: undoes, when a watched batch has ended, what was done for it.
    """

    stage: Stage
    every_n_steps: int
    loggers: Loggers
    selection: Selection
    layout: dict[str, nn.Module]
    said: set[str]
    is_due: bool = False
    is_open: bool = False
    stretch: int = 1
    is_stretch_said: bool = False
    last_due: int | None = None
    wanted: int | None = None
    has_fault: bool = False
    sees_backward: bool = False
    sees_steps: bool = False
    until_end: ExitStack = field(default_factory=ExitStack)
    until_batch_end: ExitStack = field(default_factory=ExitStack)

    def observe(self, on: bool) -> None:
        """Switch the hooks on or off: off while other callbacks run in the middle of a watched batch."""

    def state_dict(self, again: tuple[int, int] | None) -> dict[str, Any]:
        """Return what a checkpoint keeps of this stage, for `hookboard.plain` to pack; nothing by default.

        Args:
            again: the step and the index of the running batch, if that fit will run it again; None otherwise.
        """
        return {}

    def load_state_dict(self, parts: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, before the first batch. If this raises, the state is left as it is."""


def is_same(one: Mapping[str, nn.Module], other: Mapping[str, nn.Module]) -> bool:
    """Return whether both have the same module objects under the same names (`==` has another meaning for metrics)."""
    return one.keys() == other.keys() and all(map(operator.is_, one.values(), other.values()))


def changes(old: Selection, new: Selection) -> dict[str, str]:
    """Compare two selections: returns the name of each module that differs, and `new`, `replaced` or `gone`."""
    found: dict[str, str] = {}
    for before, now in ((old.modules, new.modules), (old.owners, new.owners)):
        for name in {**before, **now}:
            if before.get(name) is not now.get(name):
                found[name] = "new" if name not in before else "replaced" if name in now else "gone"
    return found


def names_in(model: nn.Module) -> list[str]:
    """Return the names of all modules and parameters of the model."""
    modules = {"": model, **dict(named_submodules(model))}
    return [*modules, *weights_of(modules)]


def said_of_changes(found: dict[str, str], among: Iterable[str]) -> str:
    """Describe changes in one line: "replaced: net.2; new: net.3".

    Args:
        found: name to `new`, `replaced` or `gone`.
        among: all names of the model, see `names_in`.
    """
    among = list(among)
    kinds = dict.fromkeys(found.values())
    return "; ".join(f"{kind}: {folded((name for name in found if found[name] == kind), among)}" for kind in kinds)


def listed_gaps(gaps: Iterable[tuple[str, Role, str]], among: Iterable[str] = ()) -> str:
    """List the sites without a reading, grouped by cause: one line for each cause.

    Args:
        gaps: name, role and cause of each.
        among: all names of the model, see `names_in`.
    """
    among, causes = list(among), dict[str, list[str]]()
    for name, role, cause in gaps:
        causes.setdefault(f"{role}: {cause}", []).append(name)
    return "".join(f"\n  - {folded(names, among)}: {cause}" for cause, names in causes.items())


@dataclass(frozen=True)
class Decision:
    """What a rank decides at the start of a run.

    Args:
        reason: why nothing can be watched; None if there is no such reason.
        every_n_steps: how many optimizer steps there are from one due step to the next.
        stages: the stages to watch.
        failure: says that the callback could not start, and why; None if it could.
    """

    reason: str | None
    every_n_steps: int
    stages: Sequence[Stage]
    failure: str | None = None


def agreed(mine: Decision) -> Decision:
    """Return the decision of rank 0, which alone writes. Every rank must call this, once for each callback.

    Ranks that decide for themselves wait for each other for ever: often rank 0 alone has a logger.

    Raises:
        ValueError: the callback could not start on another rank.
    """
    everyones = gathered(mine)
    failures = [f"on rank {rank}, {each.failure}" for rank, each in enumerate(everyones) if each.failure]
    if failures and not mine.failure:
        raise ValueError(failures[0])
    return everyones[0]
