"""The numbers of `spike` and `not_learning`, each against float64 over raw tensors."""

import functools
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from callbacks.course import Course, looks_of, of_layer, ratio, shortened
from recorded import CROSS_ENTROPY, EVERY, STEPS, Recorded, classes, linear, numbers, rms, said, sized, verdict_of
from torch import nn
from toys import fit

from hookboard import HealthMonitor


def agreement(model, looks):
    """The median over matrices and consecutive looks of the cosine between the gradients' means over each unit."""

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    means = [{name: grad.mean(1) for name, grad in model.steps[step].items() if grad.ndim > 1} for step in looks]
    return float(np.median([cosine(one[name], other[name]) for one, other in pairwise(means) for name in one]))


def heard_in(model, data, monitor):
    """The verdicts that there were before the end of each step."""
    heard, ends = [], model.on_train_batch_end

    def hear(*args):
        heard.extend(monitor.verdicts)
        ends(*args)

    model.on_train_batch_end = hear
    fit(None, model, data, monitor)
    return heard


@pytest.fixture(scope="module")
def at_chance():
    """A training on random labels, and what `not_learning` said of it before and at the end."""
    made = torch.Generator().manual_seed(1)
    data = [(x, torch.randint(3, (32,), generator=made)) for x, _ in classes(200)]
    model = Course(sized(linear(8, 32), nn.ReLU, linear(32, 3)), CROSS_ENTROPY, rate=5e-3, optimizer=torch.optim.Adam)
    monitor = HealthMonitor(every_n_steps=EVERY, rules=["not_learning"])
    heard = heard_in(model, data, monitor)
    return model, heard[-1].evidence, monitor.verdicts[0].evidence


def test_a_loss_that_stays_at_chance_while_weights_move_and_gradients_agree_on_nothing(at_chance):
    model, evidence, _ = at_chance
    # It says the one or the other, at 5 % below the start.
    what = "is stuck" if "is stuck" in evidence else "has stopped falling"
    first, now, chance, moved, agree = numbers(
        f"the loss was # at the first step and {what} at # (chance level: #), while the update-to-weight ratio is #; "
        "gradients are uncorrelated between measurements (each unit's mean gradient has a median cosine of #)",
        evidence,
    )
    assert (first, chance) == (shortened(model.losses[0], 3), 1.1)
    # The verdict may be of any of the last looks.
    assert now in {shortened(np.median(model.losses[end - 16 : end]), 3) for end in range(100, 201, EVERY)}
    looks = looks_of(200)
    expected = []  # at each look, of which the last three are the window
    for end in range(8, len(looks) + 1):
        moves = [ratio(model, step, i) for step in looks[end - 3 : end] for i in (0, 2)]
        expected.append((shortened(np.median(moves), 1), round(agreement(model, looks[end - 8 : end]), 2)))
    assert (moved, agree) in expected


def agreed(evidence):
    return numbers("between measurements (each unit's mean gradient has a median cosine of #)", evidence)


def test_the_loss_and_the_cosine_of_gradients_of_a_training_that_ends_at_chance(at_chance):
    model, _, evidence = at_chance
    told = numbers(
        "training ended after # steps with a loss of #; it was # at the first step, and chance level is #",
        evidence,
    )
    at_end, at_start = np.median(model.losses[-50:]), model.losses[0]
    assert told == [200, *(shortened(value, 3) for value in (at_end, at_start, math.log(3)))]
    assert agreed(evidence) == [round(agreement(model, looks_of(200)[-8:]), 2)]


def test_the_best_constant_answer_and_the_loss_that_ends_above_it(tmp_path):
    made = torch.Generator().manual_seed(1)
    data = [(x, 6.0 * torch.randint(2, (32, 2), generator=made) - 2) for x, _ in classes(200)]
    net = sized(linear(8, 2))
    net[0].weight.data *= 0.1
    net[0].bias.data.fill_(1.0)
    model = Course(net, nn.functional.mse_loss, rate=1e-3)
    # That answer is known where the first step is read, as a rule on it asks for.
    monitor = HealthMonitor(every_n_steps=EVERY, rules=["not_learning", "dropout"])
    fit(tmp_path, model, data, monitor)
    evidence = monitor.verdicts[0].evidence
    end, start, constant = numbers(
        "with a loss of #; it was # at the first step, and the best constant prediction for the first batch gives #",
        evidence,
    )
    wanted = data[0][1].double()
    assert constant == shortened(float(((wanted - wanted.mean(0)) ** 2).mean()), 3)
    assert (end, start) == (shortened(np.median(model.losses[-50:]), 3), shortened(model.losses[0], 3))
    assert agreed(evidence) == [round(agreement(model, looks_of(200)[-8:]), 2)]


