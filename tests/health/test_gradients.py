"""Gradients that vanish or explode on their way back."""

import pytest
from health.looks import reading, row
from health.runs import falling, harmed, linear, noise, outputs, run_of, symptoms

from hookboard.health.rules.gradients import EXPLODING, VANISHING

NAMES = [f"fc{i}" for i in range(8)]
CHAIN = [linear(name) for name in NAMES]


def gradients(decades, growth=0.0, names=NAMES):
    """A look at which the gradients have these sizes, as powers of ten."""
    return lambda n: [
        *(outputs(name, noise(8)) for name in names),
        *(
            reading(name, "grad_output", [row(100, 0.0, 10.0 ** (size + growth * n))])
            for name, size in zip(names, decades, strict=True)
        ),
    ]


def steady(each):
    """From the last layer to the first, so many powers of ten in each."""
    return [each * (len(NAMES) - 1 - i) for i in range(len(NAMES))]


@pytest.mark.parametrize(("each", "fires"), [(0.0, False), (-0.4, False), (-0.6, True)])
def test_a_gradient_that_falls_by_three_powers_of_ten_vanishes(each, fires):
    run = run_of(CHAIN, gradients(steady(each)))
    assert bool(symptoms(VANISHING, run)) is fires
    assert not symptoms(EXPLODING, run)


@pytest.mark.parametrize(("losses", "severity"), [(falling, "note"), (harmed, "alarm")])
@pytest.mark.parametrize(("rule", "each"), [(VANISHING, -0.56), (EXPLODING, 0.48)])
def test_it_is_an_alarm_where_the_loss_shows_harm(rule, each, losses, severity):
    found = symptoms(rule, run_of(CHAIN, gradients(steady(each)), losses=losses))
    assert [symptom.severity for symptom in found] == [severity]


def test_the_layer_is_named_that_loses_most_of_the_gradient():
    (symptom,) = symptoms(VANISHING, run_of(CHAIN, gradients([-4, -4, -4.1, -3.9, 0, 0.1, 0, 0])))
    assert symptom.module == "fc4"


@pytest.mark.parametrize(("rule", "each"), [(VANISHING, -0.6), (EXPLODING, 0.6)])
def test_a_steady_change_is_the_matter_of_the_whole_model(rule, each):
    (symptom,) = symptoms(rule, run_of(CHAIN, gradients(steady(each))))
    assert symptom.module == ""


@pytest.mark.parametrize(("each", "count", "severity"), [(-0.56, 6, "note"), (-0.7, 3, "note"), (-0.7, 6, "alarm")])
def test_it_is_an_alarm_by_itself_where_nothing_is_left_after_the_first_steps(each, count, severity):
    (symptom,) = symptoms(VANISHING, run_of(CHAIN, gradients(steady(each)), count=count, losses=falling))
    assert symptom.severity == severity


def test_a_branch_that_gets_little_is_healthy_where_the_layers_before_it_get_their_gradient():
    assert not symptoms(VANISHING, run_of(CHAIN, gradients([0, -6, -6, 0, -6, -6, 0, 0])))
    assert not symptoms(VANISHING, run_of(CHAIN, gradients([-6, 0, -6, 0, 0, 0, 0, 0])))  # it begins with one
    assert symptoms(VANISHING, run_of(CHAIN, gradients([-6, -6, -6, 0, 0, 0, 0, 0])))


def test_zeros_are_not_the_matter_of_this_rule():
    read = gradients([0] * 8)
    zero = [reading(name, "grad_output", [row(100, 0.0, 0.0, zeros=100)]) for name in NAMES[:4]]
    assert not symptoms(VANISHING, run_of(CHAIN, lambda n: [*read(n)[:8], *zero, *read(n)[12:]]))


@pytest.mark.parametrize(("each", "fires"), [(0.2, False), (0.35, True)])
def test_a_gradient_that_grows_by_a_factor_of_70_explodes(each, fires):
    run = run_of(CHAIN, gradients(steady(each)))
    assert bool(symptoms(EXPLODING, run)) is fires
    assert not symptoms(VANISHING, run)


def test_the_layer_is_named_that_makes_the_gradient_explode():
    (symptom,) = symptoms(EXPLODING, run_of(CHAIN, gradients([3, 3, 3.1, 2.9, 0, 0.1, 0, 0])))
    assert symptom.module == "fc4"


@pytest.mark.parametrize(("growth", "fires"), [(0.1, False), (0.5, True)])
def test_gradients_that_grow_a_hundredfold_against_their_own_history_explode(growth, fires):
    found = symptoms(EXPLODING, run_of(CHAIN, gradients([0] * 8, growth), count=15))
    assert [symptom.module for symptom in found] == ([""] if fires else [])


def test_a_model_of_three_layers_has_no_course():
    run = run_of(CHAIN[:3], gradients([-6, -3, 0], names=NAMES[:3]))
    assert not symptoms(VANISHING, run)
