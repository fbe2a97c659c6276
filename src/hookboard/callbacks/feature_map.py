"""`FeatureMapLogger`: logs pictures of module outputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor, nn

from hookboard.base.checks import check_list, check_name, is_finite, wrong
from hookboard.base.messages import inform, rank_zero_warn
from hookboard.base.ranks import whole
from hookboard.callbacks.pictures import PictureLogger, PictureState
from hookboard.images.feature_maps import (
    CONVOLUTIONS,
    Maps,
    aspect_of,
    dense,
    drawn_inputs,
    feature_maps,
    maps_in,
    samples_first,
    select_inputs,
    select_maps,
)
from hookboard.images.picture import Picture
from hookboard.loops.callback import Selection, listed_gaps, names_in
from hookboard.loops.loop import Loop
from hookboard.measure.gradients import Observer
from hookboard.measure.taps import Taps
from hookboard.model.nested import tensors_in
from hookboard.model.selection import check_selection, named_submodules, select
from hookboard.model.sites import Site, Stage

MAX_DEFAULT_MODULES = 16
"""Maximum number of modules that are shown if the user names none."""

VALID_RANGES = "'map', 'layer', or a range [low, high]"


class FeatureMapLogger(PictureLogger):
    """Logs pictures of the outputs of the selected modules, for a few samples.

    A picture has a line for each sample: its input, if the first pictures in the batch have one or three channels, and
    a tile for each channel. In an evaluation the first samples of one batch are shown: pictures of different steps show
    the same input unless the loader shuffles. Volumes are shown by their middle slice, tokens of images as maps
    (without the class token), other sequences as positions by features, vectors as lines, and attention weights, if a
    module returns them, as one tile for each head. If a module is called several times, its first call is shown. Tags
    are `feature_maps/<module>`.

    Args:
        modules: Pattern or patterns for dotted module names, relative to the LightningModule. `*` matches within one
            name, `**` across dots; a leading `!` excludes, and a leading `re:` marks a regular expression. Default:
            with `types`, every module of those types; without `types`, convolutions and transformer blocks (leaf
            modules if there are none), at most 16, evenly spaced from first to last.
        types: Class names (`Conv2d`, `torch.nn.Linear`) or classes; subclasses count, and a leading `!` excludes.
        stage: The stage to show. Here: `train`, `validate`, `test` or `predict`. Default: validation, or training if
            the fit has no validation.
        samples: How many samples to show, starting with the first of the batch.
        batch_idx: Which batch of an evaluation to show, counted from 0. Here, training always shows the last batch
            before the optimizer step.
        channels: The largest number of channels to show. Here: the first ones.
        normalize: The range of values that the colours span: that of each map (`map`), that of all maps in the picture
            (`layer`), or a fixed one (`[low, high]`).
        size: The longest side of a tile, in pixels. Here, smaller maps are enlarged by an integer factor, and larger
            ones are averaged; a tensor with a single map is drawn up to 4 times as large.
        every_n_steps: Optimizer steps between measurements, 1 or more. Default: 20 times the Trainer's
            `log_every_n_steps`. An evaluation is shown if it is the first after that many steps.

    Raises:
        ValueError: At construction: an unknown option, or a number below 1. At fit start: a pattern or type that
            matches no module of the model.

    Examples:
        >>> FeatureMapLogger("backbone.layer*", channels=4).channels
        4
    """

    kind = "feature_maps"

    needs_weights = False

    def __init__(
        self,
        modules: str | Sequence[str] | None = None,
        *,
        types: str | type | Sequence[str | type] | None = None,
        stage: Stage | None = None,
        samples: int = 2,
        batch_idx: int = 0,
        channels: int = 16,
        normalize: Literal["map", "layer"] | tuple[float, float] = "map",
        size: int = 64,
        every_n_steps: int | None = None,
    ) -> None:
        super().__init__(stage, batch_idx, every_n_steps, samples=samples, channels=channels, size=size)
        check_selection(modules, types)
        if stage is not None:
            check_name("stage", stage, get_args(Stage))
        if isinstance(normalize, str):
            check_name("normalize", normalize, ["map", "layer"])
        else:
            check_list("normalize", normalize, is_finite, VALID_RANGES)
            if len(normalize) != 2 or normalize[0] >= normalize[1]:
                raise wrong("normalize", normalize, VALID_RANGES)
        self.modules = modules
        self.types = types
        self.samples = samples
        self.channels = channels
        self.normalize = normalize
        self.size = size

    def _select(self, model: nn.Module) -> Selection:
        """Return the modules to show: those that the arguments `modules` and `types` select.

        If both are None: convolutions and transformer blocks, or leaf modules if the model has none of these; at most
        MAX_DEFAULT_MODULES, spread evenly.
        """
        if self.modules is not None or self.types is not None:
            return Selection(select(model, self.modules, self.types))
        found = {name: module for name, module in named_submodules(model) if _is_worth_showing(module)}
        found = found or select(model)
        names = list(found)
        places = np.linspace(0, len(names) - 1, min(len(names), MAX_DEFAULT_MODULES)).round().astype(int)
        if len(places) < len(names):
            inform(f"{self._name} shows {len(places)} of {len(names)} modules; choose with `modules` or `types`.")
        return Selection({names[place]: found[names[place]] for place in places})

    def _take(self, model: nn.Module, batch: Any, state: PictureState) -> "_ShownTensors":
        modules, aspect = state.selection.modules, aspect_of(tensors_in(batch))
        inputs, count = select_inputs(tensors_in(batch), samples=self.samples, size=2 * self.size)

        def open_site(site: Site) -> Observer:
            module = modules[site.name]

            def keep_first(tensor: Tensor) -> None:
                if site in taken.shown:
                    return
                try:
                    tensor = samples_first(dense(whole(tensor.detach())), module, site.index)
                    maps = maps_in(tensor[: self.samples], module, aspect=aspect, index=site.index)
                except (ValueError, IndexError) as error:
                    taken.refused[site.name] = str(error)
                    return
                # More samples than the batch has, such as windows of the pictures, are in another order.
                part = select_maps(maps, channels=self.channels, size=self.size)
                taken.shown[site] = part, len(tensor) == count

            return keep_first

        taken = _ShownTensors(Taps(modules, ["output"], open_site, model=model), inputs)
        state.until_batch_end.callback(taken.taps.detach)
        taken.taps.attach()
        taken.taps.active = True
        return taken

    def _pictures(self, loop: Loop, state: PictureState) -> dict[str, Picture]:
        taken: _ShownTensors = state.taken
        if state.last is None:
            self._name_gaps(loop, state, taken)
        inputs = None if taken.inputs is None else drawn_inputs(taken.inputs, 2 * self.size)
        pictures = {}
        for site, (part, is_of_batch) in taken.shown.items():
            if part.values.numel():
                name, beside = f"{site.path} ({self._source(state)})", inputs if is_of_batch else None
                drawn = feature_maps(part, name, normalize=self.normalize, size=self.size, inputs=beside)
                pictures[self._tag(site.path)] = drawn
        return pictures

    def _name_gaps(self, loop: Loop, state: PictureState, taken: "_ShownTensors") -> None:
        """Warn once about all modules without a picture, with the reason for each.

        If the user named no modules, warn only if there is no picture at all: some modules may never be called, such as
        auxiliary heads.
        """
        names, drawn = list(state.selection.modules), {site.name for site in taken.shown}
        missing = [name for name in names if name not in drawn]
        if missing and (self.modules is not None or self.types is not None or not drawn):
            causes = {name: taken.refused.get(name) or taken.taps.why_silent(name, "output") for name in missing}
            listed = listed_gaps(((name, "output", cause) for name, cause in causes.items()), names_in(loop.model))
            rank_zero_warn(f"{self._name}: no picture of {len(missing)} out of {len(names)} modules:{listed}")


@dataclass
class _ShownTensors:
    """What the hooks have copied in one batch.

    Args:
        taps: the hooks.
        inputs: the first pictures of the batch, to draw beside the maps; None if there are none.
        shown: the maps to draw, by site, and whether they have a sample for each sample of the batch.
        refused: why an output cannot be drawn, by name of the module.
    """

    taps: Taps
    inputs: Tensor | None
    shown: dict[Site, tuple[Maps, bool]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def _is_worth_showing(module: nn.Module) -> bool:
    """Return True for a convolution, or for a transformer block: the parent of an attention, and none itself."""
    parts = [module, *(child for _, child in nn.Module.named_children(module))]
    of, *inside = ("attention" in type(one).__name__.lower() for one in parts)
    return isinstance(module, CONVOLUTIONS) or (not of and any(inside))
