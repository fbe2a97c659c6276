"""`StageState`, the state of a callback in one stage; `Selection`, its modules."""

import operator
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from torch import nn

from hookboard.model.parameters import weights_of
from hookboard.model.patterns import folded
from hookboard.model.selection import named_submodules
from hookboard.model.sites import Role, Stage
from hookboard.writers.loggers import Loggers


@dataclass(frozen=True)
class Selection:
    """The modules of a model that a callback measures or changes.

    Args:
        modules: the modules whose inputs, outputs or gradients it measures or changes, by dotted name.
        owners: the modules whose own parameters it reads, by dotted name.
    """

    modules: dict[str, nn.Module] = field(default_factory=dict)
    owners: dict[str, nn.Module] = field(default_factory=dict)

    def is_same(self, other: "Selection") -> bool:
        """Return True if both have the same modules."""
        return are_same(self.modules, other.modules) and are_same(self.owners, other.owners)


def are_same(one: Mapping[str, nn.Module], other: Mapping[str, nn.Module]) -> bool:
    """Return True if both have the same modules, compared by `is`: a module's class may have an `__eq__`."""
    return one.keys() == other.keys() and all(map(operator.is_, one.values(), other.values()))


@dataclass(kw_only=True)
class StageState:
    """The state of a callback in one stage of a run.

    Args:
        stage: the stage.
        every_n_steps: the number of optimizer steps from one due step to the next; 0 if no step is due.
        loggers: the loggers to write to.
        selection: the modules that are measured.
        layout: all modules of the model, by name, at the time of the selection.
        is_due: True while a batch runs that is measured.
        has_fault: True if an error has ended the stage.
        until_end: closed when the stage ends; removes the hooks of the stage.
        until_batch_end: closed when a measured batch has ended; removes the hooks of the batch.
    """

    stage: Stage
    every_n_steps: int
    loggers: Loggers
    selection: Selection
    layout: dict[str, nn.Module]
    is_due: bool = False
    has_fault: bool = False
    until_end: ExitStack = field(default_factory=ExitStack)
    until_batch_end: ExitStack = field(default_factory=ExitStack)

    def forget(self) -> None:
        """Drop what was measured in a step or an evaluation that did not end. Here it does nothing."""


def is_due(step: int, every_n_steps: int) -> bool:
    """Return True if the optimizer step with this number, counted from 0, is measured and logged.

    That is the last of every n steps, the one that Lightning logs too. If `every_n_steps` is 0 (Lightning's "no
    logging"), no step is due.

    >>> [step for step in range(10) if is_due(step, 4)]
    [3, 7]
    """
    return every_n_steps > 0 and (step + 1) % every_n_steps == 0


def names_in(model: nn.Module) -> list[str]:
    """Return the names of all modules and parameters of the model."""
    modules = {"": model, **dict(named_submodules(model))}
    return [*modules, *weights_of(modules)]


def listed_gaps(gaps: Iterable[tuple[str, Role, str]], among: Iterable[str] = ()) -> str:
    r"""Return a text with one line for each role and cause of sites without a reading, names folded into patterns.

    Args:
        gaps: the name, role and cause of each site.
        among: all names of the model, see `names_in`: a pattern must match no other of them.

    >>> listed_gaps([("head", "output", "was not called")])
    '\n  - head: output: was not called'
    """
    among, causes = list(among), dict[str, list[str]]()
    for name, role, cause in gaps:
        causes.setdefault(f"{role}: {cause}", []).append(name)
    return "".join(f"\n  - {folded(names, among) or 'the model'}: {cause}" for cause, names in causes.items())
