"""The state of a measuring callback in one stage."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from hookboard.callbacks.layer_news import LayerNews
from hookboard.callbacks.loss_scale import LossScale
from hookboard.callbacks.weights import MOST_COPIED_BYTES, WeightsBefore
from hookboard.loops.callback import StageState
from hookboard.measure.attention import AttentionWatch
from hookboard.measure.table import Table
from hookboard.measure.taps import Taps
from hookboard.model.parameters import why_silent
from hookboard.model.sites import ATTENTION_ROLES, ROLES, Role


@dataclass(kw_only=True)
class MeasurementState(StageState):
    """The state of a measuring callback in one stage.

    Args:
        table: measures the tensors of all sites.
        taps: the hooks on modules.
        attention: measures attention; None where no role asks for it.
        roles: which tensors are measured.
        weights: the watched weights by name.
        before: during a due step, what is known of the weights before the optimizers stepped.
        has_logged: whether anything was logged in this stage.
        loss_scale: reads the scale of the GradScaler; None without one.
        news: makes the record of the layers for the tab in TensorBoard; all stages of a callback share it.
    """

    table: Table = field(init=False)
    taps: Taps = field(init=False)
    attention: AttentionWatch | None = None
    roles: Sequence[Role] = ()
    weights: dict[str, nn.Parameter] = field(default_factory=dict)
    before: WeightsBefore = field(default_factory=WeightsBefore)
    has_logged: bool = False
    loss_scale: LossScale | None = None
    news: LayerNews = field(init=False)

    def begin_step(self) -> None:
        """Begin to measure."""
        self.taps.active = True
        if self.attention is not None:
            self.attention.active = True

    def end_step(self) -> None:
        """Stop measuring, and release all that belongs to the step."""
        self.taps.end_step()
        if self.attention is not None:
            self.attention.active = False

    def forget(self) -> None:
        """Drop what was measured in a step or an evaluation that did not end, as it may be tried again."""
        self.table.forget()
        self.before.clear()

    def why_nothing(self) -> dict[tuple[str, Role], str]:
        """Return name and role of all that should be measured, and the likely reason if it was not in this step."""
        causes = {(name, role): self.taps.why_silent(name, role) for name, role in self.taps.expected()}
        for role in self.roles:
            if ROLES[role].of_parameter:
                causes |= {(name, role): why_silent(weight) for name, weight in self.weights.items()}
        if self.attention is not None:
            no_call = "no call to scaled_dot_product_attention was seen (calls in compiled code are not seen)"
            names = self.attention.found or [""]  # nobody knows beforehand where it is
            causes |= {(name, role): no_call for name in names for role in self.roles if role in ATTENTION_ROLES}
        no_room = f"copies of all parameters before a step would take more than {MOST_COPIED_BYTES >> 20} MiB"
        return causes | {(name, "parameter_update"): no_room for name in self.before.skipped}
