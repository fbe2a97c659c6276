"""`Run`: what has been measured of a training so far, in memory that does not grow with its length."""

import functools
import math
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from hookboard.base.messages import unknown
from hookboard.health.arrays import COLUMN_OF, QUANTITIES, LayerArrays, LookArrays, Silence, numbers_of
from hookboard.health.look import Look, Loss
from hookboard.health.losses import LossCurve
from hookboard.health.robust import median, median_of
from hookboard.health.rule import Finding
from hookboard.health.stage_comparison import StageComparison, compared
from hookboard.measure.row import FIELDS
from hookboard.model.layers import Layer, order_with_late
from hookboard.model.sites import Role

RECENT_LOOKS = 64  # number of latest looks that `Run.recent` has
COURSE_COLUMNS = 256  # maximum number of columns of `Run.course`, whatever the length of the run

BLOWN_UP_LOSS_FACTOR = 10.0
"""A loss this many times its start has blown up before it was NaN (a choice: the logarithm of 0 gives Inf at once)."""

BLOWN_UP_OUTPUT_FACTOR = 1e4
"""Outputs this many times as large as at the first look have blown up (a choice)."""

SAME_LOSS_SHARE = 0.5
"""A logged loss is that of the step if it differs by at most this share (a choice): other ranks have other batches."""

_NAN_AND_INF = [FIELDS.index("nan"), FIELDS.index("posinf")]
_NONFINITE = [*_NAN_AND_INF, FIELDS.index("neginf")]


class Router(NamedTuple):
    """What picks experts for each token."""

    module: str
    layer: str  # whose output has the picks, or the scores in whose order it picks; "" if none has
    has_picks: bool
    parts: tuple[str, ...]  # the modules that are experts, in their order; () if they are one parameter
    experts: int
    picks: int  # how many of them each token gets


@dataclass(frozen=True)
class Flow:
    """Which layer's output flows into which other layer, in one step that was read; empty if none was read."""

    # Layer -> those that flow into it, also through others: bit `i` of the number is the `i`-th layer of this mapping.
    above: Mapping[str, int] = field(default_factory=dict)

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.above)}

    def are_apart(self, one: str, other: str) -> bool:
        """Return True if these are two known layers, and the output of neither flows into the other.

        >>> flow = Flow({"stem": 0b000, "left": 0b001, "right": 0b001})
        >>> flow.are_apart("left", "right"), flow.are_apart("stem", "left"), flow.are_apart("left", "unknown")
        (True, False, False)
        """
        if one == other or not {one, other} <= self.above.keys():
            return False
        return not (self.above[one] >> self._places[other] | self.above[other] >> self._places[one]) & 1


class StepFacts(NamedTuple):
    """What is known of a training besides what was measured, most of it from the code of its first step."""

    flow: Flow = Flow()
    loss: float = math.nan
    constant_loss: float = math.nan  # the least loss on that batch with the same output for all samples; NaN if unknown
    # The loss takes no log-probability of a class, or several terms (lines, layers, losses) depend on the batch. What
    # chance gives is then unknown: an actor and its critic, or two players, hold each other where they are.
    is_sum: bool = False
    classes: int = 0  # of how many classes the loss takes the log-probability of one; 0 if unknown
    findings: Sequence[Finding] = ()
    routers: Sequence[Router] = ()
    # Layer name -> why it most likely gave no output at the first look; only meaningful if it gave none.
    why_silent: Mapping[str, str] = MappingProxyType({})
    unhooked: Set[str] = frozenset()  # layers whose weights alone are measured: their parent uses these itself
    held: Set[str] = frozenset()  # the weights that an optimizer holds
    is_clipped: bool = False  # if the Trainer clips the norm of the gradients
    idle: Set[str] = frozenset()  # trainable weights that the losses of the first step do not depend on
    has_moving_target: bool = False  # if the model computes the targets too, as a target network does
    unread: Set[str] = frozenset()  # paths of the batch's tensors that no loss of the first step depends on
    taken: Mapping[str, float] = MappingProxyType({})  # tensor that weights do not take as it is -> its RMS there


