"""Callbacks that log pictures of one batch: `FeatureMapLogger`, `KernelLogger`, and their base, `PictureLogger`."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor, nn

from hookboard.base.checks import check_list, check_name, check_whole, is_finite, wrong
from hookboard.base.messages import inform, listed, rank_zero_warn
from hookboard.base.ranks import whole
from hookboard.base.torch_private import parameters_of, run_eagerly
from hookboard.images.feature_maps import (
    CONVOLUTIONS,
    Maps,
    aspect_of,
    dense,
    drawn_inputs,
    feature_maps,
    kernel_picture,
    maps_in,
    samples_first,
    select_inputs,
    select_maps,
    selected_kernels,
)
from hookboard.images.picture import Picture
from hookboard.loops.callback import (
    HookboardCallback,
    Selection,
    StageState,
    is_due,
    listed_gaps,
    names_in,
    why_no_step,
)
from hookboard.loops.loop import Loop
from hookboard.measure.taps import Taps
from hookboard.model.nested import tensors_in
from hookboard.model.selection import NothingToSelectError, check_selection, named_submodules, select
from hookboard.model.sites import MODEL, Site, Stage
from hookboard.writers.entry import Entry

STEPS_PER_LOG = 20
"""By default, pictures are logged every this many times `log_every_n_steps`, because they cost more than numbers."""


@dataclass
class PictureState(StageState):
    """The state of a callback that logs pictures, in one stage."""

    last: int | None = field(default=None, kw_only=True)  # the optimizer step of the last pictures
    is_awaited: bool = field(default=False, kw_only=True)  # the batch that is shown is still to come in this evaluation
    taken: Any = field(default=None, kw_only=True)  # what `_take` returned, until its pictures are made
    start: dict[nn.Module, Tensor] = field(default_factory=dict, kw_only=True)  # from the start of the fit


class PictureLogger(HookboardCallback[PictureState]):
    """Base of callbacks that log pictures: a subclass hooks a batch (`_take`) and draws what it gave (`_pictures`)."""

    state_class = PictureState

    kind: str  # the first part of its tags, `<kind>/<module>`
    needs_weights = True  # it reads weights or calls modules, which needs unsharded weights on this rank

    def __init__(self, stage: Stage | None, batch_idx: int, every_n_steps: int | None, **counts: int) -> None:
        super().__init__()
        otherwise = f"to use {STEPS_PER_LOG} times the Trainer's log_every_n_steps"
        check_whole("every_n_steps", every_n_steps, of="optimizer steps", otherwise=otherwise)
        check_whole("batch_idx", batch_idx, 0)
        for name, count in counts.items():
            check_whole(name, count)
        self.stage = stage
        self.batch_idx = batch_idx
        self.every_n_steps = every_n_steps

    # The methods that a subclass overrides.

    def _take(self, model: nn.Module, batch: Any, state: PictureState) -> Any:
        """Attach hooks that `state.until_batch_end` removes, and return the object that they fill; by default None."""

    @abstractmethod
    def _pictures(self, loop: Loop, state: PictureState) -> dict[str, Picture]:
        """Return the pictures of the batch by tag; it waits for the device."""

    def _tag(self, name: str) -> str:
        return f"{self.kind}/{name or MODEL}"

    # What it does at each point of a run.

    def _stages(self, loop: Loop) -> list[Stage]:
        has_no_validation = loop.is_fitting and not loop.has_validation
        return [self.stage or ("train" if has_no_validation else "validate")]

    def _why_not(self, loop: Loop) -> str | None:
        if reason := super()._why_not(loop):
            return reason
        if self.needs_weights and loop.weights_kept_by:
            return f"{loop.weights_kept_by} shards the weights across ranks; use ModelParallelStrategy (FSDP2) instead"
        if self.stage == "validate" and loop.is_fitting and not loop.has_validation:
            return "it takes its pictures in validation, but this fit has no validation"
        return None

    def _is_collective(self, loop: Loop) -> bool:
        # Sharded modules run on all ranks or not at all.
        return loop.is_model_parallel

    def _cadence(self, loop: Loop) -> int:
        if not loop.is_fitting:
            return 1
        return STEPS_PER_LOG * loop.log_every_n_steps if self.every_n_steps is None else self.every_n_steps

    def _begin_evaluation(self, loop: Loop, state: PictureState) -> None:
        if state.every_n_steps:
            state.is_awaited = state.last is None or loop.logged_step - state.last >= state.every_n_steps

    def _wants(self, loop: Loop, state: PictureState, batch_idx: int, dataloader_idx: int) -> bool:
        if state.stage == "train":
            return is_due(loop.logged_step, state.every_n_steps)
        return state.is_awaited and (batch_idx, dataloader_idx) == (self.batch_idx, 0)

    def _begin_batch(self, loop: Loop, state: PictureState, batch: Any, batch_idx: int) -> None:
        state.is_awaited = False
        if state.stage != "train":
            # Compiled code ignores later hooks. Training must stay compiled: eager code rounds differently.
            state.until_batch_end.enter_context(run_eagerly())
        state.taken = self._take(loop.model, batch, state)

    def _end_batch(self, loop: Loop, state: PictureState, has_stepped: bool) -> None:
        if has_stepped:
            pictures = self._pictures(loop, state)
            state.last, state.taken = loop.logged_step, None
            # Only now: for sharded weights, `_pictures` is a collective.
            if pictures and loop.is_rank_zero:
                state.loggers.write(Entry(loop.logged_step, pictures=pictures))

    def _end_training(self, loop: Loop, state: PictureState) -> None:
        if state.last is None:
            no_batch = f"no {state.stage} loop after the start of the fit had a batch {self.batch_idx}"
            why = why_no_step(loop, state.every_n_steps) if state.stage == "train" else no_batch
            inform(f"{self._name} showed nothing: {why}.")

    def _source(self, state: PictureState) -> str:
        """Return the name of the batch that is shown, for captions: "validation batch 0" or "training batch"."""
        nouns = {"validate": "validation", "test": "test", "predict": "prediction"}
        return f"{nouns[state.stage]} batch {self.batch_idx}" if state.stage in nouns else "training batch"


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

        def keep_first(site: Site, tensor: Tensor) -> None:
            if site in maps_of_batch.shown:
                return
            module = modules[site.name]
            try:
                tensor = samples_first(dense(whole(tensor.detach())), module, site.index)
                maps = maps_in(tensor[: self.samples], module, aspect=aspect, index=site.index)
            except (ValueError, IndexError) as error:
                maps_of_batch.refused[site.name] = str(error)
                return
            # More samples than the batch has, such as windows of the pictures, are in another order.
            part = select_maps(maps, channels=self.channels, size=self.size)
            maps_of_batch.shown[site] = part, len(tensor) == count

        taps = Taps(modules, ["output"], lambda site: partial(keep_first, site), model=model)
        maps_of_batch = _ShownTensors(taps, inputs)
        state.until_batch_end.callback(maps_of_batch.taps.detach)
        maps_of_batch.taps.attach()
        maps_of_batch.taps.active = True
        return maps_of_batch

    def _pictures(self, loop: Loop, state: PictureState) -> dict[str, Picture]:
        maps_of_batch: _ShownTensors = state.taken
        if state.last is None:
            self._name_gaps(loop, state, maps_of_batch)
        inputs = None if maps_of_batch.inputs is None else drawn_inputs(maps_of_batch.inputs, 2 * self.size)
        pictures = {}
        for site, (part, is_of_batch) in maps_of_batch.shown.items():
            if part.values.numel():
                name, beside = f"{site.path} ({self._source(state)})", inputs if is_of_batch else None
                drawn = feature_maps(part, name, normalize=self.normalize, size=self.size, inputs=beside)
                pictures[self._tag(site.path)] = drawn
        return pictures

    def _name_gaps(self, loop: Loop, state: PictureState, maps_of_batch: "_ShownTensors") -> None:
        """Warn once about all modules without a picture, with the reason for each."""
        names, drawn = list(state.selection.modules), {site.name for site in maps_of_batch.shown}
        missing = [name for name in names if name not in drawn]
        # Some modules that the user did not name may never be called, such as auxiliary heads.
        if missing and (self.modules is not None or self.types is not None or not drawn):
            causes = {
                name: maps_of_batch.refused.get(name) or maps_of_batch.taps.why_silent(name, "output")
                for name in missing
            }
            listed = listed_gaps(((name, "output", cause) for name, cause in causes.items()), names_in(loop.model))
            rank_zero_warn(f"{self._name}: no picture of {len(missing)} out of {len(names)} modules:{listed}")


@dataclass
class _ShownTensors:
    """What the hooks have copied in one batch."""

    taps: Taps
    inputs: Tensor | None  # the first pictures of the batch, to draw beside the maps
    shown: dict[Site, tuple[Maps, bool]] = field(default_factory=dict)  # maps, and whether with the batch's samples
    refused: dict[str, str] = field(default_factory=dict)  # why an output cannot be drawn, by module


def _is_worth_showing(module: nn.Module) -> bool:
    """Return True for a convolution, or for a transformer block: the parent of an attention, and none itself."""
    parts = [module, *(child for _, child in nn.Module.named_children(module))]
    of, *inside = ("attention" in type(part).__name__.lower() for part in parts)
    return isinstance(module, CONVOLUTIONS) or (not of and any(inside))


class KernelLogger(PictureLogger):
    """Logs pictures of convolution kernels, and of how they have changed since the fit started.

    Kernels with three input channels are drawn in colour, as red, green and blue. For others each row is a kernel and
    each column one of its input channels. Grey is 0. Pruned and parametrized convolutions are left out. Tags are
    `kernels/<module>`.

    Args:
        modules: Pattern or patterns for dotted module names, relative to the LightningModule. `*` matches within one
            name, `**` across dots; a leading `!` excludes, and a leading `re:` marks a regular expression. Default:
            every convolution whose kernels are larger than one pixel, or, with `types`, every module of those types.
        types: Class names (`Conv2d`, `torch.nn.Linear`) or classes; subclasses count, and a leading `!` excludes.
        kernels: The largest number of kernels to show of a module, starting with the first; in colour, `kernels` times
            `channels`.
        channels: The largest number of channels to show. Here: the first input channels of each kernel.
        size: The longest side of a tile, in pixels. Here, a kernel is enlarged by an integer factor.
        every_n_steps: Optimizer steps between measurements, 1 or more. Default: 20 times the Trainer's
            `log_every_n_steps`.

    Raises:
        ValueError: At construction: a number below 1. At fit start: a pattern or type that matches no module of the
            model, or only modules that are not convolutions.

    Examples:
        >>> KernelLogger("backbone.conv1").modules
        'backbone.conv1'
    """

    kind = "kernels"

    def __init__(
        self,
        modules: str | Sequence[str] | None = None,
        *,
        types: str | type | Sequence[str | type] | None = None,
        kernels: int = 8,
        channels: int = 8,
        size: int = 36,
        every_n_steps: int | None = None,
    ) -> None:
        super().__init__("train", 0, every_n_steps, kernels=kernels, channels=channels, size=size)
        check_selection(modules, types)
        self.modules = modules
        self.types = types
        self.kernels = kernels
        self.channels = channels
        self.size = size

    def _select(self, model: nn.Module) -> Selection:
        found = {n: m for n, m in select(model, self.modules, self.types).items() if isinstance(m, CONVOLUTIONS)}
        if self.modules is None and self.types is None:
            found = {name: module for name, module in found.items() if max(module.kernel_size) > 1}
            if not found:
                raise NothingToSelectError("the model has no convolution with kernels larger than one pixel")
        if not found:
            raise ValueError(f"modules={self.modules!r}, types={self.types!r} select no convolution.")
        computed = [name for name, module in found.items() if "weight" not in parameters_of(module)]
        if computed:
            inform(f"{self._name} leaves out {listed(computed)}: their weights are pruned or parametrized.")
        return Selection({name: module for name, module in found.items() if name not in computed})

    def _begin_training(self, loop: Loop, state: PictureState) -> None:
        for module, weight in self._weights(state).values():
            state.start[module] = self._part(weight)

    def _weights(self, state: PictureState) -> dict[str, tuple[nn.Module, Tensor]]:
        """Return each module with its weight, by name; without those that were pruned since the fit began."""
        own = {name: (module, parameters_of(module).get("weight")) for name, module in state.selection.modules.items()}
        return {name: (module, weight.detach()) for name, (module, weight) in own.items() if weight is not None}

    def _pictures(self, loop: Loop, state: PictureState) -> dict[str, Picture]:
        pictures = {}
        for name, (module, weight) in self._weights(state).items():
            now = self._part(weight)
            start = state.start.setdefault(module, now)  # a module that was added during the fit starts here
            pictures[self._tag(name)] = kernel_picture(now, start, name, weight.shape, size=self.size)
        return pictures

    def _part(self, weight: Tensor) -> Tensor:
        """Return the first kernels and channels of a weight. A sharded one is gathered: every rank must call this."""
        return selected_kernels(whole(weight), kernels=self.kernels, channels=self.channels)
