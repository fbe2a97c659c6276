"""What a callback holds while a stage is watched, and what it finds missing in it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torch import Tensor
from torch.nn import Parameter

from hookboard.callbacks.scaling import Scaling
from hookboard.hooks.taps import Taps
from hookboard.parameters import why_silent
from hookboard.recording import Reading, Recorder
from hookboard.sites import Role
from hookboard.writers.loggers import Loggers


@dataclass
class Watch:
    """What a callback holds while a stage is watched, and lets go of afterwards.

    Args:
        recorder: measures what the taps and the parameters show.
        taps: the hooks on modules.
        parameters: the parameters that are watched, by name.
        sites: what should have been measured after a due step.
        every_n_steps: the cadence in force.
        loggers: those that are written to.
        before: the parameters as they were before the optimizer stepped, during a due step.
        scaling: how a GradScaler scales gradients; None without one.
    """

    recorder: Recorder
    taps: Taps
    parameters: dict[str, Parameter]
    sites: list[tuple[str, Role]]
    every_n_steps: int = 0
    loggers: Loggers = field(default_factory=lambda: Loggers([], ""))
    before: dict[str, Tensor] = field(default_factory=dict)
    is_due: bool = False
    gaps_are_named: bool = False
    scaling: Scaling | None = None

    def gaps(self, readings: Sequence[Reading]) -> Iterator[tuple[str, Role, str]]:
        """What should have been measured and was not: name, role and cause."""
        measured = {(r.site.name, r.site.role): r for r in readings}
        for name, role in self.sites:
            reading = measured.get((name, role))
            if reading is None:
                yield name, role, self._why_silent(name, role)
            elif reading.is_empty:
                yield name, role, "every tensor was empty"

    def _why_silent(self, name: str, role: Role) -> str:
        if self.recorder.is_off(name, role):
            return "switched off, as a warning above says"
        if name in self.parameters:
            return why_silent(self.parameters[name])
        return self.taps.why_silent(name, role)


def listed_gaps(gaps: Iterable[tuple[str, Role, str]]) -> str:
    """The gaps grouped by their causes, each group in a line of its own."""
    causes: dict[str, list[str]] = {}
    for name, role, cause in gaps:
        causes.setdefault(f"{role}: {cause}", []).append(name)
    return "".join(f"\n  - {', '.join(names)}: {cause}" for cause, names in causes.items())
