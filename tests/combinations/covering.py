"""Which circumstances are tried together: arrays in which every two, or many of every three, meet."""

import random
from collections.abc import Sequence
from functools import cache
from itertools import combinations, product

from allpairspy import AllPairs
from combinations.circumstances import AXES

Row = tuple[str, ...]

CLIPPED = {"gradients clipped by norm", "gradients clipped by value"}
ACCUMULATED = {"gradients accumulated over two batches", "gradients accumulated from the second epoch on"}
BY_HAND = {"manual optimization", "two optimizers by hand"}
AVERAGES = {"stochastic weight averaging", "a moving average of the weights"}
LR_FINDER = {"a search for the learning rate before the fit"}
ENCODER = {"a transformer encoder with padding"}
VALIDATED = {"validation after each epoch", "validation after each batch"}
VALIDATED |= {"a sanity check and validation after two batches", "validation called by the step"}
VALIDATED |= {"validated tested and predicted after the fit"}
RUN_IN_THE_STEP = {
    "a callback that runs the model before the backward pass",
    "a callback that runs the model after the backward pass",
    "a callback that runs the model before the optimizer step",
}
"""In manual optimization these calls are made inside the training step."""
RUN_BEFORE_IT = {"a callback that runs the model at the start of a batch"}
ENCODERS = {*ENCODER, "a pre norm transformer encoder with padding"}
MADE_BEFORE = {"a sanity check and validation after two batches"} | LR_FINDER
"""What runs the model, and so has its graph made, before the callbacks that come later put their hooks on it."""
EVALUATING = {"a frozen layer in evaluation mode"}
COMPILED = {"the network compiled as a whole", "one block compiled"}
BFLOAT16, FLOAT16 = {"bfloat16 autocast"}, {"float16 with a GradScaler"}
LBFGS = {"LBFGS with its closure"}

CANNOT_MEET: list[tuple[str, list[set[str]]]] = [
    ("Lightning refuses it in manual optimization", [BY_HAND, CLIPPED | ACCUMULATED]),
    ("Lightning refuses it", [LBFGS, FLOAT16]),
    ("Lightning refuses it", [BFLOAT16 | FLOAT16, {"fused AdamW"}, CLIPPED]),
    ("it works with one optimizer", [{"two optimizers by hand"}, {"stochastic weight averaging"} | LR_FINDER]),
    ("LBFGS takes one group of parameters", [LBFGS, {"a callback that unfreezes the head"}]),
    ("LBFGS needs a loss", [LBFGS, {"a batch is skipped"}]),
    ("without a gradient there is none to clip", [{"gradients clipped by value"}, {"a batch is skipped"}]),
    (
        "a GradScaler needs a gradient of each optimizer",
        [FLOAT16, {"two optimizers by hand"}, {"a callback that unfreezes the head"}],
    ),
    ("a pruned weight cannot be copied", [{"pruned weights"}, AVERAGES | {"a callback that prunes"}]),
    ("pruning makes single precision of it", [{"bfloat16 weights"}, {"a callback that prunes"}]),
    ("an uninitialized parameter can be neither copied nor loaded", [{"a lazy layer"}, AVERAGES | LR_FINDER]),
    ("an uninitialized parameter cannot be pruned", [{"a lazy layer"}, {"a callback that prunes"}]),
    ("it has no double backward", [COMPILED | {"a block recomputed in backward reentrantly"}, {"a gradient penalty"}]),
    (
        "the recomputation sees what was changed in place",
        [
            {"a block recomputed in backward"},
            {"convolutions and a view changed in place"},
            {"training step in evaluation mode"},
        ],
    ),
    ("torch's fused encoder layer takes no autocast", [ENCODER, VALIDATED, BFLOAT16 | FLOAT16]),
    ("torch's fused encoder layer takes no autocast", [{"a frozen teacher in evaluation mode"}, BFLOAT16 | FLOAT16]),
    ("torch's fused encoder layer takes no autocast", [ENCODER, BY_HAND, RUN_IN_THE_STEP, BFLOAT16 | FLOAT16]),
    ("torch's fused attention has no double backward", [ENCODERS, EVALUATING, {"a gradient penalty"}]),
    ("nested tensors have no double backward", [{"nested tensors"}, {"a gradient penalty"}]),
]
"""Why circumstances, one of each set, cannot meet: without hookboard it ends with an error too."""

