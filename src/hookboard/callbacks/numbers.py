"""The base of callbacks that log numbers: it measures the due steps, writes the readings, and names what is missing."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.optim import Optimizer

from hookboard.callbacks.layer_news import LayerNews
from hookboard.callbacks.scaling import Scaling
from hookboard.callbacks.site_watch import Gaps, SiteWatch, facts_of, say_if_copied
from hookboard.callbacks.weights import Part, measure_gradients, measure_weights
from hookboard.checks import check_share, check_steps, check_switches, chosen, wrong
from hookboard.hooks import Taps, forget_graphs
from hookboard.loops import Life, Watch, is_accumulating, is_due_now, log_every_n_steps, logged_step, names_in
from hookboard.measure import DERIVED, Plan, Statistic, as_list, forget_scratch, plan
from hookboard.messages import inform
from hookboard.parameters import Weight, are_still, weights_of
from hookboard.recording import Reading, Readings, Recorder, Sent
from hookboard.selection import check_selection
from hookboard.sites import ROLES, Role, Site, Stage
from hookboard.writers import entry_of

V = TypeVar("V", bound=SiteWatch)

AT_END = "at the end of the training"
AFTER_LOOK = dict.fromkeys(get_args(Stage), "at the end of an evaluation") | {"train": "at the end of a batch"}
"""When the job of a look was given, by stage."""


class SiteLogger(Life[V]):
    """Base of callbacks that log readings: one flush of the recorder for each due step and each evaluation loop."""

    verb = "measures"
    watch_class: type[V] = SiteWatch  # type: ignore[assignment]  # who has a V of his own sets it
    tells_overhead = True

    _part: Part | None = None
    """Returns the part of a weight, or of its gradient, that is measured; None for all of it."""

    def __init__(
        self,
        modules: str | Sequence[str] | None,
        types: str | type | Sequence[str | type] | None,
        every_n_steps: int | None,
        statistics: str | Sequence[str | Statistic],
        histogram: bool,
        sync_dist: bool,
        stages: Stage | Sequence[Stage] = "train",
        max_overhead: float | None = None,
    ) -> None:
        super().__init__()
        check_selection(modules, types)
        check_switches(histogram=histogram, sync_dist=sync_dist)
        check_steps(every_n_steps, "to follow the Trainer's log_every_n_steps")
        check_share(max_overhead)
        chosen("stages", stages, get_args(Stage))
        if not as_list(statistics) and not histogram:
            raise wrong("statistics", statistics, "at least one, or histogram=True for histograms alone")
        self.modules = modules
        self.types = types
        self.every_n_steps = every_n_steps
        self.statistics = statistics
        self.histogram = histogram
        self.sync_dist = sync_dist
        self.stages = stages
        self.max_overhead = max_overhead
        self._readings: Iterable[Reading] = ()
        self._plan()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """The merged readings of the last due step or evaluation loop, whichever was later."""
        self._worker.wait()
        if not isinstance(self._readings, tuple):  # they are made when somebody asks, once
            self._readings = tuple(self._readings)
        return self._readings

    # What a callback that measures has of its own.

    @abstractmethod
    def _roles(self) -> Sequence[Role]:
        """Which tensors are measured."""

    def _plan(self) -> Plan:
        """The statistics, resolved.

        Raises:
            ValueError: one of them is unknown.
        """
        return plan(self.statistics)

    def _names(self, role: Role) -> list[str]:
        """The names of the statistics that are logged for a role."""
        resolved = self._plan()
        return [*resolved.names, *(statistic.name for statistic in resolved.own)]

    def _why_not_there(self, statistic: str) -> str:
        """Why some sites may not have a statistic; "" if every site has it."""
        return DERIVED[statistic].why_not if statistic in DERIVED else ""

    def _weights(self, owners: Mapping[str, nn.Module]) -> dict[str, Weight]:
        """The weights of these modules that are measured."""
        return weights_of(owners)

    def _finish(self, found: Readings) -> Readings:
        """Compute what needs the readings of several sites, such as ratios; returns the readings to log."""
        return found

    # Its life.

    def _reset(self) -> None:
        self._readings = ()

    def _stages(self, trainer: Trainer) -> list[Stage]:
        return chosen("stages", self.stages, get_args(Stage))

    def _is_collective(self, trainer: Trainer) -> bool:
        return self.sync_dist

    def _merges(self, trainer: Trainer) -> bool:
        return trainer.world_size > 1 and self.sync_dist

    def _cadence(self, trainer: Trainer) -> int:
        return log_every_n_steps(trainer) if self.every_n_steps is None else self.every_n_steps

    def _prepare(self, trainer: Trainer, pl_module: LightningModule, watch: V) -> None:
        if not self._live:
            say_if_copied(self._name, pl_module.device)
        watch.roles = self._roles()
        watch.recorder = self._recorder(trainer, pl_module, watch)
        watch.taps = Taps({}, (), watch.recorder.open)
        watch.news = next((other.news for other in self._live.values()), LayerNews(self._name))
        if any(ROLES[role].is_gradient for role in watch.roles):
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            watch.scaling = Scaling(scaler, self._name) if scaler is not None and scaler.is_enabled() else None

    def _recorder(self, trainer: Trainer, pl_module: LightningModule, watch: Watch) -> Recorder:
        """What measures the tensors of one stage."""
        resolved = self._plan()
        return Recorder(
            resolved,
            pl_module.device,
            stage=watch.stage,
            histogram=self.histogram,
            **facts_of(pl_module, resolved),
            **self._of_every_recorder(trainer),
        )

    def _of_every_recorder(self, trainer: Trainer) -> dict[str, Any]:
        return {"ranks": self._ranks, "clock": self.clock}

    def _attach(self, trainer: Trainer, pl_module: LightningModule, watch: V) -> None:
        forget_graphs(pl_module)
        roles = [role for role in watch.roles if not ROLES[role].of_parameter]
        modules, observer = watch.selection.modules, watch.recorder.open
        watch.taps = Taps(modules, roles, observer, in_graphs=True, model=pl_module, clock=self.clock)
        watch.until_end.callback(forget_scratch)
        watch.until_end.callback(watch.taps.detach)
        watch.taps.attach()
        watch.weights = self._weights(watch.selection.owners)
        watch.before.forget()
        watch.recorder.forget_shapes()
        watch.news.look_again()

    def _wants(self, trainer: Trainer, watch: V, batch_idx: int, dataloader_idx: int) -> bool:
        return watch.stage != "train" or is_due_now(watch, logged_step(trainer))

    def _begin_batch(self, trainer: Trainer, pl_module: LightningModule, watch: V, batch: Any) -> None:
        watch.until_batch_end.callback(watch.stop_showing)
        watch.taps.active = True

    def _before_backward(self, watch: V) -> None:
        """Note the scale that this backward pass carries."""
        if watch.scaling is not None:
            watch.taps.show_pending()
            watch.recorder.scale = watch.scaling.before_backward()

    def _after_backward(self, watch: V) -> None:
        """Gradients that come from now on carry no scale."""
        if watch.scaling is not None:
            watch.taps.show_pending()
            watch.recorder.scale = None

    def _before_optimizer_step(self, pl_module: LightningModule, watch: V, optimizer: Optimizer) -> None:
        self._follow_weights(pl_module, watch)
        if watch.scaling is not None:
            watch.recorder.scale = watch.scaling.before_step(optimizer)
        if "parameter_grad" in watch.roles:
            measure_gradients(watch.recorder, optimizer, watch.weights, self._part)
        if watch.scaling is not None:
            watch.recorder.scale = None
        if "parameter_update" in watch.roles:
            watch.before.keep(watch.recorder, optimizer, watch.weights, self._part)

    def _end_batch(self, trainer: Trainer, watch: V) -> None:
        if watch.stage == "train" and not is_accumulating(trainer):
            self._do(watch, "after the optimizer step", self._measure_after_step, trainer, watch)
            watch.before.clear()
            if watch.stage in self._live:
                self._log(trainer, watch)

    def _measure_after_step(self, trainer: Trainer, watch: V) -> None:
        """Measure what can be seen of weights once all optimizers of the batch have stepped."""
        measure_weights(watch.recorder, watch.weights, watch.before.copies, watch.roles, self._part)

    def _end_loop(self, trainer: Trainer, watch: V) -> None:
        self._log(trainer, watch)

    def _end_training(self, trainer: Trainer, watch: V) -> None:
        """Say so if nothing was measured."""
        if watch.gaps_are_named:
            return
        if watch.stage == "train":
            steps = logged_step(trainer)
            why = f"the fit made {steps} steps, and every_n_steps is {watch.every_n_steps}"
        else:
            why = f"the fit had no {watch.stage} loop after its start"
        inform(f"{self._name} has measured nothing in {watch.stage}: {why}.")

    def _follow_weights(self, pl_module: LightningModule, watch: V) -> None:
        """If modules have new parameters, watch these, and warn once.

        It is called before the optimizer steps: sharded modules have other parameters during forward and backward.
        """
        if are_still(watch.weights, watch.selection.owners):
            return
        changed = watch.follow_weights(self._weights(watch.selection.owners))
        if changed:
            watch.news.look_again()
        self._say_changed(watch, changed, pl_module)

    def _send(self, trainer: Trainer, watch: V, along: Tensor | None = None) -> Sent:
        """Send what was measured in the step or loop, see `Recorder.send`."""
        wanted = shared = None
        if self._budget is not None and watch.stage == "train" and self._may_stretch(watch):
            wanted = self._budget.wanted(watch.every_n_steps, watch.stretch)
            if self._ranks is not None:  # which must all measure the same steps
                shared = torch.tensor([wanted], dtype=torch.float64, device="cpu")
        if watch.scaling is None:
            sent = watch.recorder.send(shared, along)
        else:
            model, optimizers = trainer.lightning_module, trainer.optimizers
            sent = watch.scaling.send(watch.recorder, model, optimizers, watch.weights, shared, along)
        if wanted is not None and shared is None:
            self._stretch(watch, wanted)

        def arrived() -> tuple[Readings, list[float], list[float]]:
            readings, flags, numbers = sent()
            if shared is not None:
                watch.wanted = int(flags[-1])
            return readings, flags, numbers

        return arrived

    def _log(self, trainer: Trainer, watch: V) -> None:
        model, step, writes = trainer.lightning_module, logged_step(trainer), trainer.is_global_zero
        sent = self._at(f"{watch.stage} {step}", self._send(trainer, watch))
        facts = watch.news.facts(model, watch.selection)
        say_gaps, watch.gaps_are_named = not watch.gaps_are_named, True
        gaps = Gaps.of(self._name, watch, self._expected(watch), names_in(model)) if say_gaps else None
        overhead = self._overhead(trainer, watch)
        if writes:
            watch.loggers.prepare()

        def write() -> None:
            found, _, _ = sent()
            readings = self._finish(found)
            filled = readings.filled()
            self._readings = filled.values()
            if writes:
                entry = entry_of(filled, step, overhead)
                entry.records.update(watch.news.after_step(found, facts, watch.recorder, watch.every_n_steps))
                watch.loggers.write(entry)
            if gaps is not None:
                gaps.say(watch, step, list(readings.values()), self._names, self._why_not_there)

        self._leave_to_worker(watch, write, AFTER_LOOK[watch.stage])

    def _expected(self, watch: V) -> list[tuple[str, Role]]:
        """Names and roles of which at least one tensor should be measured in due steps."""
        of_weights = [role for role in watch.roles if ROLES[role].of_parameter]
        return [*watch.taps.expected(), *((name, role) for role in of_weights for name in watch.weights)]

    def written_tags(self) -> Iterator[str]:
        """The tags that it writes in the run that has started, as far as they are known before the first batch."""
        for watch in self._live.values():
            for name, role in self._expected(watch):
                site = Site(name, role)
                yield from (site.scalar_tag(statistic, watch.stage) for statistic in self._names(role))
                if self.histogram and not ROLES[role].moments_only:
                    yield site.histogram_tag(watch.stage)
