"""`LayerNews`: the record of the watched layers for the tab in TensorBoard, where it is new or has changed."""

from collections.abc import Callable, Iterable, Mapping

from torch import nn

from hookboard.callbacks.watch import Selection
from hookboard.health import with_late_ones
from hookboard.messages import warn_switched_off
from hookboard.parameters import weights_of
from hookboard.record import LAYERS, LayerFacts, LayersRecord
from hookboard.recording import Readings, Recorder
from hookboard.selection import named_submodules
from hookboard.sites import Role

_OF_CALLS: tuple[Role, ...] = ("output", "grad_output", "input", "grad_input")
"""The roles whose sites come in the order in which modules run. Of gradients too: their sites are opened where hooks
are put on outputs, in the forward pass. An input comes before those of the modules inside, so that it tells less."""


class LayerNews:
    """Makes the record of the watched layers when it is first known, and when it changes. Its methods do not raise.

    The stages of a callback share it.

    Args:
        callback: the name of the callback's class.
    """

    def __init__(self, callback: str) -> None:
        self._callback = callback
        self._sign: object = None
        self._last: list[bytes] = []
        self._is_off = False
        self._places: object = None
        self._met: frozenset[str] = frozenset()
        self._ran: list[str] = []
        self._shapes: dict[str, tuple[int, ...]] = {}

    def look_again(self) -> None:
        """Make the record anew after the next step: modules, or their parameters, have changed."""
        self._sign = None
        self._shapes = {}

    def after_step(
        self, readings: Readings, model: nn.Module, selection: Selection, recorder: Recorder, every_n_steps: int
    ) -> dict[str, list[bytes]]:
        """The record by its tag if it has changed; otherwise nothing.

        Modules stand in the order in which they ran first; those that did not run so far, and those of which only
        parameters are watched, where the model defines them.

        Args:
            readings: of the step or loop.
            model: the whole model.
            selection: what is watched.
            recorder: has measured it.
            every_n_steps: how many optimizer steps lie between two due steps.
        """
        places = readings.places
        if places is not self._places:
            self._places, names = places, {site.name for site in places.sites}
            self._met = self._met if names <= self._met else self._met | names

        def order() -> list[str]:
            modules = _all_of(selection)
            defined = [name for name in ("", *dict(named_submodules(model))) if name in modules]
            ran = dict.fromkeys(name for role in _OF_CALLS for name in places.first(role) if name in modules)
            known = [name for name in self._ran if name in modules]
            self._ran = with_late_ones(known or ran, ran, defined)
            return with_late_ones(self._ran, defined, defined)

        return self.in_order(self._met, order, selection, recorder, every_n_steps)

    def in_order(
        self,
        sign: object,
        order: Callable[[], Iterable[str]],
        selection: Selection,
        recorder: Recorder,
        every_n_steps: int,
    ) -> dict[str, list[bytes]]:
        """The same for who knows the order of the modules.

        Args:
            sign: as long as it is the same object, the order is, and nothing is looked at.
            order: the names of the modules in order.
            selection: what is watched.
            recorder: has measured it.
            every_n_steps: how many optimizer steps lie between two due steps.
        """
        if sign is self._sign or self._is_off:
            return {}
        self._sign = sign
        try:
            # The gradient of an output has its shape.
            self._shapes = {**recorder.shapes("grad_output"), **recorder.shapes("output"), **self._shapes}
            layers = layer_facts(order(), _all_of(selection), self._shapes)
            strings = LayersRecord(self._callback, every_n_steps, layers).strings()
        except Exception as error:
            self._is_off = True
            warn_switched_off(f"the record of {self._callback}'s layers for the tab in TensorBoard", error)
            return {}
        if strings == self._last:
            return {}
        self._last = strings
        return {f"{LAYERS}/{self._callback}": strings}


def layer_facts(
    order: Iterable[str], modules: Mapping[str, nn.Module], outputs: Mapping[str, tuple[int, ...]]
) -> tuple[LayerFacts, ...]:
    """What is known of each module.

    Args:
        order: the names in the order of the record.
        modules: name to module.
        outputs: name to the shape of the first output, where it is known.
    """
    owned: dict[int, dict[str, tuple[int, ...]]] = {}
    for name, weight in weights_of(modules).items():
        # What a parametrization computes is no parameter, and what is lazy has no shape yet.
        if not (weight.is_computed or weight.is_lazy):
            owned.setdefault(id(weight.module), {})[name] = tuple(weight.parameters[0].shape)
    return tuple(
        LayerFacts(name, _types_of(modules[name]), outputs.get(name), owned.get(id(modules[name]), {}))
        for name in order
    )


def _all_of(selection: Selection) -> dict[str, nn.Module]:
    return {**selection.modules, **selection.owners}


def _types_of(module: nn.Module) -> tuple[str, ...]:
    above = (cls for cls in type(module).__mro__ if cls not in (nn.Module, object))
    return tuple(f"{cls.__module__}.{cls.__qualname__}" for cls in above)
