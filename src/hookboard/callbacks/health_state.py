"""The state of `HealthMonitor` in one stage."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from hookboard.callbacks.adapted import AdaptedWeights
from hookboard.callbacks.loss_meter import LossMeter
from hookboard.callbacks.measurement_state import MeasurementState
from hookboard.callbacks.replicas import Replicas
from hookboard.callbacks.reporter import Reporter
from hookboard.callbacks.step_watch import StepWatch
from hookboard.health.look import HeldBack, Loss, Stepped
from hookboard.health.rules.numerics import Nonfinite
from hookboard.health.run import Router, StepFacts
from hookboard.measure.taps import Taps
from hookboard.model.layers import Layer
from hookboard.model.sites import Site
from hookboard.tracing.black_box import BlackBox
from hookboard.tracing.experts import is_choice, tokens_of_experts
from hookboard.tracing.explain import late_event
from hookboard.writers.event_files import EventFiles


@dataclass(kw_only=True)
class HealthState(MeasurementState):
    """The state of the monitor in one stage.

    Args:
        layers: the watched layers by name.
        has_lazy: whether a layer has no weights yet, because it has not run.
        losses: the loss of every step since the last look.
        recent: the latest losses that the host knows, with which a spike is noticed.
        stepped: during a due step, weight name to how an optimizer steps it.
        held_back: weight name to its weight decay and gradient clipping.
        stepping: the ids of the optimizers that have stepped so far.
        batch: the running batch of the training.
        batch_idx: its index.
        first_step: the optimizer step at which the fit began; None before.
        reporter: has the run judged; None in evaluations, on ranks that do not judge, and after an error in judging.
        files: the event files that the page at the end is made from; None if there is to be none.
        box: finds the first NaN or Inf in its step; None if nobody asks for that.
        finds_late: whether a loss that is not finite is reported when it is read.
        told: number of NaN or Inf that have been reported.
        steps: reads the first training step, and watches later ones.
        adapted: measures what adapters add to frozen weights.
        earlier: rule and module of the alarms of a fit that this one continues; they do not end it.
        is_ending: whether an alarm has ended the fit.
        is_asked_of_all: with several ranks, whether any asked at the last look to end the fit.
        inputs: hooks the model, whose inputs are taken for the batch if the loop passes none; None if it always does.
        choices: hooks the layers whose outputs show what routers pick; None before the first step has shown any.
        why_silent: layer name to why it gave no output at the first look, if it gave none; None before.
        replicas: compares the weights of all ranks; None if there are no others, or no rule asks.
        as_begun: of an evaluation, some values of a weight at its beginning; None if unknown, or once it is compared.
        are_others: of an evaluation, whether these were others in its first batch; None if unknown.
    """

    layers: dict[str, Layer] = field(default_factory=dict)
    has_lazy: bool = False
    losses: LossMeter = field(default_factory=LossMeter)
    recent: deque[float] = field(default_factory=deque)
    stepped: dict[str, Stepped] = field(default_factory=dict)
    held_back: dict[str, HeldBack] = field(default_factory=dict)
    stepping: set[int] = field(default_factory=set)
    batch: Any = None
    batch_idx: int = 0
    first_step: int | None = None
    reporter: Reporter | None = None
    files: EventFiles | None = None
    box: BlackBox | None = None
    finds_late: bool = False
    told: int = 0
    steps: StepWatch = field(default_factory=StepWatch)
    adapted: AdaptedWeights = field(default_factory=AdaptedWeights)
    earlier: frozenset[tuple[str, str]] = frozenset()
    is_ending: bool = False
    is_asked_of_all: bool = False
    inputs: Taps | None = None
    choices: Taps | None = None
    why_silent: dict[str, str] | None = None
    replicas: Replicas | None = None
    as_begun: Tensor | None = None
    are_others: Tensor | None = None

    def forget(self) -> None:
        """Drop what was measured in a step or an evaluation that did not end, and stop following the batch."""
        super().forget()
        self.batch = None
        self.steps.leave_batch()

    def tapped(
        self, modules: Mapping[str, Any], role: Any, observer: Callable[[Site], Callable[[Tensor], None]]
    ) -> Taps:
        """Hook modules until the stage ends; the hooks do nothing before they are switched on."""
        taps = Taps(modules, [role], observer)
        self.until_end.callback(taps.detach)
        taps.attach()
        return taps

    def open_input(self, site: Site) -> Callable[[Tensor], None]:
        """Return a function that measures a tensor of the batch, if its numbers are floating point."""
        return lambda tensor: self.table.open(site)(tensor) if tensor.dtype.is_floating_point else None

    def open_choice(self, site: Site, router: Router) -> Callable[[Tensor], None]:
        """Return a function that measures the choice from one of a layer's outputs, if that has the picks or scores."""

        def count(tensor: Tensor) -> None:
            if is_choice(tensor, router):
                self.table.open(Site(site.name, "expert_tokens", site.index))(tokens_of_experts(tensor, router))

        return count

    def new_events(self) -> list[Nonfinite]:
        """Return the NaN or Inf that the black box has found since the last call, oldest first."""
        events = [] if self.box is None else self.box.events[self.told :]
        self.told += len(events)
        return events

    def late_events(self, losses: Sequence[Loss]) -> list[Nonfinite]:
        """Return the event of the first loss that is not finite, once in a fit; [] if a black box looks for it."""
        event = late_event(losses) if self.finds_late and not self.told else None
        self.told += event is not None
        return [] if event is None else [event]

    def facts(self) -> StepFacts:
        """Return what is known of the training besides what is measured."""
        if self.why_silent is None:
            names = [name for name, role in self.taps.expected() if role == "output"]
            self.why_silent = {name: self.taps.why_silent(name, "output") for name in names}
        return self.steps.facts._replace(
            why_silent=self.why_silent,
            unhooked=self.selection.owners.keys() - self.selection.modules.keys(),
            held_back=dict(self.held_back),
        )