def diverging(count, rate):
    """A regression whose loss SGD multiplies in each step, at a rate that is this many times the highest stable one.

    Returns:
        The model, its batches, and the highest stable rate: 2 over the largest eigenvalue of the Hessian.
    """
    made = torch.Generator().manual_seed(1)
    x = torch.randn(32, 4, generator=made)
    data = [(x, x.sum(1, keepdim=True))] * count
    rows = torch.cat([x, torch.ones(32, 1)], 1).double()
    highest = 2 / float(torch.linalg.eigvalsh(2 * rows.T @ rows / 32).max())
    return Course(sized(linear(4, 1)), nn.functional.mse_loss, rate=rate * highest), data, highest


@pytest.mark.parametrize(
    ("count", "rate", "rule", "options"),
    [
        (60, 1.2, "not_learning", {}),
        (60, 40.0, "nonfinite", {}),
        (60, 40.0, "nonfinite", {"momentum": 0.5}),
        (60, 40.0, "nonfinite", {"momentum": 0.9, "nesterov": True}),
        (60, 1.2, "not_learning", {"weight_decay": 1e-3}),
    ],
)
def test_the_rate_that_is_advised_where_sgd_makes_the_loss_grow(tmp_path, count, rate, rule, options):
    model, data, highest = diverging(count, rate)
    model.optimizer = functools.partial(torch.optim.SGD, **options)
    # The best constant answer is known where the first step is read, as a rule on it asks for.
    monitor = HealthMonitor(every_n_steps=EVERY, rules=[rule, "dropout"])
    fit(tmp_path, model, data, monitor)
    (verdict,) = [one for one in monitor.verdicts if one.rule == rule]
    to, steps, growth = numbers(
        "ower the learning rate to about # (the loss grew for # steps in a row, by a median factor of #)",
        verdict.advice,
    )
    losses = np.array([loss for loss in model.losses if np.isfinite(loss)])
    begin = int(np.flatnonzero(np.diff(losses) <= 0)[-1]) + 1 if (np.diff(losses) <= 0).any() else 0
    assert steps == len(losses) - begin - 1
    assert growth == pytest.approx(np.median(losses[begin + 1 :] / losses[begin:-1]), rel=0.05)
    # Of the quadratic it is one half; with momentum the loss grows by less at the same rate.
    assert (
        (0.2 if "momentum" in options else 0.4) * highest <= to <= 0.6 * highest * (2 if "nesterov" in options else 1)
    )


class Scheduled(Course):
    """Sets the learning rate of a step by a function of its number."""

    def __init__(self, *args, rate_at, **options):
        super().__init__(*args, rate=rate_at(0), **options)
        self.rate_at = rate_at

    def on_train_batch_start(self, batch, at):
        for group in self.optimizers().param_groups:
            group["lr"] = self.rate_at(at)


@pytest.mark.parametrize(
    ("factor", "every"),
    [
        (lambda step: min(1.0, (step + 1) / 50), 10),
        (lambda step: 1.0 if step >= 30 else 1e-3, 50),
        (lambda step: 1.0 if step >= 30 else 1e-3, 8),
    ],
    ids=["warm-up", "a jump, few looks", "a jump, many looks"],
)
def test_no_rate_is_advised_where_the_rate_changes(factor, every):
    """Which one was in force while the loss grew is not known."""
    plain, data, highest = diverging(90, 40.0)
    model = Scheduled(plain.net, nn.functional.mse_loss, rate_at=lambda step: 40.0 * highest * factor(step))
    heard = heard_in(model, data, HealthMonitor(every_n_steps=every, rules=["nonfinite", "dropout"]))
    assert any("ower the learning rate" in verdict.advice for verdict in heard)
    assert not [verdict.advice for verdict in heard if "to about" in verdict.advice]