class Run:
    """The history of a run, which rules judge.

    Args:
        layers: every layer that is watched, by name.
        window: how many looks a finding must last.
    """

    def __init__(self, layers: Mapping[str, Layer], window: int) -> None:
        self.window = window
        self.layers: list[Layer] = list(layers.values())
        """All layers, in the order in which they ran first; those that never ran stand last."""
        self.looks: deque[Look] = deque(maxlen=max(2 * window, 8))
        """The latest looks, the newest last."""
        self.first: Look | None = None
        """The first look."""
        self.evaluation: Look | None = None
        """The latest evaluation loop, outputs only. None before the first."""
        self.comparisons: deque[StageComparison] = deque(maxlen=8)
        """The latest evaluation loops, compared with training."""
        self.evaluation_losses: list[Loss] = []
        """The loss of each validation so far, where it is logged."""
        self.rate_jumps: deque[RateJump] = deque(maxlen=4)
        """The latest jumps of the learning rate far above its earlier values."""
        self.losses = LossCurve()
        """The loss of every step."""
        self.silence = Silence({})
        """How long each unit has been silent."""
        self.facts = StepFacts()
        """What is known of the training besides, as of the latest look."""
        self.seen = 0
        """Number of looks so far."""
        self.peak_rate: dict[str, float] = {}
        """Weight name -> its largest learning rate so far; only weights that an optimizer has stepped."""
        self.first_move = math.nan
        """The `update_ratio` at the first look, the median over the layers with a matrix; NaN if unknown."""
        self.first_nonfinite: Look | None = None
        """The look at which the present NaN or Inf appeared; None if all is finite now. One with -Inf alone, perhaps a
        mask, is replaced by the first with NaN, +Inf or a loss that is not finite. Skipped steps do not count."""
        self.arrays = LayerArrays(self.layers)
        """What depends on the layers alone, as arrays."""
        self.now: Look
        """The latest look, the one that is judged."""
        self.latest: LookArrays
        """The latest look as arrays over all layers."""
        self.initial: LookArrays
        """The first look as arrays over all layers."""
        # The numbers of all layers (`numbers_of`) at the latest looks and at a selection of looks over the whole run,
        # shape (looks, columns, layers); behind those of the last look there is room for more.
        self._numbers = np.empty((0, len(COLUMN_OF), len(self.layers)))
        self._steps: list[int] = []  # of the looks in `_numbers`
        self._course: list[int] = []  # which of them are the columns of `course`
        self._every = 1  # once in how many looks one becomes such a column
        self._ran: dict[str, None] = {}
        self._ordered_by: object = None  # of the latest look whose layers are all in order
        self._watched = dict(layers)  # in the order of their definition
        self._answers = ""

    @property
    def constant_loss(self) -> float:
        """`facts.constant_loss`; NaN if the first logged loss is a different one, such as a sum over batches."""
        is_another = abs(self.losses.very_first - self.facts.loss) > SAME_LOSS_SHARE * abs(self.facts.loss)
        return math.nan if is_another else self.facts.constant_loss

    def see(self, look: Look) -> None:
        """Add the look of a measured step to the history and make it `now`, the one that rules judge."""
        is_first = self.seen == 0
        self.first = self.first or look
        self._put_in_order(look)
        self.looks.append(look)
        self.now, self.latest = look, LookArrays(look, self.arrays)
        if is_first:
            self.initial = self.latest
        self._look_at_answers(look, is_first)
        self.losses.is_mixed |= self.facts.has_moving_target
        self.losses.extend(look.losses)
        self.silence = self.silence.with_layers_of(self.latest)
        self.silence.count(self.latest)
        self._keep_rates(look)
        if not look.overflowed:
            self._keep_first_nonfinite(look)
        self._keep_numbers(look.step, numbers_of(self.latest))
        if math.isnan(self.first_move):
            self.first_move = self._move()
        self.seen += 1

    def _move(self) -> float:
        """Return the median update ratio of the layers that move, without those that began near 0; NaN if none does."""
        of_units = self.latest.rows["parameter_before"].rms * np.sqrt(self.arrays.inputs)
        layers = np.unique(self.arrays.owner[np.nan_to_num(of_units) >= USUAL_WEIGHT_NORM_MIN])
        moves = self.recent("update_ratio")[layers, -1]
        return median_of(moves[(moves > 0) & (moves < np.inf)].tolist())

    def see_evaluation(self, look: Look) -> None:
        """Store the look of an evaluation loop as `evaluation`, and add to `evaluation_losses` and `comparisons`."""
        self.evaluation = look
        self.evaluation_losses += look.losses
        if self.looks:
            self.comparisons.append(compared(look, list(self.looks), self.layers))

    def follow(self, layers: Mapping[str, Layer]) -> None:
        """Watch other layers from now on; those with the same name, type and shapes keep their history.

        Args:
            layers: every layer to watch, by name.
        """
        known = {layer.name: layer for layer in self.layers}
        # What was replaced by another kind begins anew: what the old one gave is no history of the new one.
        traits = {name: (layer.type, layer.shapes) for name, layer in layers.items()}
        same = {name for name, old in known.items() if (old.type, old.shapes) == traits.get(name)}
        self._ran = {name: None for name in self._ran if name in layers}
        self._watched = dict(layers)
        self.silence = self.silence.among(same)
        new = [layer for name, layer in layers.items() if name not in known]
        self._set_layers([*(layers[name] for name in known if name in layers), *new], same)

    def _set_layers(self, layers: list[Layer], same: Set[str]) -> None:
        """Set the layers in their order; those whose names are in `same` keep their numbers, the others have none."""
        places = [self.arrays.places[layer.name] if layer.name in same else -1 for layer in layers]
        none = np.full((*self._numbers.shape[:-1], 1), np.nan)  # the last one
        self._numbers = np.take(np.concatenate([self._numbers, none], axis=-1), places, axis=-1)
        self.layers, self.arrays, self._ordered_by = layers, LayerArrays(layers), None
        if self.first is not None:
            self.initial = LookArrays(self.first, self.arrays)
        if self.looks:
            self.latest = LookArrays(self.now, self.arrays)

    def _keep_numbers(self, step: int, numbers: np.ndarray) -> None:
        if len(self._steps) == len(self._numbers):
            self._make_room()
        self._numbers[len(self._steps)] = numbers
        self._steps.append(step)
        if self.seen % self._every == 0:
            self._course.append(len(self._steps) - 1)
        if len(self._course) > COURSE_COLUMNS:
            self._every *= 2
            del self._course[1::2]

    def _make_room(self) -> None:
        kept = sorted({*self._course, *range(len(self._steps))[-RECENT_LOOKS:]})
        self._course = np.searchsorted(kept, self._course).tolist()
        self._steps = [self._steps[place] for place in kept]
        room = np.empty((RECENT_LOOKS, *self._numbers.shape[1:]))
        self._numbers = np.concatenate([self._numbers[kept], room])

    def recent(self, quantity: str) -> np.ndarray:
        """Return a quantity at the latest measurements, shape (layers, at most 64), float64; NaN where there is none.

        The last column is the latest look.

        Raises:
            ValueError: there is no such quantity.
        """
        if quantity not in QUANTITIES:
            raise unknown("quantity", quantity, QUANTITIES)
        last = len(self._steps)
        return np.asarray(self._numbers[max(last - RECENT_LOOKS, 0) : last, COLUMN_OF[quantity]].T)

    def course(self, quantity: str, first: int | None = None) -> np.ndarray:
        """Return a quantity over the whole run, shape (layers, len(`course_steps`)), float64.

        Args:
            quantity: its name, or another one in `COLUMN_OF`.
            first: return only this many of the first columns. Default: all.
        """
        return np.asarray(self._numbers[self._course[:first], COLUMN_OF[quantity]].T)

    @property
    def course_steps(self) -> list[int]:
        """The optimizer steps of the columns of `course`."""
        return [self._steps[place] for place in self._course]

    @property
    def recent_steps(self) -> list[int]:
        """The optimizer steps of the columns of `recent`."""
        return self._steps[-RECENT_LOOKS:]

    def has_run(self, layer: Layer) -> bool:
        """Return True if the layer has produced an output at any measurement."""
        return layer.name in self._ran

    @property
    def unseen(self) -> list[Layer]:
        """The layers that have produced no output so far, though they could; empty before the first measurement."""
        if not self.seen:
            return []
        ran = {"", *self._ran}  # the model itself is not watched
        return [layer for layer in self.layers if layer.is_called and self._shown_by(layer) not in ran]

    def why_unseen(self, layer: Layer) -> str:
        """Return why a layer produced no output at the first measurement, as a clause; "" if unknown."""
        return self.facts.why_silent.get(self._shown_by(layer), "")

    def _shown_by(self, layer: Layer) -> str:
        return layer.name.rpartition(".")[0] if layer.name in self.facts.unhooked else layer.name

    def peers(self, layer: Layer) -> list[Layer]:
        """Return the other layers of the same kind."""
        return [other for other in self.layers if other.kind == layer.kind and other.name != layer.name]

    def place(self, name: str) -> int:
        """Return the index of a layer in `layers`; `len(self.layers)` if there is no layer of this name."""
        return self.arrays.places.get(name, len(self.layers))

    @property
    def has_blown_up(self) -> bool:
        """True if the loss, or the outputs of a layer, grew by orders of magnitude while they were finite."""
        begin = max(1.0, abs(self.losses.very_first), abs(self.losses.start))
        if self.losses.largest > BLOWN_UP_LOSS_FACTOR * begin:
            return True
        course = self.course("activation_rms")
        with np.errstate(invalid="ignore", over="ignore"):
            largest = np.where(np.isfinite(course), course, 0.0).max(axis=1)
            return bool((largest > BLOWN_UP_OUTPUT_FACTOR * course[:, 0]).any())

    def units(self, name: str, role: Role = "output", looks: int | None = None) -> np.ndarray | None:
        """Return the statistics of each channel at the latest measurements; of wide tensors, of every k-th channel.

        Args:
            name: the layer, or the weight.
            role: which of its tensors; of several outputs, the first.
            looks: how many looks. Default: the window.

        Returns:
            Shape (looks, measured channels, columns of `hookboard.measure.row.FIELDS`), float64; None if there have
            been fewer looks so far, or if one of them lacks these channels or has a different number of them.
        """
        count = self.window if looks is None else looks
        readings = [look.of(name, role) for look in list(self.looks)[-count:]]
        known = [(one.width, one.channels) for one in readings if one is not None and one.channels is not None]
        if len(known) < count or len({width for width, _ in known}) > 1:
            return None
        return np.stack([channels for _, channels in known])

    def _keep_first_nonfinite(self, look: Look) -> None:
        if not look.readings.rows[:, _NONFINITE].any():
            self.first_nonfinite = None
        elif self.first_nonfinite is None or (_may_be_masked(self.first_nonfinite) and not _may_be_masked(look)):
            self.first_nonfinite = look

    def _keep_rates(self, look: Look) -> None:
        before = self.looks[-2] if len(self.looks) > 1 else look
        for jump in self.rate_jumps:
            jump.follow(look, before)
        risen = [n for n, stepped in look.stepped.items() if not stepped.rate <= self.peak_rate.get(n, -math.inf)]
        if not risen:
            return
        known = [name for name in look.stepped if name in self.peak_rate]
        rates = [(self.peak_rate[name], look.stepped[name].rate) for name in known]
        if self.seen > self.window and rates:  # the first looks may be a warm-up
            usual, now = (median(part) for part in zip(*rates, strict=True))
            if now > RATE_JUMP_FACTOR * usual > 0:
                self.rate_jumps.append(RateJump(before.step + 1, look.step, usual, now))
        for name in risen:
            self.peak_rate[name] = max(look.stepped[name].rate, self.peak_rate.get(name, 0.0))

    def _look_at_answers(self, look: Look, is_first: bool) -> None:
        """Add the spread of the last layer's outputs to `losses`; at the first look also set chance level and range."""
        if is_first:
            ran = [layer.name for layer in self.layers if layer.weights and look.of(layer.name, "output") is not None]
            self._answers = ran[-1] if ran else ""
        losses, output = self.losses, look.of(self._answers, "output") if self._answers in self.arrays.places else None
        if output is None:
            return
        is_start = is_first and not losses.is_resumed
        is_classifier = output.channels is not None and len(output.channels) > 1
        if is_start:
            is_other = self.facts.is_sum or self.facts.has_moving_target or not may_follow_softmax(look, self._answers)
            losses.chance = math.log(self.facts.classes or output.width) if is_classifier and not is_other else None
            losses.reach = output.moments.max - output.moments.min
        if output.channels is not None and is_classifier:
            losses.spreads.append(float(np.sqrt(np.mean(output.channels[:, FIELDS.index("deviation")] ** 2))))
            losses.first_spread = losses.spreads[-1] if is_start else losses.first_spread

    def _put_in_order(self, look: Look) -> None:
        if look.readings.places is self._ordered_by:
            return
        known = {layer.name: layer for layer in self.layers}
        ran = dict.fromkeys(name for name in look.readings.places.names("output") if name in known)
        if not ran.keys() <= self._ran.keys():
            order = order_with_late(list(self._ran) or list(ran), ran, list(self._watched))
            self._ran = dict.fromkeys(order)
            self._set_layers([known[name] for name in dict.fromkeys([*order, *known])], known.keys())
        self._ordered_by = look.readings.places


