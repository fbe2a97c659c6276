"""`spike` and `not_learning`: what fires, and what looks alike and is well."""

import math
from dataclasses import replace

import numpy as np
import pytest
from health import looks
from health.looks import reading, row
from health.trainings import LAYERS, WEIGHTS, WINDOW, falling, findings, judged, of, places, seen, stuck, training

from hookboard.health.judge import Judge
from hookboard.health.look import Look, Loss
from hookboard.health.losses import SPIKE_ALONE_SHARE, STEPS_BEFORE_STUCK
from hookboard.health.rules.learning import ANSWER_SPREAD_MIN, ANSWER_SPREAD_SHARE_MIN
from hookboard.health.run import Run, StepFacts
from hookboard.model.layers import Layer
from hookboard.tracing.questions import RULES

SPIKE, NOT_LEARNING = RULES["spike"], RULES["not_learning"]


def spiked(steps: int, at: int, value: float, after: list[float] | None = None) -> list[float]:
    losses = [2.3 * 0.99**i + 0.02 * float(np.sin(7 * i)) for i in range(steps)]
    losses[at] = value
    if after is not None:
        losses[at + 1 :] = after
    return losses


def followed(share: float) -> list[float]:
    """A spike, and behind it losses that lie at this share of its height; then the loss stays where it began."""
    losses = spiked(120, 60, 40.0)
    usual = float(np.median(losses[:60]))
    return [*losses[:61], *[usual + share * (40.0 - usual)] * 4, *stuck(55)]


RISES, NOISE = np.linspace(0.5, 2.3, 60), np.random.default_rng(0).standard_t(5, 500)
NEARLY_CONSTANT = [1.0 + 1e-4 * (i % 2) for i in range(59)]
SPIKES = {
    "that does no harm": (spiked(100, 60, 40.0), 1, [("note", 60, 60)]),
    "after which the loss never comes back": (spiked(100, 60, 40.0, stuck(39)), 1, [("alarm", 60, 60)]),
    "between two looks": (spiked(100, 63, 40.0, stuck(36)), 10, [("alarm", 63, 63)]),
    # As where other data come in a curriculum.
    "before losses that are as high": (followed(1.1 * SPIKE_ALONE_SHARE), 1, [("note", 60, 60)]),
    "before losses that are not as high": (followed(0.9 * SPIKE_ALONE_SHARE), 1, [("alarm", 60, 60)]),
    "after harm": ([*np.linspace(2.3, 0.5, 60), *RISES, 50.0, *stuck(60)], 1, [("note", 120, 120)]),
    "within the noise": (falling(50) + [1.0 + 0.1 * float(x) for x in NOISE], 5, []),
    "by less than half": ([*NEARLY_CONSTANT, 1.4], 1, []),
    "by more than half": ([*NEARLY_CONSTANT, 1.6], 1, [("note", 59, 59)]),
}