def test_no_rate_is_advised_where_adam_makes_the_loss_grow():
    model, data, _ = diverging(60, 1e4)
    model.optimizer = torch.optim.Adam
    heard = heard_in(model, data, HealthMonitor(every_n_steps=EVERY, rules=["not_learning", "dropout"]))
    assert [one for one in heard if "to about" in one.advice] == []


def learned(data, steps=200):
    net = sized(linear(8, 16), nn.Tanh, linear(16, 3))
    fit(None, Recorded(net, CROSS_ENTROPY, optimizer=torch.optim.Adam), data[:steps])
    return net


def spoiled(data, share):
    """The batches with classes drawn at random in a share of the samples, given for each batch."""
    made = torch.Generator().manual_seed(1)
    drawn = [(torch.rand(32, generator=made), torch.randint(3, (32,), generator=made)) for _ in data]
    return [
        (x, torch.where(at < share(i), other, y))
        for i, ((x, y), (at, other)) in enumerate(zip(data, drawn, strict=True))
    ]


def test_a_classifier_that_ends_worse_than_it_began(tmp_path):
    data = classes(300)
    data, net = spoiled(data, lambda i: 0.05 + 0.4 * i / 300), learned(data)
    model = Course(net, CROSS_ENTROPY, rate=1e-2, optimizer=torch.optim.Adam)
    evidence = said(tmp_path, model, data, "not_learning")
    steps, end, first, chance = numbers(
        "training ended after # steps with a loss of #, up from # at the first step, so the model got worse "
        "(chance level: #)",
        evidence,
    )
    assert (steps, chance) == (300, shortened(math.log(3), 3))
    assert (end, first) == (shortened(np.median(model.losses[-75:]), 3), shortened(model.losses[0], 3))
    assert agreed(evidence) == [round(agreement(model, looks_of(300)[-8:]), 2)]


def test_a_classifier_that_the_first_steps_spoiled(tmp_path):
    data = classes(300)
    data, net = spoiled(data, lambda i: 0.5 if i else 0.0), learned(data, 150)
    model = Course(net, CROSS_ENTROPY, rate=1e-4)
    evidence = said(tmp_path, model, data, "not_learning")
    (peak,) = numbers("(the first 8 steps raised it to #, and it never recovered)", evidence)
    assert peak == shortened(np.median(model.losses[1:9]), 3)


# Steps


LOOKS = looks_of(STEPS)


def deep():
    return sized(linear(8, 16), nn.Tanh, linear(16, 16), nn.Tanh, linear(16, 3))


def moved(model, step):
    """How far a step moved the weights, (medians over the layers)."""
    return np.median([ratio(model, step, i) for i in (0, 2, 4)])


def test_how_far_steps_moved_the_weights_and_the_rate_at_which_they_move_less(tmp_path):
    model = Course(deep(), CROSS_ENTROPY, rate=2.0, optimizer=torch.optim.Adam)
    verdict = verdict_of(tmp_path, model, classes(), "update_too_large")
    course = [moved(model, step) for step in LOOKS]
    largest, at = numbers("the update-to-weight ratio was # at step #", verdict.evidence)
    assert (largest, at) == (shortened(max(course)), LOOKS[int(np.argmax(course))])
    now, step = numbers("1e-3 is usual), and # at step #", verdict.evidence)
    assert (now, step) == (shortened(course[-1]), 99)
    assert numbers("at a learning rate of #", verdict.evidence) == [2.0]
    assert numbers("to about #, so that", verdict.advice) == [shortened(2.0 * 0.01 / course[0], 1)]


def test_the_factor_by_which_to_lower_a_rate_that_changes(tmp_path):
    options = {"optimizer": torch.optim.Adam, "rate_at": lambda step: 2.0 / (1 + step / 10)}
    model = Scheduled(deep(), CROSS_ENTROPY, **options)
    verdict = verdict_of(tmp_path, model, classes(), "update_too_large")
    factor, step = numbers("by a factor of about #, so that step # changes the weights by 1%", verdict.advice)
    assert (factor, step) == (shortened(moved(model, LOOKS[0]) / 0.01, 1), LOOKS[0])
    now, highest = numbers("at a learning rate of # (# at its highest)", verdict.evidence)
    assert (now, highest) == (shortened(options["rate_at"](LOOKS[-1]), 2), 2.0)