def _may_be_masked(look: Look) -> bool:
    """Return True if a look shows neither NaN nor +Inf, nor a loss that is not finite: -Inf alone may be a mask."""
    is_bad = look.readings.rows[:, _NAN_AND_INF].any()
    return not is_bad and all(math.isfinite(loss.value) for loss in look.losses)


USUAL_WEIGHT_NORM_MIN = 0.1
"""L2 norm of a unit's weights from which a weight is of usual size: what starts near 0 is supposed to grow (PyTorch's
own initialization gives 0.58)."""

RATE_JUMP_FACTOR = 3.0
"""A learning rate this many times all earlier ones has jumped (a choice: a restart only returns to its old value)."""


@dataclass
class RateJump:
    """A learning rate far above all earlier ones."""

    step: int  # the first at which it may have been in force: the one after the previous look
    seen: int  # the step of the look that showed it
    before: float  # the largest until then, the median over the weights
    after: float
    until: int | None = None  # the step of the last look at which it was still that high; None while it is

    def follow(self, look: Look, before: Look) -> None:
        """See another look, at which the rate may have come down or risen again."""
        rate = median([stepped.rate for stepped in look.stepped.values()])
        if rate > RATE_JUMP_FACTOR * self.before:
            self.until = None
        elif self.until is None and rate <= RATE_JUMP_FACTOR * self.before:
            self.until = before.step


SOFTMAX_GRADIENT_MEAN_MAX = 1e-3
"""Mean of the gradient of the outputs, as a share of its RMS, above which no softmax follows them (a choice): before
one a sample's gradients add up to 0 but for rounding; behind one, under a logarithm, the share is 1 / sqrt(classes)."""


def may_follow_softmax(look: Look, name: str) -> bool:
    """Return True if a softmax may follow a layer: the gradients of its outputs were measured, and add up to 0."""
    gradient = look.of(name, "grad_output")
    if gradient is None or not gradient.moments.count:
        return False  # as of a network that gives the targets
    return abs(gradient.moments.mean) <= SOFTMAX_GRADIENT_MEAN_MAX * gradient.moments.rms