@pytest.mark.parametrize(("losses", "every", "said"), SPIKES.values(), ids=SPIKES)
def test_a_spike_is_named_with_its_batch(losses, every, said):
    verdicts = judged([SPIKE], training(len(losses) // every, losses=losses, every=every)).verdicts
    assert [(v.severity, v.since, v.batch_idx) for v in verdicts] == said
    assert all(v.until == v.since for v in verdicts if v.severity == "note")


def test_a_loss_whose_very_first_value_is_high_has_not_blown_up():
    assert not seen(training(60, losses=[68.0, *[5.0] * 59])).has_blown_up
    assert seen(training(60, losses=[5.0, 5.0, 68.0, *[5.0] * 57])).has_blown_up


def test_a_loss_that_rose_to_chance_is_not_learning_since_it_was_lowest():
    losses = [*np.linspace(2.3, 0.2, 60), *stuck(STEPS_BEFORE_STUCK)]
    (found,) = findings(NOT_LEARNING, training(len(losses), losses=losses))
    assert found.evidence.startswith("the loss rose from 0.")
    assert 56 <= found.since <= 64


@pytest.mark.parametrize(("sizes", "is_told"), [((0.01, 0.02, 0.02), False), ((0.01, 0.02, 0.03), True)])
def test_nobody_is_told_to_clip_gradients_whose_largest_norm_comes_again(sizes, is_told):
    def change(step):
        size = sizes[0 if step < 57 else step - 57]
        rows = [row(100, 0.0, size)] * 8
        return {(w, "parameter_grad"): reading(w, "parameter_grad", rows) for w in WEIGHTS}

    (finding,) = findings(SPIKE, training(60, change, losses=spiked(60, 59, 40.0)))
    assert ("clip gradients" in finding.advice) is is_told


def always(change):
    return lambda step: change


def of_weights(role, size):
    return {(w, role): of(w, role, size) for w in WEIGHTS}


STILL = always(of_weights("parameter_update", 1e-9))
"""A model that does not move, so that nothing is said before its training ends."""


def test_of_a_loss_at_chance_with_gradients_that_agree_on_nothing_the_data_is_suspected_and_no_layer_is_acquitted():
    found = findings(NOT_LEARNING, training(STEPS_BEFORE_STUCK, losses=stuck(STEPS_BEFORE_STUCK)))
    assert places(found) == [("", "alarm")]
    assert found[0].since == 0
    assert found[0].advice.endswith("then check the loss function, and that inputs and labels match")


def test_a_loss_that_came_down_to_how_frequent_the_classes_are_may_be_on_a_plateau():
    losses = [*np.linspace(2.1, 1.7, 30), *[1.7] * (STEPS_BEFORE_STUCK - 30)]
    alike = {("head", "output"): of("head", "output", 1.1 * ANSWER_SPREAD_MIN)}
    found = findings(NOT_LEARNING, training(STEPS_BEFORE_STUCK, lambda step: alike, losses=losses))
    assert places(found) == [("", "note")]


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        (STEPS_BEFORE_STUCK - 1, {}),
        (STEPS_BEFORE_STUCK, {"change": always(of_weights("parameter_grad", 0.01))}),
        (STEPS_BEFORE_STUCK, {"change": STILL}),
        (STEPS_BEFORE_STUCK, {"rate": lambda step: 1e-5 * (step + 1)}),
    ],
    ids=["few steps", "gradients that agree", "a model that does not move", "a rate that still rises"],
)
def test_data_is_not_blamed_for_a_loss_that_stays_with(steps, options):
    assert findings(NOT_LEARNING, training(steps, losses=stuck(steps), **options)) == []


def test_gradients_of_two_logits_are_alike_by_chance_and_say_nothing():
    """What is left where all but the last layer of a classifier of two classes is frozen."""
    few = {(w, "parameter_grad"): None for w in WEIGHTS[:-1]}
    last = {
        (WEIGHTS[-1], "parameter_grad"): reading(WEIGHTS[-1], "parameter_grad", [row(1, 0.01, 0.0), row(1, -0.01, 0.0)])
    }
    steps = STEPS_BEFORE_STUCK
    (found,) = findings(NOT_LEARNING, training(steps, lambda step: few | last, losses=stuck(steps)))
    assert "cosine" not in found.evidence


@pytest.mark.parametrize(
    ("frozen", "advised"),
    [
        (WEIGHTS[:5], "check whether fc0, fc1 should be frozen; then change the learning rate"),
        (WEIGHTS[:1], "change the learning rate"),
    ],
)
def test_of_a_loss_that_stays_the_layers_that_are_frozen_are_to_be_looked_at_before_the_rate(frozen, advised):
    steps = STEPS_BEFORE_STUCK
    (found,) = findings(
        NOT_LEARNING, training(steps, losses=stuck(steps), edit=lambda look: replace(look, frozen={*frozen}))
    )
    assert found.advice.startswith(advised)


@pytest.mark.parametrize(("batch", "fires"), [(9, False), (5, True)])
def test_a_wild_last_batch_of_an_epoch_is_no_spike(batch, fires):
    """It has fewer samples, as a rule."""
    run = Run({}, WINDOW)
    for step in range(60 + batch + 1):
        value = 3.0 if step == 60 + batch else 0.3 + 0.01 * (step % 3)
        run.see(Look(step, step % 10, looks.readings_of([]), [Loss(step, step % 10, value)]))
    assert bool(list(SPIKE.judge(run))) is fires


def answered(deviation: float, size: float):
    """What is said of a loss at chance where the answers have this deviation over the samples, and this RMS."""
    mean = (size**2 - deviation**2) ** 0.5

    def change(step):
        return {
            ("head", "output"): reading("head", "output", [row(100, mean * (-1) ** i, deviation) for i in range(8)])
        }

    return places(findings(NOT_LEARNING, training(STEPS_BEFORE_STUCK, change, losses=stuck(STEPS_BEFORE_STUCK))))


@pytest.mark.parametrize(("times", "said"), [(1.03, [("", "alarm")]), (0.97, [])])
def test_answers_that_differ_by_a_share_of_their_size_speak_and_large_ones_by_a_smaller_share(times, said):
    small = ANSWER_SPREAD_MIN / 2
    assert answered(small, size=small / (times * ANSWER_SPREAD_SHARE_MIN)) == said
    assert answered(times * ANSWER_SPREAD_MIN, size=2.0) == said


