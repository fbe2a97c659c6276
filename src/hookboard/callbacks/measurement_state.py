"""The state of a measuring callback in one stage; and the warning about sites that had nothing to measure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from hookboard.base.messages import inform, rank_zero_warn
from hookboard.callbacks.layer_news import LayerNews
from hookboard.callbacks.loss_scale import LossScale
from hookboard.callbacks.weights import WeightsBefore
from hookboard.loops.stage_state import StageState, listed_gaps
from hookboard.measure.attention import AttentionWatch
from hookboard.measure.readings import Reading
from hookboard.measure.statistics import Plan
from hookboard.measure.table import Table
from hookboard.measure.taps import Taps
from hookboard.model.layers import DefinedDims, layers_of
from hookboard.model.parameters import Weight, weights_of, why_silent
from hookboard.model.patterns import folded
from hookboard.model.selection import named_submodules
from hookboard.model.sites import ATTENTION_ROLES, ROLES, Role, Site


@dataclass
class MeasurementState(StageState):
    """The state of a measuring callback in one stage.

    Args:
        table: measures the tensors of all sites.
        taps: the hooks on modules.
        attention: measures attention; None where no role asks for it.
        roles: which tensors are measured.
        weights: the watched weights by name.
        before: during a due step, copies of the weights before the optimizers stepped.
        gaps_are_named: whether the warning about sites without a reading has been given.
        loss_scale: reads the scale of the GradScaler; None without one.
        news: makes the record of the layers for the tab in TensorBoard; all stages of a callback share it.
    """

    table: Table = field(init=False)
    taps: Taps = field(init=False)
    attention: AttentionWatch | None = field(default=None, kw_only=True)
    roles: Sequence[Role] = field(default=(), kw_only=True)
    weights: dict[str, Weight] = field(default_factory=dict, kw_only=True)
    before: WeightsBefore = field(default_factory=WeightsBefore, kw_only=True)
    gaps_are_named: bool = field(default=False, kw_only=True)
    loss_scale: LossScale | None = field(default=None, kw_only=True)
    news: LayerNews = field(init=False)

    def observe(self, on: bool) -> None:
        """Switch the hooks on or off: off while we compute something ourselves."""
        self.taps.active = on
        if self.attention is not None:
            self.attention.active = on

    def end_step(self) -> None:
        """Stop measuring, and release all that belongs to the step."""
        self.observe(False)
        self.taps.end_step()

    def forget(self) -> None:
        """Drop what was measured in a step or an evaluation that did not end, as it may be tried again."""
        self.table.forget()
        self.before.clear()

    def follow_weights(self, weights: dict[str, Weight]) -> dict[str, str]:
        """Replace the watched weights; return the name of each that differs, mapped to `new`, `replaced` or `gone`."""
        kinds = {name: "replaced" if name in self.weights else "new" for name in weights}
        kinds |= dict.fromkeys(self.weights.keys() - weights.keys(), "gone")
        before, self.weights = self.weights, weights
        return {
            name: kind for name, kind in kinds.items() if kind != "replaced" or not weights[name].is_same(before[name])
        }


@dataclass(frozen=True)
class MissingSites:
    """The warning about sites that had nothing to measure; made at one step, as the model may change afterwards.

    Args:
        owner: the callback's name, used in warnings.
        causes: by name and role, everything that should be measured, and the most likely reason if it was not.
        among: all names in the model, see `names_in`.
    """

    owner: str
    causes: Mapping[tuple[str, Role], str]
    among: Sequence[str]

    @staticmethod
    def of(
        owner: str, state: MeasurementState, expected: Iterable[tuple[str, Role]], among: Sequence[str]
    ) -> "MissingSites":
        """Find the most likely reasons why expected sites could have nothing to measure in this step.

        Updates for which there was no room to copy the weight are left out.

        Args:
            owner: the callback's name.
            state: the state of the stage.
            expected: name and role of everything that should be measured.
            among: all names in the model.
        """
        skipped = state.before.skipped
        named = [each for each in expected if each[1] != "parameter_update" or each[0] not in skipped]
        return MissingSites(owner, {(name, role): _why_silent(state, name, role) for name, role in named}, among)

    def say(
        self,
        state: MeasurementState,
        step: int,
        readings: Sequence[Reading],
        names_of: Callable[[Role], Sequence[str]],
        why_not_there: Callable[[str], str],
    ) -> None:
        """Warn about all expected sites without a reading, grouped by cause; log which statistics some sites lack.

        Args:
            state: the state of the stage.
            step: the optimizer step.
            readings: the readings of the step.
            names_of: returns the names of the statistics that are logged for a role.
            why_not_there: returns why some sites may not have a statistic.
        """
        found = list(self.found(state.table, readings))
        if found:
            where = f"at step {step}" if state.stage == "train" else f"in the {state.stage} loop at step {step}"
            rank_zero_warn(
                f"{self.owner}: {len(found)} of {len(self.causes)} sites had nothing to measure {where} (shown "
                f"once):{listed_gaps(found, self.among)}"
            )
        kept = [reading for reading in readings if not reading.is_empty]
        for name, sites in without_curves(names_of, kept, self.among):
            inform(f"{self.owner}: no {name} for {sites}, because {why_not_there(name)} (shown once).")

    def found(self, table: Table, readings: Iterable[Reading]) -> Iterator[tuple[str, Role, str]]:
        """Yield name, role and cause of each expected site without a reading, or whose tensors were all empty."""
        are_empty: dict[tuple[str, Role], bool] = {}
        for reading in readings:
            site = reading.site.name, reading.site.role
            are_empty[site] = are_empty.get(site, True) and reading.is_empty
        for (name, role), cause in self.causes.items():
            if (name, role) not in are_empty:
                yield name, role, "switched off (see the warning above)" if table.is_off(name, role) else cause
            elif are_empty[name, role]:
                yield name, role, "every tensor was empty"


def _why_silent(state: MeasurementState, name: str, role: Role) -> str:
    if name in state.weights and ROLES[role].of_parameter:
        return why_silent(state.weights[name])
    if role in ATTENTION_ROLES:
        return "no call to scaled_dot_product_attention was seen (calls in compiled code are not seen)"
    return state.taps.why_silent(name, role)


def channels_in(model: nn.Module, plan: Plan) -> Callable[[Site, Tensor], int | None] | None:
    """Return the argument `channels` of `Table`; None if the statistics of a plan do not need it."""
    if not plan.needs("channels"):
        return None
    modules = {"": model, **dict(named_submodules(model))}
    weights = {name: weight for name, weight in weights_of(modules).items() if not weight.is_lazy}
    return DefinedDims(layers_of(modules, weights))


def without_curves(
    names_of: Callable[[Role], Sequence[str]], readings: Sequence[Reading], among: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Yield each statistic that some readings lack, with the names of their modules, folded into one line.

    Args:
        names_of: returns the names of the statistics that are logged for a role.
        readings: the readings of all sites that were measured.
        among: all names in the model.
    """
    among, lacking = list(among), dict[str, list[Reading]]()
    for reading in readings:
        for name in names_of(reading.site.role):
            if name not in reading.statistics:
                lacking.setdefault(name, []).append(reading)
    for name, without in lacking.items():
        yield name, folded(dict.fromkeys(reading.site.name for reading in without), among)
