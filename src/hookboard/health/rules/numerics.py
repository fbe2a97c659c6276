"""`nonfinite` and `precision`: what numbers can hold; and the event of the first NaN or Inf."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from hookboard.health.look import Look
from hookboard.health.robust import median_of
from hookboard.health.rule import Finding, Rule, Severity
from hookboard.health.rules.shared import WHOLE_MODEL_SHARE, harm_of, is_rate_low_by_schedule, severity_of
from hookboard.health.run import Run
from hookboard.measure.row import Reading
from hookboard.model.layers import Layer

Pass = Literal["start", "batch", "forward", "backward", "optimizer"]  # in their order


@dataclass(frozen=True)
class Nonfinite:
    """The step in which NaN or Inf appeared."""

    module: str  # that gave them first; "" for code outside of any module, and where it is not known
    during: Pass  # "start": weights were spoiled before; "batch": they came in with the data; "optimizer": by its step
    step: int
    batch_idx: int
    evidence: str
    advice: str
    is_located: bool = True  # otherwise `evidence` says why not
    rows: tuple[int, ...] = ()  # of the batch, with NaN or Inf or such a loss; () if they are not known

    @property
    def finding(self) -> Finding:
        """The event as an alarm for the judge."""
        said, batch_idx = (self.module, self.evidence, self.advice), self.batch_idx
        return Finding(*said, "alarm", since=self.step, batch_idx=batch_idx, rows=self.rows)

    @property
    def order(self) -> tuple[int, bool, int]:
        """Events come by step; of one step those with a known place first, in the order of the passes."""
        return self.step, not self.is_located, get_args(Pass).index(self.during)


def before_nonfinite(look: Look) -> str:
    """Return the readings of the last step before the event as a table in Markdown, one row for each site."""
    lines = [
        f"Step {look.step}, batch {look.batch_idx}: the last measured step before the first non-finite value.",
        "",
        "| layer or parameter | values | RMS | min | max | NaN | Inf |",
        "|:--|:--|--:|--:|--:|--:|--:|",
    ]
    for site, reading in look.readings.items():
        m = reading.moments
        numbers = [f"{value:.3g}" for value in (m.rms, m.min, m.max)] if m.count else ["", "", ""]
        counts = [f"{int(count)}" if count else "" for count in (m.nan, m.posinf + m.neginf)]
        name = site.path.replace("|", "\\|") or "(the model)"
        if not site.name and site.role == "input":
            name = f"tensor {site.index} of the batch" if site.index else "the batch"
        lines.append(f"| {name} | {site.role} | {' | '.join([*numbers, *counts])} |")
    return "\n".join(lines)


SWALLOWED_SHARE_NOTE = 0.9
"""Share of the weights with a gradient that an update did not change, above which updates are lost (a choice)."""

SWALLOWED_SHARE_ALARM = 0.99
"""Median over the layers of the share that an update did not change, from which it is always an alarm (a choice)."""

UNDERFLOW_SHARE_NOTE = 0.5
"""Share of the gradients below the normal range of their type, above which they underflow (a choice)."""

FLOAT16_HEADROOM_FACTOR = 8.0
"""Values less than this factor below their type's largest are near it (a choice: a GradScaler doubles its scale)."""

HALF_PRECISION_TYPES = frozenset({torch.float16, torch.bfloat16})


@dataclass(frozen=True)
class Origin:
    """Where NaN or Inf appeared first ("": in the loss), what was seen there, and if it is -Inf alone, as of a mask."""

    module: str
    text: str
    is_mask: bool = False


def nonfinite(run: Run) -> Iterator[Finding]:
    """Report the first NaN or Inf: in weights before the step, outputs, the loss, gradients or weights after it."""
    first = run.first_nonfinite
    if first is None:
        return
    place = _first_place(run, first)
    if place is None:
        return
    loss = run.losses.first_nonfinite
    since, batch = first.step, first.batch_idx
    is_between = bool(run.looks) and loss is not None and loss.step < since and not run.losses.is_finite
    if is_between and loss is not None:
        since, batch = loss.step, loss.batch_idx
    is_harm = not run.losses.is_finite or any(
        reading.moments.nonfinite
        for site, reading in run.now.readings.items()
        if site.role in ("parameter_before", "parameter_grad", "parameter_update")
    )
    severity: Severity = "alarm" if is_harm else "note"
    evidence = f"{place.text}, at step {since}, batch {batch}; the loss is {run.losses.level(1):.3g}"
    advice = "look there for a division, root or logarithm near 0, an overflow, or a bad sample"
    if place.is_mask and not is_harm:
        advice = "a mask causes this; there is nothing to fix"
    yield Finding(place.module, evidence, advice, severity, since=since, batch_idx=batch)