@pytest.mark.parametrize(("third", "is_classifier"), [(-0.02, True), (0.02, False)])
def test_outputs_whose_gradients_do_not_add_up_to_0_are_no_classifiers(third, is_classifier):
    rows = [looks.row(mean=mean, deviation=0.01) for mean in (0.01, 0.01, third)]
    gradient = {("head", "grad_output"): looks.reading("head", "grad_output", rows)}
    run = judged([], training(3, lambda step: gradient)).run
    assert (run.losses.chance is not None) is is_classifier


@pytest.mark.parametrize("is_sum", [False, True])
def test_of_a_sum_of_losses_nobody_knows_what_chance_gives(is_sum):
    judge = Judge([], LAYERS, WINDOW)
    judge.run.facts = StepFacts(is_sum=is_sum)
    for look in training(3, lambda step: {}):
        judge.see(look)
    assert (judge.run.losses.chance is None) is is_sum


def unbalanced(step):
    """No softmax follows these outputs, so that chance is not known."""
    return {("head", "grad_output"): of("head", "grad_output", 0.01, mean=0.01)}


@pytest.mark.parametrize("rule", ["not_learning", "update_too_small"])
def test_a_loss_that_stays_may_be_that_of_a_trained_model_where_chance_is_not_known(rule):
    small = {(w, "parameter_update"): of(w, "parameter_update", 1e-6) for w in WEIGHTS}
    change = (lambda step: unbalanced(step) | small) if rule == "update_too_small" else unbalanced
    made = training(STEPS_BEFORE_STUCK, change, losses=stuck(STEPS_BEFORE_STUCK))
    assert places(findings(RULES[rule], made)) == [("", "note")]


@pytest.mark.parametrize(("outputs", "severity"), [(1.0, "note"), (1e5, "alarm")])
def test_a_loss_far_below_0_is_an_alarm_if_the_outputs_went_along(outputs, severity):
    def change(step):
        return unbalanced(step) | {("head", "output"): of("head", "output", outputs if step else 1.0)}

    losses = [2.3] * 4 + list(np.linspace(2.3, -1000.0, 56))
    assert places(findings(NOT_LEARNING, training(60, change, losses=losses))) == [("", severity)]


