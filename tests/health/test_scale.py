"""The scale of activations."""

import pytest
from health.runs import apart, falling, findings, harmed, linear, noise, nothing, outputs, run_of, weights

from hookboard.health.rules.scale import ACTIVATION_SCALE
from hookboard.model.layers import Layer

NAMES = [f"fc{i}" for i in range(8)]
CHAIN = [linear(name) for name in NAMES]


def scaled(decades, then=None, first_weights=None):
    """Looks at which the outputs have these sizes, as powers of ten; after three looks perhaps others."""

    def readings(n):
        sizes = decades if then is None or n < 3 else then
        read = [outputs(name, noise(8, scale=10.0**size)) for name, size in zip(NAMES, sizes, strict=True)]
        return [*read, *(first_weights or [])]

    return readings


def slope(each: float) -> list[float]:
    return [each * i for i in range(8)]


def step(up: float) -> list[float]:
    return [0, 0, 0, 0, up, up, up, up]


STEP, LEVEL, TINY = step(2), [0] * 8, [0, 0, 0, -4, 0, 0, 0, 0]
LEARNT = [0, 0, 0, -1.8, 0, 0, 0, 0]
USUAL = [reading for name in NAMES for reading in weights(name)]
HEAVY = [*USUAL, *weights("fc4", rows=noise(8, scale=10.0))]
FADING = [reading for name in NAMES for reading in weights(name, rows=noise(8, scale=0.02))]
ZERO = weights("fc3", rows=nothing(8))

SCALES = {
    "a layer a little out of line": (scaled(step(1.0)), falling, []),
    "a layer that scales up": (scaled(step(1.6)), falling, [("fc4", "note")]),
    "a layer that scales down": (scaled(step(-1.6)), falling, [("fc4", "note")]),
    "a layer out of line with harm": (scaled(STEP), harmed, [("fc4", "alarm")]),
    "a slope up": (scaled(slope(0.4)), harmed, [("fc0", "alarm")]),
    "a slope down": (scaled(slope(-0.4)), harmed, [("fc0", "alarm")]),
    "a gentle slope up": (scaled(slope(0.25)), harmed, []),
    "a gentle slope down": (scaled(slope(-0.25)), harmed, []),
    # LoRA: B begins at 0, so that the first outputs are tiny.
    "a branch whose weights begin at 0": (scaled(TINY, first_weights=ZERO), harmed, []),
    # Behind a branch that is scaled down, as by LayerScale.
    "a layer with the weights of its peers": (scaled(STEP, first_weights=USUAL), harmed, []),
    "a layer with larger weights": (scaled(STEP, first_weights=HEAVY), harmed, [("fc4", "alarm")]),
    # A skip, a scale or a function that normalizes carries the signal.
    "weights that would let a signal fade where it does not": (scaled(LEVEL, first_weights=FADING), harmed, []),
    "weights that let it fade": (scaled(slope(-0.4), first_weights=FADING), harmed, [("fc0", "alarm")]),
    "a layer that learns another scale": (scaled(LEARNT, then=LEVEL, first_weights=USUAL), falling, []),
    "one that does so with harm": (scaled(LEARNT, then=LEVEL, first_weights=USUAL), harmed, [("fc3", "alarm")]),
    "layers that all grow": (scaled(LEVEL, then=[2.5] * 8), falling, []),
    "layers that all grow a thousandfold": (scaled(LEVEL, then=[3.5] * 8), falling, [("", "alarm")]),
}


@pytest.mark.parametrize(("seen", "losses", "said"), SCALES.values(), ids=SCALES)
def test_the_scale_of(seen, losses, said):
    found = findings(ACTIVATION_SCALE, run_of(CHAIN, seen, 8, losses))
    assert [(finding.module, finding.severity) for finding in found] == said


def test_a_layer_whose_peers_have_left_their_scale_is_not_out_of_line():
    """As frozen layers among adapters whose rate is too high."""

    # From look 3 on, each layer scales by 30; only fc4 still by 1.
    later = [1.5 * i - (1.5 if i >= 4 else 0) for i in range(8)]
    heavy = [r for name in NAMES for r in weights(name, rows=noise(8, scale=0.1 if name == "fc4" else 3.0))]
    run = run_of(CHAIN, scaled(LEVEL, then=later, first_weights=heavy))
    assert "fc4" not in [finding.module for finding in findings(ACTIVATION_SCALE, run)]


@pytest.mark.parametrize(("began", "then", "advice"), [(STEP, None, "initialized"), ([0] * 8, STEP, "not so at first")])
def test_a_layer_that_got_out_of_line_later_is_not_said_to_be_initialized_wrong(began, then, advice):
    (finding, *_) = findings(ACTIVATION_SCALE, run_of(CHAIN, scaled(began, then=then)))
    assert finding.module == "fc4"
    assert advice in finding.advice
    assert (", as at initialization" in finding.evidence) is (then is None)


def test_a_layer_that_leaves_its_own_scale_has_drifted():
    drifted = [0, 0, 0, -2, 0, 0, 0, 0]
    found = findings(ACTIVATION_SCALE, run_of(CHAIN, scaled([0] * 8, then=drifted), 8, harmed))
    assert "fc3" in [finding.module for finding in found]
    assert any("at the first measurement" in finding.evidence for finding in found)


@pytest.mark.parametrize("sizes", [slope(-0.4), STEP], ids=["slope", "step"])
def test_outputs_of_layers_that_run_side_by_side_are_not_compared_as_if_one_fed_the_other(sizes):
    run = run_of(CHAIN, scaled(sizes), losses=harmed)
    assert findings(ACTIVATION_SCALE, run)
    run.facts = apart(**{name: NAMES[:i] if i < 4 else NAMES[4:i] for i, name in enumerate(NAMES)})  # two chains
    assert not findings(ACTIVATION_SCALE, run)
    run.facts = apart(**{name: NAMES[:i] for i, name in enumerate(NAMES)})
    assert findings(ACTIVATION_SCALE, run)


@pytest.mark.parametrize(("final", "said"), [(0.1, []), (0.01, [("bn", "alarm")])])
def test_a_norm_whose_output_fades_is_an_alarm_by_itself(final, said):
    norm = Layer("bn", "BatchNorm2d", "norm", ("bn.weight",), shapes={"bn.weight": (8,)})

    def seen(n):
        return [outputs("conv", noise(8)), outputs("bn", noise(8, scale=final ** (n / 9))), outputs("head", noise(8))]

    found = findings(ACTIVATION_SCALE, run_of([linear("conv", kind="conv"), norm, linear("head")], seen, 10, falling))
    assert [(s.module, s.severity) for s in found] == said