def _first_place(run: Run, look: Look) -> Origin | None:
    """Return where a look has the first bad values, in the order in which a step computes; None if nowhere."""
    for layer in run.layers:
        before = [look.of(name, "parameter_before") for name in layer.weights]
        bad = next((reading for reading in before if _is_bad(reading)), None)
        if bad is not None:
            return Origin(layer.name, f"{_share(bad)} of {bad.site.name} before the step (from an earlier step)")
    return _in_forward(run, look) or _in_loss(look) or _in_backward(run, look) or _in_optimizer(run, look)


def _in_forward(run: Run, look: Look) -> Origin | None:
    before: tuple[str, Reading] | None = None
    mask: Origin | None = None
    for layer in run.layers:
        output = look.of(layer.name, "output")
        if output is None:
            continue
        if _is_bad(output):
            reading = look.of(layer.name, "input")
            went_in = "" if reading is None else f"; its input was {_finite_or_not(reading)}"
            if reading is None and before is not None:  # which need not be what it took
                went_in = f"; the output of the layer before it, {before[0]!r}, was {_finite_or_not(before[1])}"
            place = Origin(layer.name, f"{_share(output)} of its output (forward){went_in}", _is_mask(output))
            if not place.is_mask:
                return place
            mask = mask or place
        before = layer.name, output
    return mask


def _in_loss(look: Look) -> Origin | None:
    loss = next((loss for loss in look.losses if loss.step == look.step), None)
    if loss is None or math.isfinite(loss.value):
        return None
    return Origin("", f"the loss is {loss.value}, although all outputs are finite (forward)")


def _in_backward(run: Run, look: Look) -> Origin | None:
    following: Layer | None = None
    for layer in reversed(run.layers):
        gradient = look.of(layer.name, "grad_output")
        if gradient is not None and _is_bad(gradient):
            named = layer if following is None else following
            return Origin(named.name, f"{_share(gradient)} of the gradient of {layer.name}'s output (backward)")
        for name in layer.weights:
            gradient_of_weight = look.of(name, "parameter_grad")
            if gradient_of_weight is not None and _is_bad(gradient_of_weight):
                return Origin(layer.name, f"{_share(gradient_of_weight)} of the gradient of {name} (backward)")
        if gradient is not None:
            following = layer
    return None


def _in_optimizer(run: Run, look: Look) -> Origin | None:
    for layer in run.layers:
        for name in layer.weights:
            update = look.of(name, "parameter_update")
            if update is not None and _is_bad(update):
                return Origin(layer.name, f"{_share(update)} of the update of {name}, with finite gradients")
    return None


def _is_bad(reading: Reading | None) -> bool:
    return reading is not None and reading.moments.nonfinite > 0


def _is_mask(reading: Reading) -> bool:
    return reading.moments.nonfinite == reading.moments.neginf


def _share(reading: Reading) -> str:
    moments = reading.moments
    kinds = {"NaN": moments.nan, "Inf": moments.posinf, "-Inf": moments.neginf}
    names = " or ".join(name for name, count in kinds.items() if count)
    return f"{names} appeared in {moments.nonfinite:.0f} of {moments.nonfinite + moments.count:.0f} values"


def _finite_or_not(reading: Reading) -> str:
    if _is_bad(reading):
        return "not finite either"
    return f"finite (from {reading.moments.min:.3g} to {reading.moments.max:.3g})"


def precision(run: Run) -> Iterator[Finding]:
    """Report values at the limits of float16, and updates that float16 or bfloat16 loses, of layers or of the model."""
    look = run.now
    if HALF_PRECISION_TYPES.isdisjoint(look.readings.dtypes):
        return
    yield from _swallowed(run, look)
    yield from _underflowing(run, look)
    for layer in run.layers:
        output = look.of(layer.name, "output")
        if output is not None and _is_half(output):
            limit = torch.finfo(torch.float16).max
            largest = max(abs(output.moments.min), abs(output.moments.max))
            if limit / FLOAT16_HEADROOM_FACTOR < largest < math.inf:
                evidence = f"its largest output is {largest:.3g}, and float16's limit is {limit:.0f}{harm_of(run)}"
                yield Finding(layer.name, evidence, "use bf16, or make its inputs or weights smaller", severity_of(run))