def ended(losses, constant=math.nan, change=None, resumed=0, layers=LAYERS, findings=(), **options):
    """Severities and advice of what is said at the end of a training, whose last losses no look has seen."""
    looks_ = max((len(losses) - 8) // 8, 1)
    made = training(looks_, change or unbalanced, losses=losses, every=8, layers=layers, **options)
    judge = Judge([NOT_LEARNING], layers, WINDOW)
    for one in made:
        later = [replace(loss, step=loss.step + resumed) for loss in one.losses]
        judge.see(replace(one, losses=later))
        judge.run.facts = StepFacts(constant_loss=constant, findings=findings)
    last = range(8 * looks_, len(losses))
    verdicts = judge.end([Loss(step + resumed, step, losses[step]) for step in last])
    return [(v.severity, v.advice) for v in verdicts if "raining ended" in v.evidence]


STEADY = "train longer, or try other learning rates"


@pytest.mark.parametrize(("end", "said"), [(4.1, [("note", STEADY)]), (3.9, [])])
def test_a_loss_that_falls_and_ends_at_twice_that_of_the_best_constant_has_ended_too_early(end, said):
    assert ended([*np.linspace(10, end, 150), *[end] * 50], constant=2.0) == said


def test_a_loss_that_the_first_steps_have_raised_asks_for_a_lower_rate():
    losses = [3.3, *[25.0] * 20, *np.linspace(25, 4.4, 100), *[4.4] * 79]
    [(severity, advice)] = ended(losses, constant=2.0)
    assert severity == "alarm"
    assert advice.startswith("lower the learning rate, or warm it up from 0; ")
    # It is the constant of the first batch.
    assert advice.endswith("ignore this if the targets of later batches are larger")


def down_to(share: float, first: float = 1.0, steps: int = 150) -> list[float]:
    """Losses of a classifier that come down from one multiple of chance to another, and stay there."""
    fall, chance = steps // 4, math.log(8)
    return [*np.linspace(first * chance, share * chance, fall), *[share * chance] * (steps - fall)]


def near(end: float) -> list[float]:
    """Losses that fall from 1 to `end`."""
    return [1.0 + 0.001 * (i % 2) - (1 - end) * i / 199 for i in range(200)]


NOISY = [float(abs(1 + 0.5 * x)) for x in np.random.default_rng(0).normal(size=200)]
RISING = {"rate": lambda step: 1e-5 * (step + 1)}
ENDS = {
    "where it began, as the best constant does": (near(0.96), {"constant": 1.0}, ["alarm"]),
    "a little below the best constant": (near(0.94), {"constant": 1.0}, []),
    "as noisy as it is large": (NOISY, {"constant": 1.0}, []),
    "where it began, of a model that was trained before": ([0.3] * 200, {"constant": 1.0}, []),
    "where it began, of a fit that goes on": ([10.0] * 200, {"constant": 1.0, "resumed": 1000}, []),
    "at chance": (down_to(0.97), {"change": STILL}, ["alarm"]),
    "below chance": (down_to(0.93), {"change": STILL}, []),
    # As a transformer that has learnt how frequent its tokens are, and nothing else yet.
    "a little below chance, to which it came down": (down_to(0.97, 1.2, 110), {"change": STILL}, ["note"]),
    "a little above chance, to which it came down": (down_to(1.01, 1.2, 110), {"change": STILL}, ["alarm"]),
    "high after few steps": ([10.0] * (STEPS_BEFORE_STUCK - 1), {"constant": 1.0}, ["note"]),
    "high after enough steps": ([10.0] * STEPS_BEFORE_STUCK, {"constant": 1.0}, ["alarm"]),
    "high while the rate still rises": ([10.0] * 200, {"constant": 1.0} | RISING, ["note"]),
}


@pytest.mark.parametrize(("losses", "options", "severities"), ENDS.values(), ids=ENDS)
def test_of_a_loss_that_ends(losses, options, severities):
    assert [severity for severity, _ in ended(losses, **options)] == severities


@pytest.mark.parametrize(("dropped", "severity"), [(60, "alarm"), (80, "note")])
def test_a_dropout_that_drops_most_values_makes_it_a_note(dropped, severity):
    layers = looks.layers(*list(LAYERS.values())[:2], Layer("drop", "Dropout", "dropout"), *list(LAYERS.values())[2:])
    spread = 1.16  # the RMS of the usual outputs
    drop = reading("drop", "output", [looks.dropped(100, dropped, spread) for _ in range(8)])
    change = lambda step: unbalanced(step) | {("drop", "output"): drop}  # noqa: E731
    assert [said for said, _ in ended([10.0] * 200, constant=1.0, layers=layers, change=change)] == [severity]


@pytest.mark.parametrize(("end", "is_said"), [(1.12, True), (1.08, False)])
def test_a_classifier_that_ends_worse_than_it_was_given_is_an_alarm(end, is_said):
    """As adapters whose rate is too high: chance is 2.08, and 5 % of that are 0.1."""
    found = ended([1.0, *[end] * 199], change=lambda step: {})
    assert found == [("alarm", "lower the learning rate, or warm it up from 0")] * is_said


def validated(values, losses=None):
    """What is said after validations with these losses, at every 10th step of a training whose loss falls."""
    judge = Judge([RULES["overfitting"]], LAYERS, WINDOW)
    for look in training(10 * len(values), losses=losses or falling(10 * len(values))):
        judge.see(look)
        if look.step % 10 == 9:
            loss = Loss(look.step, 0, values[look.step // 10])
            judge.see_evaluation(replace(look, losses=[loss]))
    return judge.verdicts


@pytest.mark.parametrize(
    ("values", "since", "said"),
    [
        ([2.2, 2.5, 2.8, 3.1, 3.4], 9, "rose from 2.2 (the first validation, at step 9) to 3.4"),
        ([2.0, 1.5, 1.0, 1.1, 1.4, 1.6], 29, "rose from 1 (its lowest, at step 29) to 1.6"),
    ],
)
def test_a_validation_loss_that_rises_while_that_in_training_falls_is_a_note_since_it_was_lowest(values, since, said):
    (verdict,) = validated(values)
    assert (verdict.severity, verdict.since) == ("note", since)
    assert said in verdict.evidence
    assert ("targets match their inputs" in verdict.advice) == (values[0] == min(values))


@pytest.mark.parametrize(
    ("values", "losses"),
    [
        ([2.2, 2.0, 1.8, 1.6, 1.5], None),
        ([2.2, 1.0, 1.2, 0.9, 1.3, 1.0], None),
        ([1.0, 0.001, 0.002, 0.004, 0.004], None),
        ([2.0, 3.0, 4.0], None),
        ([2.2, 2.5, 2.8, 3.1, 3.4], [1.0 + 0.1 * step for step in range(50)]),
    ],
    ids=["falls", "is noisy", "near 0", "too few", "rises with that in training"],
)
def test_nothing_is_said_of_a_validation_loss_that(values, losses):
    assert validated(values, losses) == ()