LIMITS: list[tuple[str, list[set[str]]]] = [
    (
        "a graph that was made before a hook came does not know it, unless hookboard has it made again",
        [COMPILED, {"a later hook that changes outputs", "a later hook that changes inputs"}, MADE_BEFORE],
    ),
    (
        "what an Intervention changes runs uncompiled, which rounds half precision at other places",
        [COMPILED, {"an Intervention that changes nothing"}, BFLOAT16 | FLOAT16 | {"bfloat16 weights"}],
    ),
    ("in a graph our hooks keep an encoder layer from its fused path", [ENCODERS, COMPILED, VALIDATED]),
    (
        "in a step that is due our hooks keep an encoder layer from its fused path",
        [ENCODERS, RUN_IN_THE_STEP | RUN_BEFORE_IT | {"validation called by the step"}],
    ),
    (
        "the oracle compiles nothing, and a lazy layer draws its weights at another place then",
        [COMPILED, {"a lazy layer"}, RUN_IN_THE_STEP | RUN_BEFORE_IT],
    ),
]
"""Why a run may differ beside hookboard where circumstances, one of each set, meet."""


def array(seed: int = 0) -> list[Row]:
    """Rows of one circumstance of each axis, in which every two that can meet do; another seed gives other rows."""
    order = random.Random(seed)
    axes = [list(axis) for axis in AXES.values()]
    for names in axes if seed else ():
        order.shuffle(names)
    rows: list[Row] = [tuple(row) for row in AllPairs(axes, filter_func=can_be)]
    # Where rules lead it to a dead end, allpairspy leaves a pair out.
    left = pairs_that_can_meet().difference(*map(pairs_of, rows))
    while left:
        pair = min(left, key=sorted)
        drawn = [tuple(order.choice([n for n in axis if n in pair] or axis) for axis in axes) for _ in range(50)]
        for row in sorted(filter(can_be, drawn), key=lambda row: len(left & pairs_of(row)))[-1:]:
            rows.append(row)
            left -= pairs_of(row)
    return rows


def can_be(row: Sequence[str]) -> bool:
    """Whether the circumstances of a row, or of its beginning, can meet and be compared."""
    given = set(row)
    return not any(all(given & some for some in together) for _, together in [*CANNOT_MEET, *LIMITS])


@cache
def pairs_of(row: Row) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in combinations(row, 2)}


def pairs_that_can_meet() -> set[frozenset[str]]:
    """Every two circumstances of different axes that no rule keeps apart."""
    every = (product(one, other) for one, other in combinations(AXES.values(), 2))
    return {frozenset(pair) for pairs in every for pair in pairs if can_be(pair)}


def drawn(seed: int, count: int, size: int) -> list[Row]:
    """Rows drawn at random, each the one of 30 in which most groups of this size meet that have not met before."""
    draw = random.Random(seed)
    met: set[Row] = set()
    taken: list[Row] = []
    while len(taken) < count:
        rows = [tuple(draw.choice(list(axis)) for axis in AXES.values()) for _ in range(30)]
        best = max(filter(can_be, rows), key=lambda row: len(set(combinations(row, size)) - met), default=None)
        if best is not None:
            met.update(combinations(best, size))
            taken.append(best)
    return taken


def changing(row: Sequence[str]) -> list[str]:
    """The circumstances of a row that change anything: all but the first of each axis, and our callbacks."""
    first = {next(iter(names)) for axis, names in AXES.items() if axis != "ours"}
    return [name for name in row if name not in first]
