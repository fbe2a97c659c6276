"""`CAMLogger`: logs class-activation maps."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from hookboard.base.checks import check_list, check_name, check_normalization, is_whole, wrong
from hookboard.base.torch_private import NoCollectives
from hookboard.callbacks.pictures import Draw, PictureLogger, PictureState
from hookboard.capturing import (
    MAX_PICTURE_CHANNELS,
    METHODS,
    Attribution,
    Classification,
    ClassificationTap,
    Method,
    TargetLayer,
    attribute,
    default_layers,
    named_layer,
)
from hookboard.images import Picture, aspect_of, maps_in, overlays, samples_first, unnormalized
from hookboard.loops import Loop, NothingToShowError, Selection
from hookboard.measure import sent_together
from hookboard.model.nested import tensors_in
from hookboard.model.selection import check_selection, select
from hookboard.tracing import replaced

EvaluationStage = Literal["validate", "test", "predict"]


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
    in the batch. If there is no such module, one warning says so, and the run goes on without maps. Without `classes`,
    and without labels or targets that are 0 or 1, a single score counts as a number: the map shows what raises it or,
    if it is negative, lowers it.

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
        check_normalization(mean, std)
        if classes is not None:
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
        if self.modules is not None:
            return Selection(select(model, self.modules))
        select(model)  # raises where there is no module at all
        return Selection()

    def written_tags(self) -> list[str]:
        """Return the tags that it writes in a run; `<layer>` stands for a layer that is chosen when the model runs."""
        names = ["<layer>"] if self.modules is None else [n for w in self._live.values() for n in w.selection.modules]
        return [f"cam/{name}/{self.method}" for name in names] if self._live else []

    def _take(self, model: nn.Module, batch: Any, state: PictureState) -> "_ShownBatch":
        tap = ClassificationTap(model, self.samples)
        state.until_batch_end.callback(tap.detach)
        tap.attach()
        return _ShownBatch(tap, batch)

    def _pictures(self, loop: Loop, state: PictureState) -> Draw | None:
        taken: _ShownBatch = state.taken
        call = taken.tap.found
        if call is None:
            raise taken.tap.error or NothingToShowError(
                f"no module took pictures of shape (n, up to {MAX_PICTURE_CHANNELS} channels, height, width) and "
                "returned class scores of shape (n, classes) or (n,). If your model classifies pictures, call it as "
                "one module, as in self(images)"
            )
        labels, targets = _targets_in(taken.batch, call)
        names = list(state.selection.modules)
        try:
            wanted = [[[named_layer(call.calls, name)]] for name in names] if names else [default_layers(call)]
        except ValueError as nothing:
            raise NothingToShowError(str(nothing)) from nothing
        read, method = [], METHODS[self.method]
        for groups in wanted:
            # The module's own call of `forward` has logged the same with `self.log`.
            quiet = replaced(loop.model, log=lambda *args, **kwargs: None)
            with loop.in_precision(), quiet, _without_other_ranks(loop):
                with_gradient = method.needs == "gradient"
                read.append(attribute(call, groups, self._chooser(labels), with_gradient=with_gradient))
        sent = {"pictures": call.pictures, "labels": labels, "targets": targets}
        arriving = _sent([sent, *(vars(seen) for _, seen in read)])
        aspect, source = aspect_of([("", call.pictures)]), self._source(state)

        def draw() -> dict[str, Picture]:
            given, *parts = arriving()
            shown, labels = unnormalized(given["pictures"], self.mean, self.std), given["labels"]
            pictures = {}
            for (layer, _), part in zip(read, parts, strict=True):
                seen = Attribution(**part)
                self._check_labels(labels, seen.scores)
                is_of_classes = self._is_of_classes(labels, given["targets"], seen.scores)
                pictures[f"cam/{layer.name}/{self.method}"] = overlays(
                    shown,
                    self._maps(layer, seen, aspect),
                    [self._caption(k, seen, labels, is_of_classes) for k in range(len(shown))],
                    f"{method.title} at {'the input of ' if layer.is_input else ''}{layer.name} ({source}): picture, "
                    "map, both",
                    size=self.size,
                )
            return pictures

        return draw

    def _chooser(self, labels: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return the function that `attribute` calls with scores (n, classes) to get the explained classes (n,)."""

        def choose(scores: Tensor) -> Tensor:
            if self.target == "predicted":
                return scores.argmax(dim=1)
            last = scores.shape[1] - 1
            if not isinstance(self.target, str):
                if not 0 <= self.target <= last:
                    raise _no_such_class(self.target, [self.target], last)
                return torch.full((len(scores),), self.target, device=scores.device)
            if labels is None:
                raise NothingToShowError(
                    "target='label' needs labels, but the batch has no integer tensor of shape (n,)"
                )
            # On a GPU an index out of range would end the process, and checking it would wait for the device.
            return labels.to(scores.device, non_blocking=True).clamp(0, last)

        return choose

    def _check_labels(self, labels: Tensor | None, scores: Tensor) -> None:
        """Raise a NothingToShowError if `target` is "label" and a label is not the index of one of the scores."""
        last = scores.shape[1] - 1
        if self.target == "label" and labels is not None and not torch.equal(labels, labels.clamp(0, last)):
            raise _no_such_class(self.target, labels.tolist(), last)

    def _maps(self, layer: TargetLayer, seen: Attribution, aspect: float | None) -> Tensor:
        """Return the class-activation maps of a layer, shape (n, height, width).

        Raises:
            NothingToShowError: the method needs a head that the model does not have, or tokens form no grid.
        """
        activation, method = _as_maps(seen.activation, layer, aspect), METHODS[self.method]
        if (samples := len(activation)) != (pictures := len(seen.scores)):
            windows = f"{layer.name!r} has {samples} samples for {pictures} pictures, such as windows of them"
            raise NothingToShowError(f"{windows}; select a module around it in `modules`")
        if seen.gradient is not None:
            return method.map(activation, _as_maps(seen.gradient, layer, aspect))
        if method.needs == "nothing":
            return method.map(activation)
        if seen.pooled is not None and seen.weight is not None and seen.pooled.shape == activation.shape[:2]:
            # Some models apply ReLU as a function, not a module, between the layer and the pooling.
            for features in (activation, activation.relu()):
                if _is_close(features.mean(dim=(2, 3)), seen.pooled.float()):
                    return method.map(features, seen.weight.float())
        raise NothingToShowError(
            f"method='cam' needs a linear head on the global average of {layer.name!r}, and this model "
            "has none; method='grad_cam' works without one"
        )

    def _is_of_classes(self, labels: Tensor | None, targets: Tensor | None, scores: Tensor) -> bool:
        """Return False for a regression, as far as its targets tell, and for a single score that is no logit."""
        is_single = _is_single(scores)
        if is_single and bool(((scores[:, 1] >= 0) & (scores[:, 1] <= 1)).all()):
            return False  # it may be behind a sigmoid: there, what is above 0 is not yet class 1
        if self.classes or (not is_single and labels is not None):
            return True
        if labels is not None:
            return bool((labels <= 1).all())
        if targets is None or targets.shape[1] != (1 if is_single else scores.shape[1]):
            return not is_single
        are_shares = (targets.sum(dim=1) - 1).abs() < 1e-3
        return bool((((targets == 0) | (targets == 1)).all(dim=1) | are_shares).all())

    def _caption(self, k: int, seen: Attribution, labels: Tensor | None, is_of_classes: bool) -> str:
        """Return the caption of sample k: "predicted cat (97%), label dog, map of cat", or "output 3.2, map of ..."."""

        def named(number: Tensor) -> str:
            index = int(number)
            return self.classes[index] if self.classes and 0 <= index < len(self.classes) else str(index)

        scores, explained = seen.scores[k].float(), seen.classes[k]
        is_single = _is_single(seen.scores)
        if is_of_classes:
            are_shares = bool((scores >= 0).all()) and abs(float(scores.sum()) - 1) < 1e-3
            # `attribute` gives the scores (-z, z) for one logit z: the softmax of their halves is its sigmoid.
            shares = scores if are_shares else (scores / 2 if is_single else scores).softmax(dim=0)
            best = shares.argmax()
            parts = [f"predicted {named(best)} ({100 * shares[best]:.0f}%)"]
            parts += [] if labels is None else [f"label {named(labels[k])}"]
            of = named(explained)
        else:
            parts = [f"output {scores[1]:.3g}" if is_single else f"output {explained} is {scores[explained]:.3g}"]
            of = "what lowers it" if is_single and explained == 0 else "what raises it"
        return ", ".join([*parts, "class-agnostic map" if METHODS[self.method].needs == "nothing" else f"map of {of}"])


