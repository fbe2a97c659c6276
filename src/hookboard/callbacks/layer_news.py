"""`LayerNews`: the record of the watched layers for the tab in TensorBoard, whenever it is new or has changed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn
from torch.nn.parameter import is_lazy

from hookboard.base.records import LAYERS, LayerFacts, LayersRecord
from hookboard.loops.callback import Selection
from hookboard.measure.readings import Places
from hookboard.measure.table import Table
from hookboard.model.layers import layers_of, order_with_late
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
        """What `known` returned last; None if it must be read again, because modules or parameters have changed."""
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
        """Return the record, as a tag mapped to byte strings, if it has changed since the last call; otherwise {}.

        Modules are in the order in which they first ran. Those that have not run yet, or whose parameters alone are
        watched, are put at their place in the model's definition.

        Args:
            places: the sites that were measured in the step or loop.
            facts: what `known` returned before the step.
            table: the table that measured the step.
            every_n_steps: number of optimizer steps between two due steps.
        """
        before, self._made_of = self._made_of, (places, facts)
        if before is None or before[1] is not facts:
            self._shapes = {}
        elif before[0] is places:
            return {}
        ran = dict.fromkeys(name for role in _OF_CALLS for name in places.names(role) if name in facts)
        known = [name for name in self._order if name in facts]
        self._order = order_with_late(known or ran, facts, list(facts))
        # The gradient of an output has the shape of the output.
        self._shapes = {**table.shapes("grad_output"), **table.shapes("output"), **self._shapes}
        layers = tuple(replace(facts[name], output=self._shapes.get(name)) for name in self._order)
        last, self._last = self._last, LayersRecord(self._callback, every_n_steps, layers).strings()
        return {} if self._last == last else {f"{LAYERS}/{self._callback}": self._last}


def facts_of_layers(model: nn.Module, modules: Mapping[str, nn.Module]) -> Facts:
    """Return types, parameter shapes and frozen parameters of each watched module, in the order of the model.

    Args:
        model: the whole model.
        modules: the watched modules by name.
    """
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
