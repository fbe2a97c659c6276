"""What a measuring callback keeps in one stage: weights around a step, the record of layers, the scale of the loss."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from hookboard.base.ranks import local
from hookboard.base.records import LAYERS, LayerFacts, LayersRecord
from hookboard.base.torch_private import copied_together, has_unscaled, scale_of, version_of
from hookboard.loops.callback import Selection, StageState
from hookboard.measure.attention import AttentionWatch
from hookboard.measure.memory import is_plain
from hookboard.measure.row import Places, Readings
from hookboard.measure.table import Table
from hookboard.measure.taps import Taps
from hookboard.model.layers import layers_of, order_with_late
from hookboard.model.nested import stored
from hookboard.model.selection import named_submodules
from hookboard.model.sites import ATTENTION_ROLES, ROLES, Role, Site
from hookboard.model.state import stepped_by, weights_of, why_silent


class LossScale:
    """Reads the scale of a GradScaler, and notes whether an optimizer overflows: the scaler then skips its step."""

    def __init__(self, scaler: GradScaler) -> None:
        self._scaler = scaler
        self._overflowed: list[Tensor] = []
        self._copied: tuple[Tensor, int, Tensor] | None = None  # the scaler's scale, its version, and the copy

    @property
    def current(self) -> Tensor | None:
        """The scaler's own scale, shape (), which changes in place after a step; None before it has one."""
        return scale_of(self._scaler)

    def in_force(self) -> Tensor | None:
        """Return a copy of the scale, shape (), the same tensor until the scaler updates it; None before it has one."""
        current = self.current
        if current is None:
            return None
        version = version_of(current)
        if self._copied is None or self._copied[0] is not current or self._copied[1] != version:
            self._copied = current, version, current.detach().clone()
        return self._copied[2]

    def before_step(self, optimizer: Optimizer) -> Tensor | None:
        """Note whether the optimizer overflows; return the scale that its gradients still carry, None for none."""
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        gradients = [stored(local(weight.grad)) for weight in weights if weight.grad is not None]
        gradients = [gradient for gradient in gradients if gradient.numel()]
        if gradients:
            # The largest absolute value is not finite if any is not; nothing here waits for the device.
            largest = torch.nn.utils.get_total_norm(gradients, norm_type=math.inf)
            self._overflowed.append(~largest.isfinite())
        # Optimizers that unscale inside their own step, as fused ones do, have scaled gradients until then.
        return None if has_unscaled(self._scaler, optimizer) else self.in_force()

    def send(self, table: Table, device: torch.device, along: Tensor | None = None) -> Callable[[], Readings]:
        """Call `Table.send`; gradients of a step that overflowed keep their `nonfinite_count` alone."""
        noted, self._overflowed = self._overflowed, []
        never = torch.zeros((), dtype=torch.bool, device=device)
        sent = table.send(torch.stack([never, *(each.to(device) for each in noted)]).any().float()[None], along)

        def arrived() -> Readings:
            readings = sent()
            return readings.as_overflowed() if readings.flags[0] else readings

        return arrived


_OF_CALLS: tuple[Role, ...] = ("output", "grad_output", "input", "grad_input")
"""Roles whose sites are opened in the order in which modules run: also gradients, by hooks of the forward pass. Outputs
come first: they put a module after the modules inside it, where its inputs would put it before them."""


Facts = dict[str, LayerFacts]
"""What is known of each module before it runs, by name and in the order of the model."""


class LayerRecorder:
    """Makes the record of the watched layers at the first step, and when it changes; a callback's stages share it."""

    def __init__(self, callback: str) -> None:
        self._callback = callback
        self.facts: Facts | None = None  # what `known` returned last; None to read anew, as after a change of the model
        self._made_of: tuple[Places, Facts] | None = None
        self._last: list[bytes] = []
        self._order: list[str] = []
        self._shapes: dict[str, tuple[int, ...]] = {}

    def known(self, model: nn.Module, selection: Selection) -> Facts:
        """Return what is known of the selected modules of a model; it is read once, until `facts` is None again."""
        if self.facts is None:
            self.facts = facts_of_layers(model, {**selection.modules, **selection.owners})
        return self.facts

    def record(self, places: Places, facts: Facts, table: Table, every_n_steps: int) -> dict[str, Sequence[bytes]]:
        """Return the record by tag if it has changed since the last call, else {}; `facts` are from before the step."""
        before, self._made_of = self._made_of, (places, facts)
        if before is None or before[1] is not facts:
            self._shapes = {}
        elif before[0] is places:
            return {}
        ran = dict.fromkeys(name for role in _OF_CALLS for name in places.names(role) if name in facts)
        known = [name for name in self._order if name in facts]
        # As they first ran; those that did not run yet, or have only their parameters watched, as in the model.
        self._order = order_with_late(known or ran, facts, list(facts))
        # The gradient of an output has the shape of the output.
        self._shapes = {**table.shapes("grad_output"), **table.shapes("output"), **self._shapes}
        layers = tuple(replace(facts[name], output=self._shapes.get(name)) for name in self._order)
        last, self._last = self._last, LayersRecord(self._callback, every_n_steps, layers).strings()
        return {} if self._last == last else {f"{LAYERS}/{self._callback}": self._last}