def test_between_which_steps_a_learning_rate_jumped_and_where_it_is_now(tmp_path):
    model = Scheduled(deep(), rate_at=lambda at: 1e-3 if at < 40 else 0.02, optimizer=torch.optim.Adam)
    model.loss = lambda out, y: CROSS_ENTROPY(out, y) + 3 * (len(model.losses) >= 40)
    told = numbers(
        "the learning rate rose from # to # between steps # and #, and is # now",
        said(tmp_path, model, classes(), "update_too_large"),
    )
    assert told == [1e-3, 0.02, 40, 49, 0.02]


def test_how_far_a_loss_rose_in_the_first_steps_and_where_it_is(tmp_path):
    model = Scheduled(deep(), CROSS_ENTROPY, rate_at=lambda at: 0.05 if at else 40.0, optimizer=torch.optim.SGD)
    evidence = said(tmp_path, model, classes(), "update_too_large")
    told = numbers("; the loss rose from # to # in the first steps, and is # now", evidence)
    first, highest = model.losses[0], max(model.losses[:32])
    assert told == [shortened(value, 3) for value in (first, highest, np.median(model.losses[-16:]))]


class Grouped(Course):
    """One layer has a learning rate of its own in each step."""

    def __init__(self, *args, own, **options):
        super().__init__(*args, **options)
        self.own = own

    def configure_optimizers(self):
        rest = [p for name, p in self.named_parameters() if not name.startswith("net.2.")]
        return torch.optim.Adam([{"params": rest}, {"params": self.net[2].parameters()}], lr=self.rate)

    def on_train_batch_start(self, batch, at):
        self.optimizers().param_groups[1]["lr"] = self.own(at)


def test_how_far_a_layer_moves_that_moves_farther_than_all_others(tmp_path):
    model = Grouped(deep(), rate=1e-4, own=lambda step: 0.1 * 1.3**step)
    model.loss = lambda out, y: CROSS_ENTROPY(out, y) + 0.05 * len(model.losses)  # the rule wants harm
    evidence = said(tmp_path, model, classes(), "update_too_large")
    moves, usual = numbers("its update-to-weight ratio is # (the median layer's: #", evidence)
    assert (moves, usual) == (shortened(ratio(model, 99, 2)), shortened(moved(model, 99), 1))


def test_how_far_steps_move_the_weights_and_did_before_they_were_too_large(tmp_path):
    model = Scheduled(deep(), CROSS_ENTROPY, rate_at=lambda step: 1e-3 * 1.17**step)
    evidence = said(tmp_path, model, classes(), "update_too_large")
    (now,) = numbers("the update-to-weight ratio is #", evidence)
    (before,) = numbers("median over layers; # before that)", evidence)
    course = np.array([moved(model, step) for step in LOOKS])
    last = np.array([ratio(model, LOOKS[-1], i) for i in (0, 2, 4)])
    assert now == shortened(np.median(last[last > 0]))  # a layer that no gradient reaches does not count
    assert before == shortened(np.median(course[: np.argmax(course > 0.1)]), 1)


def test_how_far_most_weights_have_grown(tmp_path):
    model = Course(deep(), CROSS_ENTROPY, rate=1e-30)

    def grow(*args):
        for i in (0, 2, 4):
            model.net[i].weight.data *= 1.08
            model.net[i].bias.data *= 1.08

    model.on_train_batch_start = grow
    evidence = said(tmp_path, model, classes(), "update_too_large")
    (grown,) = numbers("most weights have grown to at least # times their initial size", evidence)
    sizes = [[rms(of_layer(model.begun[step], i)) for i in (0, 2, 4)] for step in (0, 99)]
    assert grown == shortened(np.median(np.divide(sizes[1], sizes[0])))


