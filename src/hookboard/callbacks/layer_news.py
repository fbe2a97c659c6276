"""`LayerNews`: the record of the watched layers for the tab in TensorBoard, whenever it is new or has changed."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import nn

from hookboard.base.records import LAYERS, LayerFacts, LayersRecord
from hookboard.loops.stage_state import Selection
from hookboard.measure.readings import Places
from hookboard.measure.table import Table
from hookboard.model.layers import order_with_late
from hookboard.model.layouts import shape_of
from hookboard.model.parameters import weights_of
from hookboard.model.selection import named_submodules
from hookboard.model.sites import Role

_OF_CALLS: tuple[Role, ...] = ("output", "grad_output", "input", "grad_input")
"""Roles whose sites are opened in the order in which modules run, gradients included: the forward pass puts their hooks
on tensors. Outputs come first, which tell the order best: a module comes after the modules inside it; by its inputs it
would come before them."""


Facts = dict[str, LayerFacts]
"""What is known of each module before it runs, by name and in the order of the model."""


class LayerNews:
    """Makes the record of the watched layers at the first step, and again when it changes.

    All stages of a callback share it.

    Args:
        callback: the name of the callback's class.
    """

    def __init__(self, callback: str) -> None:
        self._callback = callback
        self.facts: Facts | None = None
        """What `collect` returned last; None if it must be called again, because modules or parameters have changed."""
        self.made_of: tuple[object, Facts | None] = (None, None)
        """The key of the order and the facts that the last record was made of: while both stay the same, so does it."""
        self._last: list[bytes] = []
        self._ran: list[str] = []
        self._shapes: dict[str, tuple[int, ...]] = {}

    def collect(self, model: nn.Module, selection: Selection) -> Facts:
        """Read from the model what the other methods need, keep it in `facts`, and return it.

        Args:
            model: the whole model.
            selection: what is watched.
        """
        self.facts = facts_of_layers(model, {**selection.modules, **selection.owners})
        return self.facts

    def record(self, places: Places, facts: Facts, table: Table, every_n_steps: int) -> dict[str, list[bytes]]:
        """Return the record, as a tag mapped to byte strings, if it has changed since the last call; otherwise {}.

        Modules are in the order in which they first ran. Those that have not run yet, or whose parameters alone are
        watched, are put at their place in the model's definition.

        Args:
            places: the sites that were measured in the step or loop.
            facts: what `collect` returned before the step.
            table: the table that measured the step.
            every_n_steps: number of optimizer steps between two due steps.
        """
        defined = list(facts)
        ran = dict.fromkeys(name for role in _OF_CALLS for name in places.names(role) if name in facts)
        known = [name for name in self._ran if name in facts]
        self._ran = order_with_late(known or ran, ran, defined)
        return self.in_order(places, order_with_late(self._ran, defined, defined), facts, table, every_n_steps)

    def in_order(
        self, key: object, order: Iterable[str], facts: Facts, table: Table, every_n_steps: int
    ) -> dict[str, list[bytes]]:
        """Return the record as `record` does, with the modules in a given order; {} if it has not changed.

        Args:
            key: an object that the caller replaces when the order changes. If it and `facts` are the same objects as in
                the last call, {} is returned.
            order: the names of the modules in order.
            facts: what `collect` returned before the step.
            table: the table that measured the step.
            every_n_steps: number of optimizer steps between two due steps.
        """
        if key is self.made_of[0] and facts is self.made_of[1]:
            return {}
        if facts is not self.made_of[1]:
            self._shapes = {}
        self.made_of = key, facts
        # The gradient of an output has the shape of the output.
        self._shapes = {**table.shapes("grad_output"), **table.shapes("output"), **self._shapes}
        layers = tuple(replace(facts[name], output=self._shapes.get(name)) for name in order)
        before, self._last = self._last, LayersRecord(self._callback, every_n_steps, layers).strings()
        return {} if self._last == before else {f"{LAYERS}/{self._callback}": self._last}


def facts_of_layers(model: nn.Module, modules: Mapping[str, nn.Module]) -> Facts:
    """Return types, parameter shapes and frozen parameters of each watched module, in the order of the model.

    Args:
        model: the whole model.
        modules: the watched modules by name.
    """
    owned: dict[int, dict[str, tuple[int, ...]]] = {}
    frozen: dict[int, list[str]] = {}
    for name, weight in weights_of(modules).items():
        # What a parametrization computes is no parameter, and what is lazy or nested has no shape.
        shape = None if weight.is_computed or weight.is_lazy else shape_of(weight.parameters[0])
        if shape is not None:
            owned.setdefault(id(weight.module), {})[name] = shape
            if not weight.parameters[0].requires_grad:
                frozen.setdefault(id(weight.module), []).append(name)
    facts = {}
    for name in dict.fromkeys([*(name for name in ("", *dict(named_submodules(model))) if name in modules), *modules]):
        types, number = _types_of(modules[name]), id(modules[name])
        facts[name] = LayerFacts(name, types, None, owned.get(number, {}), tuple(frozen.get(number, ())))
    return facts


def _types_of(module: nn.Module) -> tuple[str, ...]:
    above = (cls for cls in type(module).__mro__ if cls not in (nn.Module, object))
    return tuple(f"{cls.__module__}.{cls.__qualname__}" for cls in above)