def facts_of_layers(model: nn.Module, modules: Mapping[str, nn.Module]) -> Facts:
    """Return types, parameter shapes and frozen parameters of each watched module, in the order of the model."""
    weights = {name: one for name, one in weights_of(modules).items() if not is_lazy(one)}  # without a shape
    layers, defined = layers_of(modules, weights), ["", *dict(named_submodules(model))]
    facts = {}
    for name in [one for one in dict.fromkeys([*defined, *modules]) if one in layers]:
        shapes, trainable = layers[name].shapes, layers[name].trainable
        frozen = tuple(weight for weight in shapes if weight not in trainable)
        facts[name] = LayerFacts(name, _types_of(modules[name]), None, shapes, frozen)
    return facts


def _types_of(module: nn.Module) -> tuple[str, ...]:
    above = (cls for cls in type(module).__mro__ if cls not in (nn.Module, object))
    return tuple(f"{cls.__module__}.{cls.__qualname__}" for cls in above)


MOST_COPIED_BYTES = 1 << 29
"""Maximum total size in bytes of the weights that are copied before a step (a choice)."""


def measure_gradients(table: Table, optimizer: Optimizer, weights: Mapping[str, nn.Parameter]) -> None:
    """Measure the gradients of the watched weights that this optimizer is about to update, under `parameter_grad`."""
    gradients = {name: weight.grad for name, weight in stepped_by(optimizer, weights).items()}
    table.observe_all([(Site(name, "parameter_grad"), g, None) for name, g in gradients.items() if g is not None])


class WeightsBefore:
    """The weights before the optimizer step: measures them, and copies what is measured of their updates."""

    def __init__(self) -> None:
        self.measured: set[str] = set()  # in the running step, at its start or before an optimizer changed them
        self.copies: dict[str, Tensor] = {}  # of at most MOST_COPIED_BYTES in all
        self.skipped: dict[str, None] = {}  # those for which there was no room
        self._bytes = 0
        self._spare: dict[str, Tensor] = {}  # copies of an earlier step, to be written over

    def measure(self, weights: Mapping[str, nn.Parameter], table: Table) -> None:
        """Measure weights under `parameter_before`, unless they were measured in this step."""
        new = {name: weight for name, weight in weights.items() if name not in self.measured and not is_lazy(weight)}
        self.measured |= new.keys()
        table.observe_all([(Site(name, "parameter_before"), weight, None) for name, weight in new.items()])

    def keep(self, optimizer: Optimizer, weights: Mapping[str, nn.Parameter], table: Table) -> None:
        """Copy what is measured of the weights that this optimizer is about to update, and measure them."""
        stepped = stepped_by(optimizer, weights)
        self.measure(stepped, table)
        plain: dict[str, Tensor] = {}
        for name, weight in stepped.items():
            # If optimizers step several times in one batch, the first step counts.
            if name in self.copies:
                continue
            now = table.part(weight).detach()
            # The same on every rank, so that all skip the same weights.
            size = now.numel() * now.element_size() // (now.device_mesh.size() if isinstance(now, DTensor) else 1)
            if self._bytes + size > MOST_COPIED_BYTES:
                self.skipped[name] = None
                continue
            self._bytes += size
            if is_plain(now):
                plain[name] = now
            else:
                self.copies[name] = now.clone()
        spares = [self._spare.pop(name, None) for name in plain]
        self.copies.update(zip(plain, copied_together([*plain.values()], spares), strict=True))

    def clear(self) -> None:
        """End the step: drop the copies."""
        # On the CPU fresh memory costs more than the copy; other devices have an allocator for that.
        self._spare = {name: copy for name, copy in self.copies.items() if is_plain(copy) and copy.is_cpu}
        self.copies, self._bytes = {}, 0
        self.measured.clear()


def measure_weights(
    table: Table, weights: Mapping[str, nn.Parameter], before: WeightsBefore, roles: Collection[Role]
) -> None:
    """Measure the updates of the weights, and the weights themselves, after the steps of all optimizers."""
    tensors: list[tuple[Site, Tensor, Tensor | None]] = []
    for name, weight in weights.items():
        if "parameter" in roles:
            tensors.append((Site(name, "parameter"), weight, None))
        if name in before.copies:
            tensors.append((Site(name, "parameter_update"), weight, before.copies[name]))
    table.observe_all(tensors)


@dataclass(kw_only=True)
class MeasurementState(StageState):
    """The state of a measuring callback in one stage."""

    table: Table = field(init=False)
    taps: Taps = field(init=False)
    attention: AttentionWatch | None = None  # None where no role asks for it
    roles: Sequence[Role] = ()
    weights: dict[str, nn.Parameter] = field(default_factory=dict)
    before: WeightsBefore = field(default_factory=WeightsBefore)  # as they were before the optimizers step
    has_logged: bool = False  # anything in this stage
    loss_scale: LossScale | None = None  # None without a GradScaler, or if no gradient is measured
    layer_record: LayerRecorder = field(init=False)  # of the layers, for the tab; all stages of a callback share it

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