@dataclass
class _ShownBatch:
    """The batch that is shown, and the tap that finds the classifier's call while it runs."""

    tap: ClassificationTap
    batch: Any


def _sent(groups: Sequence[Mapping[str, Tensor | None]]) -> Callable[[], list[dict[str, Any]]]:
    """Start copying all tensors to the host; return a function that waits for them and returns the groups of them."""
    sent = sent_together([tensor for group in groups for tensor in group.values() if tensor is not None])

    def grouped() -> list[dict[str, Any]]:
        there = iter(sent())
        return [{name: None if old is None else next(there) for name, old in group.items()} for group in groups]

    return grouped


def _no_such_class(target: str | int, wanted: list[int], last: int) -> NothingToShowError:
    """Return the error for classes that are not between 0 and `last`."""
    return NothingToShowError(
        f"target={target!r} selects classes that are out of range ({wanted}): the model has scores for classes 0 to "
        f"{last}"
    )


def _targets_in(batch: Any, call: Classification) -> tuple[Tensor | None, Tensor | None]:
    """Return the labels and the floating targets of the shown samples; None for what the batch does not have.

    The labels are the batch's first tensor of integers or booleans of shape (call.of,), made int64; the targets its
    first floating one of shape (call.of,) or (call.of, numbers), with shape (call.count, numbers).
    """
    tensors = (t for _, t in tensors_in(batch) if t.layout is torch.strided and not t.is_nested)
    found = [t[: call.count] for t in tensors if t.ndim in (1, 2) and len(t) == call.of]
    labels = (t.long() for t in found if t.ndim == 1 and not (t.is_floating_point() or t.is_complex()))
    return next(labels, None), next((t.reshape(len(t), -1) for t in found if t.is_floating_point()), None)


