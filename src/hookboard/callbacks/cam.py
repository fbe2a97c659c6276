"""`CAMLogger`: logs class-activation maps."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from hookboard.base.checks import check_list, check_name, is_finite, is_whole, wrong
from hookboard.base.torch_private import NoCollectives
from hookboard.callbacks.pictures import PictureLogger, PictureState
from hookboard.capturing.attribute import (
    MAX_PICTURE_CHANNELS,
    Attribution,
    Classification,
    ClassificationTap,
    attribute,
    default_layers,
    named_layer,
)
from hookboard.capturing.methods import METHODS, Method
from hookboard.images.feature_maps import aspect_of, maps_in, samples_first
from hookboard.images.picture import Picture, overlays, unnormalized
from hookboard.loops.callback import NothingToShowError, Selection
from hookboard.loops.loop import Loop
from hookboard.model.nested import shape_of, tensors_in
from hookboard.model.selection import check_selection, select

EvaluationStage = Literal["validate", "test", "predict"]

_ALONE = "class-activation maps run on rank 0 alone, but this model's forward pass communicates with the other ranks"


class CAMLogger(PictureLogger):
    """Logs class-activation maps: the regions of a picture that support a class, according to one layer's output.

    It takes the first samples of one batch of an evaluation. When the batch has ended, it calls the model on them once
    more, with gradients. This call leaves the modes of the modules (training or evaluation) as they are, and an
    `Intervention` applies to it too. Afterwards the random state, buffers, and what modules hold in tensors, arrays,
    lists, dicts and sets are as they were; objects of your own keep what the call did to them. Hooks of other libraries
    see the call. Each sample has one row: the picture, the map, and both together,
    with prediction and label above. The score of a class is its logit. Tags are `cam/<module>/<method>`.

    The model is the outermost module that is called with pictures of shape (n, channels, height, width) and returns
    class scores of shape (n, classes), or one score for each picture. Labels are the first integer tensor of shape (n,)
    in the batch. If there is no such module, one warning says so, and the run goes on without maps. Several scores
    count as those of classes if `classes` are given or the batch has labels; otherwise the map shows what raises a
    number or, if it is a single negative one, lowers it.

    Args:
        modules: Pattern or patterns for dotted module names, relative to the LightningModule. `*` matches within one
            name, `**` across dots; a leading `!` excludes, and a leading `re:` marks a regular expression. Default: the
            last layer on which the scores depend whose output is as high and wide as that of the last convolution; in a
            transformer, the input of the last attention layer, without the class token.
        method: `grad_cam`, `grad_cam++`, `layer_cam`, `xgrad_cam`, `hires_cam`, `eigen_cam` (which explains no class in
            particular), or `cam`, which needs a linear head on the globally averaged layer.
            `hookboard.capturing.methods` names the papers.
        target: The class to explain: the `predicted` one, that of the `label`, or a class index, counted from 0.
        stage: The stage to show. Here: `validate`, `test` or `predict`.
        samples: How many samples to show, starting with the first of the batch.
        batch_idx: Which batch of an evaluation to show, counted from 0.
        mean: The mean that was subtracted from each channel to normalize the pictures; it is added back for display.
            Default: none; each picture is then drawn from its minimum to its maximum.
        std: The standard deviation by which each channel was then divided.
        classes: Names of the classes in the order of the scores.
        size: The longest side of a tile, in pixels.
        every_n_steps: Optimizer steps between measurements, 1 or more. Default: 20 times the Trainer's
            `log_every_n_steps`. An evaluation is shown if it is the first after that many steps.

    Raises:
        ValueError: At construction: an unknown option, a number below 1, or `mean` without `std`. At fit start: a
            pattern that matches no module of the model.

    Examples:
        >>> CAMLogger(method="layer_cam", target="label").method
        'layer_cam'
    """

    kind = "cam"
    calls_the_model = True

    def __init__(
        self,
        modules: str | Sequence[str] | None = None,
        *,
        method: Method = "grad_cam",
        target: Literal["predicted", "label"] | int = "predicted",
        stage: EvaluationStage = "validate",
        samples: int = 4,
        batch_idx: int = 0,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        classes: Sequence[str] | None = None,
        size: int = 220,
        every_n_steps: int | None = None,
    ) -> None:
        super().__init__(stage, batch_idx, every_n_steps, samples=samples, size=size)
        check_selection(modules)
        check_name("method", method, METHODS)
        if isinstance(target, str):
            check_name("target", target, ["predicted", "label"])
        elif not is_whole(target) or target < 0:
            raise wrong("target", target, "'predicted', 'label', or a class index, 0 or more")
        check_name("stage", stage, get_args(EvaluationStage))
        _check_normalization(mean, std)
        check_list("classes", classes, lambda name: isinstance(name, str), "a list of names", "")
        self.modules = modules
        self.method = method
        self.target = target
        self.samples = samples
        self.mean = mean
        self.std = std
        self.classes = classes
        self.size = size

    def _select(self, model: nn.Module) -> Selection:
        found = select(model, self.modules)  # raises where there is no module at all
        return Selection({} if self.modules is None else found)

    def _tag(self, name: str) -> str:
        return f"{super()._tag(name)}/{self.method}"

    def _take(self, model: nn.Module, batch: Any, state: PictureState) -> tuple[ClassificationTap, Any]:
        tap = ClassificationTap(model, self.samples)
        state.until_batch_end.callback(tap.detach)
        tap.attach()
        return tap, batch

    def _pictures(self, loop: Loop, state: PictureState) -> dict[str, Picture]:
        tap, batch = state.taken
        call: Classification | None = tap.found
        if call is None:
            raise tap.error or NothingToShowError(
                f"no module took pictures of shape (n, up to {MAX_PICTURE_CHANNELS} channels, height, width) and "
                "returned class scores of shape (n, classes) or (n,). Call a classifier as one module: self(images)"
            )
        labels, method = _labels_in(batch, call), METHODS[self.method]
        shown, aspect = unnormalized(call.pictures, self.mean, self.std), aspect_of([("", call.pictures)])
        try:
            named = [[named_layer(call.calls, name)] for name in state.selection.modules]
            groups = named or [default_layers(call)]
        except ValueError as nothing:
            raise NothingToShowError(str(nothing)) from nothing
        # Rank 0 alone calls the model, unless its weights are sharded: it would wait for the other ranks for ever.
        is_alone = loop.world_size > 1 and not loop.is_model_parallel
        pictures = {}
        for layers in groups:
            with loop.in_precision(), NoCollectives(_ALONE) if is_alone else nullcontext():
                with_gradient = method.needs == "gradient"
                seen = attribute(call, layers, partial(self._choose, labels), with_gradient=with_gradient)
            at = f"{'the input of ' if seen.layer.is_input else ''}{seen.layer.name}"
            pictures[self._tag(seen.layer.name)] = overlays(
                shown,
                self._maps(seen, aspect),
                [self._caption(k, seen, labels) for k in range(len(shown))],
                f"{method.title} at {at} ({self._source(state)}): picture, map, both",
                size=self.size,
            )
        return pictures

    def _choose(self, labels: Tensor | None, scores: Tensor) -> Tensor:
        """Return the explained class of each sample, shape (n,), for scores of shape (n, classes)."""
        if self.target == "predicted":
            return scores.argmax(dim=1)
        if self.target == "label" and labels is None:
            raise NothingToShowError("target='label' needs labels, but the batch has no integer tensor of shape (n,)")
        wanted = labels.tolist() if self.target == "label" and labels is not None else [self.target] * len(scores)
        if not set(wanted) <= set(range(scores.shape[1])):
            selected = f"target={self.target!r} selects classes out of range ({sorted(set(wanted))})"
            raise NothingToShowError(f"{selected}: the model has classes 0 to {scores.shape[1] - 1}")
        return torch.tensor(wanted, device=scores.device)

    def _maps(self, seen: Attribution, aspect: float | None) -> Tensor:
        """Return the class-activation maps of a layer, shape (n, height, width)."""
        activation, method, name = _as_maps(seen.activation, seen, aspect), METHODS[self.method], seen.layer.name
        if len(activation) != len(seen.scores):
            windows = f"{name!r} has {len(activation)} samples for {len(seen.scores)} pictures, such as windows of them"
            raise NothingToShowError(f"{windows}; select a module around it in `modules`")
        if seen.gradient is not None:
            return method.map(activation, _as_maps(seen.gradient, seen, aspect))
        if method.needs == "nothing":
            return method.map(activation)
        if seen.weight is not None and seen.pooled is not None:
            mean = activation.mean(dim=(2, 3))
            if mean.shape == seen.pooled.shape and (mean - seen.pooled).norm() <= 1e-2 * seen.pooled.norm():
                return method.map(activation, seen.weight.float())
        raise NothingToShowError(f"method='cam' needs a linear head on the global average of {name!r}; use 'grad_cam'")

    def _caption(self, k: int, seen: Attribution, labels: Tensor | None) -> str:
        """Return the caption of sample k: "predicted cat (97%), label dog, map of cat", or "output 3.2, map of ..."."""

        def named(number: Tensor) -> str:
            index = int(number)
            return self.classes[index] if self.classes and 0 <= index < len(self.classes) else str(index)

        scores, explained = seen.scores[k].float(), seen.classes[k]
        is_single = scores.shape == (2,) and bool(scores[0] == -scores[1])  # as `attribute` gives one number
        if not is_single and (self.classes or labels is not None):
            are_shares = bool((scores >= 0).all()) and abs(float(scores.sum()) - 1) < 1e-3
            shares = scores if are_shares else scores.softmax(dim=0)
            best = shares.argmax()
            parts = [f"predicted {named(best)} ({100 * shares[best]:.0f}%)"]
            parts += [] if labels is None else [f"label {named(labels[k])}"]
            of = named(explained)
        else:
            parts = [f"output {scores[1]:.3g}" if is_single else f"output {explained} is {scores[explained]:.3g}"]
            of = "what lowers it" if is_single and explained == 0 else "what raises it"
        return ", ".join([*parts, "class-agnostic map" if METHODS[self.method].needs == "nothing" else f"map of {of}"])


def _check_normalization(mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
    check_list("mean", mean, is_finite, "a list with a number for each channel", "together with std")
    valid = "a list with a number above 0 for each channel"
    check_list("std", std, lambda each: is_finite(each) and each > 0, valid, "together with mean")
    if len(mean or ()) != len(std or ()):
        raise ValueError(f"mean={mean!r}, std={std!r}: pass both with the same length, or neither.")


def _labels_in(batch: Any, call: Classification) -> Tensor | None:
    """Return the labels of the shown samples: the batch's first tensor of integers or booleans of shape (call.of,)."""
    ones = (
        t for _, t in tensors_in(batch) if shape_of(t) == (call.of,) and not (t.is_floating_point() or t.is_complex())
    )
    return next((t[: len(call.pictures)].long().cpu() for t in ones), None)


def _as_maps(tensor: Tensor, seen: Attribution, aspect: float | None) -> Tensor:
    """Return a layer's tensor as maps in float32, shape (n, channels, height, width)."""
    module = seen.layer.module
    maps = maps_in(samples_first(tensor.float(), module), module, aspect=aspect)
    if tensor.ndim == 3 and maps.values.shape[1] == 1:
        raise NothingToShowError(
            f"the {tensor.shape[1]} tokens of {seen.layer.name!r} do not form a grid; select a convolution in `modules`"
        )
    return maps.values