def test_how_far_a_layer_moves_that_hardly_moves(tmp_path):
    model = Grouped(deep(), CROSS_ENTROPY, own=lambda step: 1e-7)
    evidence = said(tmp_path, model, classes(), "update_too_small")
    moves, usual = numbers("its update-to-weight ratio is # (median of the other layers: #", evidence)
    assert moves == shortened(ratio(model, 99, 2), 1)
    assert usual == shortened(np.median([ratio(model, 99, i) for i in (0, 4)]), 1)


@pytest.mark.parametrize("limit", [None, 1.0])
def test_where_the_loss_had_been_before_a_spike_and_whether_to_clip_gradients(tmp_path, limit):
    data = classes()
    data[99] = (1e3 * data[99][0], (data[99][1] + 1) % 3)
    model = Recorded(sized(linear(8, 16), nn.ReLU, linear(16, 3)), CROSS_ENTROPY, rate=1e-4)
    verdict = verdict_of(tmp_path, model, data, "spike", gradient_clip_val=limit)
    loss, usual = numbers("the loss was # at step 99, batch 99; it had been around #", verdict.evidence)
    middle = np.median(model.losses[26:90])  # 64 losses up to the look before
    assert (loss, usual) == (shortened(model.losses[99], 3), shortened(middle, 3))
    assert ("clip gradients" in verdict.advice) is (limit is None)


def test_where_a_loss_is_that_stays_far_above_chance(tmp_path):
    net = sized(linear(8, 3))
    net[0].weight.data *= 300
    model = Course(net, CROSS_ENTROPY, rate=1e-5)
    evidence = said(tmp_path, model, classes(200), "update_too_small")
    now, chance = numbers("the loss is #, and chance level is #", evidence)
    assert now == shortened(np.median(model.losses[-16:]), 3)
    assert chance == shortened(math.log(3), 3)


def test_from_where_to_where_a_loss_rose(tmp_path):
    model = Course(sized(linear(8, 3)), rate=1e-5)
    model.loss = lambda out, y: CROSS_ENTROPY(out, y) * (0.5 + abs(len(model.losses) - 100) / 200)
    best, now = numbers("; the loss rose from # to #", said(tmp_path, model, classes(200), "update_too_small"))
    assert now == shortened(np.median(model.losses[-16:]), 3)
    assert best == pytest.approx(min(np.median(model.losses[i : i + 16]) for i in range(184)), rel=0.05)


class Validated(Course):
    """Logs a loss in validation that rises while that in training falls."""

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", 1.0 + 0.02 * len(self.losses))


def test_the_logged_losses_of_validations_and_those_of_training(tmp_path):
    made = torch.Generator().manual_seed(1)
    data = [(x, x[:, :2] + 0.01 * torch.randn(32, 2, generator=made)) for x, _ in classes(20)]
    model = Validated(sized(linear(8, 2)), nn.functional.mse_loss, rate=0.05)
    monitor = HealthMonitor(every_n_steps=EVERY, rules=["overfitting"])
    fit(tmp_path, model, data, monitor, max_epochs=6, limit_val_batches=1, num_sanity_val_steps=0)
    (verdict,) = monitor.verdicts
    first, since, last, start, level = numbers(
        "the validation loss rose from # (the first validation, at step #) to #, while the training loss fell from # "
        "to #",
        verdict.evidence,
    )
    assert (first, last) == (shortened(1.0 + 0.02 * 20, 3), shortened(1.0 + 0.02 * 120, 3))
    assert since == verdict.since == 19
    assert start == shortened(model.losses[0], 3)
    assert level == pytest.approx(np.median(model.losses[-16:]), rel=0.01)


def test_since_when_no_weight_has_changed(tmp_path):
    net = sized(linear(8, 16), nn.ReLU, linear(16, 3))
    model = Scheduled(net, CROSS_ENTROPY, rate_at=lambda step: max(0.0, 0.1 - step / 400))
    evidence = said(tmp_path, model, classes(), "not_updated")
    since, still, steps = numbers(
        "no weight of the model has changed since step #: the learning rate is 0 (# of # steps)", evidence
    )
    # A look shows the weights that the step before it has left.
    kept = [np.concatenate([value.ravel() for value in weights.values()]) for weights in model.ended]
    assert since == next(look for look in LOOKS[1:] if np.array_equal(kept[look - 1], kept[-1]))
    assert (still, steps) == (STEPS - since, STEPS)