def _is_single(scores: Tensor) -> bool:
    """Return True if the model has one score, which `attribute` returns as those of two classes."""
    return scores.shape[1] == 2 and torch.equal(scores[:, 0], -scores[:, 1])


def _as_maps(tensor: Tensor, layer: TargetLayer, aspect: float | None) -> Tensor:
    """Return a layer's tensor as maps in float32, shape (n, channels, height, width).

    Raises:
        NothingToShowError: it holds tokens that form no grid.
    """
    maps = maps_in(samples_first(tensor.float(), layer.module), layer.module, aspect=aspect)
    if tensor.ndim == 3 and maps.values.shape[1] == 1:
        raise NothingToShowError(
            f"the {tensor.shape[1]} tokens of {layer.name!r} do not form a grid; select a convolution in `modules`"
        )
    return maps.values


def _is_close(one: Tensor, other: Tensor) -> bool:
    """Return True if the difference is at most 1 % of `other`, by their L2 norms."""
    return bool((one - other).norm() <= 1e-2 * other.norm())


def _without_other_ranks(loop: Loop) -> AbstractContextManager[Any]:
    """Return a context in which collectives raise, because rank 0 alone calls the model and would wait for ever.

    With one rank, or if all ranks call the model together, the context does nothing.
    """
    if loop.world_size == 1 or loop.is_model_parallel:
        return nullcontext()
    return NoCollectives(
        "class-activation maps need one more forward pass on rank 0 alone, but this model's forward pass communicates "
        "with the other ranks"
    )
