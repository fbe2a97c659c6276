"""Layers that answer all samples alike."""

import pytest
from health.looks import reading, row
from health.runs import apart, falling, findings, harmed, linear, noise, outputs, run_of

from hookboard.health.rules.signal import COLLAPSED
from hookboard.model.layers import Layer

NAMES = [f"fc{i}" for i in range(8)]
CHAIN = [linear(name) for name in NAMES]


def answers(spreads, names=NAMES):
    """Looks at which the outputs differ between samples by these shares of their RMS."""
    rows = [[row(100, 1.0, s), row(100, -1.0, s)] for s in spreads]
    return [outputs(name, part) for name, part in zip(names, rows, strict=True)]


def ends(spread, gradient=()):
    """A model whose last layer gives nearly the same for all samples; the gradient there, if any."""
    rows = [row(100, mean, 0.01) for mean in gradient]
    return [*answers([1] * 7 + [spread]), *([reading("fc7", "grad_output", rows)] if rows else [])]


SOFTMAX, ERROR = (0.01, -0.01), (0.01, 0.02)
CONSTANT = [1, 1, 0, 0, 1, 1, 1, 1]
FADING = [10 ** (-0.6 * i) for i in range(8)]
ANSWERS = {
    "differ a little": (lambda n: ends(0.03), 12, falling, []),
    "are nearly alike": (lambda n: ends(0.01), 12, falling, [("fc7", "note")]),
    "are nearly alike with harm": (lambda n: ends(0.01), 12, harmed, [("fc7", "alarm")]),
    "of a classifier are alike": (lambda n: ends(5e-4, SOFTMAX), 6, falling, [("fc7", "alarm")]),
    "of a classifier are alike in the first steps": (lambda n: ends(5e-4, SOFTMAX), 3, falling, [("fc7", "note")]),
    "of a classifier are the same in the first steps": (lambda n: ends(1e-7, SOFTMAX), 3, falling, [("fc7", "alarm")]),
    # Numbers to be hit may differ by a thousandth of their size.
    "of a regression are alike": (lambda n: ends(5e-4, ERROR), 6, falling, [("fc7", "note")]),
    "are alike behind one layer": (
        lambda n: answers([1, 0.8, 1, 1e-4, 1e-4, 2e-4, 1e-4, 1e-4]),
        6,
        harmed,
        [("fc3", "alarm")],
    ),
    "fade from layer to layer": (lambda n: answers(FADING), 6, harmed, [("", "alarm")]),
    "are constant in a branch": (lambda n: answers(CONSTANT), 6, harmed, []),
    "have become constant in a branch": (
        lambda n: answers(CONSTANT if n else [1] * 8),
        6,
        harmed,
        [("fc2", "note")],
    ),
    "are those to a constant input": (lambda n: answers([0] * 8), 6, harmed, []),
}


@pytest.mark.parametrize(("seen", "count", "losses", "said"), ANSWERS.values(), ids=ANSWERS)
def test_answers_that(seen, count, losses, said):
    found = findings(COLLAPSED, run_of(CHAIN, seen, count, losses))
    assert [(finding.module, finding.severity) for finding in found] == said


@pytest.mark.parametrize(("feeds", "fires"), [([], False), (NAMES[:7], True)])
def test_a_learned_prompt_that_runs_last_is_the_same_for_all_samples_by_design(feeds, fires):
    run = run_of(CHAIN, lambda n: answers([1] * 7 + [0]), losses=harmed)
    run.facts = apart(**{name: NAMES[:i] for i, name in enumerate(NAMES[:7])}, fc7=feeds)
    assert bool(findings(COLLAPSED, run)) is fires


ONE_SAMPLE = [row(1, 1.0, 0.0), row(1, -1.0, 0.0)]
SOFTMAX_BEHIND = [*CHAIN[:2], Layer("softmax", "Softmax", "other")]
FEW = {
    # A year: 2000, give or take 1.
    "a single number far from 0": (CHAIN[:3], [outputs("fc1", noise(8)), outputs("fc2", [row(100, 2000.0, 1.0)])]),
    "one sample": (CHAIN, [outputs(name, ONE_SAMPLE) for name in NAMES[1:]]),
    "what a softmax makes of the answers": (
        SOFTMAX_BEHIND,
        [*answers([1], NAMES[1:2]), outputs("softmax", [row(100, 0.1, 1e-4) for _ in range(10)])],
    ),
}


@pytest.mark.parametrize(("layers", "read"), FEW.values(), ids=FEW)
def test_nothing_is_said_of(layers, read):
    assert not findings(COLLAPSED, run_of(layers, lambda n: [outputs("fc0", noise(8)), *read], losses=harmed))