def _underflowing(run: Run, look: Look) -> Iterator[Finding]:
    if look.is_scaled:
        return
    narrow = [layer.name for layer in run.layers if _is_half(look.of(layer.name, "grad_output"))]
    shares = {name: _underflow_share(g) for name in narrow if (g := look.of(name, "grad_output")) is not None}
    sick = {name: share for name, share in shares.items() if share > UNDERFLOW_SHARE_NOTE}
    if not sick:
        return
    # Where they are rounded to 0 on their way, weights never move.
    is_lost = any(
        gradient is not None and gradient.moments.count and not gradient.moments.rms
        for layer in run.layers
        for gradient in (look.of(name, "parameter_grad") for name in layer.weights)
    )
    severity: Severity = "alarm" if is_lost else severity_of(run)
    advice = "use a GradScaler, or bf16"
    if len(sick) > max(2, WHOLE_MODEL_SHARE * len(shares)):
        usual = median_of(sick.values())
        evidence = f"{usual:.0%} of the gradients of {len(sick)} layers are below float16's normal range{harm_of(run)}"
        yield Finding("", evidence, advice, severity, usual)
        return
    for name, share in sick.items():
        evidence = f"{share:.0%} of the gradients of its output are below float16's normal range{harm_of(run)}"
        yield Finding(name, evidence, advice, severity, share)


def _is_half(numbers: Reading | None) -> bool:
    return numbers is not None and numbers.dtype is torch.float16


def _swallowed(run: Run, look: Look) -> Iterator[Finding]:
    if look.overflowed:
        return
    shares: dict[str, float] = {}
    kinds = {}
    for layer in run.layers:
        for name in layer.weights:
            parameter = look.of(name, "parameter_before")
            if parameter is not None and parameter.dtype in HALF_PRECISION_TYPES and look.stepped.get(name) is not None:
                share = swallowed_share(look, name)
                if look.stepped[name].rate and not math.isnan(share):
                    shares[layer.name] = max(share, shares.get(layer.name, 0.0))
                    kinds[layer.name] = str(parameter.dtype).removeprefix("torch.")
    sick = {name: share for name, share in shares.items() if share > SWALLOWED_SHARE_NOTE}
    advice = "keep the weights in float32 (mixed precision), or raise the learning rate"
    if len(sick) > max(2, WHOLE_MODEL_SHARE * len(shares)):
        usual = median_of(sick.values())
        evidence = f"{usual:.0%} of the updates of {len(sick)} layers in {kinds[next(iter(sick))]} are lost to rounding"
        # Where next to nothing moves, no loss need show it.
        stands = usual >= SWALLOWED_SHARE_ALARM and not any(
            is_rate_low_by_schedule(run, layer) for layer in run.layers if layer.name in sick
        )
        yield Finding("", evidence + harm_of(run), advice, "alarm" if stands else severity_of(run), usual)
        return
    usual = median_of(share for name, share in shares.items() if name not in sick)
    for name, share in sick.items():
        others = "" if math.isnan(usual) else f" (in other layers, {usual:.0%})"
        evidence = f"{share:.0%} of its updates in {kinds[name]} are lost to rounding{others}{harm_of(run)}"
        yield Finding(name, evidence, advice, severity_of(run), share)


def swallowed_share(look: Look, name: str) -> float:
    """Return the share of the elements with a gradient that the step did not change; NaN if unknown."""
    update, gradient = look.of(name, "parameter_update"), look.of(name, "parameter_grad")
    if update is None or gradient is None:
        return math.nan
    count = gradient.moments.count - gradient.moments.zeros
    still = update.moments.zeros - gradient.moments.zeros
    return min(max(still / count, 0.0), 1.0) if count > 0 else math.nan


def _underflow_share(reading: Reading) -> float:
    """Return the share of values below the normal range of float16; without a histogram only 1 (all values) or 0."""
    tiny = torch.finfo(torch.float16).tiny
    histogram, moments = reading.histogram, reading.moments
    if histogram is not None and histogram.counts.sum():
        inside = (histogram.edges[:-1] > -tiny) & (histogram.edges[1:] < tiny)
        return float((histogram.counts[inside].sum()) / histogram.counts.sum())
    # Without a histogram: all values are below the range where the largest is.
    return 1.0 if moments.count and max(abs(moments.min), abs(moments.max)) < tiny else 0.0


NONFINITE = Rule("nonfinite", nonfinite, at_once=True, look_at="health/before_nonfinite")
PRECISION = Rule("precision", precision, look_at="health/gradient_rms")
