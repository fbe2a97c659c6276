"""The scale of activations, and layers that answer all samples alike."""

import pytest
from health.looks import row
from health.runs import falling, harmed, linear, noise, nothing, outputs, run_of, symptoms, weights

from hookboard.health.rules.signal import ACTIVATION_SCALE, COLLAPSED

NAMES = [f"fc{i}" for i in range(8)]
CHAIN = [linear(name) for name in NAMES]


def scaled(decades, then=None, first_weights=None):
    """Looks at which the outputs have these sizes, as powers of ten; after three looks perhaps others."""

    def readings(n):
        sizes = decades if then is None or n < 3 else then
        read = [outputs(name, noise(8, scale=10.0**size)) for name, size in zip(NAMES, sizes, strict=True)]
        return [*read, *(first_weights or [])]

    return readings


def test_layers_of_about_the_same_scale_are_healthy():
    assert not symptoms(ACTIVATION_SCALE, run_of(CHAIN, scaled([0, 0.3, -0.3, 0, 0.5, 0.2, -0.2, 0]), losses=harmed))


@pytest.mark.parametrize(("up", "fires"), [(1.0, False), (1.6, True), (-1.6, True)])
def test_a_layer_that_scales_what_goes_in_by_another_factor_than_its_peers_is_out_of_line(up, fires):
    found = symptoms(ACTIVATION_SCALE, run_of(CHAIN, scaled([0, 0, 0, 0, up, up, up, up])))
    assert [symptom.module for symptom in found] == (["fc4"] if fires else [])
    assert all("as it was initialized" in symptom.evidence for symptom in found)


@pytest.mark.parametrize(("losses", "severity"), [(falling, "note"), (harmed, "alarm")])
def test_it_is_an_alarm_where_the_loss_shows_harm(losses, severity):
    found = symptoms(ACTIVATION_SCALE, run_of(CHAIN, scaled([0, 0, 0, 0, 2, 2, 2, 2]), losses=losses))
    assert [symptom.severity for symptom in found] == [severity]


@pytest.mark.parametrize(("each", "fires"), [(0.25, False), (0.4, True), (-0.25, False), (-0.4, True)])
def test_activations_that_change_by_a_factor_of_100_along_depth_are_named_where_it_starts(each, fires):
    found = symptoms(ACTIVATION_SCALE, run_of(CHAIN, scaled([each * i for i in range(8)]), losses=harmed))
    assert [symptom.module for symptom in found] == (["fc0"] if fires else [])


def test_a_layer_that_leaves_its_own_scale_has_drifted():
    drifted = [0, 0, 0, -2, 0, 0, 0, 0]
    found = symptoms(ACTIVATION_SCALE, run_of(CHAIN, scaled([0] * 8, then=drifted), count=8))
    assert "fc3" in [symptom.module for symptom in found]
    assert any("in the first looks" in symptom.evidence or "at the first look" in symptom.evidence for symptom in found)


def test_a_branch_whose_weights_begin_at_0_may_be_small():
    # LoRA: B begins at 0, so that the first outputs are tiny.
    zero = weights("fc3", rows=nothing(8))
    small = [0, 0, 0, -4, 0, 0, 0, 0]
    assert not symptoms(ACTIVATION_SCALE, run_of(CHAIN, scaled(small, first_weights=zero), losses=harmed))
    assert symptoms(ACTIVATION_SCALE, run_of(CHAIN, scaled(small), losses=harmed))


def test_a_layer_with_the_weights_of_its_peers_is_in_line_though_what_ran_before_it_is_tiny():
    # Behind a branch that is scaled down, as by LayerScale.
    usual = [reading for name in NAMES for reading in weights(name)]
    sizes = [0, 0, 0, 0, 2, 2, 2, 2]
    assert not symptoms(ACTIVATION_SCALE, run_of(CHAIN, scaled(sizes, first_weights=usual), losses=harmed))
    heavy = [*usual, *weights("fc4", rows=noise(8, scale=10.0))]
    assert symptoms(ACTIVATION_SCALE, run_of(CHAIN, scaled(sizes, first_weights=heavy), losses=harmed))


def answers(spreads, names=NAMES):
    """Looks at which the outputs differ between samples by these shares of their RMS."""
    rows = [[row(100, 1.0, s), row(100, -1.0, s)] for s in spreads]
    return [outputs(name, part) for name, part in zip(names, rows, strict=True)]


@pytest.mark.parametrize(("spread", "fires"), [(2e-3, False), (5e-4, True)])
def test_a_layer_from_which_on_all_samples_are_answered_alike_has_collapsed(spread, fires):
    run = run_of(CHAIN, lambda n: answers([1, 1, 1, 1, spread, spread, spread, spread]))
    found = symptoms(COLLAPSED, run)
    assert [(symptom.module, symptom.severity) for symptom in found] == ([("fc4", "note")] if fires else [])


def test_a_collapse_is_an_alarm_where_the_loss_shows_harm():
    (symptom,) = symptoms(COLLAPSED, run_of(CHAIN, lambda n: answers([1] * 4 + [0] * 4), losses=harmed))
    assert symptom.severity == "alarm"


def test_a_layer_whose_input_is_constant_by_design_is_healthy():
    # A query or a place is embedded beside the main path.
    assert not symptoms(COLLAPSED, run_of(CHAIN, lambda n: answers([1, 1, 0, 0, 1, 1, 1, 1]), losses=harmed))


def test_a_constant_input_is_not_the_fault_of_a_layer():
    assert not symptoms(COLLAPSED, run_of(CHAIN, lambda n: answers([0] * 8), losses=harmed))


def test_one_sample_tells_nothing():
    rows = [row(1, 1.0, 0.0), row(1, -1.0, 0.0)]
    read = [outputs("fc0", noise(8)), *(outputs(name, rows) for name in NAMES[1:])]
    assert not symptoms(COLLAPSED, run_of(CHAIN, lambda n: read, losses=harmed))
