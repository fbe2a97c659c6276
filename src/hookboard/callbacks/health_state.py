"""The state of `HealthMonitor` in one stage."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from hookboard.base.ranks import Ranks
from hookboard.callbacks.layer_news import Facts
from hookboard.callbacks.loss_meter import Losses, LossMeter, mean_over_ranks, with_rows
from hookboard.callbacks.measurement_state import MeasurementState
from hookboard.callbacks.nan_watch import NanWatch, firsts_over_ranks
from hookboard.callbacks.replicas import Compared, Replicas
from hookboard.callbacks.reporter import Reporter, StopOn
from hookboard.callbacks.step_watch import StepWatch
from hookboard.health import Apart, HeldBack, Look, Loss, Router, StepFacts, Stepped, Verdict
from hookboard.measure import Readings, Taps, sent_together
from hookboard.model.layers import Layer
from hookboard.model.selection import named_submodules
from hookboard.model.sites import Site
from hookboard.tracing import is_choice, tokens_of_experts

Judging = Callable[[Readings], tuple[Verdict, ...] | None]
"""Takes the readings of a step or evaluation loop that are not empty. Returns the verdicts on the run, worst first;
None where this rank does not judge."""

VALUES_COMPARED = 64
"""How many values of a weight tell whether others are swapped in for an evaluation (a choice)."""

_is_trained = operator.attrgetter("requires_grad")


@dataclass
class HealthState(MeasurementState):
    """The state of the monitor in one stage.

    Args:
        losses: the loss of every step since the last look.
        stepped: during a due step, weight name to how an optimizer steps it.
        held_back: weight name to its weight decay and gradient clipping.
        stepping: the ids of the optimizers that have stepped so far.
        batch_idx: the index of the running batch.
        first_step: the optimizer step at which the fit began; None before.
        reporter: has the run judged; None in evaluations and on ranks that do not judge.
        nans: which NaN or Inf have been reported.
        steps: reads the first training step, and watches later ones.
        stop_on: ends the fit at an alarm.
        inputs: hooks the model, whose inputs are taken for the batch if the loop passes none; None if it always does.
        choices: hooks the layers whose outputs show what routers pick; None before the first step has shown any.
        why_silent: layer name to why it gave no output at the first look, if it gave none; None before.
        replicas: compares the weights of all ranks; None if there are no others, or no rule asks.
        as_begun: of an evaluation, some values of a weight at its beginning; None if unknown, or once it is compared.
        are_others: of an evaluation, whether these were others in its first batch; None if unknown.
    """

    losses: LossMeter = field(default_factory=LossMeter, kw_only=True)
    stepped: dict[str, Stepped] = field(default_factory=dict, kw_only=True)
    held_back: dict[str, HeldBack] = field(default_factory=dict, kw_only=True)
    stepping: set[int] = field(default_factory=set, kw_only=True)
    batch_idx: int = field(default=0, kw_only=True)
    first_step: int | None = field(default=None, kw_only=True)
    reporter: Reporter | None = field(default=None, kw_only=True)
    nans: NanWatch = field(default_factory=NanWatch, kw_only=True)
    steps: StepWatch = field(default_factory=StepWatch, kw_only=True)
    stop_on: StopOn = field(default_factory=lambda: StopOn(None), kw_only=True)
    inputs: Taps | None = field(default=None, kw_only=True)
    choices: Taps | None = field(default=None, kw_only=True)
    why_silent: dict[str, str] | None = field(default=None, kw_only=True)
    replicas: Replicas | None = field(default=None, kw_only=True)
    as_begun: Tensor | None = field(default=None, kw_only=True)
    are_others: Tensor | None = field(default=None, kw_only=True)

    def values_of_a_weight(self) -> Tensor | None:
        """Return a copy of the first values of the first trainable weight; None if that is no plain tensor."""
        each = (p for weight in self.weights.values() for p in weight.parameters if p.requires_grad)
        first = next(each, None)
        plain = type(first) is nn.Parameter and first.layout is torch.strided
        return first.detach().flatten()[:VALUES_COMPARED].clone() if first is not None and plain else None

    def open_input(self, site: Site) -> Callable[[Tensor], None]:
        """Return a function that measures a tensor of the batch, if its numbers are floating point."""
        return lambda tensor: self.table.open(site)(tensor) if tensor.dtype.is_floating_point else None

    def watch_choices(self, model: nn.Module) -> None:
        """Count in this step the tokens that routers give to each expert, if the first step has shown any routers."""
        routers = {router.layer: router for router in self.steps.facts.routers if router.layer}
        if self.choices is None and routers:
            watched = {name: module for name, module in named_submodules(model) if name in routers}
            self.choices = Taps(watched, ["output"], lambda site: self._counter(site, routers[site.name]))
            self.until_end.callback(self.choices.detach)
            self.choices.attach()
        if self.choices is not None:
            self.until_batch_end.callback(self.choices.end_step)
            self.choices.active = True

    def _counter(self, site: Site, router: Router) -> Callable[[Tensor], None]:
        """Return a function that measures the choice from one of a layer's outputs, if that has the picks or scores."""

        def count(tensor: Tensor) -> None:
            if is_choice(tensor, router):
                self.table.open(Site(site.name, "expert_tokens", site.index))(tokens_of_experts(tensor, router))

        return count

    def look(
        self, step: int, news: Facts, losses: Losses, compared: Sequence[Compared], ranks: Ranks | None
    ) -> Judging:
        """Collect what is known of this step; return a function that takes its readings and has them judged.

        Args:
            step: the optimizer step.
            news: what `LayerNews.collect` returned.
            losses: the losses since the last look, whose numbers come first in `Readings.along`.
            compared: what ranks compare, whose numbers follow there.
            ranks: the processes that share their losses and events; None if there are no others.
        """
        events = [] if ranks is None else self.nans.new_events()
        frozen = {name for name, w in self.weights.items() if not any(map(_is_trained, w.parameters))}
        is_scaled, batch_idx, factors = self.loss_scale is not None, self.batch_idx, self.steps.factors
        stepped, self.stepped, replicas = self.stepped, {}, self.replicas
        count = 0 if losses.waiting is None else len(losses.waiting)
        facts = self._facts()

        def records(layers: Sequence[Layer]) -> Mapping[str, list[bytes]]:
            return self.news.in_order(
                layers, lambda: [layer.name for layer in layers], news, self.table, self.every_n_steps
            )

        def take(readings: Readings) -> tuple[Verdict, ...] | None:
            seen, apart = losses.read(readings.along[:count]), list[Apart]()
            told = [*events, *self.nans.late_events(seen)]
            if ranks is not None:
                worst = {loss.step: loss.worst for loss in seen if loss.worst is not None}
                seen = mean_over_ranks(ranks, seen)
                told = firsts_over_ranks(ranks, told) if ranks.is_any(bool(told)) else []
                seen = with_rows(seen, ranks.gather(worst)) if ranks.is_any(bool(worst)) else seen
                if replicas is not None:
                    apart = replicas.compare(ranks, compared, readings.along[count:])
            if self.reporter is None:
                return None
            overflowed = is_scaled and bool(readings.overflowed.any())
            look = Look(step, batch_idx, readings, seen, stepped, overflowed, frozen, apart, is_scaled, factors)
            if told:
                self.reporter.tell(told, is_searched=self.nans.box is not None)
            return self.reporter.see(look, facts, records)

        return take

    def _facts(self) -> StepFacts:
        """Return what is known of the training besides what is measured."""
        if self.why_silent is None:
            names = [name for name, role in self.taps.expected() if role == "output"]
            self.why_silent = {name: self.taps.why_silent(name, "output") for name in names}
        return self.steps.facts._replace(
            why_silent=self.why_silent,
            unhooked=self.selection.owners.keys() - self.selection.modules.keys(),
            held_back=dict(self.held_back),
        )

    def evaluation(self, step: int, loss: Tensor | None, are_others: Tensor | None) -> Judging:
        """Return a function that takes the readings of an evaluation loop and has them and these judged, as `look`."""
        arriving = sent_together([one for one in (loss, are_others) if one is not None])

        def judged(readings: Readings) -> tuple[Verdict, ...] | None:
            values = [value.item() for value in arriving()]
            has_others = are_others is not None and bool(values.pop())
            losses = [Loss(step, 0, value) for value in values]
            look = Look(step, 0, readings, losses, has_other_weights=has_others)
            return None if self.reporter is None else self.reporter.see_evaluation(look)

        return judged

    def last_losses(self) -> list[Loss]:
        """Return the losses since the last look, for which it waits, and forget them."""
        losses = self.losses.take()
        return losses.read([] if losses.waiting is None else losses.waiting.tolist())

    def follow(self, known: dict[str, Layer], layers: Mapping[str, Layer]) -> Callable[[], None]:
        """Replace the watched layers after the model has changed.

        Args:
            known: the layers by name that the table reads; changed in place.
            layers: the new ones by name.

        Returns:
            A function that tells the judge, which must have seen all earlier looks by then.
        """
        known.clear()
        known.update(layers)
        self.table.forget_shapes()

        def told() -> None:
            if self.reporter is not None and self.reporter.judge is not None:
                self.reporter.judge.run.follow(dict(layers))

        return told

    def close(self) -> None:
        """Report the verdicts of the run, also after an exception or a fault; it does not raise."""
        if self.nans.box is not None:
            self.nans.box.end_batch()
        if self.reporter is not None:
            self.reporter.close()
