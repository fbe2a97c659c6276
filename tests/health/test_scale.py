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


@pytest.mark.parametrize(("up", "fires"), [(1.0, False), (1.6, True), (-1.6, True)])
def test_a_layer_that_scales_what_goes_in_by_another_factor_than_its_peers_is_out_of_line(up, fires):
    found = findings(ACTIVATION_SCALE, run_of(CHAIN, scaled([0, 0, 0, 0, up, up, up, up])))
    assert [finding.module for finding in found] == (["fc4"] if fires else [])
    assert all("as at initialization" in finding.evidence for finding in found)


def test_a_layer_whose_peers_have_left_their_scale_is_not_out_of_line():
    """As frozen layers among adapters whose rate is too high."""

    def grown(decades):
        return [outputs(name, noise(8, scale=10.0**size)) for name, size in zip(NAMES, decades, strict=True)]

    # From look 3 on, each layer scales by 30; only fc4 still by 1.
    later = [1.5 * i - (1.5 if i >= 4 else 0) for i in range(8)]
    heavy = [r for name in NAMES for r in weights(name, rows=noise(8, scale=0.1 if name == "fc4" else 3.0))]
    run = run_of(CHAIN, lambda n: [*grown([0] * 8 if n < 3 else later), *heavy])
    assert "fc4" not in [finding.module for finding in findings(ACTIVATION_SCALE, run)]


STEP = [0, 0, 0, 0, 2, 2, 2, 2]


@pytest.mark.parametrize(("began", "then", "advice"), [(STEP, None, "initialized"), ([0] * 8, STEP, "not so at first")])
def test_a_layer_that_got_out_of_line_later_is_not_said_to_be_initialized_wrong(began, then, advice):
    (finding, *_) = findings(ACTIVATION_SCALE, run_of(CHAIN, scaled(began, then=then)))
    assert finding.module == "fc4"
    assert advice in finding.advice


@pytest.mark.parametrize(("losses", "severity"), [(falling, "note"), (harmed, "alarm")])
def test_it_is_an_alarm_where_the_loss_shows_harm(losses, severity):
    found = findings(ACTIVATION_SCALE, run_of(CHAIN, scaled(STEP), losses=losses))
    assert [finding.severity for finding in found] == [severity]


@pytest.mark.parametrize(("each", "fires"), [(0.25, False), (0.4, True), (-0.25, False), (-0.4, True)])
def test_activations_that_change_by_a_factor_of_100_along_depth_are_named_where_it_starts(each, fires):
    found = findings(ACTIVATION_SCALE, run_of(CHAIN, scaled([each * i for i in range(8)]), losses=harmed))
    assert [finding.module for finding in found] == (["fc0"] if fires else [])


def test_a_layer_that_leaves_its_own_scale_has_drifted():
    drifted = [0, 0, 0, -2, 0, 0, 0, 0]
    found = findings(ACTIVATION_SCALE, run_of(CHAIN, scaled([0] * 8, then=drifted), 8, harmed))
    assert "fc3" in [finding.module for finding in found]
    assert any("at the first measurement" in finding.evidence for finding in found)


def test_a_branch_whose_weights_begin_at_0_may_be_small():
    # LoRA: B begins at 0, so that the first outputs are tiny.
    zero = weights("fc3", rows=nothing(8))
    small = [0, 0, 0, -4, 0, 0, 0, 0]
    assert not findings(ACTIVATION_SCALE, run_of(CHAIN, scaled(small, first_weights=zero), losses=harmed))
    assert findings(ACTIVATION_SCALE, run_of(CHAIN, scaled(small), losses=harmed))


def test_a_layer_with_the_weights_of_its_peers_is_in_line_though_what_ran_before_it_is_tiny():
    # Behind a branch that is scaled down, as by LayerScale.
    usual = [reading for name in NAMES for reading in weights(name)]
    assert not findings(ACTIVATION_SCALE, run_of(CHAIN, scaled(STEP, first_weights=usual), losses=harmed))
    heavy = [*usual, *weights("fc4", rows=noise(8, scale=10.0))]
    assert findings(ACTIVATION_SCALE, run_of(CHAIN, scaled(STEP, first_weights=heavy), losses=harmed))


SIDE_BY_SIDE = apart(**{name: NAMES[:i] if i < 4 else NAMES[4:i] for i, name in enumerate(NAMES)})
"""Two chains of four layers."""


@pytest.mark.parametrize("sizes", [[-0.4 * i for i in range(8)], STEP], ids=["slope", "step"])
def test_outputs_of_layers_that_run_side_by_side_are_not_compared_as_if_one_fed_the_other(sizes):
    run = run_of(CHAIN, scaled(sizes), losses=harmed)
    assert findings(ACTIVATION_SCALE, run)
    run.facts = SIDE_BY_SIDE
    assert not findings(ACTIVATION_SCALE, run)
    run.facts = apart(**{name: NAMES[:i] for i, name in enumerate(NAMES)})
    assert findings(ACTIVATION_SCALE, run)


def test_weights_that_would_let_a_signal_fade_are_well_where_it_does_not():
    """As where a skip, a scale or a function that normalizes carries it."""
    drawn = [reading for name in NAMES for reading in weights(name, rows=noise(8, scale=0.02))]
    assert not findings(ACTIVATION_SCALE, run_of(CHAIN, scaled([0] * 8, first_weights=drawn), losses=harmed))
    slope = [-0.4 * i for i in range(8)]
    assert findings(ACTIVATION_SCALE, run_of(CHAIN, scaled(slope, first_weights=drawn), losses=harmed))


def test_a_layer_that_learns_another_scale_is_well_unless_the_loss_shows_harm():
    usual = [reading for name in NAMES for reading in weights(name)]
    grown = scaled([0, 0, 0, -1.8, 0, 0, 0, 0], then=[0] * 8, first_weights=usual)
    assert not findings(ACTIVATION_SCALE, run_of(CHAIN, grown, 8, falling))
    assert [s.module for s in findings(ACTIVATION_SCALE, run_of(CHAIN, grown, 8, harmed))] == ["fc3"]


@pytest.mark.parametrize(("final", "said"), [(0.1, []), (0.01, [("bn", "alarm")])])
def test_a_norm_whose_output_fades_is_an_alarm_by_itself(final, said):
    norm = Layer("bn", "BatchNorm2d", "norm", ("bn.weight",), shapes={"bn.weight": (8,)})

    def seen(n):
        return [outputs("conv", noise(8)), outputs("bn", noise(8, scale=final ** (n / 9))), outputs("head", noise(8))]

    found = findings(ACTIVATION_SCALE, run_of([linear("conv", kind="conv"), norm, linear("head")], seen, 10, falling))
    assert [(s.module, s.severity) for s in found] == said


@pytest.mark.parametrize(("decades", "fires"), [(2.5, False), (3.5, True)])
def test_a_model_whose_layers_all_grow_a_thousandfold_is_an_alarm_by_itself(decades, fires):
    found = findings(ACTIVATION_SCALE, run_of(CHAIN, scaled([0] * 8, then=[decades] * 8), count=8, losses=falling))
    assert [(s.module, s.severity) for s in found] == ([("", "alarm")] if fires else [])
